//! Streaming extraction of one member of an object that is still arriving.
//!
//! A large response is not buffered: a [`MemberExtractor`] is fed the bytes of an object as they
//! arrive and returns those of one member's value, at any position among the members. The other
//! members, which are small in a well-formed response (`jsonrpc`, `id`), are kept as text.
//!
//! The extractor counts brackets and quotes only. The receiver of the value checks that it is valid
//! JSON; the gateway forwards it without parsing.
//!
//! Decision: docs/decisions/0001-bytes-and-bodies.md

use bytes::{Bytes, BytesMut};

/// Incremental separation of one member's value from the rest of an object.
#[derive(Debug)]
pub struct MemberExtractor {
    target: &'static str,
    at: ScanState,
    depth: u32,
    in_string: bool,
    escaped: bool,
    key: Vec<u8>,
    /// All text except the wanted value, so that it can be parsed in the end.
    rest: BytesMut,
    rest_limit: usize,
    found: bool,
    watch: Option<WatchState>,
}

/// Member whose presence in the wanted value is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchedMember {
    /// Name of the member.
    pub name: &'static str,
    /// String that the member must be; `None` for any value.
    pub value: Option<&'static str>,
}

/// Tracker of the watched members, if the wanted value is an object.
#[derive(Debug)]
struct WatchState {
    members: &'static [WatchedMember],
    /// The current string, without its quotes, if it matters; `None` outside of one.
    string: Option<Vec<u8>>,
    /// The longest string that matters, in bytes.
    longest: usize,
    is_object: bool,
    next: NextString,
    has_matched: bool,
}

/// Meaning of the next string directly inside the wanted value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextString {
    Key,
    /// The value of the watched member of this index.
    Value(usize),
    /// A string that is not watched.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanState {
    /// Before the opening brace.
    Start,
    /// Between members: a key, a comma or the closing brace comes next.
    Members,
    /// Inside a key.
    Key,
    /// After a key: the colon, then the value's first byte.
    Colon,
    /// Inside a value; `true` for the wanted one.
    Value { target: bool },
    /// After the closing brace.
    End,
}

/// Result of feeding bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Extraction {
    /// More bytes are needed; these belong to the wanted value and may be empty.
    Part(Bytes),
    /// The object has ended; these are the last bytes of the wanted value.
    End(Bytes),
}

/// The bytes are not an object, or the other members exceed the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an object that can be followed")]
pub struct InvalidEnvelope;

impl MemberExtractor {
    /// Creates an extractor of the member `wanted` that keeps at most `rest_limit` bytes of the
    /// others.
    pub fn new(target: &'static str, rest_limit: usize) -> Self {
        Self {
            target,
            at: ScanState::Start,
            depth: 0,
            in_string: false,
            escaped: false,
            key: Vec::new(),
            rest: BytesMut::new(),
            rest_limit,
            found: false,
            watch: None,
        }
    }

    /// Watches for members of the wanted value, too.
    pub fn watching(self, members: &'static [WatchedMember]) -> Self {
        let lengths = members.iter().map(|it| it.name.len().max(it.value.map_or(0, str::len)));
        // Each character may be written as an escape of six bytes.
        let watch = lengths.max().map(|longest| WatchState {
            members,
            string: None,
            longest: 6 * longest,
            is_object: false,
            next: NextString::Other,
            has_matched: false,
        });
        Self { watch, ..self }
    }

