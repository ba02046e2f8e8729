//! Newline-delimited framing, as the stdio transport uses it.
//!
//! Invariants: the lines do not depend on how the bytes arrive in pieces. No more than the limit is
//! buffered for one line; a longer line is skipped to its end and reported once. A carriage return
//! before the line feed and empty lines are dropped.

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr;

use crate::memory::memory_budget::{GrowingReservation, MemoryBudget};

/// Incremental decoder of lines.
#[derive(Debug)]
pub struct LineDecoder {
    pending: BytesMut,
    /// Length of the prefix of `pending` that has no line feed.
    searched: usize,
    limit: usize,
    /// Space for the next bytes, at least.
    read_bytes: usize,
    /// Inside a line that was reported already: its remaining bytes are dropped.
    skipping: bool,
    /// Budget reservation of the incomplete line, if lines count against a budget.
    growing: Option<GrowingReservation>,
    /// Empty lines dropped since `take_empty_lines` was called last.
    empty: u32,
    /// Bytes of lines over the limit dropped since `take_skipped_bytes` was called last.
    skipped: usize,
}

/// Decoded line, or the report of a line that was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodedLine {
    /// A complete line, without its line feed.
    Whole(Bytes),
    /// A line over the limit, which is skipped. Holds its first bytes, at most 4 KiB.
    TooLong(Bytes),
    /// A line for which the memory budget is exhausted, which is skipped. Holds its first bytes, at
    /// most 4 KiB.
    BudgetExhausted(Bytes),
}

/// Space for one read.
const READ_BYTES: usize = 8 * 1024;
/// Bytes of a skipped line that its report contains.
const REPORT_BYTES: usize = 4_096;

impl LineDecoder {
    /// Creates a decoder for lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            pending: BytesMut::new(),
            searched: 0,
            limit,
            read_bytes: READ_BYTES,
            skipping: false,
            growing: None,
            empty: 0,
            skipped: 0,
        }
    }

    /// Offers more space for each read, so that a flood takes fewer.
    pub fn with_read_bytes(self, read_bytes: usize) -> Self {
        Self { read_bytes, ..self }
    }

    /// Makes lines that are not small count against a budget until their last copy is dropped.
    pub fn with_budget(self, budget: &MemoryBudget) -> Self {
        Self { growing: Some(GrowingReservation::new(budget)), ..self }
    }

    /// Returns the buffer for the next bytes. After filling it, call [`Self::next_line`] until it
    /// returns `None`.
    pub fn buffer(&mut self) -> &mut BytesMut {
        self.pending.reserve(self.read_bytes);
        &mut self.pending
    }

    /// Returns the number of empty lines dropped since the last call.
    pub fn take_empty_lines(&mut self) -> u32 {
        std::mem::take(&mut self.empty)
    }

    /// Returns the number of bytes of lines over the limit dropped since the last call.
    pub fn take_skipped_bytes(&mut self) -> usize {
        std::mem::take(&mut self.skipped)
    }

    /// Returns the next complete line.
    pub fn next_line(&mut self) -> Option<DecodedLine> {
        loop {
            // Skipping empty lines together costs no more than scanning their bytes.
            if self.searched == 0 && !self.skipping {
                let empty = self.pending.iter().take_while(|byte| **byte == b'\n').count();
                self.pending.advance(empty);
                self.empty = self.empty.saturating_add(u32::try_from(empty).unwrap_or(u32::MAX));
            }
            let end = memchr(b'\n', &self.pending[self.searched..]);
            let Some(end) = end.map(|at| self.searched + at) else {
                return self.wait_for_more();
            };
            self.searched = 0;
            let mut line = self.pending.split_to(end).freeze();
            self.pending.advance(1);
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            let growing = self.growing.as_mut();
            // The whole line may have arrived at once, without a reservation so far.
            let has_capacity = growing.is_none_or(|growing| growing.grow_to(line.len()).is_ok());
            if line.ends_with(b"\r") {
                line.truncate(line.len() - 1);
            }
            if line.len() > self.limit {
                self.clear_reservation();
                return Some(DecodedLine::TooLong(head(&line)));
            }
            if !has_capacity {
                self.clear_reservation();
                return Some(DecodedLine::BudgetExhausted(head(&line)));
            }
            if let Some(growing) = &mut self.growing {
                line = growing.bind(line);
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Some(DecodedLine::Whole(line));
            }
            self.empty = self.empty.saturating_add(1);
        }
    }

    /// Returns the last line at the end of the stream, which may lack a line feed.
    pub fn last_line(&mut self) -> Option<DecodedLine> {
        self.pending.extend_from_slice(b"\n");
        self.next_line()
    }

    fn wait_for_more(&mut self) -> Option<DecodedLine> {
        self.searched = self.pending.len();
        if self.skipping {
            self.skipped += self.pending.len();
            self.pending.clear();
            self.searched = 0;
            return None;
        }
        let growing = self.growing.as_mut();
        let report = if self.pending.strip_suffix(b"\r").unwrap_or(&self.pending).len() > self.limit
        {
            DecodedLine::TooLong
        } else if growing.is_some_and(|growing| growing.grow_to(self.pending.len()).is_err()) {
            DecodedLine::BudgetExhausted
        } else {
            return None;
        };
        self.skipping = true;
        let head = head(&self.pending);
        // A new buffer where memory is counted: clearing the old one would keep its memory.
        match &self.growing {
            Some(_) => self.pending = BytesMut::new(),
            None => self.pending.clear(),
        }
        self.searched = 0;
        self.clear_reservation();
        Some(report(head))
    }

    fn clear_reservation(&mut self) {
        if let Some(growing) = &mut self.growing {
            growing.clear();
        }
    }
}

