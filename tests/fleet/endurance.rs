//! Endurance: three replicas behind nginx under a crowd of clients, while one after the other is
//! killed or restarted all the time.
//!
//! It runs by night, for half an hour; `WEIR_SOAK` sets another duration. By day the tests of
//! `rolling.rs`, `balancers.rs` and `sessions.rs` show each of its facts alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

use crate::crowd::{self, COUNTED, Crowd, Failure, JOBS, PRINCIPALS};
use crate::lab::nginx::Nginx;
use crate::lab::process::resources;
use crate::lab::store::TestStore;
use crate::lab::weir::Weir;
use crate::lab::{Lab, by_night, soak_time};
use crate::replicas::{HUB, Replicas};

/// Growth of the resident memory of a replica that is allowed once it is warm.
const SPARE_BYTES: u64 = 16 << 20;
/// Time within which each client notices that its connection has ended.
const NOTICE: Duration = Duration::from_millis(500);
/// Time between two samples of the memory.
const SAMPLES: Duration = Duration::from_millis(200);
/// Time after the end of a replica within which the others have learned of it.
const LEARNING: Duration = Duration::from_secs(3);

/// Number of losses with a kill and a stop among them, however slow the machine is.
const LEAST_LOSSES: usize = 3;

/// A replica that was killed, or stopped with SIGTERM.
#[derive(Debug)]
struct Loss {
    is_kill: bool,
    begin: Instant,
    end: Instant,
}

/// Samples of the resident memory of one process, by its age.
type Life = Vec<(Duration, u64)>;

/// The process of a replica, whose memory is sampled.
struct Running {
    process: u32,
    since: Instant,
    life: Life,
}

impl Running {
    fn new(weir: &Weir) -> Self {
        Self { process: weir.pid(), since: Instant::now(), life: Life::new() }
    }

