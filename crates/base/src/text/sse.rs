//! Server-Sent Events: incremental decoder and encoder.
//!
//! Invariants: the events do not depend on how the bytes arrive in pieces; CR, LF and CRLF end a
//! line alike; no more than the limit is buffered for one event. A larger event is an error or,
//! where the stream has to continue, an event of which only both ends are kept.
//!
//! Follows the interpretation of event streams in the HTML standard, section "Server-sent events".

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::memory::memory_budget::{BufferError, GrowingReservation, MemoryBudget};

/// Comment that keeps a stream alive; it is not an event.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// Event type; empty means `message`.
    pub name: String,
    /// The data lines, joined by line feeds.
    pub data: Bytes,
    /// The stream's last event id, if this event or an earlier one set an id of at most 4 KiB: a
    /// stream cannot be resumed after a longer one. Shared by all following events, since a server
    /// may set one and then send many.
    pub id: Option<Arc<str>>,
    /// Set if the event is truncated; then `data` is its beginning.
    pub truncated: Option<TruncatedEvent>,
}

/// Reason and end of a truncated event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TruncatedEvent {
    /// The last bytes of the event.
    pub tail: Bytes,
    /// Reason why the event was not buffered.
    pub reason: BufferError,
}

/// Incremental decoder of an event stream.
#[derive(Debug)]
pub struct SseDecoder {
    limit: usize,
    line: BytesMut,
    /// The last byte was a CR: an LF directly behind it belongs to it.
    after_cr: bool,
    /// A byte order mark may come before the first byte.
    at_start: bool,
    name: String,
    data: BytesMut,
    has_data: bool,
    id: Option<Arc<str>>,
    retry_ms: Option<u64>,
    /// True if an event over the limit is truncated instead of refused.
    truncates: bool,
    /// Both ends of the event that is being truncated, and the reason.
    ends: Option<(Bytes, BytesMut, BufferError)>,
    /// Budget reservation of the incomplete event, if events count against a budget.
    growing: Option<GrowingReservation>,
    /// Lines without data since `take_padding_lines` was called last.
    padding_lines: u32,
}

