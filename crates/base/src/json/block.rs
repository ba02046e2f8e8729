//! Blocks of 64 bytes of JSON text: which bytes are quotes, are escaped, or are control characters.
//!
//! Decision: docs/decisions/0002-json-scanner.md

use wide::u8x16;

/// Number of bytes of a block.
pub(super) const BLOCK_BYTES: usize = 64;

/// Part of a text; of its bytes there is one bit each.
#[derive(Default)]
pub(super) struct Block {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Quotes that begin or end a string.
    pub(super) quotes: u64,
    /// Bytes that a backslash before them escapes.
    pub(super) escaped: u64,
    /// Bytes that must not stand in a string: control characters, and wrong escapes.
    pub(super) invalid: u64,
    /// True if the last byte is a backslash that escapes the one behind the block.
    pub(super) escapes_next: bool,
}

impl Block {
    /// Creates the block of these bytes, which begin at a position inside a string; `is_first`
    /// tells whether the first of them is escaped. Nothing in it is invalid so far.
    #[inline]
    pub(super) fn new(lanes: &Lanes, start: usize, is_first: bool) -> Self {
        let backslashes = lanes.places(|lane| lane.simd_eq(u8x16::splat(b'\\')));
        let (escaped, escapes_next) = escaped_by(backslashes, is_first);
        let quotes = lanes.places(|lane| lane.simd_eq(u8x16::splat(b'"'))) & !escaped;
        Self { start, end: start + BLOCK_BYTES, quotes, escaped, invalid: 0, escapes_next }
    }
}

/// Returns which bytes are escaped by one of these backslashes, and whether the byte behind them
/// is; `is_first` tells it of the first byte.
///
/// As in simdjson (Langdale and Lemire, "Parsing Gigabytes of JSON per Second", 2019, 3.1.1).
#[inline]
fn escaped_by(backslashes: u64, is_first: bool) -> (u64, bool) {
    /// Every second bit, from the first.
    const EVEN: u64 = 0x5555_5555_5555_5555;
    let first = u64::from(is_first);
    let escaping = backslashes & !first;
    let follows = escaping << 1 | first;
    // In a run of backslashes every second one is escaped. Adding the start of a run moves a bit
    // behind its end, and shows by its position how long the run is.
    let odd_starts = escaping & !EVEN & !follows;
    let (even_runs, overflows) = odd_starts.overflowing_add(escaping);
    ((EVEN ^ even_runs << 1) & follows, overflows)
}

/// Bytes of a block, 16 per vector.
pub(super) struct Lanes([u8x16; BLOCK_BYTES / 16]);

impl Lanes {
    #[inline]
    pub(super) fn new(bytes: &[u8; BLOCK_BYTES]) -> Self {
        let (lanes, _) = bytes.as_chunks();
        Self(std::array::from_fn(|at| u8x16::new(lanes[at])))
    }

    /// Returns whether all bytes are printable ASCII or control characters other than DEL.
    #[inline]
    pub(super) fn are_ascii(&self) -> bool {
        self.places(|lane| lane.simd_gt(u8x16::splat(b'~'))) == 0
    }

    /// Returns which bytes are control characters.
    #[inline]
    pub(super) fn controls(&self) -> u64 {
        self.places(|lane| lane.simd_lt(u8x16::splat(b' ')))
    }

    /// Returns one bit per byte: whether it passes the test, whose result is all ones or zeros.
    #[inline]
    fn places(&self, test: impl Fn(u8x16) -> u8x16) -> u64 {
        let lanes = self.0.iter().rev();
        lanes.fold(0, |places, lane| places << 16 | u64::from(test(*lane).to_bitmask()))
    }

    /// Returns whether all bytes are printable ASCII, and none is a quote or backslash.
    #[inline]
    pub(super) fn are_plain(&self) -> bool {
        let is_mark =
            |lane: &u8x16| lane.simd_eq(u8x16::splat(b'"')) | lane.simd_eq(u8x16::splat(b'\\'));
        let marks = self.0.iter().map(is_mark).fold(u8x16::splat(0), |all, lane| all | lane);
        self.are_printable() && !marks.any()
    }

    /// Returns whether all bytes are printable ASCII.
    #[inline]
    pub(super) fn are_printable(&self) -> bool {
        // The printable bytes are moved to the lowest values, so that one comparison is enough.
        let is_other =
            |lane: &u8x16| (*lane - u8x16::splat(b' ')).simd_gt(u8x16::splat(b'~' - b' '));
        !self.0.iter().map(is_other).fold(u8x16::splat(0), |all, lane| all | lane).any()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_that_are_escaped_are_found_as_one_by_one(
            backslashes in any::<u64>(), others in any::<u64>(), is_first in any::<bool>(),
        ) {
            // Long runs, too.
            for backslashes in [backslashes, backslashes | others, backslashes & others] {
                let (mut escaped, mut is_next) = (0_u64, is_first);
                for at in 0..64 {
                    escaped |= u64::from(is_next) << at;
                    is_next = !is_next && backslashes >> at & 1 == 1;
                }
                prop_assert_eq!(escaped_by(backslashes, is_first), (escaped, is_next));
            }
        }
    }
}
