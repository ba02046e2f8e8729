//! What goes beside a call, from the upstream that works to the client that waits: progress, log
//! messages, and that a visit is done with.
//!
//! Promises: the upstream's side never waits. Progress only increases, comes at most [`PER_SECOND`] times a
//! second after a first burst of as many, and the last one always comes to a client that reads. Log
//! messages come as they were sent, in their order, if they are severe enough for the client; at most
//! [`LOGS_PER_SECOND`] after a burst. What waits counts against the budget of all that is held, where there is one. Who does not read loses notes, never its reply.
//!
//! Knows nothing of: tokens. Each hop mints its own, so none travels through the house.

mod rate;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::json::{self, Object};
use crate::mcp::elicitation_complete::{MAX_DONE_BYTES, Visits};
use crate::mcp::log_level::{Level, Wanted};
use crate::mcp::task::{Names, rename_related};
use crate::memory_budget::{Budget, Growing, SMALL_BYTES};
use rate::Rate;

/// How much progress a client gets in a second.
pub const PER_SECOND: u32 = 20;

/// How many log messages a client gets in a second from one call (spec, logging: servers SHOULD limit
/// their rate). More than a person reads, and far from what a loop can write.
pub const LOGS_PER_SECOND: u32 = 200;

/// How much progress waits for a client's writer; beyond it the oldest goes.
const MAX_PROGRESS: usize = 64;

/// How many log messages wait, and how many bytes of them; beyond either the newest is dropped, so that
/// what is told is without a gap up to where it ends.
const MAX_LOGS: usize = 256;
const MAX_LOG_BYTES: usize = 1024 * 1024;

/// How much news of visits waits; further ones wait for the client's own stream.
const MAX_VISITED: usize = 16;

/// One note.
#[derive(Debug, Clone, PartialEq)]
pub enum Note {
    /// The `params` of a progress notification, its token removed.
    Progress(Object),
    /// The `params` of a log message, as sent, on one line.
    Log(Bytes),
    /// The `params` of the news that a visit is done with, as sent, on one line.
    Visited(Bytes),
}

/// Where an upstream's side puts notes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Notes {
    shared: Arc<Shared>,
    progress: bool,
    logs: Wanted,
    /// Whether the upstream's side may send log messages.
    takes_logs: bool,
    /// How the client names the tasks that notes may be about.
    names: Option<Names>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is something to take.
    came: Notify,
}

#[derive(Debug)]
struct State {
    /// The last that was told.
    last_progress: f64,
    /// The last that the upstream made with the request that it is at now.
    last_of_round: f64,
    last_heard: Instant,
    /// In the order in which they came.
    queue: VecDeque<Note>,
    log_bytes: usize,
    /// Of the small notes. Large ones count as the messages that they came in.
    small_bytes: usize,
    growing: Option<Growing>,
    dropped_logs: u64,
    /// Whether somebody takes them.
    is_read: bool,
    /// Where notes go instead.
    onward: Option<Notes>,
    /// Where news of visits go that come too late; `None` if the client knows no such news.
    visits: Option<Visits>,
}

/// Where a client's side takes them.
#[derive(Debug)]
pub struct NoteStream {
    shared: Arc<Shared>,
    progress_rate: Rate,
    log_rate: Rate,
}

// === Notes ===

impl Notes {
    /// Progress that somebody reads.
    pub fn channel() -> (Self, NoteStream) {
        Self::open(true, Wanted::nothing())
    }

    /// Notes that somebody reads: progress if that is wanted, and which log messages are.
    pub fn open(progress: bool, logs: Wanted) -> (Self, NoteStream) {
        let notes = Self::new(progress, logs, true);
        let stream = NoteStream {
            shared: Arc::clone(&notes.shared),
            progress_rate: Rate::new(PER_SECOND),
            log_rate: Rate::new(LOGS_PER_SECOND),
        };
        (notes, stream)
    }

    /// Notes that nobody asked for. An upstream that sends some all the same shows a sign of life.
    pub fn unheard() -> Self {
        Self::new(false, Wanted::nothing(), false)
    }