impl SseDecoder {
    /// Creates a decoder for events of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: BytesMut::new(),
            after_cr: false,
            at_start: true,
            name: String::new(),
            data: BytesMut::new(),
            has_data: false,
            id: None,
            retry_ms: None,
            truncates: false,
            ends: None,
            growing: None,
            padding_lines: 0,
        }
    }

    /// Makes events that are not small count against a budget until the last copy of their data is
    /// dropped.
    pub fn with_budget(self, budget: &MemoryBudget) -> Self {
        Self { growing: Some(GrowingReservation::new(budget)), ..self }
    }

    /// Creates a decoder that keeps only the beginning and the end of an event of more than `limit`
    /// bytes.
    pub fn truncating(limit: usize) -> Self {
        Self { truncates: true, ..Self::new(limit) }
    }

    /// Returns the last event id that the stream has set.
    pub fn last_id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns the reconnection time that the server has set, in milliseconds.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// Returns the number of lines since the last call that neither contain data nor end an event:
    /// comments, fields, empty lines.
    pub fn take_padding_lines(&mut self) -> u32 {
        std::mem::take(&mut self.padding_lines)
    }

    /// Returns whether a part of an event's data has arrived, but not its end.
    pub fn has_partial_event(&self) -> bool {
        self.has_data || self.ends.is_some() || self.line.starts_with(b"data")
    }

    /// Processes the next bytes and returns the events that they complete.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<Vec<Event>, BufferError> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.buffer(bytes)?;
                break;
            };
            self.buffer(&bytes[..end])?;
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            events.extend(self.end_line());
        }
        Ok(events)
    }

    fn buffer(&mut self, part: &[u8]) -> Result<(), BufferError> {
        if let Some((_, tail, _)) = &mut self.ends {
            append_end(tail, part);
            // The only fact still needed of the line is whether it is empty.
            self.line.extend_from_slice(&part[..part.len().min(1)]);
            return Ok(());
        }
        self.line.extend_from_slice(part);
        let size = self.line.len() + self.data.len();
        let reason = if size > self.limit {
            BufferError::TooLarge(self.limit)
        } else if self.growing.as_mut().is_some_and(|growing| growing.grow_to(size).is_err()) {
            BufferError::BudgetExhausted
        } else {
            return Ok(());
        };
        if !self.truncates {
            return Err(reason);
        }
        let line = self.line.strip_prefix(b"data:").unwrap_or(&self.line).trim_ascii_start();
        let begun = if self.data.is_empty() { line } else { &self.data };
        let head = Bytes::copy_from_slice(&begun[..begun.len().min(TRUNCATED_END_BYTES)]);
        let mut tail = BytesMut::new();
        append_end(&mut tail, &self.line);
        self.ends = Some((head, tail, reason));
        // New buffers: clearing the old ones would keep their memory.
        (self.line, self.data) = (BytesMut::from(&b"."[..]), BytesMut::new());
        if let Some(growing) = &mut self.growing {
            growing.clear();
        }
        Ok(())
    }

    fn end_line(&mut self) -> Option<Event> {
        if self.ends.is_some() && !self.line.is_empty() {
            self.line.clear();
            return None;
        }
        let mut line = self.line.split().freeze();
        if std::mem::take(&mut self.at_start) && line.starts_with(b"\xef\xbb\xbf") {
            line = line.slice(3..);
        }
        if line.is_empty() {
            let event = self.end_event();
            self.padding_lines += u32::from(event.is_none());
            return event;
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (field, mut value) = (&line[..colon], line.slice((colon + 1).min(line.len())..));
        if value.starts_with(b" ") {
            value = value.slice(1..);
        }
        self.padding_lines += u32::from(field != b"data");
        match field {
            b"data" if !self.has_data => {
                self.has_data = true;
                // The usual event has one data line: keep its memory instead of copying it.
                self.data =
                    value.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
            }
            b"data" => {
                self.data.extend_from_slice(b"\n");
                self.data.extend_from_slice(&value);
            }
            b"event" => self.name = String::from_utf8_lossy(&value).into_owned(),
            b"id" if !value.contains(&0) => {
                let is_kept = value.len() <= MAX_ID_BYTES;
                self.id = is_kept.then(|| String::from_utf8_lossy(&value).into());
            }
            b"retry" => {
                let text = std::str::from_utf8(&value).unwrap_or_default();
                if text.bytes().all(|byte| byte.is_ascii_digit()) {
                    self.retry_ms = text.parse().ok().or(self.retry_ms);
                }
            }
            // A comment or an unknown field.
            _ => {}
        }
        None
    }

    fn end_event(&mut self) -> Option<Event> {
        let name = std::mem::take(&mut self.name);
        let mut data = self.data.split().freeze();
        let has_data = std::mem::take(&mut self.has_data);
        if let Some((data, tail, reason)) = self.ends.take() {
            let truncated = Some(TruncatedEvent { tail: tail.freeze(), reason });
            return Some(Event { name, data, id: self.id.clone(), truncated });
        }
        if let Some(growing) = &mut self.growing {
            data = growing.bind(data);
        }
        has_data.then(|| Event { name, data, id: self.id.clone(), truncated: None })
    }
}

/// Appends `part` to `end` and keeps the last [`TRUNCATED_END_BYTES`].
fn append_end(end: &mut BytesMut, part: &[u8]) {
    end.extend_from_slice(&part[part.len().saturating_sub(TRUNCATED_END_BYTES)..]);
    let surplus = end.len().saturating_sub(TRUNCATED_END_BYTES);
    let _ = end.split_to(surplus);
}

/// Bytes that are kept of each end of a truncated event.
const TRUNCATED_END_BYTES: usize = 256;

/// Encodes an event that contains one message. `data` must be on one line.
pub fn write_message(data: &[u8]) -> Bytes {
    debug_assert!(!data.contains(&b'\n') && !data.contains(&b'\r'), "the data is one line");
    let mut out = BytesMut::with_capacity(data.len() + 24);
    out.extend_from_slice(MESSAGE_HEAD);
    out.extend_from_slice(data);
    out.extend_from_slice(MESSAGE_TAIL);
    out.freeze()
}

/// Longest event id that is kept.
const MAX_ID_BYTES: usize = 4 * 1024;

