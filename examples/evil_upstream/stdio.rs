//! Stdio transport: one client, one message per line.

use std::io::BufRead;
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use crate::methods::{Action, Listener, Response, Server};
use crate::output::{self, MessageSink};
use crate::script::{Fault, Script};

/// Handles messages until the input ends.
pub(crate) fn serve(server: &Arc<Server>) {
    let sink = MessageSink::Lines(Arc::new(Mutex::new(())));
    // A legacy client gets notifications on standard output from the start.
    let mut listener = Listener { sink: sink.clone(), owner: String::new(), is_listen: false };
    if !Script::read(&server.folder).is_modern() {
        server.listeners.lock().expect("no thread panics").push(listener);
    }
    for line in std::io::stdin().lock().split(b'\n') {
        let Ok(line) = line else { break };
        let script = Script::read(&server.folder);
        let Ok(message) = serde_json::from_slice(&line) else {
            server.record("heard", format_args!("junk {}", String::from_utf8_lossy(&line)));
            continue;
        };
        match server.handle(&script, &message) {
            Action::Ignore => {}
            Action::OpenStream(id, wanted) => {
                let begun = acknowledged(&id, &wanted);
                let _ = sink.send(begun.as_bytes(), &Fault::default());
                listener = Listener { sink: sink.clone(), owner: id, is_listen: true };
                server.listeners.lock().expect("no thread panics").push(listener);
            }
            Action::Respond(response) if response.fault.deaf => loop {
                sleep(Duration::from_secs(3600));
            },
            Action::Respond(response) => {
                let (server, sink, fault) = (Arc::clone(server), sink.clone(), &response.fault);
                let takes_time = fault.delay_ms + fault.pause_ms + fault.burn_ms > 0;
                if takes_time || fault.waits_for.is_some() {
                    spawn(move || send_response(&server, &sink, &response));
                } else {
                    send_response(&server, &sink, &response);
                }
            }
        }
    }
    server.record("heard", "the end");
    while Script::read(&server.folder).ignores_eof {
        sleep(Duration::from_millis(100));
    }
}

fn send_response(server: &Server, sink: &MessageSink, response: &Response) {
    let fault = &response.fault;
    sleep(Duration::from_millis(fault.delay_ms));
    server.wait_for_file(fault.waits_for.as_deref());
    if let Some(code) = fault.exit {
        output::exit(code);
    }
    output::consume_resources(fault.burn_ms, fault.burn_bytes);
    output::write_stderr(fault.stderr_bytes);
    if fault.never {
        return;
    }
    if sink.send_response(response).is_err() {
        // The client has closed standard output.
        output::exit(0);
    }
    if let Some(code) = fault.exit_after {
        output::exit(code);
    }
}

/// Acknowledgment, which is the first message of a listen stream.
pub(crate) fn acknowledged(id: &str, wanted: &serde_json::Value) -> String {
    let params = format!(
        r#"{{"notifications":{wanted},"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}"#
    );
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{params}}}"#
    )
}