    fn new(progress: bool, logs: Wanted, is_read: bool) -> Self {
        let state = State {
            last_progress: f64::NEG_INFINITY,
            last_of_round: f64::NEG_INFINITY,
            last_heard: Instant::now(),
            queue: VecDeque::new(),
            log_bytes: 0,
            small_bytes: 0,
            growing: None,
            dropped_logs: 0,
            is_read,
            onward: None,
            visits: None,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), came: Notify::new() });
        Self { shared, progress, logs, takes_logs: true, names: None }
    }

    /// The same, where notes may name tasks: their client knows them in this way.
    #[must_use]
    pub fn naming(self, names: Names) -> Self {
        Self { names: Some(names), ..self }
    }

    /// How the client names tasks, where there may be any.
    pub fn names(&self) -> Option<&Names> {
        self.names.as_ref()
    }

    /// Tells of visits that are done with, too: beside the call while it is under way, later through `visits`.
    pub fn tell_visits(&self, visits: &Visits) {
        self.shared.lock().visits = Some(visits.clone());
    }

    /// Has what waits count against a budget, once it is much together.
    pub fn count_against(&self, budget: &Budget) {
        self.shared.lock().growing = Some(Growing::new(budget));
    }

    /// Whether the client wants to know when a visit is done with.
    pub fn hears_visits(&self) -> bool {
        self.shared.lock().visits.is_some()
    }

    /// Whether the client asked for progress.
    pub fn wanted(&self) -> bool {
        self.progress
    }

    /// What an upstream is given that sends log messages, or that does not; `None` where nobody would hear
    /// of anything.
    pub fn given_to(&self, upstream_logs: bool) -> Option<Self> {
        let is_heard = self.progress || upstream_logs || self.hears_visits();
        is_heard.then(|| Self { takes_logs: upstream_logs, ..self.clone() })
    }

    /// Whether log messages belong here, wanted or not.
    pub fn takes_logs(&self) -> bool {
        self.takes_logs
    }

    /// Which log messages the client wants.
    pub fn logs(&self) -> &Wanted {
        &self.logs
    }

    /// Takes the `params` of a progress notification, its token removed. What does not increase
    /// is dropped (spec, progress: the value MUST increase).
    pub fn progress(&self, mut params: Object) {
        if let Some(names) = &self.names {
            rename_related(&mut params, &**names);
        }
        let progress = params.get("progress").and_then(|text| text.parse::<f64>().ok());
        let Some(progress) = progress else { return };
        let mut state = self.shared.lock();
        if progress <= state.last_of_round {
            return;
        }
        state.last_of_round = progress;
        state.last_heard = Instant::now();
        if progress <= state.last_progress {
            return;
        }
        state.last_progress = progress;
        if let Some(onward) = state.onward.clone() {
            drop(state);
            return onward.progress(params);
        }
        if self.progress && state.is_read {
            state.push_progress(params);
            drop(state);
            self.shared.came.notify_one();
        }
    }

    /// The upstream gets a further request of the same call, and may begin to count anew: that shows life, and
    /// is told only once it is more than has been told.
    pub fn begin_round(&self) {
        self.shared.lock().last_of_round = f64::NEG_INFINITY;
    }

    /// Takes the `params` of a log message; only its level is read.
    pub fn log(&self, params: &Object) {
        if !self.takes_logs {
            return;
        }
        let mut params = Cow::Borrowed(params);
        if let Some(names) = &self.names
            && params.has("_meta")
        {
            rename_related(params.to_mut(), &**names);
        }
        let onward = self.shared.lock().onward.clone();
        if let Some(onward) = onward {
            return onward.log(&params);
        }
        let level = params.get("level").and_then(Level::parse);
        let is_wanted = self.logs.least().is_some_and(|least| level >= Some(least));
        let mut state = self.shared.lock();
        if is_wanted && state.is_read && state.push_log(json::on_one_line(params.to_bytes())) {
            drop(state);
            self.shared.came.notify_one();
        }
    }

    /// Takes the `params` of the news that a visit is done with.
    pub fn visited(&self, params: &Object) {
        let mut state = self.shared.lock();
        let Some(visits) = state.visits.clone() else { return };
        let params = json::on_one_line(params.to_bytes());
        let waiting = state.queue.iter().filter(|note| matches!(note, Note::Visited(_))).count();
        let is_small = params.len() <= MAX_DONE_BYTES;
        if state.is_read && is_small && waiting < MAX_VISITED {
            state.push(Note::Visited(params));
            drop(state);
            self.shared.came.notify_one();
        } else {
            drop(state);
            visits.tell(params);
        }
    }

    /// Hands all further notes on to `other`: the call goes on for another request of its client's.
    pub fn redirect(&self, other: Self) {
        // Onto itself it would go round for ever.
        let onward = (!Arc::ptr_eq(&self.shared, &other.shared)).then_some(other);
        self.shared.lock().onward = onward;
    }

    /// When the upstream last made progress, or when the call began.
    pub fn last_heard(&self) -> Instant {
        self.shared.lock().last_heard
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push_progress(&mut self, params: Object) {
        let waiting = self.queue.iter().filter(|note| note.is_progress()).count();
        if waiting >= MAX_PROGRESS {
            self.drop_oldest_progress();
        }
        let note = Note::Progress(params);
        if !self.has_room(&note) {
            // The last one always comes.
            self.thin_progress(0);
        }
        self.push(note);
    }

    fn push(&mut self, note: Note) {
        self.small_bytes += note.small_bytes();
        self.queue.push_back(note);
    }

    fn has_room(&mut self, note: &Note) -> bool {
        let then = self.small_bytes + note.small_bytes();
        self.growing.as_mut().is_none_or(|growing| growing.reach(then).is_ok())
    }

    /// Takes the one at a place in the queue.
    fn remove(&mut self, at: usize) -> Option<Note> {
        let note = self.queue.remove(at)?;
        self.small_bytes -= note.small_bytes();
        if let Note::Log(params) = &note {
            self.log_bytes -= params.len();
        }
        if self.queue.is_empty()
            && let Some(growing) = &mut self.growing
        {
            growing.clear();
        }
        Some(note)
    }

    fn take_all(&mut self) -> VecDeque<Note> {
        (self.small_bytes, self.log_bytes, self.growing) = (0, 0, None);
        std::mem::take(&mut self.queue)
    }

    /// Whether there was room.
    fn push_log(&mut self, params: Bytes) -> bool {
        let waiting = self.queue.iter().filter(|note| matches!(note, Note::Log(_))).count();
        let bytes = self.log_bytes + params.len();
        let note = Note::Log(params);
        if waiting >= MAX_LOGS || bytes > MAX_LOG_BYTES || !self.has_room(&note) {
            self.dropped_logs += 1;
            return false;
        }
        self.log_bytes = bytes;
        self.push(note);
        true
    }

    fn drop_oldest_progress(&mut self) {
        let oldest = self.queue.iter().position(Note::is_progress);
        oldest.map(|at| self.remove(at));
    }

    /// Drops progress until no more than `count` of it is left, the newest.
    fn thin_progress(&mut self, count: usize) {
        let waiting = self.queue.iter().filter(|note| note.is_progress()).count();
        (count..waiting).for_each(|_| self.drop_oldest_progress());
    }

    fn take(&mut self, is_next: impl Fn(&Note) -> bool) -> Option<Note> {
        self.remove(self.queue.iter().position(is_next)?)
    }
}

