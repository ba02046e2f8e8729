//! Recognition of Weir's own entries in a client's file.

use std::path::Path;

use super::server::{ClientServer, ServerTransport};

/// Returns whether a client's server is Weir, or has that name and is on the network.
pub(crate) fn is_weir_entry(server: &ClientServer, endpoints: &[String]) -> bool {
    is_weir(server, endpoints)
        || server.name == "weir" && matches!(server.transport, ServerTransport::Http { .. })
}

/// Returns whether a client's server is Weir.
pub(crate) fn is_weir(server: &ClientServer, endpoints: &[String]) -> bool {
    match &server.transport {
        ServerTransport::Process { command, args, .. } => {
            is_program(Path::new(command)) && args.iter().any(|arg| arg == "stdio")
                || args.iter().any(|arg| is_endpoint(arg, endpoints))
        }
        ServerTransport::Http { url, .. } => is_endpoint(url, endpoints),
    }
}

/// Returns whether a program is Weir: by its name, which may have a version, or the one that runs.
fn is_program(program: &Path) -> bool {
    let name = program.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let is_named = name == "weir" || name.starts_with("weir-");
    let own = || std::env::current_exe().and_then(std::fs::canonicalize).ok();
    is_named || own().is_some_and(|own| std::fs::canonicalize(program).is_ok_and(|it| it == own))
}

fn is_endpoint(url: &str, endpoints: &[String]) -> bool {
    let url = url.trim_end_matches('/');
    let usual = ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("http://{host}:8642/mcp"));
    usual.iter().chain(endpoints).any(|endpoint| endpoint.trim_end_matches('/') == url)
}
