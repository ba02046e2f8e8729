//! On-demand server: started by its first use and stopped when idle, tested with the real program.

use std::path::Path;

use super::operating::Served;
use super::{processes, record_processes, runs, script, scripted, was_started};
use crate::lab::blocking::{make_pipe, read_pipe, write_pipe};
use crate::lab::wait_until;

/// Configuration of an on-demand server with a tool, which is soon idle.
fn config() -> String {
    format!("{}lazy = true\ntimeouts.idle = \"1s\"\n", scripted("hub"))
}

/// Writes the script of the server, which records its processes.
pub(super) fn prepare(folder: &Path) {
    let tools = r#""result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}"#;
    // Reports the call through one named pipe, and responds after a line from another, so that the
    // server is not idle until the test has looked at it.
    let call = r#"'$(echo called > called; read -r _ < go)'"result":{"content":[]}"#;
    script(folder, "hub", &[("tools/list", tools), ("tools/call", call)]);
    ["called", "go"].iter().for_each(|name| make_pipe(&folder.join(name)));
    record_processes(folder, "hub");
}

/// Waits until the upstream has this state, and returns the whole status.
fn state(served: &Served, state: &str) -> String {
    let mut status_json = String::new();
    wait_until(state, || {
        status_json = served.with_token("/status").1;
        status_json.contains(&format!("\"state\":\"{state}\""))
    });
    status_json
}

#[test]
fn a_kept_catalog_is_shown_the_first_call_starts_the_child_and_after_a_while_it_is_gone() {
    // Nothing is cached: the server is started for the list, and stopped.
    let first = Served::start_in(&config(), prepare);
    wait_until("it is listed", || first.post_about("tools/list", None).contains("hub__t"));
    state(&first, "asleep");

    let served = first.again(|folder| {
        std::fs::remove_file(folder.join("hub.started")).expect("it was started");
    });
    let folder = served.folder.path();
    served.wait_for("/readyz", |status, _| status == 200);
    let list = served.post_about("tools/list", None);
    assert!(list.contains("hub__t") && !list.contains("weir/partial"), "{list}");
    state(&served, "asleep");
    assert!(!was_started(folder, "hub"));
    let (code, out, err) = served.weir(&["status"]);
    assert_eq!((code, &*err), (0, ""), "{out}");

    let (reply, child) = std::thread::scope(|scope| {
        let reply = scope.spawn(|| served.post_about("tools/call", Some("hub__t")));
        // The call has reached the server.
        read_pipe(folder.join("called"));
        let child = processes(folder, "hub").pop().expect("it was started");
        assert!(runs(child.trim()));
        state(&served, "up");
        write_pipe(folder.join("go"));
        (reply.join().expect("no panic"), child)
    });
    assert!(reply.contains("\"content\":[]"), "{reply}");
    let status = state(&served, "asleep");
    wait_until("the child ends", || !runs(child.trim()));
    assert!(status.contains("\"restarts\":0"), "{status}");
    assert!(served.post_about("tools/list", None).contains("hub__t"));
    assert!(served.get("/readyz").0 == 200);
}

#[test]
fn a_library_keeps_no_catalog() {
    let config = format!("{}[upstreams.house]\nprompts_dir = \"prompts\"\n", config());
    let served = Served::start_in(&config, prepare);
    wait_until("it is listed", || {
        served.post_about("prompts/list", None).contains("house__greeting")
    });
    state(&served, "asleep");
    let kept = served.folder.path().join("state/catalog").read_dir().expect("a folder");
    let kept = kept.map(|file| file.expect("a file").file_name().into_string().expect("text"));
    let kept: Vec<_> = kept.collect();
    let of = |upstream: &str| kept.iter().filter(|name| name.starts_with(upstream)).count();
    assert!(of("hub-") > 0 && of("house-") == 0, "{kept:?}");
}
