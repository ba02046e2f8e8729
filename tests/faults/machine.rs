//! Adverse machines: busy, starved, with a clock that jumps, and with unusual environments (F-35,
//! F-95, F-98, F-99). The first two kinds are measured by night.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, getuid, kill_process};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::lab::client::{Client, Revision};
use crate::lab::ledger::Ledger;
use crate::lab::load::Plan;
use crate::lab::night::bound;
use crate::lab::ports::free_port;
use crate::lab::weir::Weir;
use crate::lab::{Lab, PATIENCE, alone_by_night, beside_others, by_night, until};

fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Requests `/healthz` from the admin endpoint and returns the status, if there is a response.
async fn healthz(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    answer.split(' ').nth(1).map(str::to_owned)
}

// === F-35: a child that uses all processors ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f35_while_a_child_takes_all_processors_others_are_served_and_limits_hold_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    let time = Duration::from_secs(20);
    let mut lab = Lab::new().stdio("hog", json!({})).stdio("a", json!({})).stdio("hung", json!({}));
    lab = lab.http("b", json!({ "revision": "2026-07-28" })).await;
    lab.evil_mut("hung").extra = "timeouts.call = \"1s\"".into();
    let admin = free_address();
    let weir = lab.serve_all(&format!("[admin]\nlisten = \"{admin}\"\n")).await;
    let others = ["a".to_owned(), "b".to_owned()];
    let measure = async || {
        let mut plan = Plan::plain(8, &others);
        plan.pause = Duration::from_millis(60);
        let load = plan.start(&weir);
        tokio::time::sleep(time).await;
        let ledger = load.stop().await;
        let failures: usize =
            ledger.reconcile(lab.evils()).values().map(|account| account.failures()).sum();
        assert_eq!(failures, 0);
        ledger.p99(&["a", "b"])
    };
    measure().await;
    let before = measure().await;
    let burn = json!({ "burn_ms": (time * 2).as_millis() as u64, "burn_bytes": 256 << 20 });
    let (hog, (during, limit, health)) = tokio::join!(weir.call("hog", burn), async {
        let during = measure().await;
        let (outcome, limit) = weir.call("hung", json!({ "never": true })).await;
        assert_eq!(outcome.code(), 5040, "{outcome:?}");
        let begin = Instant::now();
        assert_eq!(healthz(admin).await.as_deref(), Some("200"));
        (during, limit, begin.elapsed())
    });
    assert!(hog.0.is_result(), "{:?}", hog.0);
    eprintln!(
        "F-35: p99 of the others {before:?}, with the hog {during:?}; a limit of 1 s after {limit:?}; health in {health:?}"
    );
    assert!((Duration::from_secs(1)..Duration::from_secs(3)).contains(&limit), "{limit:?}");
    assert!(health < Duration::from_secs(1), "{health:?}");
    assert!(during < before + Duration::from_secs(1), "{during:?} instead of {before:?}");
    weir.stop().await;
}

// === F-95: clocks that jump ===

/// Library that fakes the system time for a program; `./dev prepare` fetches it.
fn faketime() -> PathBuf {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/interop/faketime/libfaketimeMT.so.1");
    assert!(path.exists(), "{} is missing: run ./dev prepare", path.display());
    path
}

const HOUR: i64 = 3_600;
const TEN_YEARS: i64 = 10 * 365 * 24 * HOUR;

/// Configuration of a client whose key expires at this time.
fn keyed(name: &str, expires: &str) -> String {
    let hash: String = Sha256::digest(key(name)).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[clients.{name}]\nrole = \"local\"\nkey_sha256 = [\"{hash}\"]\n{expires}\n")
}

fn key(name: &str) -> String {
    format!("a-key-of-forty-three-characters-or-more-{name}")
}

