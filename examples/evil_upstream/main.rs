//! MCP server with fault injection for tests: over stdio, Streamable HTTP and HTTP+SSE, in any
//! revision.
//!
//! It has one tool, `call`, one prompt, `say`, and one resource, `evil://NAME/thing`. Each response
//! contains the server's name and the nonce of the arguments. Two sources select the faults:
//! `script.json` in its folder, which is read again for every message, so that one run covers many
//! faults; and the argument `fault` of a single call, so that each call of a load may have its own
//! fault. `script` describes both.
//!
//! The server records its actions in files that outlive it: `executed` has a line for each
//! execution (its nonce), `heard` a line for each other received message, `pids` a line for each
//! process.
//!
//! Each connection and each call has a thread with blocking IO, so that the order of a fault's
//! actions is the order of the code. `script` defines the faults, `methods` the responses, `output`
//! the writes.

#![allow(clippy::disallowed_types, reason = "a server reads its own arguments as values")]

mod http;
mod methods;
mod output;
mod script;
mod stdio;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::{sleep, spawn};
use std::time::Duration;

use methods::Server;
use script::{Descendant, Script};

const USAGE: &str = "usage: evil_upstream FOLDER stdio | evil_upstream FOLDER http ADDRESS";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [folder, "stdio"] => {
            let server = Server::new(PathBuf::from(folder));
            run_start_actions(&server);
            stdio::serve(&server);
        }
        [folder, "http", address] => {
            let server = Server::new(PathBuf::from(folder));
            let listener = TcpListener::bind(address).expect("the address is free");
            run_start_actions(&server);
            println!("listening on {}", listener.local_addr().expect("it is bound"));
            http::serve(&server, &listener);
        }
        [folder, "linger", how] => linger(&Server::new(PathBuf::from(folder)), how),
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    }
}

/// Performs the start actions of the script.
fn run_start_actions(server: &Arc<Server>) {
    server.record("pids", std::process::id());
    let start = Script::read(&server.folder).start;
    for descendant in start.descendants {
        start_descendant(server, descendant);
    }
    output::write_stderr(start.stderr_bytes);
    server.wait_for_file(start.waits_for.as_deref());
    if let Some(exit) = start.exit {
        let after = Duration::from_millis(exit.after_ms);
        let code = exit.code;
        let end = move || {
            sleep(after);
            output::exit(code)
        };
        if after.is_zero() { end() } else { _ = spawn(end) }
    }
    let server = Arc::clone(server);
    spawn(move || output::send_storm(&server));
}

/// Starts a process that never exits by itself. It inherits standard output.
fn start_descendant(server: &Server, descendant: Descendant) {
    let program = std::env::current_exe().expect("it runs");
    let how = match descendant {
        Descendant::Session | Descendant::Daemon => "session",
        Descendant::Child | Descendant::Orphan => "group",
    };
    // For `Orphan` and `Daemon` the shell exits at once; otherwise the process replaces it.
    let line = match descendant {
        Descendant::Orphan => "\"$0\" \"$@\" &",
        Descendant::Daemon => "env -i \"$0\" \"$@\" >/dev/null 2>&1 &",
        Descendant::Child | Descendant::Session => "exec \"$0\" \"$@\"",
    };
    let mut command = Command::new("sh");
    command.args(["-c", line]).arg(program).arg(&server.folder).args(["linger", how]);
    let mut child = command.stdin(Stdio::null()).spawn().expect("it starts");
    // In a thread, because most descendants do not exit.
    spawn(move || child.wait());
}

fn linger(server: &Server, how: &str) {
    if how == "session" {
        rustix::process::setsid().expect("it leads no group");
    }
    server.record("pids", std::process::id());
    loop {
        sleep(Duration::from_secs(3600));
    }
}
