//! Event store of one session for SSE resumability (`Last-Event-ID`).
//!
//! A [`StoredStream`] is one event stream: of a call, or the standalone one. Its events are
//! numbered from 1; an event id consists of the number of the process, the kind of the stream, its
//! random id and the number. The id grants no access: it is looked up among the streams of the
//! requesting session only.
//!
//! Invariants: a stream is resumed without a gap and without a repetition, or not at all, and
//! carries no events of another stream; it has at most one reader, the newest. A session stores no
//! more than [`MAX_EVENTS`] events, [`MAX_BYTES`] and [`MAX_STREAMS`] streams, however little is
//! read, and a writer never waits to store: the oldest events are dropped, and the stream cannot be
//! resumed before them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::session::new_id;
use weir_base::secrets::sealing::InstanceId;
use weir_base::tasks::sync::Mutex;

/// Largest number of events stored per session.
pub(crate) const MAX_EVENTS: usize = 1_024;
/// Largest number of bytes stored per session: two of the largest responses.
pub(crate) const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Largest number of streams stored per session.
pub(crate) const MAX_STREAMS: usize = 128;
/// Unread events of a stream above which its call's notifications are held back.
const MAX_UNREAD: usize = 64;
/// Time that a stream is stored after its end, or after its client was lost if it has no end.
const RETENTION: Duration = Duration::from_secs(120);

/// Stored streams of one session.
#[derive(Debug)]
pub(crate) struct EventStore {
    instance: InstanceId,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    streams: HashMap<Box<str>, StoredStream>,
    events: usize,
    bytes: usize,
    /// Counter of writes and readers, over all streams.
    count: u64,
}

/// Kind of an event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Messages of a call and its response, which ends the stream.
    Call,
    /// Notifications of changes, without an end.
    Standalone,
}

impl StreamKind {
    fn letter(self) -> char {
        match self {
            Self::Call => 'c',
            Self::Standalone => 's',
        }
    }
}

#[derive(Debug)]
struct StoredStream {
    kind: StreamKind,
    events: VecDeque<StoredEvent>,
    /// Number of the next event.
    next: u64,
    /// Number of the first event that no reader has taken.
    read_until: u64,
    /// True once the stream has ended.
    is_over: bool,
    /// Number of the current reader.
    reader: Option<u64>,
    /// Time since which the stream has had no use.
    idle_since: Option<Instant>,
    updates: watch::Sender<()>,
}

#[derive(Debug)]
struct StoredEvent {
    number: u64,
    /// Position of the event in the session's counter.
    at: u64,
    text: Bytes,
}

/// Writing half of a stream. Dropping it ends the stream of a call.
#[derive(Debug)]
pub(crate) struct EventWriter {
    store: Arc<EventStore>,
    stream: Box<str>,
    updates: watch::Receiver<()>,
}

/// Reading half of a stream.
#[derive(Debug)]
pub(crate) struct EventReader {
    store: Arc<EventStore>,
    stream: Box<str>,
    number: u64,
    next: u64,
    updates: watch::Receiver<()>,
}

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub id: String,
    pub(crate) text: Bytes,
}

/// The next event is not stored any more, or a newer reader has replaced this one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EventsLost;

impl EventStore {
    /// Creates an empty store in this process.
    pub(crate) fn new(instance: InstanceId) -> Self {
        Self { instance, state: Mutex::default() }
    }

    /// Creates a stream; `None` if there are too many.
    pub(crate) fn create(self: &Arc<Self>, kind: StreamKind) -> Option<(EventWriter, EventReader)> {
        let id = self.instance.name(format_args!("{}{}", kind.letter(), new_id())).into_boxed_str();
        {
            let mut state = self.state.lock();
            state.expire(Instant::now());
            state.evict_one()?;
            let stream = StoredStream {
                kind,
                events: VecDeque::new(),
                next: 1,
                read_until: 1,
                is_over: false,
                reader: None,
                idle_since: None,
                updates: watch::Sender::new(()),
            };
            state.streams.insert(id.clone(), stream);
        }
        Some((self.writer(&id)?, self.reader(&id, 1)?))
    }

    /// Resumes a stream after the event with this id; `None` if the id is unknown or a later event
    /// is not stored any more. The standalone stream comes with its writer.
    pub(crate) fn resume(self: &Arc<Self>, id: &str) -> Option<(Option<EventWriter>, EventReader)> {
        let (stream, number) = id.rsplit_once('.')?;
        let number: u64 = number.parse().ok()?;
        let kind = {
            let mut state = self.state.lock();
            state.expire(Instant::now());
            let found = state.streams.get(stream)?;
            let first = found.events.front().map_or(found.next, |stored| stored.number);
            if number >= found.next || number + 1 < first {
                return None;
            }
            found.kind
        };
        let writer = match kind {
            StreamKind::Call => None,
            StreamKind::Standalone => Some(self.writer(stream)?),
        };
        Some((writer, self.reader(stream, number + 1)?))
    }

