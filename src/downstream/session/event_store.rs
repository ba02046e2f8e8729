//! What went out on the event streams of one session, so that a client that has lost one can take it up again.
//!
//! A [`Track`] is one stream: a call's, or the one that tells of changes. Its events are numbered from 1; an
//! event's id names the stream, at random, and the number. The id is no key to anything: it is looked up
//! among the streams of the session that asks, and no other.
//!
//! Promises: a stream is taken up without a gap and without anything twice, or not at all; nothing of
//! another stream comes on it; at most one client reads it, the newest. However little is read, a session
//! keeps no more than [`MAX_EVENTS`] events, [`MAX_BYTES`] and [`MAX_TRACKS`] streams, and whoever writes
//! waits for nobody: the oldest events go, and with them the way back to what was before them.
//!
//! Knows nothing of: HTTP, and what an event says.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::downstream::session::new_id;

/// How many events of a session are kept.
pub(crate) const MAX_EVENTS: usize = 1_024;
/// How many bytes of them: two of the largest answers.
pub(crate) const MAX_BYTES: usize = 16 * 1024 * 1024;
/// How many streams of a session can be taken up.
pub(crate) const MAX_TRACKS: usize = 128;
/// How many events may wait for a client that does not read before its call's notes wait, too.
const MAX_AHEAD: usize = 64;
/// How long a stream is kept behind its end, or behind the loss of one that has no end.
const LINGER: Duration = Duration::from_secs(120);

/// The streams of one session.
#[derive(Debug, Default)]
pub(crate) struct Tracks {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tracks: HashMap<Box<str>, Track>,
    events: usize,
    bytes: usize,
    /// Counts what has been written and who has read, over all streams.
    count: u64,
}

/// What is on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A call's notes and questions, and its answer, which is its end.
    Call,
    /// Changes, without an end.
    Changes,
}

#[derive(Debug)]
struct Track {
    kind: Kind,
    events: VecDeque<Kept>,
    /// The number of the next event.
    next: u64,
    /// Events before this number have been handed out.
    told: u64,
    /// Nothing will be written any more.
    is_over: bool,
    /// Who reads it.
    reader: Option<u64>,
    /// Since when nobody may have any use for it.
    idle_since: Option<Instant>,
    moved: watch::Sender<()>,
}

#[derive(Debug)]
struct Kept {
    number: u64,
    /// When it was written, in events of the session.
    at: u64,
    text: Bytes,
}

/// The side of a stream that writes. Dropping it ends the stream of a call.
#[derive(Debug)]
pub(crate) struct Writer {
    tracks: Arc<Tracks>,
    track: Box<str>,
    moved: watch::Receiver<()>,
}

/// The side of a stream that reads.
#[derive(Debug)]
pub(crate) struct Reader {
    tracks: Arc<Tracks>,
    track: Box<str>,
    number: u64,
    next: u64,
    moved: watch::Receiver<()>,
}

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) text: Bytes,
}

/// The stream goes on, but its next event is not kept any more, or somebody else reads it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lost;

impl Tracks {
    /// Begins a stream; `None` if there are too many.
    pub(crate) fn begin(self: &Arc<Self>, kind: Kind) -> Option<(Writer, Reader)> {
        let id = new_id();
        {
            let mut state = self.lock();
            state.expire(Instant::now());
            state.make_place()?;
            let track = Track {
                kind,
                events: VecDeque::new(),
                next: 1,
                told: 1,
                is_over: false,
                reader: None,
                idle_since: None,
                moved: watch::Sender::new(()),
            };
            state.tracks.insert(id.clone(), track);
        }
        Some((self.writer(&id)?, self.reader(&id, 1)?))
    }

    /// Takes a stream up behind the event of this id; `None` if there is none, or what came behind it is not
    /// kept any more. A stream of changes has its writer with it.
    pub(crate) fn take_up(self: &Arc<Self>, id: &str) -> Option<(Option<Writer>, Reader)> {
        let (track, number) = id.rsplit_once('.')?;
        let number: u64 = number.parse().ok()?;
        let kind = {
            let mut state = self.lock();
            state.expire(Instant::now());
            let found = state.tracks.get(track)?;
            let first = found.events.front().map_or(found.next, |kept| kept.number);
            if number >= found.next || number + 1 < first {
                return None;
            }
            found.kind
        };
        let writer = match kind {
            Kind::Call => None,
            Kind::Changes => Some(self.writer(track)?),
        };
        Some((writer, self.reader(track, number + 1)?))
    }

