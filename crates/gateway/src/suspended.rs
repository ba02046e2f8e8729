//! Table of suspended calls, which wait until a modern client sends its input responses.
//!
//! A call is stored under a `requestState` that the client must return: the only server state
//! between two requests of the modern era. (Spec 2026-07-28, multi round-trip requests: a returned
//! state is attacker-controlled until it is verified.)
//!
//! Invariants: a state cannot be guessed, can be redeemed once and for a limited time, and only by
//! the principal that received it, with the same request for the same item; any other attempt finds
//! nothing and changes nothing. A state that was issued here is recognized for the life of the
//! process. The number of entries is bounded. An entry that expires is dropped, which cancels the
//! call.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use weir_access::policy::Principal;
use weir_base::json::Object;
use weir_base::memory::quota::{PerPrincipal, QuotaPermit};
use weir_base::secrets::sealing::InstanceId;
use weir_base::secrets::secret;
use weir_base::secrets::sha256::sha256;
use weir_base::tasks::sync::Mutex;
use weir_mcp::call::{ItemRequest, Method};
use weir_mcp::kind::Kind;

/// Suspended calls by their states.
pub(crate) struct SuspendedRequests<T> {
    /// Process that issues the states; each begins with its number.
    instance: InstanceId,
    table: Mutex<SuspendedTable<T>>,
}

struct SuspendedTable<T> {
    /// `None` after shutdown.
    entries: Option<HashMap<Box<str>, SuspendedEntry<T>>>,
    quota: PerPrincipal<Principal>,
    /// The states in the order in which they were issued, and so in which they expire; some are
    /// redeemed already.
    issued: VecDeque<(Instant, Box<str>)>,
}

struct SuspendedEntry<T> {
    principal: Principal,
    _quota: QuotaPermit<Principal>,
    request: RequestKey,
    expires: Instant,
    value: T,
}

/// The request that a state is bound to, in addition to its principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestKey {
    method: Method,
    kind: Kind,
    key: Box<str>,
    arguments: [u8; 32],
}

/// Error: the table or the principal's share of it is full.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TableFull;

impl RequestKey {
    /// The key of a request.
    pub(crate) fn of(request: &ItemRequest) -> Self {
        Self::new(request.method, request.kind, request.key.clone(), &request.params)
    }

    pub(crate) fn new(method: Method, kind: Kind, key: Box<str>, params: &Object) -> Self {
        let arguments = params.get("arguments").unwrap_or_default();
        Self { method, kind, key, arguments: sha256(arguments) }
    }
}

impl<T> SuspendedRequests<T> {
    pub(crate) fn new(instance: InstanceId) -> Self {
        let table = SuspendedTable {
            entries: Some(HashMap::new()),
            quota: PerPrincipal::default(),
            issued: VecDeque::new(),
        };
        Self { instance, table: Mutex::new(table) }
    }

    /// Stores `value` and returns the state that redeems it.
    pub(crate) fn insert(
        &self,
        principal: &Principal,
        request: RequestKey,
        value: T,
    ) -> Result<Box<str>, TableFull> {
        let state = self.instance.name(secret::random_token()).into_boxed_str();
        let expires = Instant::now() + EXPIRY;
        {
            let mut table = self.table.lock();
            let SuspendedTable { entries, quota, issued } = &mut *table;
            let entries = entries.as_mut().ok_or(TableFull)?;
            if entries.len() >= MAX_ENTRIES {
                return Err(TableFull);
            }
            let _quota = quota.acquire(principal, principal.share(MAX_ENTRIES_PER_PRINCIPAL));
            let _quota = _quota.ok_or(TableFull)?;
            let principal = principal.clone();
            let entry = SuspendedEntry { principal, _quota, request, expires, value };
            entries.insert(state.clone(), entry);
            issued.push_back((expires, state.clone()));
            // Redeemed states stay in the queue until they expire; the queue is limited to twice
            // the number of entries.
            if issued.len() > 2 * MAX_ENTRIES {
                issued.retain(|(_, state)| entries.contains_key(state));
            }
        }
        Ok(state)
    }

    /// Drops the entries of this principal for which `is_over` holds.
    pub(crate) fn remove_if(&self, principal: &Principal, is_over: impl Fn(&T) -> bool) {
        let mut table = self.table.lock();
        if table.quota.count(principal) == 0 {
            return;
        }
        let entries = table.entries.iter().flatten();
        let over =
            entries.filter(|(_, entry)| entry.principal == *principal && is_over(&entry.value));
        let over: Vec<_> = over.map(|(state, _)| state.clone()).collect();
        let over: Vec<_> = over.iter().filter_map(|state| table.remove(state)).collect();
        drop(table);
        // Outside of the lock, because dropping an entry may call this table.
        drop(over);
    }

    /// Whether this state was issued here, even if it is redeemed or expired.
    pub(crate) fn issued_here(&self, state: &str) -> bool {
        InstanceId::split_named(state).is_some_and(|(instance, _)| instance == self.instance)
    }