    /// Returns the process that has the stream of a call, by an event id of that.
    pub(crate) fn process_of_call(id: &str) -> Option<InstanceId> {
        let (instance, stream) = InstanceId::split_named(id)?;
        stream.starts_with(StreamKind::Call.letter()).then_some(instance)
    }

    /// Returns whether an event id is of the standalone stream of another process: this one knows
    /// what to send on it, since it notifies the client of every list.
    pub(crate) fn is_of_ended_process(&self, id: &str) -> bool {
        InstanceId::split_named(id).is_some_and(|(instance, stream)| {
            instance != self.instance && stream.starts_with(StreamKind::Standalone.letter())
        })
    }

    /// Removes streams that have expired.
    pub(crate) fn expire(&self) {
        self.state.lock().expire(Instant::now());
    }

    fn writer(self: &Arc<Self>, id: &str) -> Option<EventWriter> {
        let updates = self.state.lock().streams.get(id)?.updates.subscribe();
        Some(EventWriter { store: Arc::clone(self), stream: id.into(), updates })
    }

    fn reader(self: &Arc<Self>, id: &str, next: u64) -> Option<EventReader> {
        let mut state = self.state.lock();
        state.count += 1;
        let number = state.count;
        let stream = state.streams.get_mut(id)?;
        stream.reader = Some(number);
        stream.idle_since = None;
        // Wakes the previous reader, which finds that it was replaced.
        stream.updates.send_replace(());
        let updates = stream.updates.subscribe();
        Some(EventReader { store: Arc::clone(self), stream: id.into(), number, next, updates })
    }
}

impl State {
    fn expire(&mut self, now: Instant) {
        let is_old =
            |stream: &StoredStream| stream.idle_since.is_some_and(|since| now - since >= RETENTION);
        let old: Vec<_> = self
            .streams
            .iter()
            .filter(|(_, stream)| is_old(stream))
            .map(|(id, _)| id.clone())
            .collect();
        old.iter().for_each(|id| self.forget(id));
    }

    fn forget(&mut self, id: &str) {
        let Some(stream) = self.streams.remove(id) else { return };
        self.events -= stream.events.len();
        self.bytes -= stream.events.iter().map(|stored| stored.text.len()).sum::<usize>();
    }

    /// Makes space for one more stream by removing the one that has been without use longest.
    fn evict_one(&mut self) -> Option<()> {
        if self.streams.len() < MAX_STREAMS {
            return Some(());
        }
        let idle = self.streams.iter().filter_map(|(id, stream)| Some((stream.idle_since?, id)));
        let (_, oldest) = idle.min()?;
        let oldest = oldest.clone();
        self.forget(&oldest);
        Some(())
    }

    fn push(&mut self, id: &str, text: Bytes) {
        self.count += 1;
        let at = self.count;
        let Some(stream) = self.streams.get_mut(id) else { return };
        self.events += 1;
        self.bytes += text.len();
        stream.events.push_back(StoredEvent { number: stream.next, at, text });
        stream.next += 1;
        stream.updates.send_replace(());
        while (self.events > MAX_EVENTS || self.bytes > MAX_BYTES) && self.events > 1 {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let all = self.streams.values_mut();
        let oldest =
            all.min_by_key(|stream| stream.events.front().map_or(u64::MAX, |stored| stored.at));
        if let Some((stream, stored)) =
            oldest.and_then(|it| it.events.pop_front().map(|stored| (it, stored)))
        {
            self.events -= 1;
            self.bytes -= stored.text.len();
            // Wakes the reader, which may have been waiting for this event.
            stream.updates.send_replace(());
        }
    }
}

impl StoredStream {
    fn update_idle(&mut self) {
        let is_useless = match self.kind {
            // Unread events are stored for the same time only: the client may never come back.
            StreamKind::Call => self.is_over,
            StreamKind::Standalone => true,
        };
        if self.reader.is_none() && is_useless {
            self.idle_since = Some(Instant::now());
        }
    }
}

// === Writer ===

impl EventWriter {
    /// Appends an event.
    pub(crate) fn push(&self, text: Bytes) {
        self.store.state.lock().push(&self.stream, text);
    }

    /// Waits until all but a few events are read. Cancel-safe.
    pub(crate) async fn wait_for_capacity(&self) {
        self.wait_until(|stream| (stream.next - stream.read_until) < MAX_UNREAD as u64).await;
    }

    /// Waits until the stream has no reader. Cancel-safe.
    pub(crate) async fn wait_until_unread(&self) {
        self.wait_until(|stream| stream.reader.is_none()).await;
    }

