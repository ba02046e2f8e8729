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
    /// Prints also how this program was built; JSON always has it.
    #[arg(long, short)]
    verbose: bool,
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
    /// Target of the compiler; `None` if the program was built without `./dev`.
    target: Option<&'static str>,
    /// Commit of the sources; `None` if the program was built without `./dev`.
    commit: Option<&'static str>,
    /// Whether a profile of typical requests guided the compiler.
    profile_guided: bool,
}

/// Values that `./dev` sets in the environment of the compiler.
const TARGET: Option<&str> = option_env!("WEIR_TARGET");
const COMMIT: Option<&str> = option_env!("WEIR_COMMIT");
const PROFILE_GUIDED: bool = option_env!("WEIR_PROFILE_GUIDED").is_some();

/// Prints the version, the revisions and the transports.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let report = VersionReport {
        version: env!("CARGO_PKG_VERSION"),
        arch: ARCH,
        os: OS,
        revisions: Revision::ALL.map(Revision::as_str),
        clients: CLIENT_TRANSPORTS,
        upstreams: UPSTREAM_TRANSPORTS,
        target: TARGET,
        commit: COMMIT,
        profile_guided: PROFILE_GUIDED,
    };
    output::print_report(args.json, &report, |out| write_text(out, args.verbose))
}

fn write_text(out: &mut dyn Write, is_verbose: bool) -> std::io::Result<()> {
    let of = |era| {
        let all = Revision::ALL.into_iter().filter(|revision| revision.era() == era);
        all.map(Revision::as_str).collect::<Vec<_>>().join(", ")
    };
    writeln!(out, "weir {} ({ARCH} {OS})", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "revisions  {} (modern); {} (legacy)", of(Era::Modern), of(Era::Legacy))?;
    writeln!(out, "clients    {}", CLIENT_TRANSPORTS.join(", "))?;
    writeln!(out, "upstreams  {}", UPSTREAM_TRANSPORTS.join(", "))?;
    if is_verbose {
        let unknown = "unknown: built without ./dev";
        writeln!(out, "target     {}", TARGET.unwrap_or(unknown))?;
        writeln!(out, "commit     {}", COMMIT.unwrap_or(unknown))?;
        let profile = if PROFILE_GUIDED { "used" } else { "not used" };
        writeln!(out, "profile    {profile}")?;
    }
    Ok(())
}
