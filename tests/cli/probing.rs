//! Probes of a running Weir: its admin endpoint under attack, and `weir health`.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::operating::{OPEN, Served};
use super::{folder, serve};
use crate::lab::night::bound;
use crate::lab::ports::free_port;

/// Keeps 64 connections open that send nothing or half a head, opens 20 more each second while
/// `probe` is called for three seconds, twice at least, and returns the durations of the calls,
/// longest first.
fn durations_under_attack(address: &str, mut probe: impl FnMut()) -> Vec<Duration> {
    let silent = |number: usize| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        if number.is_multiple_of(2) {
            write!(stream, "GET /healthz HTTP/1.1\r\nHo").expect("written");
        }
        stream
    };
    let mut held: Vec<_> = (0..64).map(silent).collect();
    std::thread::scope(|scope| {
        let (over, is_over) = mpsc::channel::<()>();
        let flood = scope.spawn(move || {
            while is_over.recv_timeout(Duration::from_millis(50)) == Err(RecvTimeoutError::Timeout)
            {
                held.push(silent(held.len()));
            }
            held.len()
        });
        let (start, mut durations) = (Instant::now(), Vec::new());
        while start.elapsed() < Duration::from_secs(3) || durations.len() < 2 {
            let begin = Instant::now();
            probe();
            durations.push(begin.elapsed());
        }
        durations.sort_unstable_by(|one, other| other.cmp(one));
        over.send(()).expect("the flood goes on");
        let connections = flood.join().expect("no panic");
        eprintln!(
            "{} answers beside {connections} connections, the slowest after {:?}",
            durations.len(),
            durations[0]
        );
        durations
    })
}

#[test]
fn probes_are_answered_while_silent_and_half_spoken_connections_keep_coming() {
    let served = Served::start(OPEN);
    served.wait_for("/readyz", |status, _| status == 200);
    let mut paths = ["/healthz", "/readyz", "/metrics"].into_iter().cycle();
    let durations = durations_under_attack(&served.admin, || {
        assert_eq!(served.get(paths.next().expect("endless")).0, 200);
    });
    // A wait for connections that keep coming recurs; a stall of the machine delays one probe.
    // Each of those connections may stay for ten seconds.
    assert!(durations[1] < bound(5_000, 1_000), "{:?}", &durations[..2]);
}

#[test]
fn clients_are_answered_while_silent_connections_take_all_places() {
    let served = Served::start_in(OPEN, |folder| {
        let file = folder.join("weir.toml");
        let text = std::fs::read_to_string(&file).expect("it was written");
        let more = "[server]\nmax_connections = 32\ntimeouts.head = \"60s\"\n";
        let text = text.replace("[server]\n", more);
        std::fs::write(file, text).expect("written");
    });
    let durations = durations_under_attack(&served.host, || {
        assert!(served.post("prompts/list").starts_with("HTTP/1.1 200"));
    });
    // Each of the earlier connections may take its second, and none ends by itself in this time.
    assert!(durations[0] < bound(30_000, 8_000), "{:?}", durations[0]);
}

/// Result of `weir health` with these arguments.
fn health(served: &Served, arguments: &[&str]) -> (i32, String, String) {
    served.weir(&[&["health"], arguments].concat())
}

fn result(code: i32, out: &str, err: &str) -> (i32, String, String) {
    (code, out.to_owned(), err.to_owned())
}