    /// Whether there is an entry for this state, for any principal.
    pub(crate) fn contains(&self, state: &str) -> bool {
        self.table.lock().entries.as_ref().is_some_and(|entries| entries.contains_key(state))
    }

    /// Whether this principal has an entry.
    pub(crate) fn has_any(&self, principal: &Principal) -> bool {
        self.table.lock().quota.count(principal) > 0
    }

    /// Whether this principal can redeem this state with this request.
    pub(crate) fn can_take(
        &self,
        principal: &Principal,
        request: &RequestKey,
        state: &str,
    ) -> bool {
        let table = self.table.lock();
        let entry = table.entries.as_ref().and_then(|entries| entries.get(state));
        entry.is_some_and(|entry| entry.is_for(principal, request))
    }

    /// Redeems `state` for its principal and request before it expires, if `read` returns `Ok`;
    /// `None` if it cannot be redeemed.
    ///
    /// `read` runs under the lock: it must not wait and must not call this table.
    pub(crate) fn take<R, E>(
        &self,
        principal: &Principal,
        request: &RequestKey,
        state: &str,
        read: impl FnOnce(&T) -> Result<R, E>,
    ) -> Option<Result<(T, R), E>> {
        let mut table = self.table.lock();
        let entry = table.entries.as_ref()?.get(state)?;
        if !entry.is_for(principal, request) {
            return None;
        }
        let read = match read(&entry.value) {
            Ok(read) => read,
            Err(error) => return Some(Err(error)),
        };
        Some(Ok((table.remove(state)?, read)))
    }

    /// Drops expired entries until `stop`; then all that are left.
    pub(crate) async fn sweep(&self, stop: &CancellationToken) {
        loop {
            // No entry that is inserted meanwhile expires earlier.
            let next = self.drop_expired().unwrap_or_else(|| Instant::now() + EXPIRY);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = sleep_until(next) => {}
            }
        }
        let left = self.table.lock().entries.take();
        // Outside of the lock, because dropping an entry may call this table.
        drop(left);
    }

    /// Drops expired entries and returns when the next one expires.
    fn drop_expired(&self) -> Option<Instant> {
        let mut expired = Vec::new();
        let mut table = self.table.lock();
        let now = Instant::now();
        while let Some((expires, _)) = table.issued.front() {
            if *expires > now {
                break;
            }
            let state = table.issued.pop_front().map(|(_, state)| state);
            expired.extend(state.and_then(|state| table.remove(&state)));
        }
        let next = table.issued.front().map(|(expires, _)| *expires);
        drop(table);
        drop(expired);
        next
    }
}

impl<T> SuspendedEntry<T> {
    fn is_for(&self, principal: &Principal, request: &RequestKey) -> bool {
        let is_theirs = self.principal == *principal && self.request == *request;
        is_theirs && self.expires > Instant::now()
    }
}

impl<T> SuspendedTable<T> {
    fn remove(&mut self, state: &str) -> Option<T> {
        self.entries.as_mut()?.remove(state).map(|entry| entry.value)
    }
}

