//! Locations of keys and values of an object.

use std::ops::Range;

/// Location of a key or value: a span of the object's own text, or the index of a detached part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextSpan {
    /// [`TextSpan::DETACHED`] for a detached part.
    start: u32,
    /// End of the span in the text, or index of the detached part.
    end: u32,
}

impl TextSpan {
    /// Start of a detached part: no text is so long that a span begins here, see
    /// [`MAX_TEXT_BYTES`](super::MAX_TEXT_BYTES).
    const DETACHED: u32 = u32::MAX;

    /// Span of nothing.
    pub(super) const NONE: Self = Self { start: Self::DETACHED, end: 0 };

    /// Creates a span of a text of at most [`MAX_TEXT_BYTES`](super::MAX_TEXT_BYTES).
    pub(super) fn within(range: Range<usize>) -> Self {
        Self { start: range.start as u32, end: range.end as u32 }
    }

    /// Adds a detached part to all others.
    pub(super) fn detached<T>(all: &mut Vec<T>, one: T) -> Self {
        all.push(one);
        Self { start: Self::DETACHED, end: (all.len() - 1) as u32 }
    }

    /// Returns the index of a detached part.
    pub(super) fn number(self) -> Option<usize> {
        (self.start == Self::DETACHED).then_some(self.end as usize)
    }

    /// Returns this span of a text relative to a part that begins at `start`.
    pub(super) fn since(self, start: usize) -> Self {
        let range = self.range();
        Self::within(range.start - start..range.end - start)
    }

    /// Returns whether the part could have this length, which is known only in the text.
    pub(super) fn may_have_length(self, length: usize) -> bool {
        self.end.wrapping_sub(self.start) as usize == length || self.start == Self::DETACHED
    }

    /// Returns the span in the text.
    pub(super) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::MAX_TEXT_BYTES;

    #[test]
    fn a_place_tells_its_part_of_a_text() {
        let last = MAX_TEXT_BYTES - 2..MAX_TEXT_BYTES;
        let span = TextSpan::within(last.clone());
        assert_eq!((span.number(), span.range()), (None, last.clone()));
        assert_eq!(span.since(last.start).range(), 0..2);
        let mut detached = vec!["v"];
        let one = TextSpan::detached(&mut detached, "k");
        assert_eq!(one.number(), Some(1));
        assert_eq!(size_of::<TextSpan>(), 8);
    }
}