    async fn wait_until(&self, is_so: impl Fn(&StoredStream) -> bool) {
        let mut updates = self.updates.clone();
        loop {
            updates.borrow_and_update();
            if self.store.state.lock().streams.get(&self.stream).is_none_or(&is_so) {
                return;
            }
            if updates.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        if let Some(stream) = self.store.state.lock().streams.get_mut(&self.stream)
            && stream.kind == StreamKind::Call
        {
            stream.is_over = true;
            stream.update_idle();
            stream.updates.send_replace(());
        }
    }
}

// === Reader ===

impl EventReader {
    /// Returns the id of the last event taken, or of the stream's start.
    pub(crate) fn last_event_id(&self) -> String {
        event_id(&self.stream, self.next - 1)
    }

    /// Removes a stream that no client has seen.
    pub(crate) fn forget(self) {
        self.store.state.lock().forget(&self.stream);
    }

    /// Returns the next event; `None` at the stream's end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Result<Event, EventsLost>> {
        loop {
            self.updates.borrow_and_update();
            if let Some(next) = self.take() {
                return next;
            }
            if self.updates.changed().await.is_err() {
                return Some(Err(EventsLost));
            }
        }
    }

    /// Returns the next event or the end, if either is available.
    fn take(&mut self) -> Option<Option<Result<Event, EventsLost>>> {
        let mut state = self.store.state.lock();
        let mine = |stream: &&mut StoredStream| stream.reader == Some(self.number);
        let Some(stream) = state.streams.get_mut(&self.stream).filter(mine) else {
            return Some(Some(Err(EventsLost)));
        };
        if self.next == stream.next {
            return stream.is_over.then_some(None);
        }
        // The stored events have no gap, and the last one is the newest.
        let from_end = usize::try_from(stream.next - self.next).unwrap_or(usize::MAX);
        let stored = stream.events.len().checked_sub(from_end).map(|at| &stream.events[at]);
        let Some(stored) = stored else { return Some(Some(Err(EventsLost))) };
        let event = Event { id: event_id(&self.stream, stored.number), text: stored.text.clone() };
        self.next += 1;
        stream.read_until = stream.read_until.max(self.next);
        stream.updates.send_replace(());
        Some(Some(Ok(event)))
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        if let Some(stream) = self.store.state.lock().streams.get_mut(&self.stream)
            && stream.reader == Some(self.number)
        {
            stream.reader = None;
            stream.update_idle();
            stream.updates.send_replace(());
        }
    }
}

fn event_id(stream: &str, number: u64) -> String {
    format!("{stream}.{number}")
}

#[cfg(test)]
mod tests {
    use crate::session::event_store::*;
    use futures::FutureExt;
    use weir_base::secrets::sealing::SealingKeys;

    fn new_store() -> Arc<EventStore> {
        Arc::new(EventStore::new(SealingKeys::random().instance()))
    }

    /// Returns the events that can be read now.
    fn ready(reader: &mut EventReader) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(Some(Ok(event))) = reader.next().now_or_never() {
            texts.push(String::from_utf8(event.text.to_vec()).expect("UTF-8"));
        }
        texts
    }

