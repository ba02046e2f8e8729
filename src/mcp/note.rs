//! Progress beside a call: from the upstream that works to the client that waits.
//!
//! Promises: progress only increases, comes at most [`PER_SECOND`] times a second after a first burst
//! of as many, and the last one always comes to a client that reads. One that does not loses notes, never
//! its reply: the upstream's side never waits.
//!
//! Knows nothing of: tokens. Each hop mints its own, so none travels through the house.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::json::Object;

/// How many notes a client gets in a second.
pub const PER_SECOND: u32 = 20;

/// The time that one note takes of the rate.
const SPACING: Duration = Duration::from_millis(1_000 / PER_SECOND as u64);

/// How far ahead of its time the rate may be used.
const BURST: Duration = Duration::from_millis(1_000 - 1_000 / PER_SECOND as u64);

/// How many notes wait for a client's writer before further ones are dropped.
const QUEUE: usize = 64;

/// Where an upstream's side puts notes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Notes {
    shared: Arc<Mutex<Shared>>,
    /// `None` where the client did not ask for progress.
    sender: Option<mpsc::Sender<Object>>,
}

#[derive(Debug)]
struct Shared {
    last_progress: f64,
    last_heard: Instant,
    /// Where notes go instead.
    onward: Option<Notes>,
}

/// Where a client's side takes them.
#[derive(Debug)]
pub struct NoteStream {
    receiver: mpsc::Receiver<Object>,
    held: Option<Object>,
    /// When the next note may go out, and how far ahead of now that may lie: a bucket of
    /// [`PER_SECOND`] notes that refills at the same rate.
    next_at: Instant,
}

impl Notes {
    /// Notes that somebody reads.
    pub fn channel() -> (Self, NoteStream) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let stream = NoteStream { receiver, held: None, next_at: Instant::now() };
        (Self { sender: Some(sender), ..Self::unheard() }, stream)
    }

    /// Notes that nobody asked for. An upstream that sends some all the same shows a sign of life.
    pub fn unheard() -> Self {
        let shared =
            Shared { last_progress: f64::NEG_INFINITY, last_heard: Instant::now(), onward: None };
        Self { shared: Arc::new(Mutex::new(shared)), sender: None }
    }

    /// Whether the client asked for progress.
    pub fn wanted(&self) -> bool {
        self.sender.is_some()
    }

    /// Takes the `params` of a progress notification, its token removed. What does not increase
    /// is dropped (spec, progress: the value MUST increase).
    pub fn progress(&self, params: Object) {
        let progress = params.get("progress").and_then(|text| text.parse::<f64>().ok());
        let Some(progress) = progress else { return };
        let onward = {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            if progress <= shared.last_progress {
                return;
            }
            shared.last_progress = progress;
            shared.last_heard = Instant::now();
            shared.onward.clone()
        };
        if let Some(onward) = onward {
            return onward.progress(params);
        }
        if let Some(sender) = &self.sender {
            // Full means that the client does not read: it misses this note.
            let _ = sender.try_send(params);
        }
    }

    /// Takes the `params` of a log message.
    pub fn log(&self, params: Object) {
        if let Some(onward) = self.onward() {
            return onward.log(params);
        }
        let _ = params;
    }

    /// Hands all further notes on to `other`: the call goes on for another request of its client's.
    pub fn redirect(&self, other: Self) {
        // Onto itself it would go round for ever.
        let onward = (!Arc::ptr_eq(&self.shared, &other.shared)).then_some(other);
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).onward = onward;
    }

    fn onward(&self) -> Option<Self> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).onward.clone()
    }

    /// When the upstream last made progress, or when the call began.
    pub fn last_heard(&self) -> Instant {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).last_heard
    }
}

impl NoteStream {
    /// The next note, not before its time. Never ends: race it with the reply. Cancel-safe.
    pub async fn next(&mut self) -> Object {
        loop {
            if self.held.is_none() {
                match self.receiver.recv().await {
                    Some(note) => self.held = Some(note),
                    None => std::future::pending().await,
                }
            }
            let now = Instant::now();
            // Those that came while we waited replace the one that is held.
            let early = self.next_at.saturating_duration_since(now + BURST);
            if !early.is_zero() {
                tokio::time::sleep(early).await;
                self.drain();
                continue;
            }
            if let Some(note) = self.held.take() {
                self.next_at = self.next_at.max(now) + SPACING;
                return note;
            }
        }
    }

    /// The notes that have not been handed out, once the reply is there: as many of the newest as
    /// the rate allows, the last one always.
    pub fn rest(mut self) -> Vec<Object> {
        let mut rest: Vec<Object> = self.held.take().into_iter().collect();
        while let Ok(newer) = self.receiver.try_recv() {
            rest.push(newer);
        }
        let used = self.next_at.saturating_duration_since(Instant::now());
        let left = BURST.saturating_sub(used).as_millis() / SPACING.as_millis() + 1;
        let skipped = rest.len().saturating_sub(usize::try_from(left).unwrap_or(usize::MAX));
        rest.split_off(skipped)
    }

    fn drain(&mut self) {
        while let Ok(newer) = self.receiver.try_recv() {
            self.held = Some(newer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(progress: u32) -> Object {
        Object::parse(format!("{{\"progress\":{progress}}}")).expect("an object")
    }

    fn value(note: &Object) -> u32 {
        note.get("progress").and_then(|text| text.parse().ok()).expect("a number")
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
        let (notes, stream) = Notes::channel();
        (1..=3).for_each(|progress| notes.progress(note(progress)));
        assert_eq!(stream.rest().iter().map(value).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn notes_that_are_redirected_still_increase() {
        let (notes, first) = Notes::channel();
        notes.progress(note(1));
        let (other, second) = Notes::channel();
        notes.redirect(other);
        (1..=2).for_each(|progress| notes.progress(note(progress)));
        notes.redirect(notes.clone());
        notes.progress(note(3));
        assert_eq!(first.rest().iter().map(value).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(second.rest().iter().map(value).collect::<Vec<_>>(), [2]);
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
}