impl Note {
    /// The parameters of progress.
    #[cfg(test)]
    pub(crate) fn expect_progress(&self) -> &Object {
        match self {
            Self::Progress(params) => params,
            other => panic!("not progress: {other:?}"),
        }
    }

    /// How many bytes it keeps, if they are few.
    fn small_bytes(&self) -> usize {
        let bytes = match self {
            Self::Progress(params) => params.text_bytes(),
            Self::Log(params) | Self::Visited(params) => params.len(),
        };
        if bytes <= SMALL_BYTES { bytes } else { 0 }
    }

    fn is_progress(&self) -> bool {
        matches!(self, Self::Progress(_))
    }
}

// === NoteStream ===

impl NoteStream {
    /// The next note, not before its time. Never ends: race it with the reply. Cancel-safe.
    pub async fn next(&mut self) -> Note {
        loop {
            let early = match self.take_due() {
                Ok(note) => return note,
                Err(early) => early,
            };
            let came = self.shared.came.notified();
            match early {
                None => came.await,
                // A log message may go while progress has to wait.
                Some(early) => tokio::select! {
                    biased;
                    () = came => {}
                    () = tokio::time::sleep(early) => {}
                },
            }
        }
    }

    /// The first note that may go out now, or how long it takes until one may.
    fn take_due(&mut self) -> Result<Note, Option<Duration>> {
        let now = Instant::now();
        let (progress, log) = (self.progress_rate.early(now), self.log_rate.early(now));
        let mut state = self.shared.lock();
        if !progress.is_zero() {
            // Those that came while we waited replace the one that waits.
            state.thin_progress(1);
        }
        let early = |note: &Note| match note {
            Note::Progress(_) => progress,
            Note::Log(_) => log,
            // There are only so many.
            Note::Visited(_) => Duration::ZERO,
        };
        let Some(note) = state.take(|note| early(note).is_zero()) else {
            return Err(state.queue.iter().map(early).min());
        };
        drop(state);
        match note {
            Note::Progress(_) => self.progress_rate.count(now),
            Note::Log(_) => self.log_rate.count(now),
            Note::Visited(_) => {}
        }
        Ok(note)
    }

