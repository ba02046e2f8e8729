//! Model of the store: its contents, and decisions like those of the scripts of the real one.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::claim_table::table_reading::{MODULUS, weight};
use crate::store::{
    Beat, Charge, ChargeReply, ClaimReply, ClaimRequest, KeyUsage, LeaseReply, LeaseRequest,
    MAX_GAP, MAX_PAGE, RECORD_TTL, Roster, SETTLING, StoredEntry, TablePage, TableRequest,
};
use crate::testing::bucket_model::BucketModel;
use crate::upstream_leases::lease_clock;
use weir_base::ended_sessions::{BlockName, EndedBlock, EndedSessions, SessionNumber};

/// Store in memory. Its operations decide as the scripts of the real one do.
#[derive(Clone, Default)]
pub(crate) struct StoreModel {
    replicas: BTreeMap<String, (String, Instant)>,
    pub(crate) claims: TableModel,
    pub(crate) ended: TableModel,
    /// Time since when it is steady, and of the last record.
    pub(crate) steady: Option<(Instant, Instant)>,
    /// Time of the first record.
    began: Option<Instant>,
    pub(crate) buckets: BucketModel,
    leases: BTreeMap<String, LeaseModel>,
}

#[derive(Clone, Default)]
pub(crate) struct TableModel {
    pub(crate) entries: BTreeMap<String, TableEntry>,
    last: u64,
    /// True if a replica that knows no sums has changed the table.
    pub(crate) has_no_sum: bool,
}

#[derive(Clone)]
pub(crate) struct TableEntry {
    number: u64,
    pub(crate) text: String,
    pub(crate) made: Instant,
}

/// A lease as the store has it.
#[derive(Clone)]
struct LeaseModel {
    holder: String,
    number: u64,
    until: Instant,
    /// Process of the store that it was given back to.
    released: u64,
}

impl TableModel {
    fn put(&mut self, name: &str, text: &str) -> u64 {
        self.last += 1;
        let (number, text, made) = (self.last, text.to_owned(), Instant::now());
        self.entries.insert(name.to_owned(), TableEntry { number, text, made });
        number
    }

    fn page(&mut self, request: TableRequest) -> TablePage {
        let (count, last) = (self.entries.len(), self.last);
        let missing = request.missing_sum.filter(|it| (it.last, it.count) == (last, count));
        let weights = self.entries.iter().map(|(name, entry)| weight(name, &entry.text));
        let sum = weights.fold(0, |sum, weight| (sum + weight) % MODULUS);
        self.has_no_sum &= missing.is_none_or(|it| it.sum != sum);
        let entries = self.entries.iter().filter(|(_, entry)| entry.number > request.after);
        let mut entries: Vec<_> = entries
            .map(|(name, TableEntry { number, text, .. })| StoredEntry {
                number: *number,
                name: name.clone(),
                text: text.clone(),
            })
            .collect();
        entries.sort_by_key(|entry| entry.number);
        entries.truncate(MAX_PAGE);
        let sum = (!self.has_no_sum).then_some(sum);
        TablePage { after: request.after, entries, count, last, sum }
    }
}

impl StoreModel {
    pub(crate) fn heartbeat(&mut self, beat: Beat, is_other: bool) -> Roster {
        let now = Instant::now();
        self.replicas.retain(|_, (_, until)| *until > now);
        let steady = self.steady.filter(|(_, last)| now - *last <= MAX_GAP);
        let since = steady.map_or(now, |(since, _)| since);
        if let Some((name, record)) = beat.own {
            self.replicas.insert(name, (record, now + RECORD_TTL));
            self.steady = Some((since, now));
            self.began.get_or_insert(now);
        }
        let replicas = self.replicas.iter().map(|(name, (text, _))| (name.clone(), text.clone()));
        let known = self.began.map(|began| now - began).unwrap_or_default();
        Roster {
            is_other,
            steady: now - since,
            replicas: replicas.collect(),
            claims: self.claims.page(beat.claims),
            ended: self.ended.page(beat.ended),
            key_use: KeyUsage { known, ..KeyUsage::default() },
        }
    }

