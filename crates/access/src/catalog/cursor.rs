//! Pagination cursor: a position in the order of the merged lists.
//!
//! Invariants: a cursor needs no server state and grants no access. It names the item after which
//! the list continues, and the page is taken from the caller's own view, so a forged cursor reveals
//! nothing more. It stays valid on any replica and after any change.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;

/// The item after which a list continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    pub(super) upstream: UpstreamName,
    pub(super) key: Box<str>,
}

/// Error for a text that is no cursor of this kind of list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid cursor")]
pub struct InvalidCursor;

impl Cursor {
    /// Parses a cursor that a client sent for a list of `kind`.
    pub fn parse(text: &str, kind: Kind) -> Result<Self, InvalidCursor> {
        if text.len() > MAX_CURSOR_BYTES {
            return Err(InvalidCursor);
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidCursor)?;
        let [VERSION, letter, name_length, rest @ ..] = bytes.as_slice() else {
            return Err(InvalidCursor);
        };
        if *letter != letter_of(kind) {
            return Err(InvalidCursor);
        }
        let (name, rest) = rest.split_at_checked(usize::from(*name_length)).ok_or(InvalidCursor)?;
        let (key_length, key) = rest.split_first_chunk().ok_or(InvalidCursor)?;
        if key.len() != usize::from(u16::from_be_bytes(*key_length)) {
            return Err(InvalidCursor);
        }
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| InvalidCursor);
        let upstream = text(name)?.parse().map_err(|_| InvalidCursor)?;
        Ok(Self { upstream, key: text(key)?.into() })
    }

    /// Encodes the cursor for a list of `kind`: version, kind, and the upstream's name and the
    /// item's public key, each after its length.
    pub fn encode(&self, kind: Kind) -> String {
        let (name, key) = (self.upstream.as_str().as_bytes(), self.key.as_bytes());
        let name_length = u8::try_from(name.len()).expect("an upstream's name is at most 32 bytes");
        let key_length = u16::try_from(key.len()).expect("an exported key has at most 2 KiB");
        let mut bytes = Vec::with_capacity(5 + name.len() + key.len());
        bytes.extend_from_slice(&[VERSION, letter_of(kind), name_length]);
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(&key_length.to_be_bytes());
        bytes.extend_from_slice(key);
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }
}

/// The letter of a kind. Letters must never change their meaning.
fn letter_of(kind: Kind) -> u8 {
    match kind {
        Kind::Prompt => b'p',
        Kind::Tool => b't',
        Kind::Resource => b'r',
        Kind::Template => b'm',
    }
}

/// Value of the first byte.
const VERSION: u8 = 1;

/// Maximum length of a received cursor; the longest own one, for a URI of 2 KiB, has 2.8 KiB.
const MAX_CURSOR_BYTES: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_mcp::definition::item::MAX_URI_BYTES;

    fn cursor(upstream: &str, key: &str) -> Cursor {
        Cursor { upstream: upstream.parse().expect(upstream), key: key.into() }
    }

    fn refuses(bytes: &[u8]) -> bool {
        let text = BASE64_URL_SAFE_NO_PAD.encode(bytes);
        Cursor::parse(&text, Kind::Prompt) == Err(InvalidCursor)
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        assert!(!refuses(b"\x01p\x01a\x00\x01k"));
        for (bytes, what) in [
            (&b""[..], "nothing"),
            (b"\x02p\x01a\x00\x01k", "another version"),
            (b"\x01t\x01a\x00\x01k", "another kind"),
            (b"\x01p\x01A\x00\x01k", "no upstream's name"),
            (b"\x01p\x00\x00\x01k", "an empty name"),
            (b"\x01p\x09a\x00\x01k", "a name that is cut short"),
            (b"\x01p\x01a\x00\x02k", "a key that is cut short"),
            (b"\x01p\x01a\x00\x01kk", "something behind the key"),
            (b"\x01p\x01a\x00\x01\xff", "a key that is not UTF-8"),
            (b"\x01p\x01a\x00", "no key"),
        ] {
            assert!(refuses(bytes), "{what}");
        }
        for text in ["", "=", "AXAB YQ", "\u{e9}", "AXABYQABaw=="] {
            assert_eq!(Cursor::parse(text, Kind::Prompt), Err(InvalidCursor), "{text:?}");
        }
    }

    #[test]
    fn a_long_cursor_is_refused_unread_and_the_longest_own_one_is_not() {
        let longest = cursor(&"a".repeat(32), &"k".repeat(MAX_URI_BYTES));
        let text = longest.encode(Kind::Resource);
        assert_eq!(Cursor::parse(&text, Kind::Resource), Ok(longest));
        let longer = cursor("a", &"k".repeat(3_100)).encode(Kind::Resource);
        assert!(longer.len() > MAX_CURSOR_BYTES);
        assert_eq!(Cursor::parse(&longer, Kind::Resource), Err(InvalidCursor));
    }

    proptest! {
        #[test]
        fn a_cursor_comes_back_for_its_own_kind_only(
            upstream in "[a-z][a-z0-9-]{0,31}", key in ".{0,300}",
        ) {
            let cursor = cursor(&upstream, &key);
            for kind in Kind::ALL {
                let text = cursor.encode(kind);
                for read_as in Kind::ALL {
                    let expected = if read_as == kind { Ok(cursor.clone()) } else { Err(InvalidCursor) };
                    prop_assert_eq!(Cursor::parse(&text, read_as), expected);
                }
                prop_assert_eq!(Cursor::parse(&text[1..], kind), Err(InvalidCursor));
                prop_assert_eq!(Cursor::parse(&text[..text.len() - 1], kind), Err(InvalidCursor));
            }
        }

        #[test]
        fn no_text_makes_the_reader_panic_and_what_it_reads_is_written_the_same(
            text in ".{0,64}", bytes in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let _ = Cursor::parse(&text, Kind::Tool);
            let mut bytes = bytes;
            bytes.splice(0..0, *b"\x01t\x01a\x00");
            let text = BASE64_URL_SAFE_NO_PAD.encode(bytes);
            if let Ok(cursor) = Cursor::parse(&text, Kind::Tool) {
                prop_assert_eq!(cursor.encode(Kind::Tool), text);
            }
        }
    }
}