    /// Returns whether one of the watched members has been seen.
    pub fn has_matched(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.has_matched)
    }

    /// Returns whether the wanted member's value has begun.
    pub fn has_started(&self) -> bool {
        self.found
    }

    /// Returns whether bytes of the wanted value come next.
    pub(crate) fn is_inside_value(&self) -> bool {
        self.at == ScanState::Value { target: true }
    }

    /// Returns the object without the wanted value, which is `null` in it. Complete only after the
    /// end.
    pub fn envelope(&self) -> Bytes {
        Bytes::copy_from_slice(&self.rest)
    }

    /// Processes the next bytes. Line breaks between tokens become spaces, so that the value fits
    /// on one line; without line breaks, the result shares the memory of `bytes`.
    pub fn feed(&mut self, bytes: &Bytes) -> Result<Extraction, InvalidEnvelope> {
        let mut value = Bytes::new();
        let mut at = 0;
        while at < bytes.len() {
            // This loop consumes the bulk of a large value, which has one beginning and one end.
            if self.is_inside_value() {
                let start = at;
                at += self.follow_value(&bytes[at..]);
                value = super::on_one_line(bytes.slice(start..at));
                continue;
            }
            self.step(bytes[at])?;
            at += 1;
        }
        if self.rest.len() > self.rest_limit {
            return Err(InvalidEnvelope);
        }
        Ok(if self.at == ScanState::End { Extraction::End(value) } else { Extraction::Part(value) })
    }

    /// Consumes bytes of the wanted value up to its end or the end of `bytes`; returns their
    /// number.
    fn follow_value(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            // Inside a string only its end matters, unless the string is watched.
            if self.in_string && !self.escaped && !self.is_watched_string() {
                at += memchr::memchr2(b'"', b'\\', &bytes[at..]).unwrap_or(bytes.len() - at);
                if at == bytes.len() {
                    break;
                }
            }
            if self.ends_value(bytes[at]) {
                self.at = ScanState::Members;
                break;
            }
            at += 1;
        }
        at
    }

    fn is_watched_string(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.string.is_some())
    }

    /// Returns whether `byte` is the first one behind the current value.
    fn ends_value(&mut self, byte: u8) -> bool {
        if let (Some(watch), ScanState::Value { target: true }) = (&mut self.watch, self.at) {
            watch.follow(byte, self.depth, self.in_string, self.escaped);
        }
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' | b',' if self.depth == 0 => return true,
            b'}' | b']' => self.depth -= 1,
            _ => {}
        }
        false
    }

    fn step(&mut self, byte: u8) -> Result<(), InvalidEnvelope> {
        match self.at {
            ScanState::Start => match byte {
                b'{' => self.at = ScanState::Members,
                _ if byte.is_ascii_whitespace() => {}
                _ => return Err(InvalidEnvelope),
            },
            ScanState::Members => match byte {
                b'"' => {
                    self.key.clear();
                    self.at = ScanState::Key;
                }
                b'}' => self.at = ScanState::End,
                b',' => {}
                _ if byte.is_ascii_whitespace() => {}
                _ => return Err(InvalidEnvelope),
            },
            ScanState::Key => match byte {
                // No implementation writes keys of the envelope with escapes, so such a key is
                // refused.
                b'\\' => return Err(InvalidEnvelope),
                b'"' => self.at = ScanState::Colon,
                _ => self.key.push(byte),
            },
            ScanState::Colon => match byte {
                b':' => {
                    let target = self.key == self.target.as_bytes();
                    if target && self.found {
                        return Err(InvalidEnvelope);
                    }
                    self.at = ScanState::Value { target };
                    self.found |= target;
                    self.rest.extend_from_slice(if target { b":null" } else { b":" });
                    return Ok(());
                }
                _ if byte.is_ascii_whitespace() => {}
                _ => return Err(InvalidEnvelope),
            },
            ScanState::Value { target } => {
                debug_assert!(!target, "follow_value takes the wanted value");
                if self.ends_value(byte) {
                    self.at = ScanState::Members;
                    return self.step(byte);
                }
            }
            ScanState::End => {
                return if byte.is_ascii_whitespace() { Ok(()) } else { Err(InvalidEnvelope) };
            }
        }
        self.rest.extend_from_slice(&[byte]);
        Ok(())
    }
}

impl WatchState {
    /// Processes the next byte of the value; the parameters are the state before it.
    fn follow(&mut self, byte: u8, depth: u32, in_string: bool, escaped: bool) {
        if let Some(string) = &mut self.string {
            if byte == b'"' && !escaped {
                self.end_string();
            } else if string.len() <= self.longest {
                string.push(byte);
            }
            return;
        }
        if in_string {
            return;
        }
        match (depth, byte) {
            (0, b'{') => {
                self.is_object = true;
                self.next = NextString::Key;
            }
            (1, b',') if self.is_object => self.next = NextString::Key,
            (1, b'"') if self.next != NextString::Other => self.string = Some(Vec::new()),
            _ => {}
        }
    }