/// Encodes an event that contains one message, with an id. Both must be on one line.
pub fn write_numbered(id: &str, data: &[u8]) -> Bytes {
    debug_assert!(!id.contains(['\n', '\r', '\0']), "the id is one line");
    let message = write_message(data);
    let mut out = BytesMut::with_capacity(message.len() + id.len() + 5);
    out.extend_from_slice(b"id: ");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b"\n");
    out.extend_from_slice(&message);
    out.freeze()
}

/// Encodes an event with only an id, from which a client resumes, and the reconnection time.
pub fn write_resume_point(id: &str, retry: Duration) -> Bytes {
    format!("id: {id}\nretry: {}\ndata: \n\n", retry.as_millis()).into()
}

/// Encodes the reconnection time, without an event.
pub fn write_retry(retry: Duration) -> Bytes {
    format!("retry: {}\n\n", retry.as_millis()).into()
}

/// Encodes an event of another type. `name` and `data` must be on one line each.
pub fn write_event(name: &str, data: &str) -> Bytes {
    debug_assert!(!name.contains(['\n', '\r']) && !data.contains(['\n', '\r']), "one line each");
    format!("event: {name}\ndata: {data}\n\n").into()
}

/// Text before the data of an event.
pub const MESSAGE_HEAD: &[u8] = b"event: message\ndata: ";

