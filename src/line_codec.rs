//! Lines of a byte stream, as the stdio wire frames its messages.
//!
//! Promises: the lines do not depend on how the bytes are cut; no more than the limit is held for one
//! line, and a longer one is skipped to its end and told once. A carriage return before the line feed
//! and empty lines are dropped.
//!
//! Knows nothing of: what a line holds.

use bytes::{Buf, Bytes, BytesMut};

use crate::memory_budget::{Budget, Growing};

/// Cuts bytes into lines.
#[derive(Debug)]
pub struct Lines {
    held: BytesMut,
    /// How far `held` has been searched for a line feed.
    searched: usize,
    limit: usize,
    /// Inside a line that was told too early: drop everything up to its end.
    skipping: bool,
    /// What the line takes of a budget, if it counts against one.
    growing: Option<Growing>,
    /// How many empty lines were dropped since somebody asked.
    empty: u32,
    /// How many bytes of a line over the limit were dropped since somebody asked.
    skipped: usize,
}

/// A line, or the news that one is not to be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A line without its end.
    Whole(Bytes),
    /// A line over the limit; it is skipped. Its first bytes, at most 4 KiB, to tell what it was.
    TooLong(Bytes),
    /// A line for which the budget has no room; it is skipped. Its first bytes, likewise.
    NoRoom(Bytes),
}

/// How much of a line that is too long is told.
const HEAD_BYTES: usize = 4_096;

impl Lines {
    /// Cuts lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            held: BytesMut::new(),
            searched: 0,
            limit,
            skipping: false,
            growing: None,
            empty: 0,
            skipped: 0,
        }
    }

    /// The same, where a line that is not small counts against a budget until nobody has it any more.
    pub fn counted(self, budget: &Budget) -> Self {
        Self { growing: Some(Growing::new(budget)), ..self }
    }

    /// Where the next bytes are to be read into. Follow with [`Lines::next_line`] until it is `None`.
    pub fn buffer(&mut self) -> &mut BytesMut {
        self.held.reserve(8 * 1024);
        &mut self.held
    }

    /// How many empty lines were dropped since this was asked last.
    pub fn take_empty(&mut self) -> u32 {
        std::mem::take(&mut self.empty)
    }

    /// How many bytes of a line over the limit were dropped since this was asked last.
    pub fn take_skipped(&mut self) -> usize {
        std::mem::take(&mut self.skipped)
    }

    /// The next complete line.
    pub fn next_line(&mut self) -> Option<Line> {
        loop {
            // Many of them at once cost no more than their bytes.
            if self.searched == 0 && !self.skipping {
                let empty = self.held.iter().take_while(|byte| **byte == b'\n').count();
                self.held.advance(empty);
                self.empty = self.empty.saturating_add(u32::try_from(empty).unwrap_or(u32::MAX));
            }
            let end = self.held[self.searched..].iter().position(|byte| *byte == b'\n');
            let Some(end) = end.map(|at| self.searched + at) else {
                return self.wait_for_more();
            };
            self.searched = 0;
            let mut line = self.held.split_to(end).freeze();
            self.held.advance(1);
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            let growing = self.growing.as_mut();
            // It may have come all at once.
            let has_room = growing.is_none_or(|growing| growing.reach(line.len()).is_ok());
            if line.ends_with(b"\r") {
                line.truncate(line.len() - 1);
            }
            if line.len() > self.limit {
                self.forget();
                return Some(Line::TooLong(head(&line)));
            }
            if !has_room {
                self.forget();
                return Some(Line::NoRoom(head(&line)));
            }
            if let Some(growing) = &mut self.growing {
                line = growing.bind(line);
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Some(Line::Whole(line));
            }
            self.empty = self.empty.saturating_add(1);
        }
    }

    /// The last line, at the end of the stream, which may have no end of its own.
    pub fn last_line(&mut self) -> Option<Line> {
        self.held.extend_from_slice(b"\n");
        self.next_line()
    }

    fn wait_for_more(&mut self) -> Option<Line> {
        self.searched = self.held.len();
        if self.skipping {
            self.skipped += self.held.len();
            self.held.clear();
            self.searched = 0;
            return None;
        }
        let growing = self.growing.as_mut();
        let told = if self.held.strip_suffix(b"\r").unwrap_or(&self.held).len() > self.limit {
            Line::TooLong
        } else if growing.is_some_and(|growing| growing.reach(self.held.len()).is_err()) {
            Line::NoRoom
        } else {
            return None;
        };
        self.skipping = true;
        let head = head(&self.held);
        // Anew where it is counted, and not cleared: the memory goes, too.
        match &self.growing {
            Some(_) => self.held = BytesMut::new(),
            None => self.held.clear(),
        }
        self.searched = 0;
        self.forget();
        Some(told(head))
    }

    fn forget(&mut self) {
        if let Some(growing) = &mut self.growing {
            growing.clear();
        }
    }
}

