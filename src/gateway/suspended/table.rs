//! Calls that wait until a client without a conversation comes back with its answers.
//!
//! Such a call is parked under a state that its client has to show: the only thing that is kept between two
//! requests of the modern era. (Spec 2026-07-28, multi round-trip requests: a state that comes back is an
//! attacker's until it is proven.)
//!
//! Promises: a state cannot be guessed, is good once and for a limited time, and only for the principal
//! that it was made for, asking the same thing of the same item; whatever else comes finds nothing and leaves
//! everything as it was. A state that was made here is told from all others for as long as the house stands. The places are bounded. What is not called for in time is dropped, which cancels it.
//!
//! Knows nothing of: what waits behind a state.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::json::Object;
use crate::mcp::call::{Ask, Method};
use crate::mcp::kind::Kind;
use crate::policy::Principal;
use crate::secret;
use crate::sha256::sha256;

/// What waits, by the states.
pub(crate) struct Parking<T> {
    /// What every state begins with. Nobody else's begins so by chance.
    mark: Box<str>,
    table: Mutex<Table<T>>,
    parked: Notify,
}

struct Table<T> {
    /// `None` once the house closes.
    places: Option<HashMap<Box<str>, Place<T>>>,
    by_principal: HashMap<Principal, usize>,
    /// The states in the order in which they were made, which is that in which they expire; some are used
    /// already.
    made: VecDeque<(Instant, Box<str>)>,
}

struct Place<T> {
    principal: Principal,
    request: Request,
    expires: Instant,
    what: T,
}

/// What a state is bound to beside its principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    method: Method,
    kind: Kind,
    key: Box<str>,
    arguments: [u8; 32],
}

/// There is no place left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Request {
    /// The request that asks for this.
    pub(crate) fn of(ask: &Ask) -> Self {
        Self::new(ask.method, ask.kind, ask.key.clone(), &ask.params)
    }

    pub(crate) fn new(method: Method, kind: Kind, key: Box<str>, params: &Object) -> Self {
        let arguments = params.get("arguments").unwrap_or_default();
        Self { method, kind, key, arguments: sha256(arguments) }
    }
}

impl<T> Parking<T> {
    pub(crate) fn new() -> Self {
        let table = Table {
            places: Some(HashMap::new()),
            by_principal: HashMap::new(),
            made: VecDeque::new(),
        };
        let mark = secret::unguessable()[..MARK_CHARS].into();
        Self { mark, table: Mutex::new(table), parked: Notify::new() }
    }

    /// Parks `what` and returns the state to come back with.
    pub(crate) fn park(
        &self,
        principal: &Principal,
        request: Request,
        what: T,
    ) -> Result<Box<str>, Full> {
        let state = [&*self.mark, &*secret::unguessable()].concat().into_boxed_str();
        let expires = Instant::now() + EXPIRY;
        {
            let mut table = self.lock();
            let Table { places, by_principal, made } = &mut *table;
            let places = places.as_mut().ok_or(Full)?;
            let own = by_principal.get(principal).copied().unwrap_or_default();
            if places.len() >= MAX_PLACES || own >= principal.share(PER_CLIENT) {
                return Err(Full);
            }
            let place = Place { principal: principal.clone(), request, expires, what };
            places.insert(state.clone(), place);
            by_principal.insert(principal.clone(), own + 1);
            made.push_back((expires, state.clone()));
            // Those that are used stay in line until they expire: no more of them than twice the places.
            if made.len() > 2 * MAX_PLACES {
                made.retain(|(_, state)| places.contains_key(state));
            }
        }
        self.parked.notify_one();
        Ok(state)
    }

    /// Drops what waits for this principal and is over.
    pub(crate) fn forget(&self, principal: &Principal, is_over: impl Fn(&T) -> bool) {
        let mut table = self.lock();
        if !table.by_principal.contains_key(principal) {
            return;
        }
        let places = table.places.iter().flatten();
        let over =
            places.filter(|(_, place)| place.principal == *principal && is_over(&place.what));
        let over: Vec<_> = over.map(|(state, _)| state.clone()).collect();
        let over: Vec<_> = over.iter().filter_map(|state| table.remove(state)).collect();
        drop(table);
        // Outside of the lock: whatever is dropped may come back here.
        drop(over);
    }