/// Text behind the data of an event.
pub const MESSAGE_TAIL: &[u8] = b"\n\n";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str, size: usize) -> Vec<Event> {
        let mut reader = SseDecoder::new(1_000);
        let pieces = text.as_bytes().chunks(size);
        pieces.flat_map(|piece| reader.feed(piece).expect("small events")).collect()
    }

    fn data(text: &'static str) -> Event {
        Event { data: text.into(), ..Event::default() }
    }

    #[test]
    fn what_is_written_under_an_id_is_read_under_it() {
        let mut reader = SseDecoder::new(100);
        let place = reader.feed(&write_resume_point("a.0", Duration::from_secs(1))).expect("small");
        assert_eq!(
            (place.len(), &*place[0].data, place[0].id.as_deref()),
            (1, &b""[..], Some("a.0"))
        );
        assert_eq!(reader.retry_ms(), Some(1_000));
        let events = reader.feed(&write_numbered("a.1", b"{}")).expect("small");
        assert_eq!(
            (events.len(), &*events[0].data, reader.last_id()),
            (1, &b"{}"[..], Some("a.1"))
        );
    }

    #[test]
    fn events_do_not_depend_on_line_ends_or_cuts() {
        let text = "\u{feff}: hello\nid: 4\ndata: a\ndata:b\nevent: x\n\ndata\n\nevent: none\n\nretry: 7\n\n";
        let expected = [
            Event { name: "x".into(), data: "a\nb".into(), id: Some("4".into()), truncated: None },
            Event { id: Some("4".into()), ..Event::default() },
        ];
        for end in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', end);
            for size in 1..=text.len() {
                assert_eq!(read(&text, size), expected, "{end:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn retry_and_the_last_id_are_kept() {
        let mut reader = SseDecoder::new(100);
        let events = reader.feed(b"id: a\nretry: 250\n\nretry: x\n").expect("small");
        assert_eq!((events.len(), reader.retry_ms(), reader.last_id()), (0, Some(250), Some("a")));
    }

    #[test]
    fn an_event_without_its_end_is_no_event() {
        assert_eq!(read("data: a\n\ndata: b\n", 3), [data("a")]);
    }

    #[test]
    fn an_event_over_the_limit_is_an_error() {
        let mut reader = SseDecoder::new(10);
        assert_eq!(reader.feed(b"data: 0123456789"), Err(BufferError::TooLarge(10)));
    }

    #[test]
    fn an_event_over_the_limit_is_cut_where_the_stream_has_to_go_on() {
        let (head, tail) = ("h".repeat(TRUNCATED_END_BYTES), "t".repeat(TRUNCATED_END_BYTES));
        for body in
            [format!("data: {head}MM{tail}\n"), format!("data:{head}\ndata: M\ndata: {tail}\n")]
        {
            let text = format!("data: a\n\nevent: x\nid: 4\n{body}\n: more\ndata: b\n\n");
            for size in 1..=text.len() {
                let mut reader = SseDecoder::truncating(400);
                let pieces = text.as_bytes().chunks(size);
                let events = pieces.flat_map(|piece| reader.feed(piece).expect("never refused"));
                let id = Some("4".into());
                let cut = Event {
                    name: "x".into(),
                    data: head.clone().into(),
                    id: id.clone(),
                    truncated: Some(TruncatedEvent {
                        tail: tail.clone().into(),
                        reason: BufferError::TooLarge(400),
                    }),
                };
                let expected = [data("a"), cut, Event { id, ..data("b") }];
                assert_eq!(events.collect::<Vec<_>>(), expected, "in pieces of {size}");
            }
        }
    }

    #[test]
    fn an_event_of_a_kind_is_read_as_that_kind() {
        let written = write_event("endpoint", "/messages?x=1");
        let event = Event { name: "endpoint".into(), ..data("/messages?x=1") };
        assert_eq!(read(&String::from_utf8_lossy(&written), 5), [event]);
    }

    #[test]
    fn a_long_id_is_held_once_however_many_events_follow_and_a_longer_one_not_at_all() {
        let mut reader = SseDecoder::new(1 << 20);
        let text = format!("id: {}\n{}", "x".repeat(MAX_ID_BYTES), "data\n\n".repeat(3));
        let events = reader.feed(text.as_bytes()).expect("small");
        let ids: Vec<_> = events.iter().filter_map(|event| event.id.as_ref()).collect();
        assert_eq!(ids.len(), 3);
        assert!(ids.iter().all(|id| id.as_ptr() == ids[0].as_ptr()), "copied for each event");

        let longer = format!("id: {}\ndata\n\n", "x".repeat(MAX_ID_BYTES + 1));
        let events = reader.feed(longer.as_bytes()).expect("small");
        assert_eq!((events.len(), &events[0].id, reader.last_id()), (1, &None, None));
    }

    #[test]
    fn a_keep_alive_is_no_event() {
        assert!(read(&String::from_utf8_lossy(KEEP_ALIVE), 100).is_empty());
    }

    #[test]
    fn an_event_counts_while_it_is_held_and_one_without_room_is_cut_or_refused() {
        let budget = MemoryBudget::new(1 << 20);
        let large = [b"data: ", &[b'x'; 100_000][..], b"\n\n"].concat();
        let mut reader = SseDecoder::new(1 << 20).with_budget(&budget);
        for piece in large[..50_000].chunks(1_000) {
            assert_eq!(reader.feed(piece), Ok(vec![]));
        }
        assert!((50_000..50_000 + 64 * 1024).contains(&budget.reserved_bytes()));
        let events = reader.feed(&large[50_000..]).expect("there is room");
        assert_eq!((events.len(), budget.reserved_bytes()), (1, 100_000));
        drop(events);
        assert_eq!(budget.reserved_bytes(), 0);

        let others = budget.charge(vec![0; 1_000_000].into()).expect("room");
        assert_eq!(reader.feed(&large), Err(BufferError::BudgetExhausted));
        let mut reader = SseDecoder::truncating(1 << 20).with_budget(&budget);
        let both = [&large[..], b"data: small\n\n"].concat();
        let events = reader.feed(&both).expect("nothing fails");
        let told: Vec<_> = events
            .iter()
            .map(|it| (it.data.len(), it.truncated.as_ref().map(|cut| cut.reason)))
            .collect();
        assert_eq!(told, [(TRUNCATED_END_BYTES, Some(BufferError::BudgetExhausted)), (5, None)]);
        drop(others);
        assert_eq!(budget.reserved_bytes(), 0);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(texts in prop::collection::vec("[^\r\n]{0,30}", 0..6), size in 1_usize..50) {
            let stream: Vec<u8> = texts.iter().flat_map(|text| write_message(text.as_bytes())).collect();
            let mut reader = SseDecoder::new(1_000);
            let read: Vec<_> = stream.chunks(size).flat_map(|piece| reader.feed(piece).expect("small")).collect();
            let read: Vec<_> = read.iter().map(|event| event.data.as_ref()).collect();
            let sent: Vec<_> = texts.iter().map(|text| text.as_bytes()).collect();
            prop_assert_eq!(read, sent);
        }
    }
}