fn head(line: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&line[..line.len().min(HEAD_BYTES)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(limit: usize, pieces: &[&[u8]]) -> Vec<Line> {
        let mut lines = Lines::new(limit);
        let mut out = Vec::new();
        for piece in pieces {
            lines.buffer().extend_from_slice(piece);
            while let Some(line) = lines.next_line() {
                out.push(line);
            }
        }
        out
    }

    fn whole(text: &'static str) -> Line {
        Line::Whole(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn carriage_returns_and_empty_lines_are_dropped() {
        assert_eq!(cut(99, &[b"a\r\n\r\n \n\nb\nrest"]), [whole("a"), whole("b")]);
    }

    #[test]
    fn the_last_line_needs_no_end_and_what_was_skipped_is_not_told_again() {
        let last = |limit: usize, text: &[u8]| {
            let mut lines = Lines::new(limit);
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
        let mut lines = Lines::new(4);
        lines.buffer().extend_from_slice(b"too long");
        assert!(matches!(lines.next_line(), Some(Line::TooLong(_))));
        lines.buffer().extend_from_slice(b" by far");
        assert_eq!((lines.next_line(), lines.take_skipped(), lines.take_skipped()), (None, 7, 0));
    }

    #[test]
    fn empty_lines_are_counted() {
        let mut lines = Lines::new(99);
        lines.buffer().extend_from_slice(b"\n\na\n\r\n \n\nb\n\n");
        assert_eq!((lines.next_line(), lines.take_empty()), (Some(whole("a")), 2));
        assert_eq!((lines.next_line(), lines.take_empty()), (Some(whole("b")), 3));
        assert_eq!((lines.next_line(), lines.take_empty(), lines.take_empty()), (None, 1, 0));
    }

    #[test]
    fn a_line_over_the_limit_is_told_once_and_the_next_one_is_whole() {
        let long = [b'x'; 10];
        let expected = [Line::TooLong(Bytes::from_static(b"xxxxxxxxxx")), whole("ok")];
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
        let budget = Budget::new(1 << 20);
        let mut lines = Lines::new(1 << 20).counted(&budget);
        let large = [b'x'; 100_000];
        lines.buffer().extend_from_slice(&large);
        assert_eq!((lines.next_line(), budget.held()), (None, 100_000));
        lines.buffer().extend_from_slice(b"\nsmall\n");
        let line = lines.next_line();
        assert!(matches!(&line, Some(Line::Whole(line)) if line.len() == large.len()));
        assert_eq!((lines.next_line(), budget.held()), (Some(whole("small")), 100_000));
        drop(line);
        assert_eq!((lines.next_line(), budget.held()), (None, 0));

        let others = budget.keep(vec![0; 1_000_000].into()).expect("room");
        let head = Bytes::copy_from_slice(&large[..HEAD_BYTES]);
        for pieces in
            [&[&large[..], &large, b"\nsmall\n"][..], &[&[&large[..], b"\nsmall\n"].concat()]]
        {
            let mut told = Vec::new();
            for piece in pieces {
                lines.buffer().extend_from_slice(piece);
                told.extend(std::iter::from_fn(|| lines.next_line()));
            }
            assert_eq!(told, [Line::NoRoom(head.clone()), whole("small")]);
        }
        drop(others);
        assert_eq!(budget.held(), 0);
    }

    proptest! {
        #[test]
        fn the_cuts_do_not_matter(
            texts in prop::collection::vec("[a-z\"{}]{1,20}", 1..8),
            size in 1_usize..30,
        ) {
            let joined = texts.join("\n") + "\n";
            let pieces: Vec<&[u8]> = joined.as_bytes().chunks(size).collect();
            let expected: Vec<_> = texts.iter().cloned().map(|text| Line::Whole(text.into())).collect();
            prop_assert_eq!(cut(1_000, &pieces), expected);
        }
    }
}