    fn push_all(writer: &EventWriter, texts: &[&'static str]) {
        texts.iter().for_each(|text| writer.push(Bytes::from(*text)));
    }

    #[tokio::test]
    async fn a_stream_is_taken_up_at_any_event_until_its_end() {
        let store = new_store();
        let (writer, mut reader) = store.create(StreamKind::Call).expect("a place");
        let mut event_ids = vec![reader.last_event_id()];
        push_all(&writer, &["a", "b", "c"]);
        for _ in 0..3 {
            event_ids.push(reader.next().await.expect("more").expect("kept").id);
        }
        drop(reader);
        push_all(&writer, &["d"]);
        drop(writer);
        let all = ["a", "b", "c", "d"];
        for (at, last_event_id) in event_ids.iter().enumerate() {
            let (none, mut reader) = store.resume(last_event_id).expect(last_event_id);
            assert!(none.is_none());
            assert_eq!(ready(&mut reader), all[at..], "{last_event_id}");
            assert_eq!(reader.next().await, None);
        }
    }

    #[tokio::test]
    async fn what_is_no_place_of_this_session_is_none() {
        let (store, others) = (new_store(), new_store());
        let (writer, reader) = store.create(StreamKind::Call).expect("a place");
        writer.push("a".into());
        let last_event_id = reader.last_event_id();
        let stream = last_event_id.rsplit_once('.').expect("a number").0;
        assert!(others.resume(&last_event_id).is_none());
        for odd in ["", ".", "x.0", &format!("{stream}.2"), &format!("{stream}.-1"), stream] {
            assert!(store.resume(odd).is_none(), "{odd}");
        }
        assert!(store.resume(&format!("{stream}.{}", u64::MAX)).is_none());
        assert!(store.resume(&format!("{stream}.1")).is_some());
    }

    #[tokio::test]
    async fn the_newest_reader_is_the_only_one() {
        let store = new_store();
        let (writer, mut old) = store.create(StreamKind::Call).expect("a place");
        let (_, mut new) = store.resume(&old.last_event_id()).expect("the beginning");
        writer.push("a".into());
        assert_eq!(old.next().await, Some(Err(EventsLost)));
        drop(old);
        assert_eq!(ready(&mut new), ["a"]);
    }

    #[tokio::test]
    async fn the_oldest_events_go_when_there_are_too_many_of_any_stream() {
        let store = new_store();
        let (quiet, mut slow) = store.create(StreamKind::Call).expect("a place");
        let beginning = slow.last_event_id();
        push_all(&quiet, &["a", "b"]);
        let (loud, mut reader) = store.create(StreamKind::Call).expect("a place");
        let start = reader.last_event_id();
        for _ in 0..MAX_EVENTS - 1 {
            loud.push("x".into());
        }
        assert_eq!(slow.next().await, Some(Err(EventsLost)), "the first is gone");
        assert!(store.resume(&beginning).is_none());
        drop(slow);
        assert_eq!(ready(&mut reader).len(), MAX_EVENTS - 1);
        assert!(store.resume(&start).is_some());
        assert_eq!(store.state.lock().events, MAX_EVENTS);

        let large = Bytes::from(vec![b'x'; MAX_BYTES / 2]);
        (0..3).for_each(|_| loud.push(large.clone()));
        let stored = |state: &State| (state.events, state.bytes);
        assert_eq!(stored(&store.state.lock()), (2, MAX_BYTES));
        loud.push(vec![b'x'; 2 * MAX_BYTES].into());
        assert_eq!(store.state.lock().events, 1, "what is written last is kept, however large");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_forgotten_a_while_after_its_answer_was_handed_out() {
        let store = new_store();
        let (writer, mut reader) = store.create(StreamKind::Call).expect("a place");
        let last_event_id = reader.last_event_id();
        writer.push("answer".into());
        drop(writer);
        tokio::time::advance(10 * RETENTION).await;
        assert!(store.resume(&last_event_id).is_some(), "the response has not been read yet");
        let (_, mut again) = store.resume(&last_event_id).expect("still");
        assert_eq!(reader.next().await, Some(Err(EventsLost)));
        assert_eq!(ready(&mut again), ["answer"]);
        drop(again);
        tokio::time::advance(RETENTION / 2).await;
        assert!(store.resume(&last_event_id).is_some());
        tokio::time::advance(RETENTION).await;
        store.expire();
        assert!(store.resume(&last_event_id).is_none());
        let state = store.state.lock();
        assert_eq!((state.events, state.bytes, state.streams.len()), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_changes_is_forgotten_a_while_after_it_was_lost() {
        let store = new_store();
        let (writer, mut reader) = store.create(StreamKind::Standalone).expect("a place");
        writer.push("a".into());
        let last_event_id = reader.next().await.expect("more").expect("kept").id;
        drop((writer, reader));
        let (writer, mut reader) = store.resume(&last_event_id).expect("it goes on");
        writer.expect("its writer").push("b".into());
        assert_eq!(ready(&mut reader), ["b"]);
        tokio::time::advance(10 * RETENTION).await;
        drop(reader);
        tokio::time::advance(RETENTION).await;
        assert!(store.resume(&last_event_id).is_none());
    }

    #[tokio::test]
    async fn streams_have_a_bound_and_those_go_first_that_are_over() {
        let store = new_store();
        let mut open: Vec<_> =
            (0..MAX_STREAMS).map(|_| store.create(StreamKind::Call).expect("a place")).collect();
        assert!(store.create(StreamKind::Call).is_none());
        let last_event_id = open.pop().expect("one").1.last_event_id();
        assert!(store.create(StreamKind::Call).is_some());
        assert!(store.resume(&last_event_id).is_none());
    }

    #[tokio::test]
    async fn a_writer_can_wait_for_its_reader() {
        let store = new_store();
        let (writer, mut reader) = store.create(StreamKind::Call).expect("a place");
        assert!(writer.wait_until_unread().now_or_never().is_none());
        for _ in 0..MAX_UNREAD {
            assert!(writer.wait_for_capacity().now_or_never().is_some());
            writer.push("x".into());
        }
        assert!(writer.wait_for_capacity().now_or_never().is_none());
        reader.next().await.expect("more").expect("kept");
        assert!(writer.wait_for_capacity().now_or_never().is_some());
        drop(reader);
        assert!(writer.wait_until_unread().now_or_never().is_some());
    }
}