    /// Forgets streams that nobody came back to.
    pub(crate) fn expire(&self) {
        self.lock().expire(Instant::now());
    }

    fn writer(self: &Arc<Self>, id: &str) -> Option<Writer> {
        let moved = self.lock().tracks.get(id)?.moved.subscribe();
        Some(Writer { tracks: Arc::clone(self), track: id.into(), moved })
    }

    fn reader(self: &Arc<Self>, id: &str, next: u64) -> Option<Reader> {
        let mut state = self.lock();
        state.count += 1;
        let number = state.count;
        let track = state.tracks.get_mut(id)?;
        track.reader = Some(number);
        track.idle_since = None;
        // Whoever read it until now learns that it is not the reader any more.
        track.moved.send_replace(());
        let moved = track.moved.subscribe();
        Some(Reader { tracks: Arc::clone(self), track: id.into(), number, next, moved })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn expire(&mut self, now: Instant) {
        let is_old = |track: &Track| track.idle_since.is_some_and(|since| now - since >= LINGER);
        let old: Vec<_> = self
            .tracks
            .iter()
            .filter(|(_, track)| is_old(track))
            .map(|(id, _)| id.clone())
            .collect();
        old.iter().for_each(|id| self.forget(id));
    }

    fn forget(&mut self, id: &str) {
        let Some(track) = self.tracks.remove(id) else { return };
        self.events -= track.events.len();
        self.bytes -= track.events.iter().map(|kept| kept.text.len()).sum::<usize>();
    }

    /// Makes a place for one more stream: the one goes that has been of no use for longest.
    fn make_place(&mut self) -> Option<()> {
        if self.tracks.len() < MAX_TRACKS {
            return Some(());
        }
        let idle = self.tracks.iter().filter_map(|(id, track)| Some((track.idle_since?, id)));
        let (_, oldest) = idle.min()?;
        let oldest = oldest.clone();
        self.forget(&oldest);
        Some(())
    }

    fn push(&mut self, id: &str, text: Bytes) {
        self.count += 1;
        let at = self.count;
        let Some(track) = self.tracks.get_mut(id) else { return };
        self.events += 1;
        self.bytes += text.len();
        track.events.push_back(Kept { number: track.next, at, text });
        track.next += 1;
        track.moved.send_replace(());
        while (self.events > MAX_EVENTS || self.bytes > MAX_BYTES) && self.events > 1 {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let all = self.tracks.values_mut();
        let oldest = all.min_by_key(|track| track.events.front().map_or(u64::MAX, |kept| kept.at));
        if let Some((track, kept)) =
            oldest.and_then(|it| it.events.pop_front().map(|kept| (it, kept)))
        {
            self.events -= 1;
            self.bytes -= kept.text.len();
            // Its reader may have wanted just this one.
            track.moved.send_replace(());
        }
    }
}

impl Track {
    fn settle(&mut self) {
        let is_useless = match self.kind {
            // What was not told is kept as long, and no longer: its client may never come back.
            Kind::Call => self.is_over,
            Kind::Changes => true,
        };
        if self.reader.is_none() && is_useless {
            self.idle_since = Some(Instant::now());
        }
    }
}

// === Writer ===

impl Writer {
    /// Writes an event.
    pub(crate) fn push(&self, text: Bytes) {
        self.tracks.lock().push(&self.track, text);
    }

    /// Waits until what has been written is read, but for a few events. Cancel-safe.
    pub(crate) async fn room(&self) {
        self.until(|track| (track.next - track.told) < MAX_AHEAD as u64).await;
    }

    /// Waits until nobody reads. Cancel-safe.
    pub(crate) async fn abandoned(&self) {
        self.until(|track| track.reader.is_none()).await;
    }

    async fn until(&self, is_so: impl Fn(&Track) -> bool) {
        let mut moved = self.moved.clone();
        loop {
            moved.borrow_and_update();
            if self.tracks.lock().tracks.get(&self.track).is_none_or(&is_so) {
                return;
            }
            if moved.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(track) = self.tracks.lock().tracks.get_mut(&self.track)
            && track.kind == Kind::Call
        {
            track.is_over = true;
            track.settle();
            track.moved.send_replace(());
        }
    }
}

// === Reader ===

impl Reader {
    /// The id of the event that was handed out last, or of the stream's beginning.
    pub(crate) fn place(&self) -> String {
        event_id(&self.track, self.next - 1)
    }

    /// Forgets the stream: nobody has heard of it.
    pub(crate) fn forget(self) {
        self.tracks.lock().forget(&self.track);
    }

    /// The next event; `None` at the stream's end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Result<Event, Lost>> {
        loop {
            self.moved.borrow_and_update();
            if let Some(next) = self.take() {
                return next;
            }
            if self.moved.changed().await.is_err() {
                return Some(Err(Lost));
            }
        }
    }

    /// What is next, if something is; the end is something.
    fn take(&mut self) -> Option<Option<Result<Event, Lost>>> {
        let mut state = self.tracks.lock();
        let mine = |track: &&mut Track| track.reader == Some(self.number);
        let Some(track) = state.tracks.get_mut(&self.track).filter(mine) else {
            return Some(Some(Err(Lost)));
        };
        if self.next == track.next {
            return track.is_over.then_some(None);
        }
        // They stand without a gap, the last one being the newest.
        let from_end = usize::try_from(track.next - self.next).unwrap_or(usize::MAX);
        let kept = track.events.len().checked_sub(from_end).map(|at| &track.events[at]);
        let Some(kept) = kept else { return Some(Some(Err(Lost))) };
        let event = Event { id: event_id(&self.track, kept.number), text: kept.text.clone() };
        self.next += 1;
        track.told = track.told.max(self.next);
        track.moved.send_replace(());
        Some(Some(Ok(event)))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(track) = self.tracks.lock().tracks.get_mut(&self.track)
            && track.reader == Some(self.number)
        {
            track.reader = None;
            track.settle();
            track.moved.send_replace(());
        }
    }
}

fn event_id(track: &str, number: u64) -> String {
    format!("{track}.{number}")
}

#[cfg(test)]
mod tests {
    use crate::downstream::session::event_store::*;
    use futures::FutureExt;

    fn tracks() -> Arc<Tracks> {
        Arc::default()
    }

    /// What there is to read now.
    fn ready(reader: &mut Reader) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(Some(Ok(event))) = reader.next().now_or_never() {
            texts.push(String::from_utf8(event.text.to_vec()).expect("UTF-8"));
        }
        texts
    }

    fn push_all(writer: &Writer, texts: &[&'static str]) {
        texts.iter().for_each(|text| writer.push(Bytes::from(*text)));
    }

    #[tokio::test]
    async fn a_stream_is_taken_up_at_any_event_until_its_end() {
        let tracks = tracks();
        let (writer, mut reader) = tracks.begin(Kind::Call).expect("a place");
        let mut places = vec![reader.place()];
        push_all(&writer, &["a", "b", "c"]);
        for _ in 0..3 {
            places.push(reader.next().await.expect("more").expect("kept").id);
        }
        drop(reader);
        push_all(&writer, &["d"]);
        drop(writer);
        let all = ["a", "b", "c", "d"];
        for (at, place) in places.iter().enumerate() {
            let (none, mut reader) = tracks.take_up(place).expect(place);
            assert!(none.is_none());
            assert_eq!(ready(&mut reader), all[at..], "{place}");
            assert_eq!(reader.next().await, None);
        }
    }

    #[tokio::test]
    async fn what_is_no_place_of_this_session_is_none() {
        let (tracks, others) = (tracks(), tracks());
        let (writer, reader) = tracks.begin(Kind::Call).expect("a place");
        writer.push("a".into());
        let place = reader.place();
        let stream = place.rsplit_once('.').expect("a number").0;
        assert!(others.take_up(&place).is_none());
        for odd in ["", ".", "x.0", &format!("{stream}.2"), &format!("{stream}.-1"), stream] {
            assert!(tracks.take_up(odd).is_none(), "{odd}");
        }
        assert!(tracks.take_up(&format!("{stream}.{}", u64::MAX)).is_none());
        assert!(tracks.take_up(&format!("{stream}.1")).is_some());
    }

    #[tokio::test]
    async fn the_newest_reader_is_the_only_one() {
        let tracks = tracks();
        let (writer, mut old) = tracks.begin(Kind::Call).expect("a place");
        let (_, mut new) = tracks.take_up(&old.place()).expect("the beginning");
        writer.push("a".into());
        assert_eq!(old.next().await, Some(Err(Lost)));
        drop(old);
        assert_eq!(ready(&mut new), ["a"]);
    }

    #[tokio::test]
    async fn the_oldest_events_go_when_there_are_too_many_of_any_stream() {
        let tracks = tracks();
        let (quiet, mut slow) = tracks.begin(Kind::Call).expect("a place");
        let beginning = slow.place();
        push_all(&quiet, &["a", "b"]);
        let (loud, mut reader) = tracks.begin(Kind::Call).expect("a place");
        let start = reader.place();
        for _ in 0..MAX_EVENTS - 1 {
            loud.push("x".into());
        }
        assert_eq!(slow.next().await, Some(Err(Lost)), "the first is gone");
        assert!(tracks.take_up(&beginning).is_none());
        drop(slow);
        assert_eq!(ready(&mut reader).len(), MAX_EVENTS - 1);
        assert!(tracks.take_up(&start).is_some());
        assert_eq!(tracks.lock().events, MAX_EVENTS);

        let large = Bytes::from(vec![b'x'; MAX_BYTES / 2]);
        (0..3).for_each(|_| loud.push(large.clone()));
        let kept = |state: &State| (state.events, state.bytes);
        assert_eq!(kept(&tracks.lock()), (2, MAX_BYTES));
        loud.push(vec![b'x'; 2 * MAX_BYTES].into());
        assert_eq!(tracks.lock().events, 1, "what is written last is kept, however large");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_forgotten_a_while_after_its_answer_was_handed_out() {
        let tracks = tracks();
        let (writer, mut reader) = tracks.begin(Kind::Call).expect("a place");
        let place = reader.place();
        writer.push("answer".into());
        drop(writer);
        tokio::time::advance(10 * LINGER).await;
        assert!(tracks.take_up(&place).is_some(), "nobody has had the answer yet");
        let (_, mut again) = tracks.take_up(&place).expect("still");
        assert_eq!(reader.next().await, Some(Err(Lost)));
        assert_eq!(ready(&mut again), ["answer"]);
        drop(again);
        tokio::time::advance(LINGER / 2).await;
        assert!(tracks.take_up(&place).is_some());
        tokio::time::advance(LINGER).await;
        tracks.expire();
        assert!(tracks.take_up(&place).is_none());
        let state = tracks.lock();
        assert_eq!((state.events, state.bytes, state.tracks.len()), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_changes_is_forgotten_a_while_after_it_was_lost() {
        let tracks = tracks();
        let (writer, mut reader) = tracks.begin(Kind::Changes).expect("a place");
        writer.push("a".into());
        let place = reader.next().await.expect("more").expect("kept").id;
        drop((writer, reader));
        let (writer, mut reader) = tracks.take_up(&place).expect("it goes on");
        writer.expect("its writer").push("b".into());
        assert_eq!(ready(&mut reader), ["b"]);
        tokio::time::advance(10 * LINGER).await;
        drop(reader);
        tokio::time::advance(LINGER).await;
        assert!(tracks.take_up(&place).is_none());
    }

    #[tokio::test]
    async fn streams_have_a_bound_and_those_go_first_that_are_over() {
        let tracks = tracks();
        let mut open: Vec<_> =
            (0..MAX_TRACKS).map(|_| tracks.begin(Kind::Call).expect("a place")).collect();
        assert!(tracks.begin(Kind::Call).is_none());
        let place = open.pop().expect("one").1.place();
        assert!(tracks.begin(Kind::Call).is_some());
        assert!(tracks.take_up(&place).is_none());
    }

    #[tokio::test]
    async fn a_writer_can_wait_for_its_reader() {
        let tracks = tracks();
        let (writer, mut reader) = tracks.begin(Kind::Call).expect("a place");
        assert!(writer.abandoned().now_or_never().is_none());
        for _ in 0..MAX_AHEAD {
            assert!(writer.room().now_or_never().is_some());
            writer.push("x".into());
        }
        assert!(writer.room().now_or_never().is_none());
        reader.next().await.expect("more").expect("kept");
        assert!(writer.room().now_or_never().is_some());
        drop(reader);
        assert!(writer.abandoned().now_or_never().is_some());
    }
}
