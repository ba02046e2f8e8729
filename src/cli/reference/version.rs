//! `weir version`: version, protocol revisions and transports.

use std::env::consts::{ARCH, OS};
use std::io::Write;

use crate::cli::exit::Failure;
use crate::cli::output;
use crate::json::{self, Object};
use crate::mcp::revision::{Era, Revision};

/// Arguments of `weir version`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Transports toward clients.
const CLIENT_TRANSPORTS: [&str; 3] = ["http", "http+sse", "stdio"];
/// Transports toward upstreams.
const UPSTREAM_TRANSPORTS: [&str; 4] = ["http", "http+sse", "stdio", "prompt library"];

/// Prints the version, the revisions and the transports.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    output::print(|out| match args.json {
        true => writeln!(out, "{}", to_json()),
        false => write_text(out),
    })
}

fn write_text(out: &mut dyn Write) -> std::io::Result<()> {
    let of = |era| {
        let all = Revision::ALL.into_iter().filter(|revision| revision.era() == era);
        all.map(Revision::as_str).collect::<Vec<_>>().join(", ")
    };
    writeln!(out, "weir {} ({ARCH} {OS})", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "revisions  {} (modern); {} (legacy)", of(Era::Modern), of(Era::Legacy))?;
    writeln!(out, "clients    {}", CLIENT_TRANSPORTS.join(", "))?;
    writeln!(out, "upstreams  {}", UPSTREAM_TRANSPORTS.join(", "))
}

fn to_json() -> String {
    let list = |words: &[&str]| {
        let words: Vec<_> = words.iter().map(|word| json::quote(word)).collect();
        [b"[", words.join(&b","[..]).as_slice(), b"]"].concat()
    };
    let mut object = Object::new();
    object.set("version", json::quote(env!("CARGO_PKG_VERSION")));
    object.set("arch", json::quote(ARCH));
    object.set("os", json::quote(OS));
    object.set("revisions", list(&Revision::ALL.map(Revision::as_str)));
    object.set("clients", list(&CLIENT_TRANSPORTS));
    object.set("upstreams", list(&UPSTREAM_TRANSPORTS));
    String::from_utf8_lossy(&object.to_bytes()).into_owned()
}
