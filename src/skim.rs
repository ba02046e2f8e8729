//! Finds bytes among many that are of no interest, a block at a time.
//!
//! Knows nothing of: what the bytes mean.

/// How many bytes are looked at at once.
const BLOCK: usize = 32;

/// How many bytes stand before the first that `stops`; all of them if none does.
///
/// `may_stop` is asked about whole blocks and may be wrong in one direction: what stops, may stop. The fewer bytes it
/// names the faster is this; and it has to say so without a branch (`|`, not `||`), or the compiler looks at one byte
/// after the other.
pub fn skim(text: &[u8], may_stop: impl Fn(u8) -> bool, stops: impl Fn(u8) -> bool) -> usize {
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    let mut at = 0;
    for block in blocks {
        let is_plain = !block.iter().fold(false, |found, byte| found | may_stop(*byte));
        if !is_plain && let Some(place) = block.iter().position(|byte| stops(*byte)) {
            return at + place;
        }
        at += BLOCK;
    }
    at + rest.iter().position(|byte| stops(*byte)).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_stops_where_looking_at_each_byte_would(
            text in prop::collection::vec(prop::sample::select(vec![b'a', b'a', b'a', b'b', b'c']), 0..200),
        ) {
            let stops = |byte| byte == b'c';
            let expected = text.iter().position(|byte| stops(*byte)).unwrap_or(text.len());
            prop_assert_eq!(skim(&text, |byte| byte != b'a', stops), expected);
            prop_assert_eq!(skim(&text, stops, stops), expected);
        }
    }
}
