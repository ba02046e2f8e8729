//! Notifications of one call, from its upstream to its client: progress, log messages and completed
//! URL elicitations.
//!
//! Invariants: the upstream's side never waits. Progress only increases, is sent at most
//! [`PER_SECOND`] times a second after a first burst of as many, and a client that reads always
//! gets the last one. Log messages are sent unchanged and in order, if they have the client's
//! minimum level; at most [`LOGS_PER_SECOND`] after a burst. Queued notifications are charged to
//! the memory budget, if there is one. A client that does not read loses notifications, never its
//! response.
//!
//! Does not contain progress tokens: each hop has its own.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::elicitation_complete::{ElicitationCompletions, MAX_COMPLETION_BYTES};
use crate::log_level::{LogLevel, LogLevelSetting};
use crate::task::{SharedTaskIdMapper, rename_related};
use weir_base::json::{self, Object};
use weir_base::memory::coalescing_queue::CoalescingQueue;
use weir_base::memory::memory_budget::{GrowingReservation, MemoryBudget, SMALL_BYTES};
use weir_base::time::rate_limit::RateLimiter;

/// Maximum progress notifications to a client per second.
pub(crate) const PER_SECOND: u32 = 20;

/// Maximum log messages to a client per second and call (spec, logging: servers SHOULD limit their
/// rate): more than a person reads, and far less than a loop can write.
pub(crate) const LOGS_PER_SECOND: u32 = 200;

/// Maximum queued progress notifications; beyond it the oldest is dropped.
const MAX_PROGRESS: usize = 64;

/// Maximum number and bytes of queued log messages; beyond either the newest is dropped, so that
/// the messages that are sent have no gap before their end.
const MAX_LOGS: usize = 256;
const MAX_LOG_BYTES: usize = 1024 * 1024;

/// Maximum queued elicitation completions; further ones are sent on the client's own stream.
const MAX_ELICITATIONS: usize = 16;

/// Notification of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum CallNotification {
    /// The `params` of a progress notification, its token removed.
    Progress(Object),
    /// The `params` of a log message, as sent, on one line.
    Log(Bytes),
    /// The `params` of an elicitation completion, as sent, on one line.
    ElicitationComplete(Bytes),
}

/// Sink of the upstream's side. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NotificationSink {
    queue: Arc<CoalescingQueue<State>>,
    progress: bool,
    logs: LogLevelSetting,
    /// Whether the upstream's side may send log messages.
    takes_logs: bool,
    /// Mapper of the task ids in notifications.
    task_ids: Option<SharedTaskIdMapper>,
}

#[derive(Debug)]
struct State {
    /// Last progress value that was queued.
    last_progress: f64,
    /// Last progress value of the current request of the call.
    last_of_request: f64,
    last_progress_at: Instant,
    /// In the order of arrival.
    queue: VecDeque<CallNotification>,
    log_bytes: usize,
    /// Bytes of the small notifications. Large ones are charged as the messages that contained
    /// them.
    small_bytes: usize,
    reservation: Option<GrowingReservation>,
    dropped_logs: u64,
    /// Whether there is a reader.
    is_read: bool,
    /// Sink to which further notifications are redirected.
    redirected_to: Option<NotificationSink>,
    /// Destination of elicitation completions that are too late for the call; `None` if the client
    /// does not support them.
    elicitations: Option<ElicitationCompletions>,
}

/// Stream of the client's side.
#[derive(Debug)]
pub struct NotificationStream {
    queue: Arc<CoalescingQueue<State>>,
    progress_rate: RateLimiter,
    log_rate: RateLimiter,
}

// === NotificationSink ===

impl NotificationSink {
    /// Creates a sink for progress, with its stream.
    pub fn channel() -> (Self, NotificationStream) {
        Self::open(true, LogLevelSetting::disabled())
    }

    /// Creates a sink for progress, if wanted, and for log messages of this level, with its stream.
    pub fn open(progress: bool, logs: LogLevelSetting) -> (Self, NotificationStream) {
        let (sink, now) = (Self::new(progress, logs, true), Instant::now());
        let stream = NotificationStream {
            queue: Arc::clone(&sink.queue),
            progress_rate: RateLimiter::new(PER_SECOND, PER_SECOND, now),
            log_rate: RateLimiter::new(LOGS_PER_SECOND, LOGS_PER_SECOND, now),
        };
        (sink, stream)
    }

