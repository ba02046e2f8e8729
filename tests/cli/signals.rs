//! Signals that tools send to services: those with an effect, and those without.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use serde_json::Value;

use super::sleeping::prepare;
use super::{folder, runs, script, scripted, serve, stdio};
use crate::lab::blocking::make_pipe;
use crate::lab::lines::Lines;
use crate::lab::process::status;
use crate::lab::weir::Weir;

/// Signals without an effect on Weir and on the helper process that it starts beside each child.
const WITHOUT_EFFECT: [Signal; 5] =
    [Signal::USR1, Signal::ALARM, Signal::VTALARM, Signal::PROF, Signal::XFSZ];

const SERVED: &str = "[server]\nlisten = \"127.0.0.1:0\"\nwatch = false\n[log]\nformat = \"json\"\n[admin]\nenabled = false\n";

fn send(to: Pid, signal: Signal) {
    kill_process(to, signal).expect("it runs");
}

/// Parent process of this process.
#[cfg(target_os = "linux")]
fn parent(process: &str) -> Pid {
    let parent = status(process.parse().expect("a number"), "PPid");
    Pid::from_raw(parent.parse().expect("a number")).expect("a process")
}

#[cfg(target_os = "linux")]
#[test]
fn signals_that_are_sent_to_all_processes_named_weir_end_no_child() {
    let folder = folder("");
    let folder = folder.path();
    script(folder, "kept", &[]);
    let path = folder.join("kept.sh");
    let text = std::fs::read_to_string(&path).expect("written");
    std::fs::write(&path, format!("echo $$ > kept.pid\n{text}")).expect("written");
    std::fs::write(folder.join("weir.toml"), format!("{SERVED}{}", scripted("kept")))
        .expect("written");
    let mut weir = serve(folder);
    weir.wait_for_log("\"upstream listed\"");
    let child = std::fs::read_to_string(folder.join("kept.pid")).expect("written");
    let keeper = parent(child.trim());
    for signal in [Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::ALARM] {
        send(keeper, signal);
    }
    let process = Pid::from_child(&weir.child);
    WITHOUT_EFFECT.into_iter().for_each(|signal| send(process, signal));
    send(process, Signal::HUP);
    weir.wait_for_log("nothing changed");
    assert!(runs(child.trim()));
    assert_eq!(parent(child.trim()), keeper);
    send(process, Signal::QUIT);
    assert!(weir.wait().success());
    assert!(!runs(child.trim()));
}

/// Starts `weir stdio` with an initialized client.
fn initialized_stdio(folder: &Path) -> (Weir, Lines) {
    let (mut weir, mut output) = stdio(folder, &[]);
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let input = weir.child.stdin.as_mut().expect("piped");
    writeln!(input, "{INITIALIZE}\n{initialized}").expect("it reads");
    output.wait_for("protocolVersion");
    (weir, output)
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#;

#[test]
fn weir_on_stdio_reloads_at_sighup_and_ends_at_sigquit_and_at_no_signal_that_means_neither() {
    let config = "[server]\nwatch = false\n[upstreams.house]\nprompts_dir = \"prompts\"\n";
    let folder = folder(config);
    let (mut weir, mut output) = initialized_stdio(folder.path());
    let process = Pid::from_child(&weir.child);
    WITHOUT_EFFECT.into_iter().chain([Signal::USR2]).for_each(|signal| send(process, signal));
    let denied = format!("{config}prompts.deny = [\"secret-*\"]\n");
    std::fs::write(folder.path().join("weir.toml"), denied).expect("written");
    send(process, Signal::HUP);
    output.wait_for("notifications/prompts/list_changed");
    send(process, Signal::QUIT);
    assert!(weir.wait().success());
}

#[test]
fn the_last_line_of_standard_input_is_read_without_its_line_end() {
    let folder = folder("[upstreams.house]\nprompts_dir = \"prompts\"\n");
    for (sent, expected) in [(INITIALIZE, "protocolVersion"), (r#"{"jsonrpc":"2.0""#, "-32700")] {
        let mut command = assert_cmd::Command::from_std(crate::program());
        let output = command.arg("stdio").current_dir(folder.path()).write_stdin(sent).output();
        let output = output.expect("it runs");
        let out = String::from_utf8(output.stdout).expect("text");
        assert!(out.contains(expected) && output.status.success(), "{sent}: {out}");
    }
}

#[test]
fn each_signal_that_means_stop_ends_weir_with_success() {
    let folder = folder(&format!("{SERVED}[upstreams.house]\nprompts_dir = \"prompts\"\n"));
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
        let mut weir = serve(folder.path());
        weir.signal(signal);
        assert!(weir.wait().success(), "{signal:?}");
    }
}

#[test]
fn a_successor_waits_for_its_upstreams_although_their_lists_are_known() {
    let folder = folder(&format!("{SERVED}[state]\ndir = \"state\"\n{}", scripted("hub")));
    let folder = folder.path();
    prepare(folder);
    let mut weir = serve(folder);
    weir.wait_for_log("\"upstream listed\"");
    // The next process of the server never responds.
    let next = folder.join("next.sh");
    make_pipe(&folder.join("never"));
    std::fs::write(&next, "read -r _ < never\n").expect("written");
    std::fs::rename(next, folder.join("hub.sh")).expect("renamed");
    let begin = Instant::now();
    weir.signal(Signal::USR2);
    let finished = weir.wait_for_log("upgrade finished");
    let waited = begin.elapsed();
    assert!(weir.wait().success());
    let finished: Value = serde_json::from_str(&finished).expect("JSON");
    let successor = finished["process"].as_u64().and_then(|it| i32::try_from(it).ok());
    send(successor.and_then(Pid::from_raw).expect("a process"), Signal::TERM);
    weir.wait_for_log("\"stopped\"");
    assert!(waited >= SUCCESSOR_WAIT, "{waited:?}");
}

/// Longest time that a successor waits for its upstreams before it serves.
const SUCCESSOR_WAIT: Duration = Duration::from_secs(10);
