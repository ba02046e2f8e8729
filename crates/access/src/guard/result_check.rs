//! Schema check of results: roles, content, base64, MIME types, URIs.
//!
//! Spec, prompts, security considerations: implementations MUST carefully validate all prompt
//! outputs. Content of an unknown type may be newer than Weir, and is accepted.

use weir_base::json::{self, Object};
use weir_mcp::call::Method;

/// Violation in a result, in Weir's own words.
pub(super) type SchemaViolation = &'static str;

/// Checks the result of a request.
pub(super) fn check(method: Method, result: &Object) -> Result<(), SchemaViolation> {
    // Spec 2026-07-28, multi round-trip requests: a result that requires input has none of the
    // members of a final one.
    if result.get("resultType").is_some_and(|kind| kind != "\"complete\"") {
        return Ok(());
    }
    match method {
        Method::GetPrompt => each(result, "messages", "`messages` is not an array", message),
        Method::CallTool | Method::TaskResult if result.has("content") => {
            each(result, "content", "`content` is not an array", |it| block(&it))
        }
        Method::ReadResource => {
            each(result, "contents", "`contents` is not an array", |it| contents(&it))
        }
        _ => Ok(()),
    }
}

fn each(
    object: &Object,
    member: &str,
    no_array: SchemaViolation,
    check: impl Fn(Object) -> Result<(), SchemaViolation>,
) -> Result<(), SchemaViolation> {
    // A message's content is parsed with the message.
    let objects = object.get_elements(member).ok_or(no_array)?.objects(&[&[b"\"content\""]]);
    objects.into_iter().try_for_each(|it| check(it.map_err(|_| "an element is not an object")?))
}

fn message(mut message: Object) -> Result<(), SchemaViolation> {
    match message.get_string("role").as_deref() {
        Some("user" | "assistant") => {}
        _ => return Err("a role is neither user nor assistant"),
    }
    let content = message.take_object("content").and_then(Result::ok);
    block(&content.ok_or("a message's content is not an object")?)
}

/// Checks a content block.
fn block(block: &Object) -> Result<(), SchemaViolation> {
    let string = |member: &str| block.get_string(member);
    let kind = string("type").ok_or("content has no type")?;
    match &*kind {
        "text" => block.has_string("text").then_some(()).ok_or("a text has no text"),
        "image" | "audio" => {
            let data = string("data").ok_or("an image or audio block has no data")?;
            is_base64(&data).then_some(()).ok_or("data is not base64")?;
            let kind = string("mimeType").ok_or("an image or audio block has no MIME type")?;
            is_mime_type(&kind).then_some(()).ok_or("a MIME type is malformed")
        }
        "resource" => contents(&block.get_object("resource").ok_or("a resource is not an object")?),
        "resource_link" => resource(block),
        _ => Ok(()),
    }
}

/// Checks the contents of a resource.
fn contents(contents: &Object) -> Result<(), SchemaViolation> {
    resource(contents)?;
    if let Some(blob) = contents.get_string("blob") {
        return is_base64(&blob).then_some(()).ok_or("a blob is not base64");
    }
    contents.has_string("text").then_some(()).ok_or("a resource has neither text nor blob")
}

fn resource(resource: &Object) -> Result<(), SchemaViolation> {
    let uri = resource.get_string("uri").ok_or("a resource has no URI")?;
    is_uri(&uri).then_some(()).ok_or("a URI is malformed")?;
    match resource.get("mimeType") {
        None | Some("null") => Ok(()),
        Some(raw) => {
            let kind = json::decode_string(raw);
            kind.filter(|kind| is_mime_type(kind)).map(|_| ()).ok_or("a MIME type is malformed")
        }
    }
}

/// Returns whether a text is base64 (RFC 4648, 4), with or without the line breaks that some
/// encoders write.
fn is_base64(text: &str) -> bool {
    let (mut digits, mut padding) = (0_usize, 0_usize);
    for byte in text.bytes() {
        match byte {
            b'\r' | b'\n' => {}
            b'=' => padding += 1,
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' if padding == 0 => digits += 1,
            _ => return false,
        }
    }
    padding <= 2 && digits % 4 != 1 && (digits + padding).is_multiple_of(4)
}

/// Returns whether a text is a MIME type (RFC 6838, 4.2), with or without parameters.
fn is_mime_type(text: &str) -> bool {
    let (kind, parameters) = text.split_once(';').unwrap_or((text, ""));
    let is_token = |part: &str| {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+*".contains(&byte);
        (1..=127).contains(&part.len()) && part.bytes().all(legal)
    };
    let parts = kind.trim().split_once('/');
    parts.is_some_and(|(kind, sub)| is_token(kind) && is_token(sub))
        && !parameters.contains(|c: char| c.is_control())
}

