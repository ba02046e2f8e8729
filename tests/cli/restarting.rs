//! `weir restart` of upstreams of a running `weir serve` and `weir stdio`, and the socket of the
//! latter.

use std::io::Write;

use super::operating::Served;
use super::sleeping::prepare;
use super::{folder, own_admin, processes, runs, scripted, serve, stdio, weir};
use crate::lab::blocking::{read_pipe, write_pipe};
use crate::lab::wait_until;

#[test]
fn an_upstream_starts_again_without_being_missed() {
    let served = Served::start_in(&scripted("hub"), prepare);
    let folder = served.folder.path();
    let lists = || served.post_about("tools/list", None);
    wait_until("it is listed", || lists().contains("hub__t"));
    let before = processes(folder, "hub");

    // A call in flight ends as if nothing had happened.
    let (code, out, err) = std::thread::scope(|scope| {
        let call = scope.spawn(|| served.post_about("tools/call", Some("hub__t")));
        read_pipe(folder.join("called"));
        let restarted = served.weir(&["restart", "hub", "--grace", "60"]);
        assert!(lists().contains("hub__t"), "the list stays");
        wait_until("the next one starts", || processes(folder, "hub").len() == 2);
        write_pipe(folder.join("go"));
        let reply = call.join().expect("no panic");
        assert!(reply.contains("\"content\":[]"), "{reply}");
        restarted
    });
    assert_eq!((code, &*err), (0, ""), "{out}");
    assert!(out.contains("hub is started again"), "{out}");
    wait_until("the former process ends", || !runs(&before[0]));
    assert!(runs(&processes(folder, "hub")[1]));

    let (code, _, err) = served.weir(&["restart", "hab"]);
    assert_eq!((code, &*err), (2, "weir: no upstream `hab`; did you mean `hub`?\n"));
}

#[test]
fn a_call_that_takes_longer_than_the_grace_is_ended() {
    let served = Served::start_in(&scripted("hub"), prepare);
    let folder = served.folder.path();
    wait_until("it is listed", || served.post_about("tools/list", None).contains("hub__t"));
    std::thread::scope(|scope| {
        let call = scope.spawn(|| served.post_about("tools/call", Some("hub__t")));
        read_pipe(folder.join("called"));
        let (code, out, err) = served.weir(&["restart", "hub", "--grace", "0"]);
        assert_eq!((code, &*err), (0, ""), "{out}");
        let reply = call.join().expect("no panic");
        assert!(reply.contains("may have been carried out"), "{reply}");
    });
    let first = processes(folder, "hub").remove(0);
    wait_until("the former process ends", || !runs(&first));
}

#[test]
fn one_that_is_down_is_started_at_once_although_its_next_attempt_is_far() {
    let config = format!("{}retry.backoff = \"1h\"\nretry.max_backoff = \"1h\"\n", scripted("hub"));
    let served = Served::start(&config);
    wait_until("it is down", || served.with_token("/status").1.contains("\"state\":\"down\""));
    prepare(served.folder.path());
    let (code, out, err) = served.weir(&["restart", "hub"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    wait_until("it is listed", || served.post_about("tools/list", None).contains("hub__t"));
}

#[test]
fn one_that_lacks_a_value_is_not_said_to_be_started() {
    let config = format!("{}env.T = {{ env = \"WEIR_TEST_UNSET\" }}\n", scripted("hub"));
    let served = Served::start(&config);
    let (code, _, err) = served.weir(&["restart", "hub"]);
    assert!(code == 1 && err.contains("WEIR_TEST_UNSET is not set"), "{code}: {err}");
}

#[test]
fn what_a_client_has_started_is_asked_through_its_socket() {
    let folder = folder(&format!("{}[state]\ndir = \"state\"\n{}", own_admin(), scripted("hub")));
    let folder = folder.path();
    prepare(folder);
    assert_eq!(weir(folder, &["restart", "hub"]).0, 4);
    let (mut first, mut output) = stdio(folder, &[]);
    let mut input = first.child.stdin.take().expect("piped");
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    writeln!(input, "{list}").expect("it reads");
    assert!(output.wait_for("\"id\":1").contains("hub__t"));

    let (code, out, err) = weir(folder, &["status"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    assert!(out.contains("standard input and output") && out.contains("hub"), "{out}");
    let (mut second, mut output) = stdio(folder, &[]);
    let mut second_input = second.child.stdin.take().expect("piped");
    writeln!(second_input, "{list}").expect("it reads");
    assert!(output.wait_for("\"id\":1").contains("hub__t"));
    // The list of the second one is that of the first, and says nothing about its process.
    wait_until("each has a process", || processes(folder, "hub").len() == 2);
    let (code, out, err) = weir(folder, &["restart", "hub"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    for process in [&first, &second] {
        assert!(out.contains(&format!("process {} of Weir", process.pid())), "{out}");
    }
    wait_until("each has another", || processes(folder, "hub").len() == 4);

    // One that was killed is not missed; the other one leaves nothing.
    first.child.kill().expect("killed");
    first.wait();
    let (code, out, err) = weir(folder, &["restart", "hub"]);
    assert_eq!((code, &*err, out.lines().count()), (0, "", 1), "{out}");
    drop(second_input);
    assert!(second.wait().success());
    assert_eq!(weir(folder, &["restart", "hub"]).0, 4);
}

#[test]
fn of_several_processes_status_shows_the_one_that_serves_the_network() {
    let folder = folder(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [state]\ndir = \"state\"\n[upstreams.house]\nprompts_dir = \"prompts\"\n",
    );
    let (mut local, mut output) = stdio(folder.path(), &[]);
    let mut input = local.child.stdin.take().expect("piped");
    writeln!(input, r#"{{"jsonrpc":"2.0","id":1,"method":"ping"}}"#).expect("it reads");
    output.wait_for("\"id\":1");
    let served = serve(folder.path());
    let (_, out, _) = weir(folder.path(), &["status"]);
    assert!(out.contains("http://"), "{out}");
    drop((served, input));
    assert!(local.wait().success());
}
