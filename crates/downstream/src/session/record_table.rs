//! Records about sessions that a process knows, and the lines of JSON that they are written as.
//!
//! A line has the settings of a session, the end of one whose id has no number, or the ends of a
//! block of others.
//!
//! Invariants: an ended session stays ended; of those whose ids have no numbers, the first to
//! expire may be forgotten. The number and the size of the records are bounded, and so is the size
//! of the settings of each client.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::legacy::session_facts::{SessionSettings, seconds_of};
use weir_access::policy::Principal;
use weir_base::ended_sessions::{BlockName, EndedBlock, EndedSessions, SessionNumber};
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::decode;
use weir_fleet::SessionIdentity;
use weir_mcp::log_level::LogLevel;

/// Records that a process knows.
#[derive(Default)]
pub(super) struct RecordTable {
    ended: EndedSessions,
    records: HashMap<RecordKey, RecordLine>,
    /// Estimated size of the lines of the records.
    bytes: usize,
    /// Size of the settings of each client, as far as they are known to be its own.
    bytes_by_client: HashMap<Principal, usize>,
    /// Changes that are not written yet.
    pending: RecordChanges,
    /// Inode of the file, and bytes of it that were read.
    pub(super) read: (u64, u64),
}

/// Changes of records, which are to be written.
#[derive(Debug, Clone, Default)]
pub(super) struct RecordChanges {
    pub(super) ended: EndedSessions,
    /// Keys of sessions whose settings have changed or were dropped, or that have ended and have no
    /// number.
    pub(super) records: HashSet<RecordKey>,
}

/// Line with the record of one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordLine {
    session: String,
    /// Number of the session, unless its id has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    number: Option<String>,
    /// Seconds since 1970 at which the id expires.
    until: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) ended: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log_level: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    subscriptions: Vec<Box<str>>,
    /// Client for which settings count; none in a line that was read from the file.
    #[serde(skip)]
    client: Option<Principal>,
}

/// Line with the ends of a block of sessions.
#[derive(Serialize, Deserialize)]
struct EndedLine {
    /// Name of the block.
    block: String,
    ended: String,
}

impl RecordChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.ended.blocks().len() == 0
    }

    fn add(&mut self, other: Self) {
        for (name, block) in other.ended.blocks() {
            self.ended.merge(name, block);
        }
        self.records.extend(other.records);
    }
}

impl RecordTable {
    /// Records the end of a session, and returns what is to be written for it.
    pub(super) fn end(&mut self, session: &SessionIdentity) -> RecordChanges {
        let (key, mut changes) = (key_in(session), RecordChanges::default());
        match session.number {
            Some(number) => {
                self.drop_settings(&key);
                let (name, block) = number.ended(session.until);
                self.add_ended(name, &block);
                changes.ended.merge(name, &block);
            }
            None => {
                self.insert(key, RecordLine::new(session, true, SessionSettings::default()));
                changes.records.insert(key);
            }
        }
        changes
    }

    /// Records the settings of a session of this client.
    pub(super) fn set(
        &mut self,
        session: &SessionIdentity,
        client: &Principal,
        settings: SessionSettings,
    ) {
        let key = key_in(session);
        let line = RecordLine::new(session, false, settings).of(client);
        if self.insert(key, line) {
            self.pending.records.insert(key);
        }
    }

    pub(super) fn is_ended(&self, session: &SessionIdentity) -> bool {
        session.number.is_some_and(|number| self.ended.contains(number))
            || self.records.get(&key_in(session)).is_some_and(|line| line.ended)
    }

    /// Returns whether the end of a session is not written yet.
    pub(super) fn is_end_pending(&self, session: &SessionIdentity) -> bool {
        match session.number {
            Some(number) => self.pending.ended.contains(number),
            None => self.is_ended(session) && self.pending.records.contains(&key_in(session)),
        }
    }

    /// Returns the settings of a session; `None` if it has ended.
    pub(super) fn settings_of(&self, session: &SessionIdentity) -> Option<SessionSettings> {
        let is_ended = self.is_ended(session);
        let line = self.records.get(&key_in(session));
        (!is_ended).then(|| line.map(RecordLine::settings).unwrap_or_default())
    }

    /// Adds the record of a session of this client that another replica has written, and returns
    /// its settings.
    pub(super) fn take_over(
        &mut self,
        session: &SessionIdentity,
        client: &Principal,
        written: &[u8],
    ) -> Option<SessionSettings> {
        let line = serde_json::from_slice::<RecordLine>(written).ok()?;
        let key = line.key().filter(|key| *key == key_in(session))?;
        let settings = (!line.ended).then(|| line.settings());
        self.insert(key, line.of(client));
        settings
    }