fn head(line: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&line[..line.len().min(REPORT_BYTES)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(limit: usize, pieces: &[&[u8]]) -> Vec<DecodedLine> {
        let mut lines = LineDecoder::new(limit);
        let mut out = Vec::new();
        for piece in pieces {
            lines.buffer().extend_from_slice(piece);
            while let Some(line) = lines.next_line() {
                out.push(line);
            }
        }
        out
    }

    fn whole(text: &'static str) -> DecodedLine {
        DecodedLine::Whole(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn carriage_returns_and_empty_lines_are_dropped() {
        assert_eq!(cut(99, &[b"a\r\n\r\n \n\nb\nrest"]), [whole("a"), whole("b")]);
    }

    #[test]
    fn the_last_line_needs_no_end_and_what_was_skipped_is_not_told_again() {
        let last = |limit: usize, text: &[u8]| {
            let mut lines = LineDecoder::new(limit);
            lines.buffer().extend_from_slice(text);
            while lines.next_line().is_some() {}
            lines.last_line()
        };
        assert_eq!(last(99, b"a\nrest\r"), Some(whole("rest")));
        assert_eq!(last(99, b"a\n"), None);
        assert_eq!(last(4, b"too long"), None);
    }

    #[test]
    fn bytes_of_a_line_over_the_limit_are_counted_when_they_are_dropped() {
        let mut lines = LineDecoder::new(4);
        lines.buffer().extend_from_slice(b"too long");
        assert!(matches!(lines.next_line(), Some(DecodedLine::TooLong(_))));
        lines.buffer().extend_from_slice(b" by far");
        assert_eq!(
            (lines.next_line(), lines.take_skipped_bytes(), lines.take_skipped_bytes()),
            (None, 7, 0)
        );
    }

    #[test]
    fn empty_lines_are_counted() {
        let mut lines = LineDecoder::new(99);
        lines.buffer().extend_from_slice(b"\n\na\n\r\n \n\nb\n\n");
        assert_eq!((lines.next_line(), lines.take_empty_lines()), (Some(whole("a")), 2));
        assert_eq!((lines.next_line(), lines.take_empty_lines()), (Some(whole("b")), 3));
        assert_eq!(
            (lines.next_line(), lines.take_empty_lines(), lines.take_empty_lines()),
            (None, 1, 0)
        );
    }

    #[test]
    fn a_line_over_the_limit_is_told_once_and_the_next_one_is_whole() {
        let long = [b'x'; 10];
        let expected = [DecodedLine::TooLong(Bytes::from_static(b"xxxxxxxxxx")), whole("ok")];
        assert_eq!(cut(4, &[&long, &long, b"xx\nok\n"]), expected);
    }

    #[test]
    fn a_line_as_long_as_the_limit_passes() {
        assert_eq!(cut(4, &[b"abcd", b"\n"]), [whole("abcd")]);
        assert_eq!(cut(4, &[b"abcd\r\n"]), [whole("abcd")]);
        assert_eq!(cut(4, &[b"abcd\r", b"\n"]), [whole("abcd")]);
    }

    #[test]
    fn a_line_counts_while_it_is_held_and_one_without_room_is_told_once() {
        let budget = MemoryBudget::new(1 << 20);
        let mut lines = LineDecoder::new(1 << 20).with_budget(&budget);
        let large = [b'x'; 100_000];
        lines.buffer().extend_from_slice(&large);
        assert_eq!((lines.next_line(), budget.reserved_bytes()), (None, 100_000));
        lines.buffer().extend_from_slice(b"\nsmall\n");
        let line = lines.next_line();
        assert!(matches!(&line, Some(DecodedLine::Whole(line)) if line.len() == large.len()));
        assert_eq!((lines.next_line(), budget.reserved_bytes()), (Some(whole("small")), 100_000));
        drop(line);
        assert_eq!((lines.next_line(), budget.reserved_bytes()), (None, 0));

        let others = budget.charge(vec![0; 1_000_000].into()).expect("room");
        let head = Bytes::copy_from_slice(&large[..REPORT_BYTES]);
        for pieces in
            [&[&large[..], &large, b"\nsmall\n"][..], &[&[&large[..], b"\nsmall\n"].concat()]]
        {
            let mut report = Vec::new();
            for piece in pieces {
                lines.buffer().extend_from_slice(piece);
                report.extend(std::iter::from_fn(|| lines.next_line()));
            }
            assert_eq!(report, [DecodedLine::BudgetExhausted(head.clone()), whole("small")]);
        }
        drop(others);
        assert_eq!(budget.reserved_bytes(), 0);
    }

    proptest! {
        #[test]
        fn the_cuts_do_not_matter(
            texts in prop::collection::vec("[a-z\"{}]{1,20}", 1..8),
            size in 1_usize..30,
        ) {
            let joined = texts.join("\n") + "\n";
            let pieces: Vec<&[u8]> = joined.as_bytes().chunks(size).collect();
            let expected: Vec<_> = texts.iter().cloned().map(|text| DecodedLine::Whole(text.into())).collect();
            prop_assert_eq!(cut(1_000, &pieces), expected);
        }
    }
}
