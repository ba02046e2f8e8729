//! Members of one line of the audit log, as JSON.

use std::fmt::Write as _;

use weir_base::text::invisible_chars::is_invisible;

/// Writer of one line. An entry has about twenty members, and formatting them is the main cost.
pub(super) struct JsonLineWriter<'a>(pub(super) &'a mut String);

impl JsonLineWriter<'_> {
    /// Writes a member whose text needs no escaping.
    pub(super) fn word(&mut self, member: &str, text: &str) {
        self.begin(member);
        self.0.push('"');
        self.0.push_str(text);
        self.0.push('"');
    }

    pub(super) fn number(&mut self, member: &str, number: Option<impl itoa::Integer>) {
        let Some(number) = number else { return };
        self.begin(member);
        self.0.push_str(itoa::Buffer::new().format(number));
    }

    pub(super) fn text(&mut self, member: &str, text: Option<&str>) {
        let Some(text) = text else { return };
        self.begin(member);
        self.quoted(text);
    }

    pub(super) fn quoted(&mut self, text: &str) {
        quote(self.0, text, MAX_FIELD_BYTES);
    }

    /// Writes a member with texts, if there are any.
    pub(super) fn texts(&mut self, member: &str, texts: &[impl AsRef<str>]) {
        if !texts.is_empty() {
            self.list(
                member,
                texts.iter().map(|text| move |out: &mut Self| out.quoted(text.as_ref())),
            );
        }
    }

    /// Writes a member with a list; elements over a bound are counted.
    pub(super) fn list(
        &mut self,
        member: &str,
        elements: impl ExactSizeIterator<Item = impl FnOnce(&mut Self)>,
    ) {
        self.begin(member);
        let more = elements.len().saturating_sub(MAX_ELEMENTS);
        for (at, element) in elements.take(MAX_ELEMENTS).enumerate() {
            self.0.push(if at == 0 { '[' } else { ',' });
            element(self);
        }
        if more > 0 {
            let _ = write!(self.0, ",\"and {more} more\"");
        }
        self.0.push(']');
    }

    pub(super) fn begin(&mut self, member: &str) {
        self.0.push_str(",\"");
        self.0.push_str(member);
        self.0.push_str("\":");
    }
}

/// Returns a text quoted and bounded as in a member of an entry.
pub fn quoted(text: &str) -> String {
    let mut out = String::new();
    quote(&mut out, text, MAX_FIELD_BYTES);
    out
}

/// Appends a text as a JSON string, at most `limit` bytes of it.
pub(super) fn quote(out: &mut String, text: &str, limit: usize) {
    let end = if text.len() <= limit { text.len() } else { text.floor_char_boundary(limit) };
    out.push('"');
    // Most texts need no escaping and are copied at once.
    let is_plain = |byte: u8| (b' '..0x7f).contains(&byte) & (byte != b'"') & (byte != b'\\');
    // A fold has no early exit, so the compiler vectorizes it.
    if text.as_bytes()[..end].iter().fold(true, |all, byte| all & is_plain(*byte)) {
        out.push_str(&text[..end]);
    } else {
        text[..end].chars().for_each(|c| escape(out, c));
    }
    if end < text.len() {
        let _ = write!(out, "… ({} bytes more)", text.len() - end);
    }
    out.push('"');
}

fn escape(out: &mut String, c: char) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        // Joiners, single marks of direction and the unassigned characters behind the tags are
        // escaped here, too.
        c if is_invisible(c)
            || matches!(c, '\u{200c}'..='\u{200f}' | '\u{e0100}'..='\u{e0fff}') =>
        {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
        c => out.push(c),
    }
}

/// Most elements of a list.
const MAX_ELEMENTS: usize = 50;
/// Longest text of one member.
pub(super) const MAX_FIELD_BYTES: usize = 1_024;