/// Lifetime of a state.
const EXPIRY: Duration = Duration::from_secs(600);
/// Maximum number of suspended calls, of all clients and of one.
const MAX_ENTRIES: usize = 1_024;
const MAX_ENTRIES_PER_PRINCIPAL: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use weir_access::policy::ANONYMOUS_CLIENTS;
    use weir_base::json::Object;
    use weir_base::secrets::sealing::SealingKeys;

    fn principal(name: &str) -> Principal {
        Principal::new(name, "r")
    }

    fn instance() -> InstanceId {
        SealingKeys::random().instance()
    }

    fn request(method: Method, params: &'static str) -> RequestKey {
        let params = Object::parse(params).expect(params);
        RequestKey::of(&ItemRequest::parse(method, params).expect("a request"))
    }

    fn call() -> RequestKey {
        request(Method::CallTool, r#"{"name":"a","arguments":{"n":1.0}}"#)
    }

    fn take<T>(
        suspended: &SuspendedRequests<T>,
        who: &str,
        request: &RequestKey,
        state: &str,
    ) -> Option<T> {
        let taken = suspended.take(&principal(who), request, state, |_| Ok::<_, ()>(()));
        taken.map(|taken| taken.expect("read").0)
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_is_good_once_for_the_same_principal_and_request() {
        let suspended = SuspendedRequests::new(instance());
        let state = suspended.insert(&principal("ann"), call(), 7).expect("not full");
        assert_eq!(state.len(), 16 + 1 + 43, "256 bits");
        let cut = &state[..state.len() - 1];
        for (who, request, state) in [
            ("bob", call(), &*state),
            ("ann", request(Method::CallTool, r#"{"name":"a","arguments":{"n":1}}"#), &*state),
            ("ann", request(Method::CallTool, r#"{"name":"a"}"#), &*state),
            ("ann", request(Method::CallTool, r#"{"name":"b","arguments":{"n":1.0}}"#), &*state),
            ("ann", request(Method::GetPrompt, r#"{"name":"a","arguments":{"n":1.0}}"#), &*state),
            ("ann", call(), cut),
            ("ann", call(), ""),
        ] {
            assert_eq!(take(&suspended, who, &request, state), None, "{who} {request:?} {state}");
        }
        let unread = suspended.take(&principal("ann"), &call(), &state, |_| Err::<(), _>("odd"));
        assert_eq!(unread, Some(Err("odd")), "and it waits on");
        assert_eq!(take(&suspended, "ann", &call(), &state), Some(7));
        assert_eq!(take(&suspended, "ann", &call(), &state), None);
        let of_another = SuspendedRequests::new(instance())
            .insert(&principal("ann"), call(), 7)
            .expect("not full");
        assert!(suspended.issued_here(&state) && !suspended.issued_here(&of_another));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_comes_back_for_is_dropped_in_time() {
        let (suspended, stop) =
            (Arc::new(SuspendedRequests::new(instance())), CancellationToken::new());
        let sweeping = tokio::spawn({
            let (suspended, stop) = (Arc::clone(&suspended), stop.clone());
            async move { suspended.sweep(&stop).await }
        });
        let (first, second) = (Arc::new(1), Arc::new(2));
        let gone = |value: &Arc<i32>| Arc::strong_count(value) == 1;
        let state =
            suspended.insert(&principal("a"), call(), Arc::clone(&first)).expect("not full");
        tokio::time::sleep(EXPIRY / 2).await;
        suspended.insert(&principal("a"), call(), Arc::clone(&second)).expect("not full");
        tokio::time::sleep(EXPIRY / 2 - Duration::from_millis(2)).await;
        assert!(!gone(&first) && suspended.contains(&state));
        tokio::time::sleep(Duration::from_millis(4)).await;
        assert!(gone(&first) && !gone(&second) && !suspended.contains(&state));
        tokio::time::sleep(EXPIRY).await;
        assert!(gone(&second) && suspended.table.lock().quota.is_empty());

        let third = Arc::new(3);
        suspended.insert(&principal("a"), call(), Arc::clone(&third)).expect("not full");
        stop.cancel();
        sweeping.await.expect("it ends");
        assert!(gone(&third));
        assert_eq!(suspended.insert(&principal("a"), call(), third), Err(TableFull));
    }

    #[tokio::test(start_paused = true)]
    async fn the_places_are_bounded_and_become_free_again() {
        let suspended = SuspendedRequests::new(instance());
        let insert = |who: &str| suspended.insert(&principal(who), call(), ());
        let states: Vec<_> =
            (0..MAX_ENTRIES_PER_PRINCIPAL).map(|_| insert("a").expect("not full")).collect();
        assert_eq!(insert("a"), Err(TableFull));
        assert_eq!(take(&suspended, "a", &call(), &states[3]), Some(()));
        assert!(insert("a").is_ok() && insert("a").is_err());
        let anonymous = (0..1_000).take_while(|_| insert("anonymous").is_ok()).count();
        assert_eq!(anonymous, MAX_ENTRIES_PER_PRINCIPAL * ANONYMOUS_CLIENTS);
        let others = (0..2_000).take_while(|number| insert(&number.to_string()).is_ok()).count();
        assert_eq!(
            others,
            MAX_ENTRIES - MAX_ENTRIES_PER_PRINCIPAL - MAX_ENTRIES_PER_PRINCIPAL * ANONYMOUS_CLIENTS
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_over_leaves_its_place() {
        let suspended = SuspendedRequests::new(instance());
        let insert = |who: &str, value: usize| suspended.insert(&principal(who), call(), value);
        let states: Vec<_> =
            (0..MAX_ENTRIES_PER_PRINCIPAL).map(|at| insert("a", at).expect("not full")).collect();
        let others = insert("b", 0).expect("not full");
        suspended.remove_if(&principal("a"), |value| *value < 2);
        assert_eq!(take(&suspended, "a", &call(), &states[0]), None);
        assert_eq!(take(&suspended, "a", &call(), &states[2]), Some(2));
        assert!((0..3).all(|_| insert("a", 9).is_ok()) && insert("a", 9).is_err());
        assert_eq!(take(&suspended, "b", &call(), &others), Some(0), "another one's stays");
    }

    #[tokio::test(start_paused = true)]
    async fn states_that_were_used_do_not_gather() {
        let suspended = SuspendedRequests::new(instance());
        for _ in 0..5 * MAX_ENTRIES {
            let state = suspended.insert(&principal("a"), call(), ()).expect("not full");
            assert_eq!(take(&suspended, "a", &call(), &state), Some(()));
        }
        assert!(suspended.table.lock().issued.len() <= 2 * MAX_ENTRIES);
    }
}