/// Returns whether a text has a scheme and a rest without characters that RFC 3986 forbids; letters
/// beyond ASCII are accepted.
fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(legal)
        && !rest.is_empty()
        && !rest.contains(|c: char| c.is_control() || " \"<>\\^`{|}".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(method: Method, result: &str) -> Result<(), SchemaViolation> {
        check(method, &Object::parse(result.to_owned()).expect(result))
    }

    fn content(block: &str) -> Result<(), SchemaViolation> {
        let result = format!(r#"{{"content":[{{"type":"text","text":""}},{block}]}}"#);
        let of_tool = judged(Method::CallTool, &result);
        let result = format!(r#"{{"messages":[{{"role":"user","content":{block}}}]}}"#);
        assert_eq!(of_tool, judged(Method::GetPrompt, &result));
        of_tool
    }

    #[test]
    fn good_content_is_good() {
        for block in [
            r#"{"type":"text","text":"x","annotations":{"audience":["user"]}}"#,
            r#"{"type":"image","data":"AA==","mimeType":"image/png"}"#,
            r#"{"type":"audio","data":"AAA\/\nAAAA","mimeType":"audio/wav;codecs=1"}"#,
            r#"{"type":"resource","resource":{"uri":"a:b","text":""}}"#,
            r#"{"type":"resource","resource":{"uri":"file:///a%20b/é","blob":"","mimeType":"x-a/b.c+d"}}"#,
            r#"{"type":"resource_link","uri":"https://h/","name":"n"}"#,
            r#"{"type":"hologram","data":7}"#,
        ] {
            assert_eq!(content(block), Ok(()), "{block}");
        }
        for (method, result) in [
            (Method::GetPrompt, r#"{"messages":[]}"#),
            (Method::GetPrompt, r#"{"resultType":"input_required","inputRequests":{}}"#),
            (Method::CallTool, r#"{"structuredContent":{}}"#),
            (Method::ReadResource, r#"{"contents":[{"uri":"a:b","text":"x"}]}"#),
            (Method::Complete, r#"{"messages":7}"#),
        ] {
            assert_eq!(judged(method, result), Ok(()), "{result}");
        }
    }

    #[test]
    fn bad_content_is_named() {
        for (block, flaw) in [
            (r#"{"text":"x"}"#, "content has no type"),
            (r#"{"type":7}"#, "content has no type"),
            (r#"{"type":"text","text":7}"#, "a text has no text"),
            (r#"{"type":"image","mimeType":"image/png"}"#, "an image or audio block has no data"),
            (r#"{"type":"image","data":"A","mimeType":"image/png"}"#, "data is not base64"),
            (r#"{"type":"image","data":"AA=A","mimeType":"image/png"}"#, "data is not base64"),
            (r#"{"type":"image","data":"A-_=","mimeType":"image/png"}"#, "data is not base64"),
            (r#"{"type":"audio","data":"AA=="}"#, "an image or audio block has no MIME type"),
            (r#"{"type":"audio","data":"AA==","mimeType":"wav"}"#, "a MIME type is malformed"),
            (r#"{"type":"resource","resource":7}"#, "a resource is not an object"),
            (r#"{"type":"resource","resource":{"text":""}}"#, "a resource has no URI"),
            (r#"{"type":"resource","resource":{"uri":"/etc","text":""}}"#, "a URI is malformed"),
            (r#"{"type":"resource","resource":{"uri":"C:\\a","text":""}}"#, "a URI is malformed"),
            (
                r#"{"type":"resource","resource":{"uri":"a:b"}}"#,
                "a resource has neither text nor blob",
            ),
            (r#"{"type":"resource","resource":{"uri":"a:b","blob":"?"}}"#, "a blob is not base64"),
            (
                r#"{"type":"resource","resource":{"uri":"a:b","text":"","mimeType":7}}"#,
                "a MIME type is malformed",
            ),
            (r#"{"type":"resource_link","uri":"a b:c","name":"n"}"#, "a URI is malformed"),
        ] {
            assert_eq!(content(block), Err(flaw), "{block}");
        }
        for (method, result, flaw) in [
            (Method::GetPrompt, "{}", "`messages` is not an array"),
            (Method::GetPrompt, r#"{"messages":[7]}"#, "an element is not an object"),
            (
                Method::GetPrompt,
                r#"{"messages":[{"role":"system","content":{"type":"x"}}]}"#,
                "a role is neither user nor assistant",
            ),
            (
                Method::GetPrompt,
                r#"{"messages":[{"role":"user","content":[]}]}"#,
                "a message's content is not an object",
            ),
            (Method::CallTool, r#"{"content":{}}"#, "`content` is not an array"),
            (Method::ReadResource, "{}", "`contents` is not an array"),
        ] {
            assert_eq!(judged(method, result), Err(flaw), "{result}");
        }
    }
}