    /// Creates a sink without a reader. Progress of the upstream still counts as a sign of life.
    pub fn disabled() -> Self {
        Self::new(false, LogLevelSetting::disabled(), false)
    }

    fn new(progress: bool, logs: LogLevelSetting, is_read: bool) -> Self {
        let state = State {
            last_progress: f64::NEG_INFINITY,
            last_of_request: f64::NEG_INFINITY,
            last_progress_at: Instant::now(),
            queue: VecDeque::new(),
            log_bytes: 0,
            small_bytes: 0,
            reservation: None,
            dropped_logs: 0,
            is_read,
            redirected_to: None,
            elicitations: None,
        };
        let queue = Arc::new(CoalescingQueue::new(state));
        Self { queue, progress, logs, takes_logs: true, task_ids: None }
    }

    /// Sets the mapper of task ids, for calls whose notifications may name tasks.
    #[must_use]
    pub fn with_task_ids(self, task_ids: SharedTaskIdMapper) -> Self {
        Self { task_ids: Some(task_ids), ..self }
    }

    /// The mapper of task ids, if notifications may name tasks.
    pub fn task_ids(&self) -> Option<&SharedTaskIdMapper> {
        self.task_ids.as_ref()
    }

    /// Enables elicitation completions: during the call they are sent with it, later through
    /// `elicitations`.
    pub fn forward_elicitation_completions(&self, elicitations: &ElicitationCompletions) {
        self.queue.lock().elicitations = Some(elicitations.clone());
    }

    /// Charges queued notifications to a budget, if they are large together.
    pub fn count_against(&self, budget: &MemoryBudget) {
        self.queue.lock().reservation = Some(GrowingReservation::new(budget));
    }

    /// Whether the client supports elicitation completions.
    pub fn wants_elicitation_completions(&self) -> bool {
        self.queue.lock().elicitations.is_some()
    }

    /// Whether the client requested progress.
    pub fn wants_progress(&self) -> bool {
        self.progress
    }

    /// The sink for an upstream that sends log messages or does not; `None` if no notification
    /// could reach the client.
    pub fn with_logs_enabled(&self, upstream_logs: bool) -> Option<Self> {
        let is_wanted = self.progress || upstream_logs || self.wants_elicitation_completions();
        is_wanted.then(|| Self { takes_logs: upstream_logs, ..self.clone() })
    }

    /// Whether log messages of the upstream belong to this call, wanted or not.
    pub fn takes_logs(&self) -> bool {
        self.takes_logs
    }

    /// The client's log level.
    pub fn logs(&self) -> &LogLevelSetting {
        &self.logs
    }

    /// Queues the `params` of a progress notification without its token. A value that does not
    /// increase is dropped (spec, progress: the value MUST increase).
    pub fn progress(&self, mut params: Object) {
        if let Some(task_ids) = &self.task_ids {
            rename_related(&mut params, &**task_ids);
        }
        let progress = params.get("progress").and_then(|text| text.parse::<f64>().ok());
        let Some(progress) = progress else { return };
        let mut state = self.queue.lock();
        if progress <= state.last_of_request {
            return;
        }
        state.last_of_request = progress;
        state.last_progress_at = Instant::now();
        if progress <= state.last_progress {
            return;
        }
        state.last_progress = progress;
        if let Some(redirected_to) = state.redirected_to.clone() {
            drop(state);
            return redirected_to.progress(params);
        }
        if self.progress && state.is_read {
            state.push_progress(params);
            drop(state);
            self.queue.wake();
        }
    }

    /// Registers a further request of the same call, whose progress may start again: it is a sign
    /// of life, and is queued only when it exceeds the last queued value.
    pub fn begin_request(&self) {
        self.queue.lock().last_of_request = f64::NEG_INFINITY;
    }

