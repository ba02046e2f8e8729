//! Ledger of calls: the client's outcome of each, compared with the executions at the server.
//!
//! Invariants: a call that is entered and never ends is found, and so is one whose response belongs
//! to another call, that was executed twice, or that succeeded without having been executed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Client, Outcome};
use super::evil::Evil;

/// Nonces are unique across ledgers, because a server keeps one record.
static NEXT_NONCE: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
pub(crate) struct Ledger {
    begun: AtomicU64,
    /// Calls that have ended, by nonce.
    entries: Mutex<BTreeMap<u64, Entry>>,
}

struct Entry {
    upstream: String,
    end: End,
    took: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Success,
    Error(i64),
    Broken,
    /// The connection was refused: the call was never sent.
    Unreachable,
}

/// Number of executions of each nonce.
pub(crate) type Executions = HashMap<String, usize>;

/// Summary of the calls to one upstream.
#[derive(Debug, Default, Clone)]
pub(crate) struct Summary {
    pub(crate) calls: usize,
    pub(crate) successes: usize,
    pub(crate) ends: BTreeMap<End, usize>,
    /// Median duration of the successful calls.
    pub(crate) median: Duration,
    pub(crate) p99: Duration,
    pub(crate) executions: usize,
    /// Executions of calls that were answered with an error, or not sent.
    pub(crate) executions_of_refused: usize,
}

impl Summary {
    /// Number of calls that did not succeed.
    pub(crate) fn failures(&self) -> usize {
        self.calls - self.successes
    }
}

impl Ledger {
    /// Makes one call and records its outcome. The response has to be this call's own.
    pub(crate) async fn call(
        &self,
        client: &mut Client,
        upstream: &str,
        fault: Option<&Value>,
    ) -> Outcome {
        self.request(client, "tools/call", upstream, fault).await
    }

    /// Makes one request with `tools/call` or `prompts/get` and records its outcome.
    pub(crate) async fn request(
        &self,
        client: &mut Client,
        method: &str,
        upstream: &str,
        fault: Option<&Value>,
    ) -> Outcome {
        let nonce = self.begin();
        let mut arguments = json!({ "nonce": nonce.to_string() });
        if let Some(fault) = fault {
            arguments["fault"] = fault.to_string().into();
        }
        let begin = Instant::now();
        let item = if method == "prompts/get" { "say" } else { "call" };
        let params = json!({ "name": format!("{upstream}__{item}"), "arguments": arguments });
        let outcome = client.request(method, params).await;
        let took = begin.elapsed();
        let end = match &outcome {
            Outcome::Result(result) => {
                let text = match method {
                    "prompts/get" => &result["messages"][0]["content"]["text"],
                    _ => &result["content"][0]["text"],
                };
                assert_eq!(*text, format!("{upstream}:{nonce}"), "the answer of {nonce}");
                End::Success
            }
            Outcome::Error { code, .. } => End::Error(*code),
            Outcome::Broken(_) => End::Broken,
        };
        self.record(nonce, upstream, end, took);
        outcome
    }

    /// Enters a call and returns its nonce.
    pub(crate) fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed);
        NEXT_NONCE.fetch_add(1, Ordering::Relaxed)
    }

    /// Records the end of a call that was entered.
    pub(crate) fn record(&self, nonce: u64, upstream: &str, end: End, took: Duration) {
        let entry = Entry { upstream: upstream.to_owned(), end, took };
        let before = self.entries.lock().expect("the lock is not poisoned").insert(nonce, entry);
        assert!(before.is_none(), "{nonce} ended twice");
    }

    /// Number of calls that have ended.
    pub(crate) fn ended(&self) -> usize {
        self.entries.lock().expect("the lock is not poisoned").len()
    }

    /// Compares the ledger with the servers' records, and fails on any difference.
    pub(crate) fn reconcile(&self, evils: &[Evil]) -> BTreeMap<String, Summary> {
        self.compare(&evils.iter().map(|evil| (&*evil.name, evil.executions())).collect())
    }

    /// Compares the ledger with the executions at each upstream, and fails on any difference.
    pub(crate) fn compare(
        &self,
        executions: &HashMap<&str, Executions>,
    ) -> BTreeMap<String, Summary> {
        let entries = self.entries.lock().expect("the lock is not poisoned");
        let begun = self.begun.load(Ordering::Relaxed);
        assert_eq!(entries.len() as u64, begun, "each call ends once");
        let mut accounts: BTreeMap<String, Summary> = BTreeMap::new();
        let mut times: HashMap<&str, Vec<Duration>> = HashMap::new();
        for (nonce, entry) in entries.iter() {
            let executed = executions.get(&*entry.upstream);
            let executed = executed.and_then(|it| it.get(&nonce.to_string())).copied();
            let executed = executed.unwrap_or_default();
            assert!(executed <= 1, "{nonce} was executed {executed} times");
            let account = accounts.entry(entry.upstream.clone()).or_default();
            account.calls += 1;
            account.executions += executed;
            *account.ends.entry(entry.end).or_default() += 1;
            if matches!(entry.end, End::Error(_) | End::Unreachable) {
                account.executions_of_refused += executed;
            }
            if entry.end == End::Success {
                assert_eq!(executed, 1, "{nonce} succeeded");
                account.successes += 1;
                times.entry(&entry.upstream).or_default().push(entry.took);
            }
        }
        for (upstream, mut times) in times {
            times.sort_unstable();
            let account = accounts.get_mut(upstream).expect("it has calls");
            account.median = times[times.len() / 2];
            account.p99 = times[(times.len() * 99 / 100).min(times.len() - 1)];
        }
        accounts
    }

    /// 99th percentile of the successful calls to these upstreams, taken together.
    pub(crate) fn p99(&self, upstreams: &[&str]) -> Duration {
        self.percentile(99, upstreams)
    }

    /// Percentile of the durations of the successful calls to these upstreams.
    pub(crate) fn percentile(&self, percent: usize, upstreams: &[&str]) -> Duration {
        let entries = self.entries.lock().expect("the lock is not poisoned");
        let good = entries.values().filter(|entry| {
            entry.end == End::Success && upstreams.contains(&entry.upstream.as_str())
        });
        let mut times: Vec<_> = good.map(|entry| entry.took).collect();
        times.sort_unstable();
        times
            .get((times.len() * percent / 100).min(times.len().saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    }
}