/// Timestamp in the format of the configuration.
fn moment(at: SystemTime) -> String {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let mut date = Command::new("date");
    date.args(["-u", "-d", &format!("@{seconds}"), "+%Y-%m-%dT%H:%M:%SZ"]);
    let report = date.output().expect("date runs");
    String::from_utf8(report.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f95_time_limits_and_limits_do_not_mind_a_clock_that_jumps_and_what_expires_goes_by_it() {
    let _turn = beside_others().await;
    let mut lab = Lab::new().stdio("slow", json!({})).stdio("short", json!({}));
    lab.evil_mut("short").extra = "timeouts.call = \"1s\"".into();
    let soon = moment(SystemTime::now() + Duration::from_secs(1_800));
    let limit =
        "[[limits]]\nper = \"client\"\nmethod = \"prompts/get\"\nrate = \"5/h\"\nburst = 5\n";
    lab.configure(
        &[keyed("ever", ""), keyed("soon", &format!("expires = {soon}")), limit.into()].concat(),
    );
    let clock = lab.folder().join("clock");
    let jump = |seconds: i64| {
        let new = lab.folder().join("clock.new");
        std::fs::write(&new, format!("{seconds:+}\n")).unwrap();
        std::fs::rename(new, &clock).unwrap();
    };
    jump(0);
    let weir = Weir::start_with(
        lab.folder(),
        &[
            ("LD_PRELOAD", &faketime()),
            ("FAKETIME_TIMESTAMP_FILE", &clock),
            ("FAKETIME_NO_CACHE", Path::new("1")),
            ("FAKETIME_DONT_FAKE_MONOTONIC", Path::new("1")),
        ],
    )
    .await;
    let client =
        async |name: &str| Client::http(&weir.address, Revision::MODERN, Some(&key(name))).await;
    let (mut ever, mut soon) = (client("ever").await, client("soon").await);
    let begin = Instant::now();
    while ever.tools().await.len() < 2 {
        assert!(begin.elapsed() < PATIENCE, "nothing is listed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    // Expiry follows the wall clock, in whichever direction it has jumped.
    for (jumped, is_good) in
        [(0, true), (HOUR, false), (0, true), (TEN_YEARS, false), (-HOUR, true), (-TEN_YEARS, true)]
    {
        jump(jumped);
        let outcome = soon.request("tools/list", json!({})).await;
        assert_eq!(outcome.is_result(), is_good, "{jumped}: {outcome:?}");
        assert!(ever.request("tools/list", json!({})).await.is_result(), "{jumped}");
    }
    // Without the jump the result differs, so the clock was the reason.
    jump(0);
    assert!(soon.request("tools/list", json!({})).await.is_result());

    // One call is in flight, and another is never answered.
    let slow = async {
        let mut client = client("ever").await;
        let fault = json!({ "delay_ms": 2_000 }).to_string();
        client.call("slow", json!({ "nonce": "1", "fault": fault })).await
    };
    let short = async {
        let mut client = client("ever").await;
        let begin = Instant::now();
        let fault = json!({ "never": true }).to_string();
        let outcome = client.call("short", json!({ "nonce": "1", "fault": fault })).await;
        (outcome, begin.elapsed())
    };
    let jumping = async {
        for jumped in [HOUR, -HOUR, TEN_YEARS, -TEN_YEARS, 0] {
            tokio::time::sleep(Duration::from_millis(150)).await;
            jump(jumped);
        }
    };
    let (slow, (short, took), ()) = tokio::join!(slow, short, jumping);
    assert!(slow.is_result(), "{slow:?}");
    assert_eq!(short.code(), 5040, "{short:?}");
    // The default time limit is 60 s.
    assert!((Duration::from_secs(1)..bound(20_000, 3_000)).contains(&took), "{took:?}");

    // A quota of five an hour stays five, however many hours the clock says have passed.
    let say = json!({ "name": "slow__say", "arguments": { "nonce": "2" } });
    for _ in 0..5 {
        assert!(ever.request("prompts/get", say.clone()).await.is_result());
    }
    for jumped in [0, HOUR, TEN_YEARS, -HOUR, -TEN_YEARS, 0] {
        jump(jumped);
        let outcome = ever.request("prompts/get", say.clone()).await;
        assert_eq!(outcome.code(), 4290, "{jumped}: {outcome:?}");
    }
    weir.stop().await;
}

// === F-98: a throttled processor ===

/// Lets a process run for a fifth of the time until it is dropped, as a CPU quota does.
struct Starved {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Starved {
    fn begin(process: u32) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let process = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                for (signal, time) in [(Signal::STOP, 80), (Signal::CONT, 20)] {
                    kill_process(process, signal).expect("it runs");
                    std::thread::park_timeout(Duration::from_millis(time));
                }
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().expect("once").join().expect("it does not panic");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f98_with_a_fifth_of_the_processor_time_limits_hold_and_it_says_that_it_lives_nightly() {
    if !by_night() {
        return;
    }
    let _turn = alone_by_night().await;
    let time = Duration::from_secs(60);
    let mut lab = Lab::new().stdio("a", json!({})).stdio("hung", json!({}));
    lab = lab.http("b", json!({ "revision": "2026-07-28" })).await;
    // Calls to it go on, and the circuit breaker does not open.
    lab.evil_mut("hung").extra = "timeouts.call = \"1s\"\nbreaker.failures = 1000".into();
    let admin = free_address();
    let weir = lab.serve_all(&format!("[admin]\nlisten = \"{admin}\"\n")).await;
    // The first call opens whatever is opened once.
    for name in ["a", "b"] {
        assert!(weir.call(name, json!({})).await.0.is_result());
    }
    let calm = weir.resources();
    let starved = Starved::begin(weir.pid());
    let mut plan = Plan::plain(8, &["a".to_owned(), "b".to_owned()]);
    plan.pause = Duration::from_millis(200);
    let load = plan.start(&weir);
    let (mut latest, mut slowest, mut looks) = (Duration::ZERO, Duration::ZERO, 0);
    while load.running() < time {
        let (outcome, took) = weir.call("hung", json!({ "never": true })).await;
        assert_eq!(outcome.code(), 5040, "{outcome:?}");
        assert!(took >= Duration::from_secs(1), "{took:?}");
        latest = latest.max(took);
        let begin = Instant::now();
        assert_eq!(healthz(admin).await.as_deref(), Some("200"));
        (slowest, looks) = (slowest.max(begin.elapsed()), looks + 1);
    }
    let ledger = load.stop().await;
    drop(starved);
    for (name, account) in ledger.reconcile(lab.evils()) {
        assert_eq!(account.failures(), 0, "{name}: {account:?}");
    }
    eprintln!(
        "F-98: {} calls, p99 {:?}; a limit of 1 s after {latest:?} at most; health in {slowest:?} at most, {looks} times",
        ledger.ended(),
        ledger.p99(&["a", "b"])
    );
    assert!(latest < Duration::from_secs(2), "{latest:?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    // No after-effect remains.
    let after = Ledger::default();
    let mut client = weir.client(Revision::MODERN).await;
    assert!(after.call(&mut client, "a", None).await.is_result());
    drop(client);
    until("all is as it was", || {
        let now = weir.resources();
        now.children == calm.children && now.descriptors <= calm.descriptors
    })
    .await;
    weir.stop().await;
}

// === F-99: unusual environments ===

/// Expected result of a start.
#[derive(Debug, Clone, Copy)]
enum Start {
    Ready,
    /// One line with this text, and an exit code.
    Refused(&'static str),
    /// Both results are allowed.
    ReadyOrRefused(&'static str),
}

/// World-readable folder with a configuration, a prompt, and the program.
fn prepared_folder(admin: SocketAddr) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::TempDir::new().unwrap();
    let open = || std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open()).unwrap();
    std::fs::create_dir(folder.path().join("prompts")).unwrap();
    std::fs::write(folder.path().join("prompts/x.md"), "---\nname: x\n---\nhello\n").unwrap();
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"{admin}\"\n[log]\nformat = \"json\"\n\
         [upstreams.house]\nprompts_dir = \"prompts\"\n[upstreams.child]\ncommand = \"/bin/cat\"\n"
    );
    std::fs::write(folder.path().join("weir.toml"), config).unwrap();
    folder
}

/// Starts the program by this shell line, in which `weir` stands for it, and compares the result.
async fn starts(what: &str, line: &str, expected: Start) {
    let admin = free_address();
    let folder = prepared_folder(admin);
    let program = env!("CARGO_BIN_EXE_weir");
    let line = line.replace("weir", &format!("{program} serve"));
    let mut command = Command::new("sh");
    command.args(["-c", &line]).current_dir(folder.path());
    command.env("XDG_STATE_HOME", folder.path().join("state"));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // A file, because nothing reads a pipe meanwhile.
    let report = folder.path().join("told");
    let mut child = command.stderr(std::fs::File::create(&report).unwrap()).spawn().unwrap();
    let begin = Instant::now();
    let end = loop {
        if healthz(admin).await.as_deref() == Some("200") {
            break None;
        }
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: neither starts nor refuses");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let report = || std::fs::read_to_string(&report).unwrap_or_default();
    match (expected, end) {
        (Start::Ready | Start::ReadyOrRefused(_), None) => {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            let status = tokio::task::spawn_blocking(move || child.wait()).await.unwrap().unwrap();
            assert!(status.success(), "{what}: {status}, {}", report());
            assert!(!report().contains("panicked"), "{what}: {}", report());
        }
        (Start::Refused(text) | Start::ReadyOrRefused(text), Some(status)) => {
            let (report, code) = (report(), status.code());
            assert!(code.is_some_and(|code| (1..64).contains(&code)), "{what}: {status}, {report}");
            assert!(report.contains(text) && report.lines().count() == 1, "{what}: {report}");
        }
        (_, end) => {
            let _ = child.kill();
            panic!("{what}: {end:?} {:?}: {}", end.and_then(|end| end.signal()), report());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f99_in_each_of_ten_odd_surroundings_it_starts_or_refuses_in_one_line() {
    let _turn = beside_others().await;
    for (what, line, expected) in [
        ("nowhere for temporary files", "TMPDIR=/nowhere exec weir", Start::Ready),
        ("a full disk under the log", "exec weir 2>/dev/full", Start::Ready),
        (
            "odd locale and time zone",
            "LC_ALL=tr_TR.UTF-8 LANG=zz TZ=Nowhere/Land exec weir",
            Start::Ready,
        ),
        ("no environment", "exec env -i weir", Start::Ready),
        (
            "no home, and state nowhere",
            "HOME=/proc/x XDG_STATE_HOME=/proc/x exec weir",
            Start::Ready,
        ),
        ("nothing is open", "exec weir <&- >&- 2>&-", Start::Ready),
        ("a small stack", "ulimit -s 256; exec weir", Start::Ready),
        ("few descriptors", "ulimit -n 32; exec weir", Start::Ready),
        // The system's allocator takes 64 MiB of addresses for a thread if available. Whether the
        // remainder is enough for the stacks of the other threads depends on their order.
        (
            "little address space",
            "ulimit -v 200000; exec weir",
            Start::ReadyOrRefused("the threads could not be started"),
        ),
        ("a low soft limit of descriptors", "ulimit -S -n 8; exec weir", Start::Ready),
    ] {
        starts(what, line, expected).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f99_with_each_number_of_descriptors_that_is_too_small_it_refuses_in_one_line() {
    let _turn = beside_others().await;
    for descriptors in 6..20 {
        // Without those that the test has inherited itself.
        let closed: String = (3..10).map(|open| format!(" {open}<&-")).collect();
        let line = format!("exec{closed}; ulimit -n {descriptors}; exec weir");
        let refused = Start::Refused("Too many open files");
        starts(&format!("{descriptors} descriptors"), &line, refused).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f99_f33_where_no_more_processes_are_allowed_it_refuses_in_one_line() {
    let _turn = beside_others().await;
    let admin = free_address();
    let folder = prepared_folder(admin);
    // The limit does not apply to root, so the process becomes a user that runs nothing else and
    // may not enter the build folder. Any other user runs this test already, which is one process
    // too many.
    let program = folder.path().join("program");
    // By a child: a process that another thread forks meanwhile would keep our own descriptor open
    // for writing, and the kernel starts no program that is written to.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_weir")).arg(&program).status();
    assert!(copied.unwrap().success());
    let become_another: &[&str] = match getuid().is_root() {
        true => &["setpriv", "--reuid", "64999", "--clear-groups"],
        false => &["env"],
    };
    let mut command = Command::new(become_another[0]);
    command.args(&become_another[1..]).args(["prlimit", "--nproc=1:1"]);
    command.arg(&program).arg("serve").current_dir(folder.path()).env("HOME", "/nowhere");
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let report = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{report}");
    assert!(report.contains("the threads could not be started"), "{report}");
    assert_eq!(report.lines().count(), 1, "{report}");
}