    /// Returns the record of a session.
    pub(super) fn line(&self, key: &RecordKey) -> Option<RecordLine> {
        self.records.get(key).cloned()
    }

    pub(super) fn take_pending(&mut self) -> RecordChanges {
        std::mem::take(&mut self.pending)
    }

    pub(super) fn has_no_pending(&self) -> bool {
        self.pending.is_empty()
    }

    /// Has changes written later.
    pub(super) fn put_back(&mut self, changes: RecordChanges) {
        self.pending.add(changes);
    }

    fn add_ended(&mut self, name: BlockName, block: &EndedBlock) {
        if self.ended.get(name).is_none() {
            let now = SystemTime::now();
            self.ended.retain(|_, block| !block.has_expired(now));
        }
        self.ended.merge(name, block);
    }

    /// Adds a record; false if the session has ended before.
    fn insert(&mut self, key: RecordKey, line: RecordLine) -> bool {
        let has_ended = self.records.get(&key).is_some_and(|known| known.ended)
            || line.number().is_some_and(|number| self.ended.contains(number));
        if has_ended {
            return false;
        }
        self.remove(&key);
        let (client, size) = (line.client.clone(), line.to_json().len());
        self.bytes += size;
        self.records.insert(key, line);
        if let Some(client) = client {
            *self.bytes_by_client.entry(client.clone()).or_default() += size;
            let most = client.share(MAX_CLIENT_BYTES).min(MAX_FILE_BYTES / 2);
            if self.bytes_of(&client) > most {
                let is_enough = |table: &Self| table.bytes_of(&client) <= most / 10 * 9;
                self.drop_first_to_expire(
                    key,
                    |line| line.client.as_ref() == Some(&client),
                    is_enough,
                );
            }
        }
        if self.records.len() > MAX_RECORDS || self.bytes > MAX_FILE_BYTES {
            let is_enough = |table: &Self| {
                table.records.len() <= MAX_RECORDS / 10 * 9
                    && table.bytes <= MAX_FILE_BYTES / 10 * 9
            };
            self.drop_first_to_expire(key, |line| !line.ended, is_enough);
            self.drop_first_to_expire(key, |_| true, is_enough);
            warn!(remaining = self.records.len(), "oldest session records dropped: too many");
        }
        true
    }

    /// Returns the size of the settings of a client's sessions.
    pub(super) fn bytes_of(&self, client: &Principal) -> usize {
        self.bytes_by_client.get(client).copied().unwrap_or_default()
    }

    /// Removes a record; false if there is none.
    fn remove(&mut self, key: &RecordKey) -> bool {
        let Some(known) = self.records.remove(key) else { return false };
        let size = known.to_json().len();
        self.bytes -= size;
        if let Some(client) = known.client
            && let Entry::Occupied(mut bytes) = self.bytes_by_client.entry(client)
        {
            *bytes.get_mut() -= size;
            if *bytes.get() == 0 {
                bytes.remove();
            }
        }
        true
    }

    /// Drops the settings of a session, here and in the store.
    fn drop_settings(&mut self, key: &RecordKey) {
        if self.remove(key) {
            self.pending.records.insert(*key);
        }
    }

    /// Drops records that `may_go`, in the order of their expiry and without the one of `kept`,
    /// until it `is_enough`: more than is needed, so that this is rare.
    fn drop_first_to_expire(
        &mut self,
        kept: RecordKey,
        may_go: impl Fn(&RecordLine) -> bool,
        is_enough: impl Fn(&Self) -> bool,
    ) {
        let lines = self.records.iter().filter(|(key, line)| **key != kept && may_go(line));
        let mut lines: Vec<_> = lines.map(|(key, line)| (line.until, *key)).collect();
        lines.sort_unstable();
        for (_, key) in lines {
            if is_enough(self) {
                return;
            }
            self.drop_settings(&key);
        }
    }

    /// Drops the records that have expired, and those of sessions that have ended.
    pub(super) fn drop_expired(&mut self, now: SystemTime) {
        let second = seconds_of(now);
        let is_over = |line: &RecordLine| {
            line.until <= second || line.number().is_some_and(|it| self.ended.contains(it))
        };
        let over = self.records.iter().filter(|(_, line)| is_over(line));
        let over: Vec<_> = over.map(|(key, _)| *key).collect();
        for key in over {
            self.remove(&key);
        }
        self.ended.retain(|_, block| !block.has_expired(now));
    }

    /// Returns the estimated size of all lines.
    pub(super) fn size(&self) -> usize {
        self.bytes + self.ended.blocks().len() * MAX_ENDED_LINE_BYTES
    }