    /// The notes that have not been handed out, once the reply is there: of progress as many of the newest
    /// as the rate allows, the last one always.
    pub fn rest(self) -> Vec<Note> {
        let left = self.progress_rate.left(Instant::now()).max(1);
        let mut state = self.shared.lock();
        state.thin_progress(left);
        state.is_read = false;
        state.take_all().into()
    }
}

impl Drop for NoteStream {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_read = false;
        let unread = state.take_all();
        if let Some(visits) = &state.visits {
            let visited = unread.into_iter().filter_map(|note| match note {
                Note::Visited(params) => Some(params),
                Note::Progress(_) | Note::Log(_) => None,
            });
            visited.for_each(|params| visits.tell(params));
        }
        if state.dropped_logs > 0 {
            tracing::debug!(
                count = state.dropped_logs,
                "log messages that a client had no room for"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(progress: u32) -> Object {
        Object::parse(format!("{{\"progress\":{progress}}}")).expect("an object")
    }

    fn log(level: &str, number: usize) -> Object {
        Object::parse(format!(r#"{{"level":"{level}","data":{number}}}"#)).expect("an object")
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_counts_against_the_budget_and_is_given_back() {
        let budget = Budget::new(1 << 20);
        let padded = |number: usize| {
            let text = format!(r#"{{"level":"error","data":"{number}{}"}}"#, "x".repeat(4_000));
            Object::parse(text).expect("an object")
        };
        let (notes, mut stream) = Notes::open(true, Wanted::from(Level::Debug));
        notes.count_against(&budget);
        (0..4).for_each(|number| notes.log(&padded(number)));
        assert_eq!(budget.held(), 0, "that is little");
        (4..100).for_each(|number| notes.log(&padded(number)));
        assert!((400_000..500_000).contains(&budget.held()), "{}", budget.held());
        stream.next().await;
        assert_eq!(stream.rest().len(), 99);
        assert_eq!(budget.held(), 0);

        let others = budget.keep(vec![0; 1_000_000].into()).expect("room");
        let (notes, stream) = Notes::open(true, Wanted::from(Level::Debug));
        notes.count_against(&budget);
        (0..100).for_each(|number| notes.log(&padded(number)));
        notes.progress(note(1));
        let rest = stream.rest();
        assert!(rest.len() < 6, "without room only little waits: {}", rest.len());
        assert!(rest.iter().any(Note::is_progress), "the last progress always comes");
        drop(others);
        assert_eq!(budget.held(), 0);
    }

    fn value(note: &Note) -> u32 {
        let Note::Progress(params) = note else { panic!("{note:?}") };
        params.get("progress").and_then(|text| text.parse().ok()).expect("a number")
    }

    fn data(note: &Note) -> Option<usize> {
        let Note::Log(params) = note else { return None };
        let params = Object::parse(params.clone()).expect("an object");
        params.get("data").and_then(|text| text.parse().ok())
    }

    #[tokio::test(start_paused = true)]
    async fn progress_that_goes_back_is_dropped() {
        let (notes, mut stream) = Notes::channel();
        for progress in [1, 3, 2, 3, 4] {
            notes.progress(note(progress));
        }
        let seen = [stream.next().await, stream.next().await, stream.next().await];
        assert_eq!(seen.each_ref().map(value), [1, 3, 4]);
        assert_eq!(stream.rest(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_storm_is_thinned_to_the_rate_and_its_last_note_comes() {
        let (notes, mut stream) = Notes::channel();
        let start = Instant::now();
        let writer = async {
            for progress in 0..1_000 {
                notes.progress(note(progress));
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let mut seen = Vec::new();
        tokio::pin!(writer);
        loop {
            tokio::select! {
                biased;
                note = stream.next() => seen.push(value(&note)),
                () = &mut writer => break,
            }
        }
        seen.extend(stream.rest().iter().map(value));
        let seconds = start.elapsed().as_secs() as usize;
        assert!(seen.len() <= PER_SECOND as usize * (seconds + 1) + 1, "{} notes", seen.len());
        assert!(seen.is_sorted() && seen.last() == Some(&999), "{seen:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn notes_that_come_together_with_the_reply_all_go_before_it() {
        let (notes, stream) = Notes::open(true, Wanted::from(Level::Debug));
        (1..=3).for_each(|progress| notes.progress(note(progress)));
        notes.log(&log("debug", 7));
        notes.progress(note(4));
        let rest = stream.rest();
        assert_eq!(rest[..3].iter().map(value).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((data(&rest[3]), value(&rest[4])), (Some(7), 4));
    }

    #[tokio::test(start_paused = true)]
    async fn notes_that_are_redirected_still_increase_and_go_by_the_new_level() {
        let (notes, first) = Notes::open(true, Wanted::from(Level::Alert));
        notes.progress(note(1));
        let (other, second) = Notes::open(true, Wanted::from(Level::Info));
        let given = notes.given_to(true).expect("somebody hears");
        notes.redirect(other);
        (1..=2).for_each(|progress| given.progress(note(progress)));
        given.log(&log("info", 7));
        notes.given_to(false).expect("somebody hears").log(&log("info", 8));
        notes.redirect(notes.clone());
        given.progress(note(3));
        given.log(&log("info", 9));
        assert_eq!(first.rest().iter().map(value).collect::<Vec<_>>(), [1, 3]);
        let rest = second.rest();
        assert_eq!((value(&rest[0]), data(&rest[1]), rest.len()), (2, Some(7), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn notes_that_nobody_wants_are_a_sign_of_life() {
        let notes = Notes::unheard();
        let before = notes.last_heard();
        tokio::time::advance(Duration::from_secs(5)).await;
        notes.progress(note(1));
        assert_eq!(notes.last_heard() - before, Duration::from_secs(5));
        assert!(!notes.wanted());
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_told_the_last_progress_and_the_first_messages() {
        let (notes, stream) = Notes::open(true, Wanted::from(Level::Debug));
        for number in 1..=1_000_u32 {
            notes.progress(note(number));
            notes.log(&log("info", number as usize));
        }
        let rest = stream.rest();
        let told: Vec<_> = rest.iter().filter_map(data).collect();
        assert_eq!(told, (1..=MAX_LOGS).collect::<Vec<_>>());
        let progress: Vec<_> = rest.iter().filter(|note| note.is_progress()).map(value).collect();
        assert_eq!(progress, (981..=1_000).collect::<Vec<_>>());

        let (notes, stream) = Notes::open(false, Wanted::from(Level::Debug));
        let large = format!(r#"{{"level":"info","data":"{}"}}"#, "x".repeat(MAX_LOG_BYTES / 3));
        for _ in 0..5 {
            notes.log(&Object::parse(large.clone()).expect("an object"));
        }
        assert_eq!(stream.rest().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_does_not_wait_for_progress_that_has_to() {
        let (notes, mut stream) = Notes::open(true, Wanted::from(Level::Info));
        for number in 0..=PER_SECOND {
            notes.progress(note(number));
        }
        for _ in 0..PER_SECOND {
            stream.next().await;
        }
        let start = Instant::now();
        notes.log(&log("info", 1));
        assert_eq!((data(&stream.next().await), start.elapsed()), (Some(1), Duration::ZERO));
        assert_eq!(value(&stream.next().await), PER_SECOND);
        assert_eq!(start.elapsed().as_millis() / 10, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_messages_is_held_to_the_rate() {
        let (notes, mut stream) = Notes::open(false, Wanted::from(Level::Info));
        let start = Instant::now();
        let writer = async {
            for number in 0..3_000 {
                notes.log(&log("error", number));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let mut seen = Vec::new();
        tokio::pin!(writer);
        loop {
            tokio::select! {
                biased;
                note = stream.next() => seen.extend(data(&note)),
                () = &mut writer => break,
            }
        }
        let seconds = start.elapsed().as_secs() as usize + 1;
        assert!(seen.len() <= LOGS_PER_SECOND as usize * seconds + 1, "{} messages", seen.len());
        assert!(seen.is_sorted() && seen.len() > 500);
    }

    #[test]
    fn only_what_is_severe_enough_passes_and_as_it_was_sent() {
        for (wanted, expected) in [
            (Wanted::nothing(), vec![]),
            (Wanted::from(Level::Debug), vec![0, 1, 2, 3]),
            (Wanted::from(Level::Warning), vec![2, 3]),
            (Wanted::undecided(), vec![1, 2, 3]),
        ] {
            let (notes, stream) = Notes::open(false, wanted);
            for (number, level) in ["debug", "info", "warning", "emergency"].iter().enumerate() {
                notes.log(&log(level, number));
            }
            for bad in [r#"{"data":9}"#, r#"{"level":"loud","data":9}"#, r#"{"level":7,"data":9}"#]
            {
                notes.log(&Object::parse(bad).expect("an object"));
            }
            let rest = stream.rest();
            assert_eq!(rest.iter().filter_map(data).collect::<Vec<_>>(), expected);
        }
        let odd = r#"{ "logger":"a","level":"error", "data":[1e400],"x":1.0 }"#;
        let (notes, stream) = Notes::open(false, Wanted::from(Level::Error));
        notes.log(&Object::parse(odd).expect("an object"));
        let [Note::Log(params)] = &stream.rest()[..] else { panic!("one message") };
        assert_eq!(params, odd);
    }
}