#[test]
fn health_tells_ready_from_alive_and_both_from_nothing() {
    let served = Served::start(&format!(
        "{OPEN}[upstreams.gone]\ncommand = \"/nonexistent/server\"\nrequired = true\n"
    ));
    served.wait_for("/readyz?verbose", |_, body| body.contains("[-]upstream gone failed"));
    let (code, out, err) = health(&served, &[]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.starts_with("weir: alive, not ready: upstream gone: "), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert_eq!(health(&served, &["--live"]), result(0, "alive\n", ""));

    let served = served.again(|folder| {
        let file = folder.join("weir.toml");
        let text = std::fs::read_to_string(&file).expect("it was written");
        let text = text.replace("required = true", "");
        let text = text.replace("[server]\n", "[server]\nshutdown_delay = \"60s\"\n");
        std::fs::write(file, text).expect("written");
    });
    served.wait_for("/readyz", |status, _| status == 200);
    assert_eq!(health(&served, &[]), result(0, "ready\n", ""));
    served.weir.signal(Signal::TERM);
    served.wait_for("/readyz", |status, _| status == 503);
    let stopping = "weir: alive, not ready: endpoint: stopping\n";
    assert_eq!(health(&served, &[]), result(1, "", stopping));
    assert_eq!(health(&served, &["--live"]), result(0, "alive\n", ""));
    let (folder, admin) = (served.folder.path().to_owned(), served.admin.clone());
    std::fs::copy(folder.join("weir.toml"), folder.join("other.toml")).expect("copied");
    // Another configuration with the same admin address, whose own endpoint has no listener.
    let other = std::fs::read_to_string(folder.join("other.toml")).expect("read");
    let other = other.replace("127.0.0.1:0", "127.0.0.1:1");
    std::fs::write(folder.join("other.toml"), other).expect("written");
    let (code, _, err) = health(&served, &["--live", "--config", "other.toml"]);
    assert_eq!(code, 4, "{err}");
    assert!(
        err.starts_with("weir: no Weir of this configuration responds: 127.0.0.1:1: "),
        "{err}"
    );

    let kept = std::fs::read_to_string(folder.join("weir.toml")).expect("read");
    drop(served);
    let elsewhere = super::folder(&kept);
    let (code, out, err) = super::weir(elsewhere.path(), &["health"]);
    assert_eq!((code, out.as_str()), (4, ""), "{err}");
    assert!(err.contains(&admin), "{err}");
}

#[test]
fn health_does_not_mind_what_was_written_into_the_configuration_since() {
    let served = Served::start(OPEN);
    served.wait_for("/readyz", |status, _| status == 200);
    let file = served.folder.path().join("weir.toml");
    let good = std::fs::read_to_string(&file).expect("it was written");
    let ready = result(0, "ready\n", "");
    let wrong_key = good.replace("[admin]\n", "[admin]\nlisten_at = 1\n");
    let moved = good.replace(&served.admin, "127.0.0.1:1");
    for text in [wrong_key, moved] {
        std::fs::write(&file, text).expect("written");
        assert_eq!(health(&served, &[]), ready);
    }
    // Invalid TOML: the file has no address, and the error is reported.
    std::fs::write(&file, "[admin").expect("written");
    let (code, _, err) = health(&served, &["--live"]);
    assert_eq!(code, 78, "{err}");
    assert!(err.contains("weir.toml:1"), "{err}");
}

#[test]
fn health_asks_the_endpoint_where_operators_have_none() {
    let port = free_port();
    let text = |port| {
        format!(
            "{OPEN}[server]\nlisten = \"127.0.0.1:{port}\"\n[admin]\nenabled = false\n[log]\nformat = \"json\"\n"
        )
    };
    let folder = folder(&text(port));
    let mut weir = serve(folder.path());
    let requested = super::weir(folder.path(), &["health"]);
    assert_eq!(requested, result(0, "ready\n", ""));
    weir.end();
    let (code, out, err) = super::weir(folder.path(), &["health"]);
    assert_eq!((code, out.as_str()), (4, ""));
    let expected = format!(
        "weir: no Weir of this configuration responds: no listener of [admin]; 127.0.0.1:{port}: "
    );
    assert!(err.starts_with(&expected), "{err}");
}

#[test]
fn health_waits_no_longer_than_it_is_told() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let folder = folder(&format!(
        "{OPEN}[server]\nlisten = \"127.0.0.1:1\"\n[admin]\nlisten = \"{address}\"\n"
    ));
    let start = Instant::now();
    let (code, _, err) = super::weir(folder.path(), &["health", "--timeout", "1"]);
    let took = start.elapsed();
    assert_eq!(code, 4);
    assert!(err.contains("no response within 1s"), "{err}");
    // The default is three seconds.
    assert!(took >= Duration::from_secs(1) && took < bound(30_000, 2_900), "{took:?}");
    let (code, _, _) = super::weir(folder.path(), &["health", "--timeout", "0"]);
    assert_eq!(code, 2);
}