    /// Queues the `params` of a log message; only its level is parsed.
    pub fn log(&self, params: &Object) {
        if !self.takes_logs {
            return;
        }
        let mut params = Cow::Borrowed(params);
        if let Some(task_ids) = &self.task_ids
            && params.has("_meta")
        {
            rename_related(params.to_mut(), &**task_ids);
        }
        let redirected_to = self.queue.lock().redirected_to.clone();
        if let Some(redirected_to) = redirected_to {
            return redirected_to.log(&params);
        }
        let level = params.get("level").and_then(LogLevel::parse);
        let is_wanted = self.logs.minimum().is_some_and(|least| level >= Some(least));
        let mut state = self.queue.lock();
        if is_wanted && state.is_read && state.push_log(json::on_one_line(params.to_bytes())) {
            drop(state);
            self.queue.wake();
        }
    }

    /// Queues the `params` of an elicitation completion.
    pub fn elicitation_complete(&self, params: &Object) {
        let mut state = self.queue.lock();
        let Some(elicitations) = state.elicitations.clone() else { return };
        let params = json::on_one_line(params.to_bytes());
        let waiting =
            state.count(|queued| matches!(queued, CallNotification::ElicitationComplete(_)));
        let is_small = params.len() <= MAX_COMPLETION_BYTES;
        if state.is_read && is_small && waiting < MAX_ELICITATIONS {
            state.push(CallNotification::ElicitationComplete(params));
            drop(state);
            self.queue.wake();
        } else {
            drop(state);
            elicitations.add(params);
        }
    }

    /// Redirects all further notifications to `other`: the call continues for another request of
    /// its client.
    pub fn redirect(&self, other: Self) {
        // A redirection to itself would be an endless loop.
        let redirected_to = (!Arc::ptr_eq(&self.queue, &other.queue)).then_some(other);
        self.queue.lock().redirected_to = redirected_to;
    }

    /// Time of the upstream's last progress, or of the begin of the call.
    pub fn last_progress_at(&self) -> Instant {
        self.queue.lock().last_progress_at
    }
}

impl State {
    fn push_progress(&mut self, params: Object) {
        if self.count(CallNotification::is_progress) >= MAX_PROGRESS {
            self.drop_oldest_progress();
        }
        let notification = CallNotification::Progress(params);
        if !self.fits_budget(&notification) {
            // The last progress is always sent.
            self.thin_progress(0);
        }
        self.push(notification);
    }

    fn push(&mut self, notification: CallNotification) {
        self.small_bytes += notification.small_bytes();
        self.queue.push_back(notification);
    }

    fn fits_budget(&mut self, notification: &CallNotification) -> bool {
        let then = self.small_bytes + notification.small_bytes();
        self.reservation.as_mut().is_none_or(|reservation| reservation.grow_to(then).is_ok())
    }

    /// Removes the notification at an index of the queue.
    fn remove(&mut self, at: usize) -> Option<CallNotification> {
        let notification = self.queue.remove(at)?;
        self.small_bytes -= notification.small_bytes();
        if let CallNotification::Log(params) = &notification {
            self.log_bytes -= params.len();
        }
        if self.queue.is_empty()
            && let Some(reservation) = &mut self.reservation
        {
            reservation.clear();
        }
        Some(notification)
    }

    fn take_all(&mut self) -> VecDeque<CallNotification> {
        (self.small_bytes, self.log_bytes, self.reservation) = (0, 0, None);
        std::mem::take(&mut self.queue)
    }

    /// Queues a log message; false if it was dropped.
    fn push_log(&mut self, params: Bytes) -> bool {
        let waiting = self.count(|queued| matches!(queued, CallNotification::Log(_)));
        let bytes = self.log_bytes + params.len();
        let notification = CallNotification::Log(params);
        if waiting >= MAX_LOGS || bytes > MAX_LOG_BYTES || !self.fits_budget(&notification) {
            self.dropped_logs += 1;
            return false;
        }
        self.log_bytes = bytes;
        self.push(notification);
        true
    }

    /// Number of queued notifications of a kind.
    fn count(&self, is_kind: impl Fn(&CallNotification) -> bool) -> usize {
        self.queue.iter().filter(|queued| is_kind(queued)).count()
    }

    fn drop_oldest_progress(&mut self) {
        let oldest = self.queue.iter().position(CallNotification::is_progress);
        oldest.map(|at| self.remove(at));
    }

