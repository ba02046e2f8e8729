//! One client, on standard input and output: a message a line.

use std::io::BufRead;
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use crate::methods::{Answer, Deed, Listener, Server};
use crate::script::{Fault, Script};
use crate::wire::{self, Outlet};

/// Serves until the input ends.
pub(crate) fn serve(server: &Arc<Server>) {
    let outlet = Outlet::Lines(Arc::new(Mutex::new(())));
    // Standard output is where a legacy client hears of changes, from the beginning on.
    let mut listener = Listener { outlet: outlet.clone(), whose: String::new(), is_listen: false };
    if !Script::read(&server.folder).is_modern() {
        server.listeners.lock().expect("no thread panics").push(listener);
    }
    for line in std::io::stdin().lock().split(b'\n') {
        let Ok(line) = line else { break };
        let script = Script::read(&server.folder);
        let Ok(message) = serde_json::from_slice(&line) else {
            server.note("heard", format_args!("junk {}", String::from_utf8_lossy(&line)));
            continue;
        };
        match server.hear(&script, &message) {
            Deed::Silence => {}
            Deed::Listen(id, wanted) => {
                let begun = acknowledged(&id, &wanted);
                let _ = outlet.send(begun.as_bytes(), &Fault::default());
                listener = Listener { outlet: outlet.clone(), whose: id, is_listen: true };
                server.listeners.lock().expect("no thread panics").push(listener);
            }
            Deed::Answer(answer) if answer.fault.deaf => loop {
                sleep(Duration::from_secs(3600));
            },
            Deed::Answer(answer) => {
                let outlet = outlet.clone();
                if answer.fault.delay_ms + answer.fault.pause_ms + answer.fault.burn_ms > 0 {
                    spawn(move || say(&outlet, &answer));
                } else {
                    say(&outlet, &answer);
                }
            }
        }
    }
    server.note("heard", "the end");
    while Script::read(&server.folder).ignores_eof {
        sleep(Duration::from_millis(100));
    }
}

fn say(outlet: &Outlet, answer: &Answer) {
    let fault = &answer.fault;
    sleep(Duration::from_millis(fault.delay_ms));
    if let Some(code) = fault.exit {
        wire::end(code);
    }
    wire::burn(fault.burn_ms, fault.burn_bytes);
    wire::scream(fault.stderr_bytes);
    if fault.never {
        return;
    }
    if outlet.answer(answer).is_err() {
        // Nobody reads any more.
        wire::end(0);
    }
    if let Some(code) = fault.exit_after {
        wire::end(code);
    }
}

/// The first message of a listen.
pub(crate) fn acknowledged(id: &str, wanted: &serde_json::Value) -> String {
    let params = format!(
        r#"{{"notifications":{wanted},"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}"#
    );
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{params}}}"#
    )
}