    /// Whether this state was made here, whatever became of what waited behind it.
    pub(crate) fn has_made(&self, state: &str) -> bool {
        state.starts_with(&*self.mark)
    }

    /// Whether something waits behind this state, whoever it may be for.
    pub(crate) fn knows(&self, state: &str) -> bool {
        self.lock().places.as_ref().is_some_and(|places| places.contains_key(state))
    }

    /// Whether something waits for this principal.
    pub(crate) fn has_any(&self, principal: &Principal) -> bool {
        self.lock().by_principal.contains_key(principal)
    }

    /// Whether something waits behind this state that this principal and this request may take.
    pub(crate) fn waits_for(&self, principal: &Principal, request: &Request, state: &str) -> bool {
        let table = self.lock();
        let place = table.places.as_ref().and_then(|places| places.get(state));
        place.is_some_and(|place| place.is_for(principal, request))
    }

    /// Takes what waits behind `state`, for its principal, its request, in time, and once, if `read` is content
    /// with it; `None` in every other case.
    ///
    /// `read` runs under the lock: it must not wait and must not come back here.
    pub(crate) fn take<R, E>(
        &self,
        principal: &Principal,
        request: &Request,
        state: &str,
        read: impl FnOnce(&T) -> Result<R, E>,
    ) -> Option<Result<(T, R), E>> {
        let mut table = self.lock();
        let place = table.places.as_ref()?.get(state)?;
        if !place.is_for(principal, request) {
            return None;
        }
        let read = match read(&place.what) {
            Ok(read) => read,
            Err(error) => return Some(Err(error)),
        };
        Some(Ok((table.remove(state)?, read)))
    }

    /// Drops what nobody came back for, until `stop`; then all that is left.
    pub(crate) async fn sweep(&self, stop: &CancellationToken) {
        loop {
            let next = self.drop_expired();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
                () = self.parked.notified(), if next.is_none() => {}
            }
        }
        let left = self.lock().places.take();
        // Outside of the lock: whatever is dropped may come back here.
        drop(left);
    }

    /// Drops what has expired and tells when the next will.
    fn drop_expired(&self) -> Option<Instant> {
        let mut expired = Vec::new();
        let mut table = self.lock();
        let now = Instant::now();
        while let Some((expires, _)) = table.made.front() {
            if *expires > now {
                break;
            }
            let state = table.made.pop_front().map(|(_, state)| state);
            expired.extend(state.and_then(|state| table.remove(&state)));
        }
        let next = table.made.front().map(|(expires, _)| *expires);
        drop(table);
        drop(expired);
        next
    }

    fn lock(&self) -> MutexGuard<'_, Table<T>> {
        // Every change under the lock is whole before anything can panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Place<T> {
    fn is_for(&self, principal: &Principal, request: &Request) -> bool {
        let is_theirs = self.principal == *principal && self.request == *request;
        is_theirs && self.expires > Instant::now()
    }
}

impl<T> Table<T> {
    fn remove(&mut self, state: &str) -> Option<T> {
        let place = self.places.as_mut()?.remove(state)?;
        if let Some(own) = self.by_principal.get_mut(&place.principal) {
            *own -= 1;
            if *own == 0 {
                self.by_principal.remove(&place.principal);
            }
        }
        Some(place.what)
    }
}

/// 72 bits.
const MARK_CHARS: usize = 12;
/// How long a client has to come back.
const EXPIRY: Duration = Duration::from_secs(600);
/// How many calls wait at a time, of all clients and of one.
const MAX_PLACES: usize = 1_024;
const PER_CLIENT: usize = 16;

#[cfg(test)]
mod tests {
    use crate::gateway::suspended::table::*;
    use crate::json::Object;
    use crate::policy::ANONYMOUS_CLIENTS;
    use std::sync::Arc;

    fn principal(name: &str) -> Principal {
        Principal::new(name, "r")
    }

    fn request(method: Method, params: &'static str) -> Request {
        let params = Object::parse(params).expect(params);
        Request::of(&Ask::parse(method, params).expect("an ask"))
    }

