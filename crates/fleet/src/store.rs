//! Store of a fleet: what replicas know of each other, and which one has a session.
//!
//! The store sees sealed texts and hashes only (see [`crate::records`]), and numbers of sessions
//! that have ended. It decides three things: of several replicas that claim a session or the lease
//! of an upstream, the first one gets it, and a limit of the fleet admits a request or not.

pub(crate) mod node;
pub(crate) mod valkey;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::BoxFuture;

use weir_base::ended_sessions::{EndedBlock, SessionNumber};
use weir_base::time::rate_limit::RequestRate;

/// Records of the replicas in a key-value store that all of them reach. Like those of the other
/// traits, its calls are bounded in time by the implementation.
pub(crate) trait ReplicaStore: Send + Sync {
    /// Writes the record of a replica, which expires after [`RECORD_TTL`] by the clock of the
    /// store, and returns what the store knows of the fleet. Connects first, if there is no
    /// connection.
    fn heartbeat(&self, beat: Beat) -> BoxFuture<'_, Result<Roster, StoreError>>;

    /// Removes the record of a replica.
    fn leave(&self, replica: String) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// Claims, ends and settings of sessions in the store.
pub(crate) trait ClaimStore: Send + Sync {
    /// Replaces the claim of a session if it is still `claim.expected`, and the session has not
    /// ended.
    fn claim(&self, claim: ClaimRequest) -> BoxFuture<'_, Result<ClaimReply, StoreError>>;

    /// Adds the ends of a block of sessions to those that the store has, and returns the block that
    /// there is now; `None` if it has expired by the clock of the store.
    fn end_sessions(
        &self,
        name: String,
        block: EndedBlock,
    ) -> BoxFuture<'_, Result<Option<StoredEntry>, StoreError>>;

    /// Writes the settings of a session, which expire with its id.
    fn put_settings(
        &self,
        session: String,
        settings: String,
        life: Duration,
    ) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Drops the settings of a session.
    fn drop_settings(&self, session: String) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// Limits that all replicas count together, in the store.
pub(crate) trait LimitStore: Send + Sync {
    /// Charges all limits of a request, or none. Unlike all others, this call waits for its reply
    /// until it comes: its caller decides when it is late, and reads it then, too.
    fn charge(&self, charge: Charge) -> BoxFuture<'static, Result<ChargeReply, StoreError>>;

    /// Writes what a replica reports of its buckets. No request waits for it.
    fn report(
        &self,
        replica: String,
        reports: Vec<BucketReport>,
    ) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// Leases in the store.
pub(crate) trait LeaseStore: Send + Sync {
    /// Gives a lease to a holder, or takes it back, if no other holder has it.
    fn lease(&self, request: LeaseRequest) -> BoxFuture<'_, Result<LeaseReply, StoreError>>;
}

/// Record that a replica writes each second, and what it asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beat {
    /// Name and sealed record of the replica; `None` for a process that only looks.
    pub(crate) own: Option<(String, String)>,
    pub(crate) claims: TableRequest,
    pub(crate) ended: TableRequest,
}

/// Request for a page of a table.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TableRequest {
    /// Entries after this number are returned.
    pub(crate) after: u64,
    /// Sum of the table, if the store did not know it.
    pub(crate) missing_sum: Option<TableSum>,
}

/// Sum of a table, as it is when this number was given last and there are so many entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableSum {
    pub(crate) last: u64,
    pub(crate) count: usize,
    /// Sum of the weights of all entries (see [`crate::claim_table::table_reading`]).
    pub(crate) sum: u64,
}

