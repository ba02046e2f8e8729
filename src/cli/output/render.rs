//! Rendering of content: blocks of prompts and tools, and contents of resources.
//!
//! Invariants: text is written unchanged, except that on a terminal control characters and
//! characters that reorder a line are replaced; binary content is described by type and size,
//! unless it is the resource that was read.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;

use weir_base::json::{self, Object};
use weir_base::text::invisible_chars::is_mark_of_direction;

/// Base64 decoder that accepts missing padding, because some servers omit it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Formats a count of things, as `1 tool` or `2 tools`.
pub(crate) fn counted(count: u64, word: impl fmt::Display) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

/// Sanitizes a text from an upstream to one line that is safe on any output.
pub(crate) fn sanitize_line(text: &str) -> String {
    text.chars().map(|c| if is_deceptive(c) { '\u{fffd}' } else { c }).collect()
}

/// Returns whether a terminal executes a character instead of showing it, or reorders a line.
fn is_deceptive(c: char) -> bool {
    c.is_control()
        || is_mark_of_direction(c)
        || matches!(c, '\u{61c}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns JSON unchanged, or for a terminal with deceptive characters escaped.
pub(crate) fn sanitize_json(text: &str, terminal: bool) -> Cow<'_, str> {
    if !terminal || !text.contains(is_deceptive) {
        return Cow::Borrowed(text);
    }
    // Such characters occur only inside JSON strings, where an escape is equivalent.
    let escape = |c: char| match is_deceptive(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Returns a text from an upstream unchanged, or sanitized for a terminal.
fn sanitize_for(text: &str, terminal: bool) -> String {
    if !terminal {
        return text.to_owned();
    }
    sanitize_text(&text.replace("\r\n", "\n"))
}

/// Sanitizes a text of several lines.
pub(crate) fn sanitize_text(text: &str) -> String {
    let safe = |c: char| if is_deceptive(c) && !"\n\t".contains(c) { '\u{fffd}' } else { c };
    text.chars().map(safe).collect()
}

/// Writes a text, with a line break at the end.
fn write_text(out: &mut dyn Write, text: &str, terminal: bool) -> io::Result<()> {
    out.write_all(sanitize_for(text, terminal).as_bytes())?;
    if text.ends_with('\n') { Ok(()) } else { writeln!(out) }
}

/// Writes the messages of a prompt.
pub(crate) fn write_messages(
    out: &mut dyn Write,
    result: &Object,
    terminal: bool,
) -> io::Result<()> {
    for (at, message) in object_elements(result, "messages").iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        writeln!(out, "[{}]", sanitize_line(&message.get_string("role").unwrap_or_default()))?;
        match message.get_object("content") {
            Some(block) => write_block(out, &block, terminal)?,
            None => write_blocks(out, &object_elements(message, "content"), terminal)?,
        }
    }
    Ok(())
}

/// Writes the result of a tool; structured content only if there is no other.
pub(crate) fn write_tool_result(
    out: &mut dyn Write,
    result: &Object,
    terminal: bool,
) -> io::Result<()> {
    let blocks = object_elements(result, "content");
    match result.get("structuredContent") {
        Some(structured) if blocks.is_empty() => write_text(out, structured, terminal),
        _ => write_blocks(out, &blocks, terminal),
    }
}

fn write_blocks(out: &mut dyn Write, blocks: &[Object], terminal: bool) -> io::Result<()> {
    blocks.iter().try_for_each(|block| write_block(out, block, terminal))
}

fn write_block(out: &mut dyn Write, block: &Object, terminal: bool) -> io::Result<()> {
    let kind = block.get_string("type").unwrap_or_default();
    match &*kind {
        "text" => write_text(out, &block.get_string("text").unwrap_or_default(), terminal),
        "resource" => {
            let resource = block.get_object("resource").unwrap_or_default();
            writeln!(out, "{}", describe_block(&kind, &resource, "blob"))?;
            match resource.get_string("text") {
                Some(text) => write_text(out, &text, terminal),
                None => Ok(()),
            }
        }
        "resource_link" => writeln!(out, "{}", describe_block("resource link", block, "blob")),
        _ => writeln!(out, "{}", describe_block(&kind, block, "data")),
    }
}

/// Describes a block in parentheses: `(image, image/png, 1234 bytes)`.
fn describe_block(kind: &str, block: &Object, data: &str) -> String {
    let mut parts = vec![kind.to_owned()];
    let members = ["uri", "mimeType"].into_iter().filter_map(|member| block.get_string(member));
    parts.extend(members.map(|part| part.into_owned()));
    parts.extend(block.get_string(data).map(|data| match decode(&data) {
        Some(bytes) => format!("{} bytes", bytes.len()),
        None => "invalid base64".to_owned(),
    }));
    format!("({})", sanitize_line(&parts.join(", ")))
}

/// Writes the contents of a resource unchanged, one after the other. On a terminal, text is
/// sanitized and binary content is only described.
pub(crate) fn write_contents(
    out: &mut dyn Write,
    result: &Object,
    terminal: bool,
) -> io::Result<()> {
    for content in object_elements(result, "contents") {
        match (content.get_string("text"), content.get_string("blob")) {
            (Some(text), _) if terminal => write_text(out, &text, terminal)?,
            (Some(text), _) => out.write_all(text.as_bytes())?,
            (None, Some(_)) if terminal => {
                let about = describe_block("resource", &content, "blob");
                writeln!(out, "{about}\nRedirect standard output to get the bytes: > FILE")?;
            }
            (None, Some(blob)) => out.write_all(&decode(&blob).unwrap_or_default())?,
            (None, None) => {}
        }
    }
    Ok(())
}

/// Writes the values of a completion, one per line.
pub(crate) fn write_values(out: &mut dyn Write, result: &Object, _: bool) -> io::Result<()> {
    let completion = result.get_object("completion").unwrap_or_default();
    let values = completion.get_elements("values");
    values.unwrap_or_default().try_for_each(|value| {
        let value = String::from_utf8_lossy(&value);
        // A value must be one line, on a terminal or not.
        writeln!(out, "{}", sanitize_line(&json::decode_string(&value).unwrap_or_default()))
    })
}

/// Returns whether every blob of a result is valid base64.
pub(crate) fn has_valid_blobs(result: &Object) -> bool {
    let contents = object_elements(result, "contents");
    contents.iter().all(|content| match content.get_string("blob") {
        Some(blob) => decode(&blob).is_some(),
        None => true,
    })
}

/// Returns the objects of an array member.
pub(crate) fn object_elements(object: &Object, member: &str) -> Vec<Object> {
    let elements = object.get_elements(member);
    let object = |text: Bytes| Object::parse_trusted(text).ok();
    elements.unwrap_or_default().filter_map(object).collect()
}

fn decode(base64: &str) -> Option<Vec<u8>> {
    // Some servers insert line breaks.
    let text: String = base64.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    BASE64.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use crate::cli::output::render::*;
    use insta::assert_snapshot;

    fn check(
        write: fn(&mut dyn Write, &Object, bool) -> io::Result<()>,
        result: &'static str,
        terminal: bool,
    ) -> String {
        let mut out = Vec::new();
        write(&mut out, &Object::parse(result).expect(result), terminal).expect("written");
        String::from_utf8(out).expect("text")
    }

    const EVERYTHING: &str = r#"{"content":[
        {"type":"text","text":"one\u001b[31m\ttwo\r\n"},
        {"type":"image","mimeType":"image/png","data":"AAEC"},
        {"type":"audio","mimeType":"audio/wav","data":"!"},
        {"type":"resource","resource":{"uri":"a:b","text":"inside"}},
        {"type":"resource","resource":{"uri":"a:c","mimeType":"x/y","blob":"AA"}},
        {"type":"resource_link","uri":"a:\u0007d","name":"d"},
        {"type":"odd"}
    ],"structuredContent":{"n":1.0}}"#;

    #[test]
    fn each_kind_of_block_is_shown() {
        assert_snapshot!(check(write_tool_result, EVERYTHING, true), @r"
        one�[31m	two
        (image, image/png, 3 bytes)
        (audio, audio/wav, invalid base64)
        (resource, a:b)
        inside
        (resource, a:c, x/y, 1 bytes)
        (resource link, a:�d)
        (odd)
        ");
        let piped = check(write_tool_result, EVERYTHING, false);
        assert!(piped.starts_with("one\u{1b}[31m\ttwo\r\n(image"), "{piped}");
    }

    #[test]
    fn what_reorders_or_hides_a_line_is_made_visible_on_a_terminal() {
        let result =
            "{\"content\":[{\"type\":\"text\",\"text\":\"a\u{202e}b\u{2066}c\u{2028}d \u{5d0}\"}]}";
        assert_eq!(
            check(write_tool_result, result, true),
            "a\u{fffd}b\u{fffd}c\u{fffd}d \u{5d0}\n"
        );
        assert_eq!(
            check(write_tool_result, result, false),
            "a\u{202e}b\u{2066}c\u{2028}d \u{5d0}\n"
        );
        assert_eq!(sanitize_line("a\u{202e}b"), "a\u{fffd}b");
        let json = "{\"a\":\"\u{9b}31m\u{202e}\u{e9}\u{7f}\"}";
        let escaped = "{\"a\":\"\\u009b31m\\u202e\u{e9}\\u007f\"}";
        assert_eq!([sanitize_json(json, true), sanitize_json(json, false)], [escaped, json]);
    }

    #[test]
    fn structured_content_is_shown_where_there_is_no_other() {
        let result = r#"{"content":[],"structuredContent":{"n":1.0}}"#;
        assert_eq!(check(write_tool_result, result, true), "{\"n\":1.0}\n");
    }

    #[test]
    fn what_is_read_goes_out_exactly_unless_somebody_looks() {
        let result = r#"{"contents":[{"uri":"a:b","text":"x\u001b"},{"uri":"a:c","mimeType":"m/n","blob":"aGkK"}]}"#;
        assert_eq!(check(write_contents, result, false), "x\u{1b}hi\n");
        assert_snapshot!(check(write_contents, result, true), @r"
        x�
        (resource, a:c, m/n, 3 bytes)
        Redirect standard output to get the bytes: > FILE
        ");
        assert!(has_valid_blobs(&Object::parse(result).expect("an object")));
        assert!(!has_valid_blobs(
            &Object::parse(r#"{"contents":[{"blob":"!"}]}"#).expect("an object")
        ));
    }
}
