//! A server that misbehaves on request, for tests: over stdio, over Streamable HTTP and over HTTP+SSE, in any
//! revision.
//!
//! It has one tool, `call`, one prompt, `say`, and one resource, `evil://thing`, and answers each with its own
//! name and the nonce in the arguments. What it does wrong is told in two ways: by `script.json` in its folder, which is
//! read again for every message, so that one run goes through many faults; and by the argument
//! `fault` of a single call, so that each call of a load may have a fault of its own. Both are described in `script`.
//!
//! It promises to write down what it has done, in files that outlive it: `executed` has a line for
//! each execution (its nonce), `heard` one for each other message, `pids` one for each process that it is or has begun.
//!
//! It has a thread for each connection and each call, and blocks: a fault is then what it looks like.
//! `script` says what there is to do wrong, `methods` what is answered, `wire` how bytes get out.
//!
//! Knows nothing of: Weir.

#![allow(clippy::disallowed_types, reason = "a server reads its own arguments as values")]

mod http;
mod methods;
mod script;
mod stdio;
mod wire;

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
            begin(&server);
            stdio::serve(&server);
        }
        [folder, "http", address] => {
            let server = Server::new(PathBuf::from(folder));
            let listener = TcpListener::bind(address).expect("the address is free");
            begin(&server);
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

/// Does what the script has for the start.
fn begin(server: &Arc<Server>) {
    server.note("pids", std::process::id());
    let start = Script::read(&server.folder).start;
    for descendant in start.descendants {
        descend(server, descendant);
    }
    wire::scream(start.stderr_bytes);
    sleep(Duration::from_millis(start.delay_ms));
    if let Some(exit) = start.exit {
        let after = Duration::from_millis(exit.after_ms);
        let code = exit.code;
        let end = move || {
            sleep(after);
            wire::end(code)
        };
        if after.is_zero() { end() } else { _ = spawn(end) }
    }
    let server = Arc::clone(server);
    spawn(move || wire::storm(&server));
}

/// Starts a process that never ends by itself. It inherits standard output.
fn descend(server: &Server, descendant: Descendant) {
    let program = std::env::current_exe().expect("it runs");
    let how = match descendant {
        Descendant::Session | Descendant::Daemon => "session",
        Descendant::Child | Descendant::Orphan => "group",
    };
    // A shell, which ends at once where nobody is to be its parent, and else becomes it.
    let line = match descendant {
        Descendant::Orphan => "\"$0\" \"$@\" &",
        Descendant::Daemon => "env -i \"$0\" \"$@\" >/dev/null 2>&1 &",
        Descendant::Child | Descendant::Session => "exec \"$0\" \"$@\"",
    };
    let mut command = Command::new("sh");
    command.args(["-c", line]).arg(program).arg(&server.folder).args(["linger", how]);
    let mut child = command.stdin(Stdio::null()).spawn().expect("it starts");
    // In a thread, since most of them stay.
    spawn(move || child.wait());
}

fn linger(server: &Server, how: &str) {
    if how == "session" {
        rustix::process::setsid().expect("it leads no group");
    }
    server.note("pids", std::process::id());
    loop {
        sleep(Duration::from_secs(3600));
    }
}
