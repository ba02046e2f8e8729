//! Parameters of an outbound request as JSON text, to whose `_meta` members can be added.
//!
//! Invariants: `_meta` is the last member of the parameters. Of its members, those that Weir sets
//! are its own: a client's members of these names are left out.

use weir_base::json::Object;
use weir_mcp::meta;

/// Capacity for the members of `_meta` that are added.
const ADDED_META_BYTES: usize = 512;

/// Members of `_meta` that Weir sets.
const SET_META: [&str; 5] = [
    meta::PROGRESS_TOKEN,
    meta::PROTOCOL_VERSION,
    meta::CLIENT_INFO,
    meta::CLIENT_CAPABILITIES,
    meta::LOG_LEVEL,
];

/// Parameters of an outbound request.
#[derive(Debug)]
pub(crate) struct RequestParams {
    /// Text of the object, and of `_meta` in it, without the closing brackets.
    text: Vec<u8>,
    has_meta: bool,
    /// Whether the innermost open object has no member yet.
    is_empty: bool,
}

impl RequestParams {
    /// Creates the parameters with the members of an object.
    pub(crate) fn new(params: &Object) -> Self {
        if !params.has("_meta") {
            return Self::open(params);
        }
        let mut meta = params.get_object("_meta").unwrap_or_default();
        for key in SET_META {
            meta.take(key);
        }
        let mut params = params.clone();
        params.take("_meta");
        let mut opened = Self::open(&params);
        opened.open_meta(&meta);
        opened
    }

    fn open(params: &Object) -> Self {
        let text = Vec::with_capacity(params.written_len() + ADDED_META_BYTES);
        let mut opened = Self { text, has_meta: false, is_empty: true };
        opened.write_open(params);
        opened
    }

    fn open_meta(&mut self, meta: &Object) {
        self.write_key("_meta");
        self.write_open(meta);
        self.has_meta = true;
    }

    /// Adds a member to `_meta`: one of those that Weir sets, once. `value` is JSON text.
    pub(crate) fn add_meta(&mut self, key: &'static str, value: &[u8]) {
        debug_assert!(SET_META.contains(&key), "{key} may be there already");
        if !self.has_meta {
            self.open_meta(&Object::new());
        }
        self.write_key(key);
        self.text.extend_from_slice(value);
    }

    /// Takes the text of the parameters, once.
    pub(crate) fn take_text(&mut self) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.text);
        text.extend_from_slice(if self.has_meta { b"}}" } else { b"}" });
        text
    }

    /// Writes an object without its closing bracket.
    fn write_open(&mut self, object: &Object) {
        object.write_to(&mut self.text);
        let end = self.text.iter().rposition(|byte| *byte == b'}');
        self.text.truncate(end.unwrap_or_default());
        self.is_empty = object.is_empty();
    }

    /// Writes the key of a further member of the innermost object; the keys have no characters that
    /// would have to be escaped.
    fn write_key(&mut self, key: &'static str) {
        self.text.extend_from_slice(if self.is_empty { b"\"" } else { b",\"" });
        self.text.extend_from_slice(key.as_bytes());
        self.text.extend_from_slice(b"\":");
        self.is_empty = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(params: &'static str, added: &[(&'static str, &str)]) -> String {
        let mut params = RequestParams::new(&Object::parse(params).expect(params));
        for (key, value) in added {
            params.add_meta(key, value.as_bytes());
        }
        String::from_utf8(params.take_text()).expect("text")
    }

    #[test]
    fn members_are_added_to_meta_and_all_other_bytes_stay() {
        let token = (meta::PROGRESS_TOKEN, "7");
        let level = (meta::LOG_LEVEL, "\"info\"");
        for (params, added, expected) in [
            ("{}", [].as_slice(), "{}"),
            (" { \"a\" : 1e400 } ", &[], " { \"a\" : 1e400 }"),
            ("{}", &[token], r#"{"_meta":{"progressToken":7}}"#),
            (
                r#"{"a":"}"}"#,
                &[token, level],
                r#"{"a":"}","_meta":{"progressToken":7,"io.modelcontextprotocol/logLevel":"info"}}"#,
            ),
            (r#"{"_meta":{},"a":1}"#, &[], r#"{"a":1,"_meta":{}}"#),
            (r#"{"_meta":{},"a":1}"#, &[token], r#"{"a":1,"_meta":{"progressToken":7}}"#),
            (r#"{"_meta":{ "x" : {} }}"#, &[token], r#"{"_meta":{ "x" : {} ,"progressToken":7}}"#),
        ] {
            assert_eq!(written(params, added), expected, "{params}");
        }
    }

    #[test]
    fn members_that_weir_sets_do_not_come_from_a_client() {
        let meta = r#"{"_meta":{"progressToken":1,"x":2,"io.modelcontextprotocol/clientInfo":3}}"#;
        assert_eq!(written(meta, &[]), r#"{"_meta":{"x":2}}"#);
        let token = (meta::PROGRESS_TOKEN, "7");
        assert_eq!(written(meta, &[token]), r#"{"_meta":{"x":2,"progressToken":7}}"#);
    }
}