/// Contents of the store about the fleet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Roster {
    /// True if another process of the store has replied than before, or the first one: it may lack
    /// what was written last.
    pub(crate) is_other: bool,
    /// Time since which records have been written without a gap of [`MAX_GAP`], by the clock of
    /// the store. Only after some time a missing record says that its replica has ended: in a store
    /// that was empty or did not answer, all records are missing.
    pub(crate) steady: Duration,
    /// Names and sealed records of the replicas.
    pub(crate) replicas: Vec<(String, String)>,
    /// Claims of sessions, by the sessions.
    pub(crate) claims: TablePage,
    /// Blocks of ended sessions, by their names.
    pub(crate) ended: TablePage,
    /// When replicas sealed with which keys.
    pub(crate) key_use: KeyUsage,
}

/// Part of a table, with what tells whether a replica knows the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TablePage {
    /// Number after which entries were read: that of the request, or 0 on a new connection, because
    /// another server of the store may lack some.
    pub(crate) after: u64,
    /// Entries in the order of their numbers, at most [`MAX_PAGE`].
    pub(crate) entries: Vec<StoredEntry>,
    /// Number of entries that there are, and the number that was given last.
    pub(crate) count: usize,
    pub(crate) last: u64,
    /// Sum of the weights of all entries; `None` if it is not known.
    pub(crate) sum: Option<u64>,
}

impl TablePage {
    /// Returns whether there may be more entries.
    pub(crate) fn has_more(&self) -> bool {
        self.entries.len() == MAX_PAGE
    }
}

/// Entry of a table, as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredEntry {
    /// Number of the last change of the entry; later ones have higher numbers.
    pub(crate) number: u64,
    /// Session of a claim, or name of a block.
    pub(crate) name: String,
    /// Sealed text of the claim, or text of the block.
    pub(crate) text: String,
}

/// Time since the last heartbeat of a replica that seals with a key, by the clock of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KeyUsage {
    /// Time since the store keeps such times.
    pub(crate) known: Duration,
    /// Names of keys with the time since their last use.
    pub(crate) unused: BTreeMap<String, Duration>,
}

/// Request to replace the claim of a session.
#[derive(Debug, Clone)]
pub(crate) struct ClaimRequest {
    pub(crate) session: String,
    /// Number of the session, unless its id has none.
    pub(crate) number: Option<SessionNumber>,
    /// Claim that is to be replaced, empty if there is none; `None` replaces any.
    pub(crate) expected: Option<String>,
    pub(crate) text: String,
    /// Time after which the id of the session has expired.
    pub(crate) life: Duration,
}

/// Claim of a session after a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClaimReply {
    /// False if the claim was not the expected one.
    pub(crate) is_replaced: bool,
    /// Number and text of the claim that there is now; 0 and empty if there is none.
    pub(crate) number: u64,
    pub(crate) text: String,
    /// Sealed settings of the session, if there are any.
    pub(crate) settings: Option<String>,
    /// Block with the end of the session, if that has ended: then there is no reply else.
    pub(crate) ended: Option<StoredEntry>,
}

/// All limits of a request, as one replica charges them.
#[derive(Debug, Clone)]
pub(crate) struct Charge {
    pub(crate) replica: String,
    /// Number of replicas, among which limits are divided in a store that has lost its contents.
    pub(crate) share: u32,
    /// Age that the contents of the store have at least, as far as the replica knows. The store has
    /// lost them if they are younger.
    pub(crate) age: Duration,
    /// True if the store may have lost the last charges: what the replica knows counts then, too.
    pub(crate) restores: bool,
    pub(crate) buckets: Vec<BucketCharge>,
}

/// One limit of a request.
#[derive(Debug, Clone)]
pub(crate) struct BucketCharge {
    /// Name of the bucket, from [`crate::SharedLimits::bucket`].
    pub(crate) bucket: String,
    pub(crate) rate: Option<RequestRate>,
    /// Maximum number of requests in progress.
    pub(crate) most: Option<usize>,
    pub(crate) slots: ReplicaSlots,
    /// Time until all requests that the replica knows of are paid for.
    pub(crate) known: Duration,
}

/// Number of requests in progress that one bucket counts on one replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReplicaSlots {
    pub(crate) count: usize,
    /// Number of the change that led to this count; 0 before the first one. Messages overtake each
    /// other: an earlier count never replaces a later one.
    pub(crate) order: u64,
}

