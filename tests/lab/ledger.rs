//! Who asked what, how it ended, and whether the other side agrees.
//!
//! Promises: a call that is entered and never ends is found, and so is one whose answer is another call's,
//! that was executed twice, or that succeeded without having been executed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Client, Outcome};
use super::evil::Evil;

/// No two calls have the same nonce, whatever ledger they stand in: a server keeps one account.
static NEXT_NONCE: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
pub(crate) struct Ledger {
    begun: AtomicU64,
    entries: Mutex<Vec<Entry>>,
}

struct Entry {
    nonce: u64,
    upstream: String,
    end: End,
    took: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Success,
    Error(i64),
    Broken,
}

/// What became of the calls to one upstream.
#[derive(Debug, Default, Clone)]
pub(crate) struct Account {
    pub(crate) calls: usize,
    pub(crate) successes: usize,
    pub(crate) ends: BTreeMap<End, usize>,
    /// Of those that succeeded.
    pub(crate) median: Duration,
    pub(crate) p99: Duration,
    pub(crate) executions: usize,
}

impl Account {
    /// Calls that did not succeed.
    pub(crate) fn failures(&self) -> usize {
        self.calls - self.successes
    }
}

impl Ledger {
    /// Makes one call and keeps its end. What the client is told has to be this call's own.
    pub(crate) async fn call(
        &self,
        client: &mut Client,
        upstream: &str,
        fault: Option<&Value>,
    ) -> Outcome {
        self.ask(client, "tools/call", upstream, fault).await
    }

    /// The same with `tools/call` or `prompts/get`.
    pub(crate) async fn ask(
        &self,
        client: &mut Client,
        method: &str,
        upstream: &str,
        fault: Option<&Value>,
    ) -> Outcome {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let nonce = NEXT_NONCE.fetch_add(1, Ordering::Relaxed);
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
                let said = match method {
                    "prompts/get" => &result["messages"][0]["content"]["text"],
                    _ => &result["content"][0]["text"],
                };
                assert_eq!(*said, format!("{upstream}:{nonce}"), "the answer of {nonce}");
                End::Success
            }
            Outcome::Error { code, .. } => End::Error(*code),
            Outcome::Broken(_) => End::Broken,
        };
        let entry = Entry { nonce, upstream: upstream.to_owned(), end, took };
        self.entries.lock().expect("nobody panics").push(entry);
        outcome
    }

    /// Calls that have ended.
    pub(crate) fn ended(&self) -> usize {
        self.entries.lock().expect("nobody panics").len()
    }

    /// Balances the books with the servers, and fails on anything that does not add up.
    pub(crate) fn settle(&self, evils: &[Evil]) -> BTreeMap<String, Account> {
        let entries = self.entries.lock().expect("nobody panics");
        let begun = self.begun.load(Ordering::Relaxed);
        assert_eq!(entries.len() as u64, begun, "each call ends once");
        let executions: HashMap<&str, HashMap<String, usize>> =
            evils.iter().map(|evil| (&*evil.name, evil.executions())).collect();
        let mut accounts: BTreeMap<String, Account> = BTreeMap::new();
        let mut times: HashMap<&str, Vec<Duration>> = HashMap::new();
        for entry in entries.iter() {
            let executed = executions.get(&*entry.upstream);
            let executed = executed.and_then(|it| it.get(&entry.nonce.to_string())).copied();
            let executed = executed.unwrap_or_default();
            assert!(executed <= 1, "{} was executed {executed} times", entry.nonce);
            let account = accounts.entry(entry.upstream.clone()).or_default();
            account.calls += 1;
            account.executions += executed;
            *account.ends.entry(entry.end).or_default() += 1;
            if entry.end == End::Success {
                assert_eq!(executed, 1, "{} succeeded", entry.nonce);
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

    /// The 99th percentile of what succeeded with these upstreams, together.
    pub(crate) fn p99(&self, upstreams: &[&str]) -> Duration {
        self.percentile(99, upstreams)
    }

    /// The time that so many of a hundred successful calls to these upstreams took at the most.
    pub(crate) fn percentile(&self, percent: usize, upstreams: &[&str]) -> Duration {
        let entries = self.entries.lock().expect("nobody panics");
        let good = entries.iter().filter(|entry| {
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