    /// Drops all but the `count` newest progress notifications.
    fn thin_progress(&mut self, count: usize) {
        let waiting = self.count(CallNotification::is_progress);
        (count..waiting).for_each(|_| self.drop_oldest_progress());
    }

    /// Removes the first notification that may be sent now, or returns when one may.
    fn take_due(
        &mut self,
        progress_rate: &mut RateLimiter,
        log_rate: &mut RateLimiter,
        now: Instant,
    ) -> Result<CallNotification, Option<Instant>> {
        let (progress, log) = (progress_rate.wait(now), log_rate.wait(now));
        if !progress.is_zero() {
            // Newer progress replaces the one that waits.
            self.thin_progress(1);
        }
        let early = |notification: &CallNotification| match notification {
            CallNotification::Progress(_) => progress,
            // A log message may be sent while progress has to wait.
            CallNotification::Log(_) => log,
            // Their number is limited by `MAX_ELICITATIONS`.
            CallNotification::ElicitationComplete(_) => Duration::ZERO,
        };
        let Some(notification) = self.take(|notification| early(notification).is_zero()) else {
            return Err(self.queue.iter().map(early).min().map(|early| now + early));
        };
        match notification {
            CallNotification::Progress(_) => progress_rate.charge(now),
            CallNotification::Log(_) => log_rate.charge(now),
            CallNotification::ElicitationComplete(_) => {}
        }
        Ok(notification)
    }

    fn take(&mut self, is_next: impl Fn(&CallNotification) -> bool) -> Option<CallNotification> {
        self.remove(self.queue.iter().position(is_next)?)
    }
}

impl CallNotification {
    /// The parameters of progress.
    #[cfg(any(test, feature = "testing"))]
    pub fn expect_progress(&self) -> &Object {
        match self {
            Self::Progress(params) => params,
            other => panic!("not progress: {other:?}"),
        }
    }

    /// Its bytes, if they are few.
    fn small_bytes(&self) -> usize {
        let bytes = match self {
            Self::Progress(params) => params.text_len(),
            Self::Log(params) | Self::ElicitationComplete(params) => params.len(),
        };
        if bytes <= SMALL_BYTES { bytes } else { 0 }
    }

    fn is_progress(&self) -> bool {
        matches!(self, Self::Progress(_))
    }
}

// === NotificationStream ===

impl NotificationStream {
    /// Waits for the next notification that the rate allows. Never ends: race it with the response.
    /// Cancel-safe.
    pub async fn next(&mut self) -> CallNotification {
        let Self { queue, progress_rate, log_rate } = self;
        queue.next(|state, now| state.take_due(progress_rate, log_rate, now)).await
    }

    /// The remaining notifications at the end of the call: of progress as many of the newest as the
    /// rate allows, and always the last one.
    pub fn drain(self) -> Vec<CallNotification> {
        let left = self.progress_rate.remaining(Instant::now()).max(1) as usize;
        let mut state = self.queue.lock();
        state.thin_progress(left);
        state.is_read = false;
        state.take_all().into()
    }
}

