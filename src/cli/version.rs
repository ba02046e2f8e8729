//! `weir version`: which Weir this is, and what it speaks.

use std::env::consts::{ARCH, OS};
use std::io::Write;

use super::exit::Failure;
use super::output;
use crate::json::{self, Object};
use crate::mcp::revision::{Era, Revision};

/// What `weir version` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// How clients reach Weir.
const SERVES: [&str; 3] = ["http", "http+sse", "stdio"];
/// How Weir reaches upstreams.
const REACHES: [&str; 4] = ["http", "http+sse", "stdio", "prompt library"];

/// Prints the version and what is spoken.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    output::print(|out| match args.json {
        true => writeln!(out, "{}", to_json()),
        false => write_words(out),
    })
}

fn write_words(out: &mut dyn Write) -> std::io::Result<()> {
    let of = |era| {
        let all = Revision::ALL.into_iter().filter(|revision| revision.era() == era);
        all.map(Revision::as_str).collect::<Vec<_>>().join(", ")
    };
    writeln!(out, "weir {} ({ARCH} {OS})", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "revisions  {} (modern); {} (legacy)", of(Era::Modern), of(Era::Legacy))?;
    writeln!(out, "clients    {}", SERVES.join(", "))?;
    writeln!(out, "upstreams  {}", REACHES.join(", "))
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
    object.set("clients", list(&SERVES));
    object.set("upstreams", list(&REACHES));
    String::from_utf8_lossy(&object.to_bytes()).into_owned()
}