    /// Compares the string that has just ended with the watched members.
    fn end_string(&mut self) {
        let quoted = [b"\"", &self.string.take().unwrap_or_default()[..], b"\""].concat();
        let text = std::str::from_utf8(&quoted).ok().and_then(super::decode_string);
        let next = std::mem::replace(&mut self.next, NextString::Other);
        let Some(text) = text else { return };
        match next {
            NextString::Key => {
                let Some(at) = self.members.iter().position(|it| text == it.name) else { return };
                match self.members[at].value {
                    Some(_) => self.next = NextString::Value(at),
                    None => self.has_matched = true,
                }
            }
            NextString::Value(at) => self.has_matched |= self.members[at].value == Some(&*text),
            NextString::Other => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds `text` in pieces of `size` and returns the value and the rest.
    fn extract(text: &str, size: usize) -> Result<(String, String), InvalidEnvelope> {
        let mut extract = MemberExtractor::new("result", 1_000);
        let mut value = Vec::new();
        let mut ended = false;
        for piece in text.as_bytes().chunks(size) {
            match extract.feed(&Bytes::copy_from_slice(piece))? {
                Extraction::Part(part) => value.extend_from_slice(&part),
                Extraction::End(part) => {
                    value.extend_from_slice(&part);
                    ended = true;
                }
            }
        }
        assert!(ended || !extract.has_started(), "{text}");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the text was UTF-8");
        Ok((text(value), text(extract.envelope().to_vec())))
    }

    #[test]
    fn the_value_is_found_wherever_it_stands_and_however_it_is_cut() {
        let value = r#"{"a":"}\"],{","b":[1.0,{"result":2}],"c":1e400}"#;
        for text in [
            format!(r#"{{"jsonrpc":"2.0","id":7,"result":{value}}}"#),
            format!(r#"{{"result":{value},"jsonrpc":"2.0","id":7}}"#),
            format!(r#" {{ "jsonrpc" : "2.0" , "result" :{value} , "id" : 7 }} "#),
        ] {
            for size in 1..=text.len() {
                let (found, rest) = extract(&text, size).expect(&text);
                assert_eq!(found.trim_end(), value);
                let rest = crate::json::Object::parse(rest).expect("the rest is an object");
                assert_eq!((rest.get("id"), rest.get("result")), (Some("7"), Some("null")));
            }
        }
    }

    #[test]
    fn a_value_over_several_lines_comes_out_on_one() {
        let (value, _) = extract("{\"result\":{\n \"a\": 1\r\n},\"id\":1}", 3).expect("an object");
        assert_eq!(value, "{  \"a\": 1  }");
    }

    #[test]
    fn watched_members_are_seen_however_they_are_cut_and_written() {
        const WATCHED: &[WatchedMember] = &[
            WatchedMember { name: "asks", value: None },
            WatchedMember { name: "kind", value: Some("task") },
        ];
        for (value, expected) in [
            (r#"{"asks":1}"#, true),
            (r#"{"a":{"x":["y"]},"b":"z" , "asks" : {}}"#, true),
            (r#"{"a":"\"","\u0061sk\u0073":[]}"#, true),
            (r#"{"a":"asks","b":{"asks":1},"c":["asks",{"asks":1}],"asks2":1,"\"asks":2}"#, false),
            (r#"["asks","asks"]"#, false),
            (r#""asks""#, false),
            (r#"{"asksasksasksasksasksasksasksasksasksasks":1,"sks":1}"#, false),
            (r#"{"kind":"task"}"#, true),
            (r#"{"a":[{}],"kind" : "t\u0061sk","b":1}"#, true),
            (r#"{"kind":"done","a":"task","task":"kind","b":{"kind":"task"}}"#, false),
            (r#"{"kind":["task","task"],"a":7,"\"":"task"}"#, false),
            (r#"{"kind":{"a":"task"},"b":"task"}"#, false),
            (r#"{"kind":7,"task":"task"}"#, false),
            (r#"["kind","task"]"#, false),
        ] {
            let text = format!(r#"{{"asks":1,"result":{value},"id":7,"asks":1}}"#);
            for size in 1..=text.len() {
                let mut extract = MemberExtractor::new("result", 1_000).watching(WATCHED);
                text.as_bytes().chunks(size).for_each(|piece| {
                    extract.feed(&Bytes::copy_from_slice(piece)).expect(&text);
                });
                assert_eq!(extract.has_matched(), expected, "{value} {size}");
            }
        }
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        for text in
            ["[1]", "x", "{\"a\" 1}", "{\"result\":1,\"result\":2}", "{}{", "{\"\\u0061\":1}"]
        {
            assert_eq!(extract(text, 1), Err(InvalidEnvelope), "{text}");
        }
        let wide = format!("{{\"other\":\"{}\"}}", "x".repeat(2_000));
        assert_eq!(extract(&wide, 64), Err(InvalidEnvelope));
    }

    proptest! {
        #[test]
        fn the_cuts_do_not_matter(inner in ".*", size in 1_usize..40) {
            let value = serde_json::json!({ "text": inner, "list": [inner, {}] }).to_string();
            let text = format!(r#"{{"id":"x","result":{value},"jsonrpc":"2.0"}}"#);
            let (found, _) = extract(&text, size).expect("an object");
            prop_assert_eq!(found, value);
        }
    }
}