/// Decision of the store about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChargeReply {
    pub(crate) admission: SharedAdmission,
    /// Time until all requests are paid for that each bucket has admitted.
    pub(crate) taken: Vec<Duration>,
}

/// State of a bucket that a replica reports.
#[derive(Debug, Clone)]
pub(crate) struct BucketReport {
    pub(crate) bucket: String,
    pub(crate) slots: ReplicaSlots,
    /// Time until all requests that the replica knows of are paid for, if the store may have lost
    /// them.
    pub(crate) known: Option<Duration>,
    pub(crate) owed: Settlement,
    pub(crate) rate: Option<RequestRate>,
}

/// Difference between what was admitted and what was charged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Settlement {
    /// Number of the settlement: the store makes each one once.
    pub(crate) order: u64,
    /// Requests that were admitted and not charged; if negative, charged and not admitted.
    pub(crate) count: i64,
}

/// One limit of a request, as it is configured.
#[derive(Debug, Clone)]
pub struct SharedLimit {
    /// Name of the bucket, from [`crate::SharedLimits::bucket`].
    pub bucket: String,
    /// Rate of requests and size of a burst.
    pub rate: Option<RequestRate>,
    /// Maximum number of requests in progress.
    pub most: Option<usize>,
}

/// Decision about a request that limits of the fleet count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedAdmission {
    /// All limits were charged.
    Admitted,
    /// The limit of this index is reached, and nothing was charged. The time is that until the
    /// request would be admitted.
    Refused(usize, Duration),
}

/// Request for a lease.
#[derive(Debug, Clone)]
pub(crate) struct LeaseRequest {
    /// Name of the lease, from [`crate::SharedLimits::bucket`].
    pub(crate) lease: String,
    pub(crate) holder: String,
    /// Time after which another holder may get it; zero gives it back.
    pub(crate) life: Duration,
}

/// Reply to a request for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseReply {
    /// The holder has it.
    Held {
        /// Number of the lease, which a renewal keeps; later ones have higher numbers.
        number: u64,
        /// False if the last holder has not given it back.
        was_released: bool,
    },
    /// Another holder has it, or it was given back.
    Taken,
}

/// Reason why the store did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no connection at present.
    #[error("the store cannot be reached")]
    Away,
    /// No reply in time.
    #[error("the store did not reply in time")]
    Late,
    /// The connection has ended before the reply: the store may have done it.
    #[error("the connection to the store has ended: {0}")]
    Lost(String),
    /// The store has replied with an error, or there is no connection to it.
    #[error("{0}")]
    Failed(String),
    /// The store does not allow commands that Weir needs.
    #[error("the store does not allow {0}, which Weir needs: allow what docs/replicas.md lists")]
    Forbidden(String),
    /// The store has as many claims as it may have, or no memory left.
    #[error("the store is full")]
    Full,
}

/// Interval of the heartbeats.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);
/// Time after which the record of a replica expires.
pub(crate) const RECORD_TTL: Duration = Duration::from_secs(5);
/// Longest time without a record of any replica in which the store counts as steady. One may
/// have written its record a second before the last one, and needs time to write the next before
/// it expires.
pub(crate) const MAX_GAP: Duration = Duration::from_millis(2_500);
/// Time after which all replicas have reported to a store that was away: one second between two
/// heartbeats, and two for a connection.
pub(crate) const SETTLING: Duration = Duration::from_secs(3);
/// Most entries in one [`TablePage`].
pub(crate) const MAX_PAGE: usize = 1_000;
/// Most claims in the store. Each takes about 400 bytes.
pub(crate) const MAX_CLAIMS: usize = 100_000;
/// Most blocks of ended sessions in the store. Each takes about 400 bytes. A client that opens as
/// many sessions as it may makes three of them an hour at each replica.
pub(crate) const MAX_ENDED_BLOCKS: usize = 500_000;
