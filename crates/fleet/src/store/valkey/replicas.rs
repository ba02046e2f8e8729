//! Records of the replicas in the store, with what a heartbeat reads.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use redis::Script;

use super::rights;
use super::{CLAIMS, ENDED, ValkeyStore, give_up, millis};
use crate::store::{
    Beat, KeyUsage, MAX_GAP, MAX_PAGE, RECORD_TTL, ReplicaStore, Roster, StoreError, StoredEntry,
    TablePage, TableRequest,
};
use weir_base::secrets::sealing::KeyId;

impl ReplicaStore for ValkeyStore {
    fn heartbeat(&self, beat: Beat) -> BoxFuture<'_, Result<Roster, StoreError>> {
        async move {
            let (connection, is_new) = self.connect().await?;
            let process = if is_new { Some(rights::check(self, &connection).await?) } else { None };
            let read_all = |request: TableRequest| match is_new {
                true => TableRequest::default(),
                false => request,
            };
            let (claims, ended) = (read_all(beat.claims), read_all(beat.ended));
            let (replica, record) = beat.own.unwrap_or_default();
            let key = KeyId::of_sealed(&record).map(|id| id.to_string()).unwrap_or_default();
            let mut call = HEARTBEAT.prepare_invoke();
            for name in ["members", "members-until", "steady", "keys"] {
                call.key(self.key(name));
            }
            call.key(&self.keys_of(&CLAIMS)[..]).key(&self.keys_of(&ENDED)[..]);
            call.arg(replica).arg(record).arg(millis(RECORD_TTL)).arg(millis(MAX_GAP)).arg(key);
            call.arg(MAX_PAGE);
            for TableRequest { after, missing_sum } in [claims, ended] {
                call.arg(after);
                let sum = missing_sum.map(|it| (it.last.to_string(), it.count, it.sum));
                let (last, count, sum) = sum.unwrap_or_default();
                call.arg(last).arg(count).arg(sum);
            }
            let reply = self.run_on::<HeartbeatReply>(&connection, call);
            let reply = self.in_time(self.beat_timeout(), reply).await;
            if reply == Err(StoreError::Late) {
                give_up(&self.current, &connection.identity);
            }
            let (steady, replicas, keys, claimed, ends) = reply?;
            let mut is_other = false;
            if let Some(process) = process {
                is_other = std::mem::replace(&mut *self.process.lock(), process.clone()) != process;
                *self.current.lock() = Some(connection);
            }
            let mut unused: BTreeMap<_, _> =
                keys.into_iter().map(|(key, ms)| (key, Duration::from_millis(ms))).collect();
            let known = unused.remove(KEYS_SINCE).unwrap_or_default();
            Ok(Roster {
                is_other,
                steady: Duration::from_millis(steady),
                replicas: replicas.into_iter().collect(),
                claims: page(claims.after, claimed),
                ended: page(ended.after, ends),
                key_use: KeyUsage { known, unused },
            })
        }
        .boxed()
    }

    fn leave(&self, replica: String) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let mut call = LEAVE.key(self.key("members"));
            call.key(self.key("members-until")).arg(replica);
            self.run(&call).await
        }
        .boxed()
    }
}

fn page(after: u64, (numbers, texts, count, last, sum): PageReply) -> TablePage {
    let entries = numbers.chunks_exact(2).zip(texts).filter_map(|(pair, text)| {
        let number = pair[1].parse().ok()?;
        Some(StoredEntry { number, name: pair[0].clone(), text: text? })
    });
    TablePage { after, entries: entries.collect(), count, last, sum: sum.try_into().ok() }
}

/// Reply of [`HEARTBEAT`]: milliseconds for which the store has been steady; replicas with their
/// records; names of keys with the milliseconds since their last use; pages of both tables.
type HeartbeatReply = (u64, HashMap<String, String>, HashMap<String, u64>, PageReply, PageReply);
/// Names with their numbers, texts, number of all entries, last number, sum or -1.
type PageReply = (Vec<String>, Vec<Option<String>>, usize, u64, i64);

/// Entry of `keys` with the time since which the store keeps these times.
const KEYS_SINCE: &str = "since";

static HEARTBEAT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("../tables.lua"), include_str!("../heartbeat.lua")))
});

static LEAVE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../leave.lua")));