    /// Removes the record of a replica.
    pub(crate) fn leave(&mut self, replica: &str) {
        self.replicas.remove(replica);
    }

    pub(crate) fn charge(&mut self, charge: &Charge) -> ChargeReply {
        let now = Instant::now();
        let is_young = self.steady.is_none_or(|(since, _)| now - since < SETTLING);
        let is_lost = self.began.is_none_or(|began| now - began < charge.age);
        let lives = |replica: &str| {
            is_young || self.replicas.get(replica).is_some_and(|(_, until)| *until > now)
        };
        self.buckets.charge(charge, is_lost, lives)
    }

    pub(crate) fn claim(&mut self, request: ClaimRequest) -> ClaimReply {
        if let Some((name, TableEntry { number, text, .. })) = self.end_of(request.number) {
            let ended = Some(StoredEntry { number: *number, name, text: text.clone() });
            return ClaimReply { ended, ..ClaimReply::default() };
        }
        let current = self.claims.entries.get(&request.session);
        let text = current.map(|claim| claim.text.clone()).unwrap_or_default();
        if request.expected.is_some_and(|expected| expected != text) {
            let number = current.map_or(0, |claim| claim.number);
            return ClaimReply { number, text, ..ClaimReply::default() };
        }
        let (number, text) = (self.claims.put(&request.session, &request.text), request.text);
        ClaimReply { is_replaced: true, number, text, ..ClaimReply::default() }
    }

    /// Block with the end of the session of this number, if that has ended.
    pub(crate) fn end_of(&self, number: Option<SessionNumber>) -> Option<(String, &TableEntry)> {
        let number = number?;
        let name = number.block().to_string();
        let entry = self.ended.entries.get(&name)?;
        let mut ended = EndedSessions::default();
        ended.merge(number.block(), &EndedBlock::parse(&entry.text).expect("a block"));
        ended.contains(number).then_some((name, entry))
    }

    pub(crate) fn end_sessions(&mut self, name: String, block: EndedBlock) -> StoredEntry {
        let key = BlockName::parse(&name).expect("a name");
        let known = self.ended.entries.get(&name).map(|it| (it.number, it.text.clone()));
        let mut all = EndedSessions::default();
        let parsed = known.as_ref().map(|(_, text)| EndedBlock::parse(text).expect("a block"));
        for block in parsed.into_iter().chain([block]) {
            all.merge(key, &block);
        }
        let text = all.get(key).expect("there").to_string();
        match known.filter(|(_, known)| *known == text) {
            Some((number, text)) => StoredEntry { number, name, text },
            None => StoredEntry { number: self.ended.put(&name, &text), name, text },
        }
    }

    /// Gives a lease to a holder, or takes it back. `process` is that of the store.
    pub(crate) fn lease(&mut self, request: LeaseRequest, process: u64) -> LeaseReply {
        let now = Instant::now();
        let none = || LeaseModel { holder: "none".into(), number: 0, until: now, released: 0 };
        let lease = self.leases.entry(request.lease).or_insert_with(none);
        let is_mine = lease.holder == request.holder && lease.until > now;
        if request.life.is_zero() {
            if is_mine {
                let (holder, released) = (String::new(), process);
                *lease = LeaseModel { holder, until: now, released, ..*lease };
            }
            return LeaseReply::Taken;
        }
        if lease.until > now && !is_mine {
            return LeaseReply::Taken;
        }
        let was_released = is_mine || lease.holder.is_empty() && lease.released == process;
        if !is_mine {
            let time = u64::try_from(lease_clock::now().as_millis()).unwrap_or_default();
            lease.number = (lease.number + 1).max(time);
        }
        (lease.holder, lease.until) = (request.holder, now + request.life);
        LeaseReply::Held { number: lease.number, was_released }
    }
}
