//! One member of an object that is still arriving.
//!
//! A large reply is not held: an [`Extract`] is fed the bytes of an object as they come and hands on
//! those of one member's value, wherever among the members it stands. The other members, which are
//! small in a well-formed reply (`jsonrpc`, `id`), are kept as text.
//!
//! It counts brackets and quotes and no more. Whether the value itself is valid JSON is left to whoever
//! reads it; the house passes it unread.

use bytes::{Bytes, BytesMut};

/// Follows an object and tells one member's value from the rest.
#[derive(Debug)]
pub struct Extract {
    wanted: &'static str,
    at: At,
    depth: u32,
    in_string: bool,
    escaped: bool,
    key: Vec<u8>,
    /// Everything but the wanted value, so that it can be parsed in the end.
    rest: BytesMut,
    rest_limit: usize,
    found: bool,
    watched: Option<Watched>,
}

/// A member of the wanted value, should that be an object, whose coming has to be known.
#[derive(Debug)]
struct Watched {
    name: &'static str,
    /// The key that we are in, without its quotes; `None` outside of one.
    key: Option<Vec<u8>>,
    is_object: bool,
    /// Whether the next string right inside the value is a key.
    expects_key: bool,
    has_come: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before the opening brace.
    Start,
    /// Between members: a key, a comma or the closing brace comes next.
    Members,
    /// Inside a key.
    Key,
    /// After a key: the colon, then the value's first byte.
    Colon,
    /// Inside a value; `true` for the wanted one.
    Value { wanted: bool },
    /// After the closing brace.
    End,
}

/// What one feeding of bytes brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Extracted {
    /// More bytes are needed; these belong to the wanted value (perhaps none yet).
    Part(Bytes),
    /// The object has ended; the last bytes of the wanted value.
    End(Bytes),
}

/// The bytes are no object, or hold too much beside the wanted member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an object that can be followed")]
pub struct Unreadable;

impl Extract {
    /// Follows an object for its member `wanted`, and keeps at most `rest_limit` bytes of the others.
    pub fn new(wanted: &'static str, rest_limit: usize) -> Self {
        Self {
            wanted,
            at: At::Start,
            depth: 0,
            in_string: false,
            escaped: false,
            key: Vec::new(),
            rest: BytesMut::new(),
            rest_limit,
            found: false,
            watched: None,
        }
    }

    /// Watches for a member of the wanted value, too.
    pub fn watching(self, name: Option<&'static str>) -> Self {
        let watched = name.map(|name| Watched {
            name,
            key: None,
            is_object: false,
            expects_key: false,
            has_come: false,
        });
        Self { watched, ..self }
    }

    /// Whether the key of the watched member has been seen.
    pub fn has_come(&self) -> bool {
        self.watched.as_ref().is_some_and(|watched| watched.has_come)
    }

    /// Whether the wanted member's value has begun.
    pub fn found(&self) -> bool {
        self.found
    }

    /// Whether bytes of the wanted value come next.
    pub fn inside(&self) -> bool {
        self.at == At::Value { wanted: true }
    }

    /// The object without the wanted value, which reads `null` in it. Complete only after the end.
    pub fn rest(&self) -> Bytes {
        Bytes::copy_from_slice(&self.rest)
    }

    /// Follows the next bytes. Line breaks between tokens become spaces, so that the value fits a line; without any, what
    /// is returned shares the memory of `bytes`.
    pub fn feed(&mut self, bytes: &Bytes) -> Result<Extracted, Unreadable> {
        let mut value = Bytes::new();
        let mut at = 0;
        while at < bytes.len() {
            // The bulk of a large value, which has one beginning and one end.
            if self.inside() {
                let start = at;
                at += self.follow_value(&bytes[at..]);
                value = super::on_one_line(bytes.slice(start..at));
                continue;
            }
            self.step(bytes[at])?;
            at += 1;
        }
        if self.rest.len() > self.rest_limit {
            return Err(Unreadable);
        }
        Ok(if self.at == At::End { Extracted::End(value) } else { Extracted::Part(value) })
    }