impl Drop for NotificationStream {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.is_read = false;
        let unread = state.take_all();
        if let Some(elicitations) = &state.elicitations {
            let completions = unread.into_iter().filter_map(|notification| match notification {
                CallNotification::ElicitationComplete(params) => Some(params),
                CallNotification::Progress(_) | CallNotification::Log(_) => None,
            });
            completions.for_each(|params| elicitations.add(params));
        }
        if state.dropped_logs > 0 {
            tracing::debug!(count = state.dropped_logs, "log messages dropped, client too slow");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notification(progress: u32) -> Object {
        Object::parse(format!("{{\"progress\":{progress}}}")).expect("an object")
    }

    fn log(level: &str, number: usize) -> Object {
        Object::parse(format!(r#"{{"level":"{level}","data":{number}}}"#)).expect("an object")
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_counts_against_the_budget_and_is_given_back() {
        let budget = MemoryBudget::new(1 << 20);
        let padded = |number: usize| {
            let text = format!(r#"{{"level":"error","data":"{number}{}"}}"#, "x".repeat(4_000));
            Object::parse(text).expect("an object")
        };
        let (sink, mut stream) =
            NotificationSink::open(true, LogLevelSetting::at_least(LogLevel::Debug));
        sink.count_against(&budget);
        (0..4).for_each(|number| sink.log(&padded(number)));
        assert_eq!(budget.reserved_bytes(), 0, "that is little");
        (4..100).for_each(|number| sink.log(&padded(number)));
        assert!(
            (400_000..500_000).contains(&budget.reserved_bytes()),
            "{}",
            budget.reserved_bytes()
        );
        stream.next().await;
        assert_eq!(stream.drain().len(), 99);
        assert_eq!(budget.reserved_bytes(), 0);

        let others = budget.charge(vec![0; 1_000_000].into()).expect("budget");
        let (sink, stream) =
            NotificationSink::open(true, LogLevelSetting::at_least(LogLevel::Debug));
        sink.count_against(&budget);
        (0..100).for_each(|number| sink.log(&padded(number)));
        sink.progress(notification(1));
        let rest = stream.drain();
        assert!(rest.len() < 6, "without budget only little waits: {}", rest.len());
        assert!(rest.iter().any(CallNotification::is_progress), "the last progress always comes");
        drop(others);
        assert_eq!(budget.reserved_bytes(), 0);
    }

    fn value(notification: &CallNotification) -> u32 {
        let CallNotification::Progress(params) = notification else { panic!("{notification:?}") };
        params.get("progress").and_then(|text| text.parse().ok()).expect("a number")
    }

    fn data(notification: &CallNotification) -> Option<usize> {
        let CallNotification::Log(params) = notification else { return None };
        let params = Object::parse(params.clone()).expect("an object");
        params.get("data").and_then(|text| text.parse().ok())
    }

    #[tokio::test(start_paused = true)]
    async fn progress_that_goes_back_is_dropped() {
        let (sink, mut stream) = NotificationSink::channel();
        for progress in [1, 3, 2, 3, 4] {
            sink.progress(notification(progress));
        }
        let seen = [stream.next().await, stream.next().await, stream.next().await];
        assert_eq!(seen.each_ref().map(value), [1, 3, 4]);
        assert_eq!(stream.drain(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_storm_is_thinned_to_the_rate_and_its_last_note_comes() {
        let (sink, mut stream) = NotificationSink::channel();
        let start = Instant::now();
        let writer = async {
            for progress in 0..1_000 {
                sink.progress(notification(progress));
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let mut seen = Vec::new();
        tokio::pin!(writer);
        loop {
            tokio::select! {
                biased;
                notification = stream.next() => seen.push(value(&notification)),
                () = &mut writer => break,
            }
        }
        seen.extend(stream.drain().iter().map(value));
        let seconds = start.elapsed().as_secs() as usize;
        assert!(seen.len() <= PER_SECOND as usize * (seconds + 1) + 1, "{} notes", seen.len());
        assert!(seen.is_sorted() && seen.last() == Some(&999), "{seen:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn notes_that_come_together_with_the_reply_all_go_before_it() {
        let (sink, stream) =
            NotificationSink::open(true, LogLevelSetting::at_least(LogLevel::Debug));
        (1..=3).for_each(|progress| sink.progress(notification(progress)));
        sink.log(&log("debug", 7));
        sink.progress(notification(4));
        let rest = stream.drain();
        assert_eq!(rest[..3].iter().map(value).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((data(&rest[3]), value(&rest[4])), (Some(7), 4));
    }

    #[tokio::test(start_paused = true)]
    async fn notes_that_are_redirected_still_increase_and_go_by_the_new_level() {
        let (sink, first) =
            NotificationSink::open(true, LogLevelSetting::at_least(LogLevel::Alert));
        sink.progress(notification(1));
        let (other, second) =
            NotificationSink::open(true, LogLevelSetting::at_least(LogLevel::Info));
        let enabled = sink.with_logs_enabled(true).expect("a reader");
        sink.redirect(other);
        (1..=2).for_each(|progress| enabled.progress(notification(progress)));
        enabled.log(&log("info", 7));
        sink.with_logs_enabled(false).expect("a reader").log(&log("info", 8));
        sink.redirect(sink.clone());
        enabled.progress(notification(3));
        enabled.log(&log("info", 9));
        assert_eq!(first.drain().iter().map(value).collect::<Vec<_>>(), [1, 3]);
        let rest = second.drain();
        assert_eq!((value(&rest[0]), data(&rest[1]), rest.len()), (2, Some(7), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn notes_that_nobody_wants_are_a_sign_of_life() {
        let sink = NotificationSink::disabled();
        let before = sink.last_progress_at();
        tokio::time::advance(Duration::from_secs(5)).await;
        sink.progress(notification(1));
        assert_eq!(sink.last_progress_at() - before, Duration::from_secs(5));
        assert!(!sink.wants_progress());
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_told_the_last_progress_and_the_first_messages() {
        let (sink, stream) =
            NotificationSink::open(true, LogLevelSetting::at_least(LogLevel::Debug));
        for number in 1..=1_000_u32 {
            sink.progress(notification(number));
            sink.log(&log("info", number as usize));
        }
        let rest = stream.drain();
        let logged: Vec<_> = rest.iter().filter_map(data).collect();
        assert_eq!(logged, (1..=MAX_LOGS).collect::<Vec<_>>());
        let progress: Vec<_> =
            rest.iter().filter(|notification| notification.is_progress()).map(value).collect();
        assert_eq!(progress, (981..=1_000).collect::<Vec<_>>());

        let (sink, stream) =
            NotificationSink::open(false, LogLevelSetting::at_least(LogLevel::Debug));
        let large = format!(r#"{{"level":"info","data":"{}"}}"#, "x".repeat(MAX_LOG_BYTES / 3));
        for _ in 0..5 {
            sink.log(&Object::parse(large.clone()).expect("an object"));
        }
        assert_eq!(stream.drain().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_does_not_wait_for_progress_that_has_to() {
        let (sink, mut stream) =
            NotificationSink::open(true, LogLevelSetting::at_least(LogLevel::Info));
        for number in 0..=PER_SECOND {
            sink.progress(notification(number));
        }
        for _ in 0..PER_SECOND {
            stream.next().await;
        }
        let start = Instant::now();
        sink.log(&log("info", 1));
        assert_eq!((data(&stream.next().await), start.elapsed()), (Some(1), Duration::ZERO));
        assert_eq!(value(&stream.next().await), PER_SECOND);
        assert_eq!(start.elapsed().as_millis() / 10, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_messages_is_held_to_the_rate() {
        let (sink, mut stream) =
            NotificationSink::open(false, LogLevelSetting::at_least(LogLevel::Info));
        let start = Instant::now();
        let writer = async {
            for number in 0..3_000 {
                sink.log(&log("error", number));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let mut seen = Vec::new();
        tokio::pin!(writer);
        loop {
            tokio::select! {
                biased;
                notification = stream.next() => seen.extend(data(&notification)),
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
            (LogLevelSetting::disabled(), vec![]),
            (LogLevelSetting::at_least(LogLevel::Debug), vec![0, 1, 2, 3]),
            (LogLevelSetting::at_least(LogLevel::Warning), vec![2, 3]),
            (LogLevelSetting::unset(), vec![1, 2, 3]),
        ] {
            let (sink, stream) = NotificationSink::open(false, wanted);
            for (number, level) in ["debug", "info", "warning", "emergency"].iter().enumerate() {
                sink.log(&log(level, number));
            }
            for bad in [r#"{"data":9}"#, r#"{"level":"loud","data":9}"#, r#"{"level":7,"data":9}"#]
            {
                sink.log(&Object::parse(bad).expect("an object"));
            }
            let rest = stream.drain();
            assert_eq!(rest.iter().filter_map(data).collect::<Vec<_>>(), expected);
        }
        let odd = r#"{ "logger":"a","level":"error", "data":[1e400],"x":1.0 }"#;
        let (sink, stream) =
            NotificationSink::open(false, LogLevelSetting::at_least(LogLevel::Error));
        sink.log(&Object::parse(odd).expect("an object"));
        let [CallNotification::Log(params)] = &stream.drain()[..] else { panic!("one message") };
        assert_eq!(params, odd);
    }
}