    /// Returns all lines, as [`Self::lines_of`] does.
    pub(super) fn all_lines(&self) -> String {
        let ended = self.ended.clone();
        self.lines_of(&RecordChanges { ended, records: self.records.keys().copied().collect() })
    }

    /// Returns the lines of these changes, each between line feeds: the first one ends a line that
    /// another process has left incomplete.
    pub(super) fn lines_of(&self, changes: &RecordChanges) -> String {
        let records = changes.records.iter().filter_map(|key| self.records.get(key));
        let lines = records.map(RecordLine::to_json).chain(ended_lines(&changes.ended));
        lines.map(|line| format!("\n{line}\n")).collect()
    }

    /// Reads a line, and adds its end to those that were read. A line of a process that was killed
    /// may be incomplete.
    pub(super) fn read_line(&mut self, line: &[u8], read: &mut RecordChanges) {
        let now = SystemTime::now();
        if let Ok(line) = serde_json::from_slice::<RecordLine>(line) {
            if let Some(key) = line.key().filter(|_| line.until > seconds_of(now)) {
                if line.ended {
                    read.records.insert(key);
                }
                self.insert(key, line);
            }
        } else if let Ok(line) = serde_json::from_slice::<EndedLine>(line) {
            let block = BlockName::parse(&line.block).zip(EndedBlock::parse(&line.ended));
            if let Some((name, block)) = block.filter(|(_, block)| !block.has_expired(now)) {
                read.ended.merge(name, &block);
                self.add_ended(name, &block);
            }
        }
    }
}

impl RecordLine {
    fn new(session: &SessionIdentity, ended: bool, settings: SessionSettings) -> Self {
        let SessionSettings { log_level, subscriptions } = settings;
        Self {
            session: session.key.clone(),
            number: session.number.map(|number| number.to_string()),
            until: seconds_of(session.until),
            ended,
            log_level: log_level.map(|level| level.as_str().to_owned()),
            subscriptions: bounded(subscriptions),
            client: None,
        }
    }

    /// Has settings count for the client of the session.
    fn of(self, client: &Principal) -> Self {
        Self { client: (!self.ended).then(|| client.clone()), ..self }
    }

    fn key(&self) -> Option<RecordKey> {
        decode(&self.session)
    }

    fn number(&self) -> Option<SessionNumber> {
        self.number.as_deref().and_then(SessionNumber::parse)
    }

    fn settings(&self) -> SessionSettings {
        let level = self.log_level.as_deref();
        SessionSettings {
            log_level: LogLevel::ALL.into_iter().find(|it| Some(it.as_str()) == level),
            subscriptions: bounded(self.subscriptions.clone()),
        }
    }

    /// Returns the time at which the id expires.
    pub(super) fn expires(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.until)
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are JSON")
    }
}

/// Drops the subscriptions that are too many for a record.
fn bounded(mut subscriptions: Vec<Box<str>>) -> Vec<Box<str>> {
    let mut bytes = 0;
    let fits = subscriptions.iter().take_while(|uri| {
        bytes += uri.len() + 3;
        bytes <= MAX_SETTINGS_BYTES
    });
    let count = fits.count();
    subscriptions.truncate(count);
    subscriptions
}

fn ended_lines(ended: &EndedSessions) -> impl Iterator<Item = String> {
    ended.blocks().map(|(name, block)| {
        let line = EndedLine { block: name.to_string(), ended: block.to_string() };
        serde_json::to_string(&line).expect("texts are JSON")
    })
}

fn key_in(session: &SessionIdentity) -> RecordKey {
    decode(&session.key).expect("it is a hash in hexadecimal digits")
}

/// Hash of a session id, which names it in the records.
pub(crate) type RecordKey = [u8; 16];

/// Returns the hash that names a session in the records.
pub(crate) fn key_of(id: &str) -> RecordKey {
    *sha256(id).first_chunk().expect("a hash has more than 16 bytes")
}

/// Most records of sessions that are kept, without those of numbered ends.
pub(super) const MAX_RECORDS: usize = 100_000;
/// Most bytes of these records; the file has at most twice as many, and the numbered ends.
const MAX_FILE_BYTES: usize = 32 << 20;
/// Most bytes of a line with the ends of a block.
const MAX_ENDED_LINE_BYTES: usize = 360;
/// Most bytes of the settings of one client's sessions: those of the sessions that it has in memory
/// fit into them.
pub(super) const MAX_CLIENT_BYTES: usize = 4 << 20;
/// Most bytes of the subscriptions of one session.
const MAX_SETTINGS_BYTES: usize = 64 << 10;