    /// Takes bytes of the wanted value up to its end or the end of `bytes`; returns how many.
    fn follow_value(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            // In a string nothing is of interest but what may end it, unless it is a name that is watched for.
            if self.in_string && !self.escaped && !self.is_in_key() {
                at += memchr::memchr2(b'"', b'\\', &bytes[at..]).unwrap_or(bytes.len() - at);
                if at == bytes.len() {
                    break;
                }
            }
            if self.ends_value(bytes[at]) {
                self.at = At::Members;
                break;
            }
            at += 1;
        }
        at
    }

    fn is_in_key(&self) -> bool {
        self.watched.as_ref().is_some_and(|watched| watched.key.is_some())
    }

    /// Whether `byte` is the first one behind the value that we are in.
    fn ends_value(&mut self, byte: u8) -> bool {
        if let (Some(watched), At::Value { wanted: true }) = (&mut self.watched, self.at) {
            watched.follow(byte, self.depth, self.in_string, self.escaped);
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

    fn step(&mut self, byte: u8) -> Result<(), Unreadable> {
        match self.at {
            At::Start => match byte {
                b'{' => self.at = At::Members,
                _ if byte.is_ascii_whitespace() => {}
                _ => return Err(Unreadable),
            },
            At::Members => match byte {
                b'"' => {
                    self.key.clear();
                    self.at = At::Key;
                }
                b'}' => self.at = At::End,
                b',' => {}
                _ if byte.is_ascii_whitespace() => {}
                _ => return Err(Unreadable),
            },
            At::Key => match byte {
                // A key of the envelope written with escapes is nobody's habit; refuse to guess.
                b'\\' => return Err(Unreadable),
                b'"' => self.at = At::Colon,
                _ => self.key.push(byte),
            },
            At::Colon => match byte {
                b':' => {
                    let wanted = self.key == self.wanted.as_bytes();
                    if wanted && self.found {
                        return Err(Unreadable);
                    }
                    self.at = At::Value { wanted };
                    self.found |= wanted;
                    self.rest.extend_from_slice(if wanted { b":null" } else { b":" });
                    return Ok(());
                }
                _ if byte.is_ascii_whitespace() => {}
                _ => return Err(Unreadable),
            },
            At::Value { wanted } => {
                debug_assert!(!wanted, "follow_value takes the wanted value");
                if self.ends_value(byte) {
                    self.at = At::Members;
                    return self.step(byte);
                }
            }
            At::End => {
                return if byte.is_ascii_whitespace() { Ok(()) } else { Err(Unreadable) };
            }
        }
        self.rest.extend_from_slice(&[byte]);
        Ok(())
    }
}

impl Watched {
    /// Follows the next byte of the value, before which this is where we were.
    fn follow(&mut self, byte: u8, depth: u32, in_string: bool, escaped: bool) {
        if let Some(key) = &mut self.key {
            if byte != b'"' || escaped {
                // Each of its characters may be written as an escape.
                if key.len() <= 6 * self.name.len() {
                    key.push(byte);
                }
                return;
            }
            let quoted = [b"\"", &key[..], b"\""].concat();
            let text = std::str::from_utf8(&quoted).ok().and_then(super::decode_string);
            self.has_come |= text.is_some_and(|text| text == self.name);
            self.key = None;
            return;
        }
        if in_string {
            return;
        }
        match (depth, byte) {
            (0, b'{') => {
                self.is_object = true;
                self.expects_key = true;
            }
            (1, b',') => self.expects_key = self.is_object,
            (1, b':') => self.expects_key = false,
            (1, b'"') if self.expects_key => self.key = Some(Vec::new()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds `text` in pieces of `size` and returns the value and the rest.
    fn extract(text: &str, size: usize) -> Result<(String, String), Unreadable> {
        let mut extract = Extract::new("result", 1_000);
        let mut value = Vec::new();
        let mut ended = false;
        for piece in text.as_bytes().chunks(size) {
            match extract.feed(&Bytes::copy_from_slice(piece))? {
                Extracted::Part(part) => value.extend_from_slice(&part),
                Extracted::End(part) => {
                    value.extend_from_slice(&part);
                    ended = true;
                }
            }
        }
        assert!(ended || !extract.found(), "{text}");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the text was UTF-8");
        Ok((text(value), text(extract.rest().to_vec())))
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
    fn a_watched_member_is_seen_however_it_is_cut_and_written() {
        for (value, expected) in [
            (r#"{"asks":1}"#, true),
            (r#"{"a":{"x":["y"]},"b":"z" , "asks" : {}}"#, true),
            (r#"{"a":"\"","\u0061sk\u0073":[]}"#, true),
            (r#"{"a":"asks","b":{"asks":1},"c":["asks",{"asks":1}],"asks2":1,"\"asks":2}"#, false),
            (r#"["asks","asks"]"#, false),
            (r#""asks""#, false),
            (r#"{"asksasksasksasksasksasksasksasks":1,"sks":1}"#, false),
        ] {
            let text = format!(r#"{{"asks":1,"result":{value},"id":7,"asks":1}}"#);
            for size in 1..=text.len() {
                let mut extract = Extract::new("result", 1_000).watching(Some("asks"));
                text.as_bytes().chunks(size).for_each(|piece| {
                    extract.feed(&Bytes::copy_from_slice(piece)).expect(&text);
                });
                assert_eq!(extract.has_come(), expected, "{value} {size}");
            }
        }
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        for text in
            ["[1]", "x", "{\"a\" 1}", "{\"result\":1,\"result\":2}", "{}{", "{\"\\u0061\":1}"]
        {
            assert_eq!(extract(text, 1), Err(Unreadable), "{text}");
        }
        let wide = format!("{{\"other\":\"{}\"}}", "x".repeat(2_000));
        assert_eq!(extract(&wide, 64), Err(Unreadable));
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
