//! `weir version`: version, protocol revisions and transports.

use std::env::consts::{ARCH, OS};
use std::io::Write;

use serde::Serialize;

use crate::cli::exit::Failure;
use crate::cli::output;
use weir_mcp::revision::{Era, Revision};

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

#[derive(Serialize)]
struct VersionReport {
    version: &'static str,
    arch: &'static str,
    os: &'static str,
    revisions: [&'static str; Revision::ALL.len()],
    clients: [&'static str; CLIENT_TRANSPORTS.len()],
    upstreams: [&'static str; UPSTREAM_TRANSPORTS.len()],
}

/// Prints the version, the revisions and the transports.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let report = VersionReport {
        version: env!("CARGO_PKG_VERSION"),
        arch: ARCH,
        os: OS,
        revisions: Revision::ALL.map(Revision::as_str),
        clients: CLIENT_TRANSPORTS,
        upstreams: UPSTREAM_TRANSPORTS,
    };
    output::print_report(args.json, &report, write_text)
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
