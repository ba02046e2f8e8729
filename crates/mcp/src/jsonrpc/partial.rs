//! Id and kind of a message that cannot be parsed as a whole: it is cut off, nested too deeply, not
//! UTF-8, or has a member twice.
//!
//! Brackets and quotes alone separate the members, from the beginning up to the first that does not
//! end. So the sender of a broken request gets an error with its id, and a broken response ends its
//! request.

use bytes::Bytes;
use memchr::memchr2;
use serde::de::IgnoredAny;

use super::{Id, MessageShape};

/// Id and kind of a message, as far as a text shows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialMessage {
    /// The id; `None` if it cannot be read, or if there are several.
    pub id: Option<Id>,
    /// Kind of the message; a request if the text shows nothing at all.
    pub shape: MessageShape,
}

impl PartialMessage {
    /// Reads a text, or the beginning of one.
    pub fn read(text: &[u8]) -> Self {
        let (mut ids, mut has_method, mut has_outcome) = (Vec::new(), false, false);
        let mut members = MemberScan { text, at: 0 };
        members.skip_space();
        if members.take(b'{') {
            while let Some(key) = members.key() {
                has_method |= key == b"\"method\"";
                has_outcome |= matches!(key, b"\"result\"" | b"\"error\"");
                let Some(value) = members.value() else { break };
                if key == b"\"id\"" {
                    ids.push(id_of(value));
                }
            }
        }
        let shape = match (has_method, has_outcome, &ids[..]) {
            (true, ..) | (false, false, []) => MessageShape::Request,
            (false, true, _) => MessageShape::Response,
            (false, false, _) => MessageShape::Neither,
        };
        let id = if ids.len() == 1 { ids.pop().flatten() } else { None };
        Self { id, shape }
    }
}

/// Reads an id; the text around it proves nothing about its own.
fn id_of(value: &[u8]) -> Option<Id> {
    serde_json::from_slice::<IgnoredAny>(value).ok()?;
    std::str::from_utf8(value).ok()?;
    Id::parse(Bytes::copy_from_slice(value))
}

/// Members of an object that may end anywhere.
struct MemberScan<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> MemberScan<'a> {
    fn skip_space(&mut self) {
        let space = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_whitespace());
        self.at += space.count();
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Returns the next key with its quotes, up to its value; `None` if there is none.
    fn key(&mut self) -> Option<&'a [u8]> {
        self.skip_space();
        while self.take(b',') {
            self.skip_space();
        }
        let key = self.string()?;
        self.skip_space();
        let has_value = self.take(b':');
        self.skip_space();
        has_value.then_some(key)
    }

    /// Returns the next value; `None` if it does not end.
    fn value(&mut self) -> Option<&'a [u8]> {
        match self.text.get(self.at)? {
            b'"' => self.string(),
            b'{' | b'[' => self.nested(),
            _ => {
                let start = self.at;
                let ends =
                    |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
                // A number that the text ends with may have been cut off.
                self.at += self.text[start..].iter().position(ends)?;
                Some(&self.text[start..self.at])
            }
        }
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let start = self.at;
        if !self.take(b'"') {
            return None;
        }
        loop {
            self.at += memchr2(b'"', b'\\', self.text.get(self.at..)?)?;
            match self.text[self.at] {
                b'"' => {
                    self.at += 1;
                    return Some(&self.text[start..self.at]);
                }
                // The escaped character, too.
                _ => self.at += 2,
            }
        }
    }

    fn nested(&mut self) -> Option<&'a [u8]> {
        let (start, mut depth) = (self.at, 0_usize);
        loop {
            match self.text.get(self.at)? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(&self.text[start..self.at]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MessageShape::{Neither, Request, Response};
    use proptest::prelude::*;

    fn read(text: &[u8]) -> (Option<String>, MessageShape) {
        let PartialMessage { id, shape } = PartialMessage::read(text);
        (id.map(|id| id.to_string()), shape)
    }

    #[test]
    fn broken_message_shows_its_id_and_kind_as_far_as_they_can_be_read() {
        let deep =
            format!(r#"{{"params":{},"method":"m","id":7}}"#, "[".repeat(9) + &"]".repeat(9));
        for (text, id, shape) in [
            (r#"{"id":7,"method":"m""#.as_bytes(), Some("7"), Request),
            (r#"{"id":7,"method":"#.as_bytes(), Some("7"), Request),
            (br#" { "method" : "m" , "id" : "a\"b" , "params": [1, 2"#, Some(r#""a\"b""#), Request),
            (b"{\"method\":\"\xff\",\"id\":7}", Some("7"), Request),
            (b"{\"method\":\"m\",\"id\":\"\xff\"}", None, Request),
            (br#"{"method":"m","id":7,"method":"n"}"#, Some("7"), Request),
            (br#"{"method":"m","id":7,"id":7}"#, None, Request),
            (br#"{"method":"m","id":7"#, None, Request),
            (br#"{"method":"m","id":1.5,"params":"#, None, Request),
            (br#"{"method":"m","params":{"id":7"#, None, Request),
            (br#"{"method":"m","params":{"t":"}\"id\":7"},"id":8,"#, Some("8"), Request),
            (br#"{"id":7,"result":{"#, Some("7"), Response),
            (br#"{"error":{},"id":7,,"x"}"#, Some("7"), Response),
            (br#"{"id":7,"result":{},"method":"m"} x"#, Some("7"), Request),
            (br#"{"id":7,"#, Some("7"), Neither),
            (b"nonsense", None, Request),
            (b"[1]", None, Request),
            (b"{]", None, Request),
            (b"", None, Request),
            (deep.as_bytes(), Some("7"), Request),
        ] {
            let expected = (id.map(str::to_owned), shape);
            assert_eq!(read(text), expected, "{}", String::from_utf8_lossy(text));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(45), ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_without_end_or_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = PartialMessage::read(&bytes);
        }

        #[test]
        fn every_request_that_is_cut_behind_its_id_shows_it(
            id in 0..1_000_u64,
            params in "[a-z\"\\\\{}\\[\\]:,]{0,40}",
            cut in 0..200_usize,
        ) {
            let params = weir_base::json::quote(&params);
            let params = String::from_utf8_lossy(&params);
            let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"#);
            let text = format!(r#"{head}"method":"m","params":{{"x":{params}}}}}"#);
            let end = (head.len() + cut).min(text.len());
            prop_assert_eq!(read(&text.as_bytes()[..end]).0, Some(id.to_string()));
        }
    }
}