    fn sample(&mut self) {
        self.life.push((self.since.elapsed(), resources(self.process).resident_bytes));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_lose_nothing_while_replicas_are_killed_and_restarted_nightly() {
    if !by_night() {
        return;
    }
    let time = soak_time(1_800, 1_800);
    let (clients, interval, session_length) = match time.as_secs() {
        ..30 => (40, Duration::from_millis(1_500), 5),
        _ => (200, Duration::from_secs(10), 60),
    };
    let pause = Duration::from_millis(200);
    let lab = Lab::new().http(HUB, crowd::hub_script()).await.http(JOBS, crowd::jobs_script());
    let store = TestStore::start().await;
    let mut replicas = Replicas::prepare_in(lab.await, store, &config(), "").await;
    replicas.add_all(3).await;
    let addresses = [0, 1, 2].map(|number| replicas[number].address.clone());
    let nginx = Nginx::start(&addresses);
    let crowd = Crowd::start(&nginx.address, clients, pause, session_length).await;

    let (begin, mut losses, mut lives) = (Instant::now(), Vec::new(), Vec::new());
    let mut running = [0, 1, 2].map(|number| Running::new(&replicas[number]));
    loop {
        let next = interval * u32::try_from(losses.len() + 1).expect("a small number");
        let is_enough = losses.len() >= LEAST_LOSSES;
        let end = if is_enough { next.min(time) } else { next };
        while begin.elapsed() < end {
            tokio::time::sleep(SAMPLES).await;
            running.iter_mut().for_each(Running::sample);
            crowd.check();
        }
        if is_enough && begin.elapsed() >= time {
            break;
        }
        // The last one lives for a third of the time, so that growth of its memory is seen.
        let third = (time / 3).div_duration_f64(interval).ceil() as usize;
        let at = losses.len();
        let number = if (at + 1) % third == 0 { 2 } else { at % 2 };
        let sampling = async {
            loop {
                tokio::time::sleep(SAMPLES).await;
                let others = running.iter_mut().enumerate().filter(|(it, _)| *it != number);
                others.for_each(|(_, other)| other.sample());
            }
        };
        tokio::select! {
            loss = replace(&mut replicas, number, at % 4 < 2) => losses.push(loss),
            () = sampling => {}
        }
        let successor = Running::new(&replicas[number]);
        lives.push(std::mem::replace(&mut running[number], successor).life);
    }
    lives.extend(running.map(|it| it.life));
    let records = crowd.stop().await;
    (0..3).for_each(|number| check_log(&replicas[number]));
    drop(nginx);

    let mut executions = replicas.lab.evil(HUB).executions();
    executions.extend(replicas.lab.evil(JOBS).executions());
    executions.remove("-");
    let twice: Vec<_> = executions.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "executed more than once: {twice:?}");
    let mut succeeded = 0;
    for nonce in records.iter().flat_map(|record| &record.executed) {
        assert!(executions.contains_key(nonce), "{nonce} has succeeded and was not executed");
        succeeded += 1;
    }
    let mut counts = [0; COUNTED.len()];
    for record in &records {
        counts.iter_mut().zip(record.counts).for_each(|(sum, count)| *sum += count);
    }
    let late: Vec<_> = records.iter().flat_map(|it| &it.late_ends).map(|at| *at - begin).collect();
    let silence = records.iter().map(|record| record.longest_silence).max().unwrap_or_default();
    let failures: Vec<_> = records.iter().flat_map(|record| &record.failures).collect();
    let kills = losses.iter().filter(|loss| loss.is_kill).count();
    let mut by_kind = BTreeMap::<_, usize>::new();
    failures.iter().for_each(|failure| *by_kind.entry(failure.what).or_default() += 1);
    eprintln!(
        "endurance: {:?}, {clients} clients, {} replicas lost, {kills} of them killed; {succeeded} \
         calls succeeded of {} executed; {:?}; longest silence {silence:?}; ended by a loss: \
         {by_kind:?}; {} claims",
        begin.elapsed(),
        losses.len(),
        executions.len(),
        COUNTED.iter().zip(counts).collect::<Vec<_>>(),
        replicas.claims(),
    );
    let unexcused: Vec<_> =
        failures.iter().filter(|failure| !losses.iter().any(|it| it.excuses(failure))).collect();
    for failure in unexcused.iter().take(20) {
        let at = (failure.begin - begin, failure.end - begin);
        eprintln!("unexcused: {} {at:?}: {}", failure.what, failure.how);
    }
    if !unexcused.is_empty() || !late.is_empty() {
        let losses = losses.iter().map(|it| (it.is_kill, it.begin - begin, it.end - begin));
        eprintln!("losses: {:?}", losses.collect::<Vec<_>>());
    }
    assert!(unexcused.is_empty(), "{} unexcused", unexcused.len());
    // The replicas wait for the store longer than it ever takes.
    assert!(late.is_empty(), "served after the end of its session: {late:?}");
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    assert!(kills > 0 && kills < losses.len(), "{losses:?}");
    check_memory(&lives);
}

/// Configuration: clients with keys.
fn config() -> String {
    let mut text = "[roles.staff]\ntools.allow = [\"*\"]\nresources.allow = [\"*\"]\n".to_owned();
    for number in 0..PRINCIPALS {
        let hash = hex(&sha256(format!("principal-{number}")));
        text += &format!("[clients.c{number}]\nkey_sha256 = [\"{hash}\"]\nrole = \"staff\"\n");
    }
    text
}

/// Ends a replica and starts it again.
async fn replace(replicas: &mut Replicas, number: usize, is_kill: bool) -> Loss {
    let (begin, mut weir) = (Instant::now(), replicas.take(number));
    weir.signal(if is_kill { Signal::KILL } else { Signal::TERM });
    let code = weir.ended().await;
    let end = Instant::now();
    assert!(is_kill || code == Some(0), "{}", weir.log().join("\n"));
    check_log(&weir);
    replicas.restart(number).await;
    Loss { is_kill, begin, end }
}

impl Loss {
    /// Whether a failure may come from this loss. A call that ran on a replica that was killed
    /// fails. Streams end with their replica, and with their session when it is taken over.
    fn excuses(&self, failure: &Failure) -> bool {
        let is_within = |slack| failure.end >= self.begin && failure.begin <= self.end + slack;
        match failure.what {
            "stream" => is_within(LEARNING),
            // It waits for its client, and ends with its replica.
            "resumed call" if failure.how.contains("requestState") => is_within(NOTICE),
            // The replica has ended the session, and nginx has repeated the request.
            "end of a session" if failure.how == "404" => self.is_kill && is_within(NOTICE),
            // nginx sends it on a kept connection while the replica closes that.
            _ if !self.is_kill && failure.how.contains("502") => is_within(NOTICE),
            _ => {
                let is_lost = failure.how.contains("may have been executed");
                // nginx says it in this way.
                let is_bad_gateway = failure.how.contains("502");
                let is_broken = failure.how.contains("Broken") && !failure.how.contains("404");
                self.is_kill && is_within(NOTICE) && (is_lost || is_bad_gateway || is_broken)
            }
        }
    }
}

/// Checks that a replica has logged no error.
fn check_log(weir: &Weir) {
    let log = weir.log();
    let is_error = |line: &&String| line.contains("\"ERROR\"") || line.contains("panicked");
    assert_eq!(log.iter().find(is_error), None);
}

/// Checks that the memory of each process does not grow once it is warm.
fn check_memory(lives: &[Life]) {
    // A shorter one is never warm.
    let is_long = |life: &&Life| life.last().is_some_and(|(age, _)| *age > Duration::from_secs(4));
    let mut checked = 0;
    for life in lives.iter().filter(is_long) {
        let (age, _) = life.last().expect("it is long");
        let most = |from: Duration, to: Duration| {
            let within = life.iter().filter(|(at, _)| (from..=to).contains(at));
            within.map(|(_, bytes)| *bytes).max()
        };
        let end = most(*age * 3 / 4, *age).expect("the last sample");
        // A machine that stood still has taken none in between.
        let Some(warm) = most(*age / 4, *age / 2) else { continue };
        checked += 1;
        if *age > Duration::from_secs(15) {
            eprintln!("endurance: memory after {age:?}: {} KiB, warm {}", end >> 10, warm >> 10);
        }
        assert!(end <= warm + SPARE_BYTES, "{end} bytes after {age:?}, {warm} when warm");
    }
    assert!(checked > 0);
}