    fn call() -> Request {
        request(Method::CallTool, r#"{"name":"a","arguments":{"n":1.0}}"#)
    }

    fn take<T>(parking: &Parking<T>, who: &str, request: &Request, state: &str) -> Option<T> {
        let taken = parking.take(&principal(who), request, state, |_| Ok::<_, ()>(()));
        taken.map(|taken| taken.expect("read").0)
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_is_good_once_for_the_same_principal_and_request() {
        let parking = Parking::new();
        let state = parking.park(&principal("ann"), call(), 7).expect("room");
        assert_eq!(state.len(), MARK_CHARS + 43, "256 bits");
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
            assert_eq!(take(&parking, who, &request, state), None, "{who} {request:?} {state}");
        }
        let unread = parking.take(&principal("ann"), &call(), &state, |_| Err::<(), _>("odd"));
        assert_eq!(unread, Some(Err("odd")), "and it waits on");
        assert_eq!(take(&parking, "ann", &call(), &state), Some(7));
        assert_eq!(take(&parking, "ann", &call(), &state), None);
        let of_another = Parking::new().park(&principal("ann"), call(), 7).expect("room");
        assert!(parking.has_made(&state) && !parking.has_made(&of_another));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_comes_back_for_is_dropped_in_time() {
        let (parking, stop) = (Arc::new(Parking::new()), CancellationToken::new());
        let sweeping = tokio::spawn({
            let (parking, stop) = (Arc::clone(&parking), stop.clone());
            async move { parking.sweep(&stop).await }
        });
        let (first, second) = (Arc::new(1), Arc::new(2));
        let gone = |what: &Arc<i32>| Arc::strong_count(what) == 1;
        let state = parking.park(&principal("a"), call(), Arc::clone(&first)).expect("room");
        tokio::time::sleep(EXPIRY / 2).await;
        parking.park(&principal("a"), call(), Arc::clone(&second)).expect("room");
        tokio::time::sleep(EXPIRY / 2 - Duration::from_millis(2)).await;
        assert!(!gone(&first) && parking.knows(&state));
        tokio::time::sleep(Duration::from_millis(4)).await;
        assert!(gone(&first) && !gone(&second) && !parking.knows(&state));
        tokio::time::sleep(EXPIRY).await;
        assert!(gone(&second) && parking.lock().by_principal.is_empty());

        let third = Arc::new(3);
        parking.park(&principal("a"), call(), Arc::clone(&third)).expect("room");
        stop.cancel();
        sweeping.await.expect("it ends");
        assert!(gone(&third));
        assert_eq!(parking.park(&principal("a"), call(), third), Err(Full));
    }

    #[tokio::test(start_paused = true)]
    async fn the_places_are_bounded_and_become_free_again() {
        let parking = Parking::new();
        let park = |who: &str| parking.park(&principal(who), call(), ());
        let states: Vec<_> = (0..PER_CLIENT).map(|_| park("a").expect("room")).collect();
        assert_eq!(park("a"), Err(Full));
        assert_eq!(take(&parking, "a", &call(), &states[3]), Some(()));
        assert!(park("a").is_ok() && park("a").is_err());
        let anonymous = (0..1_000).take_while(|_| park("anonymous").is_ok()).count();
        assert_eq!(anonymous, PER_CLIENT * ANONYMOUS_CLIENTS);
        let others = (0..2_000).take_while(|number| park(&number.to_string()).is_ok()).count();
        assert_eq!(others, MAX_PLACES - PER_CLIENT - PER_CLIENT * ANONYMOUS_CLIENTS);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_over_leaves_its_place() {
        let parking = Parking::new();
        let park = |who: &str, what: usize| parking.park(&principal(who), call(), what);
        let states: Vec<_> = (0..PER_CLIENT).map(|at| park("a", at).expect("room")).collect();
        let others = park("b", 0).expect("room");
        parking.forget(&principal("a"), |what| *what < 2);
        assert_eq!(take(&parking, "a", &call(), &states[0]), None);
        assert_eq!(take(&parking, "a", &call(), &states[2]), Some(2));
        assert!((0..3).all(|_| park("a", 9).is_ok()) && park("a", 9).is_err());
        assert_eq!(take(&parking, "b", &call(), &others), Some(0), "another one's stays");
    }

    #[tokio::test(start_paused = true)]
    async fn states_that_were_used_do_not_gather() {
        let parking = Parking::new();
        for _ in 0..5 * MAX_PLACES {
            let state = parking.park(&principal("a"), call(), ()).expect("room");
            assert_eq!(take(&parking, "a", &call(), &state), Some(()));
        }
        assert!(parking.lock().made.len() <= 2 * MAX_PLACES);
    }
}
