//! What results are made of: roles, content, base64, MIME types, URIs.
//!
//! Spec, prompts, security considerations: implementations MUST carefully validate all prompt outputs. Content of a type that
//! is not known here is newer than Weir, and passes.
//!
//! Knows nothing of: what is done about what is found.

use bytes::Bytes;

use crate::json::{self, Object};
use crate::mcp::call::Method;

/// What is wrong with a result, in Weir's own words.
pub(super) type Malformed = &'static str;

/// Looks at the result of a request.
pub(super) fn check(method: Method, result: &Object) -> Result<(), Malformed> {
    // Spec 2026-07-28, multi round-trip requests: a result that asks has none of the members of a final one.
    if result.get("resultType").is_some_and(|kind| kind != "\"complete\"") {
        return Ok(());
    }
    match method {
        Method::GetPrompt => each(result, "messages", "`messages` is no array", message),
        Method::CallTool | Method::TaskResult if result.has("content") => {
            each(result, "content", "`content` is no array", |it| block(&it))
        }
        Method::ReadResource => {
            each(result, "contents", "`contents` is no array", |it| contents(&it))
        }
        _ => Ok(()),
    }
}

fn each(
    object: &Object,
    member: &str,
    no_array: Malformed,
    check: impl Fn(Object) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    object.get_elements(member).ok_or(no_array)?.try_for_each(|element| check(read(element)?))
}

/// Reads a message or a block of content.
fn read(text: Bytes) -> Result<Object, Malformed> {
    Object::parse_again_along(text, &[&[b"\"content\""]]).map_err(|_| "an element is no object")
}

fn message(mut message: Object) -> Result<(), Malformed> {
    match message.get_string("role").as_deref() {
        Some("user" | "assistant") => {}
        _ => return Err("a role is neither user nor assistant"),
    }
    let content = message.take_object("content").and_then(Result::ok);
    block(&content.ok_or("a message's content is no object")?)
}

/// A block of content.
fn block(block: &Object) -> Result<(), Malformed> {
    let string = |member: &str| block.get_string(member);
    let kind = string("type").ok_or("content has no type")?;
    match &*kind {
        "text" => string("text").map(|_| ()).ok_or("a text has no text"),
        "image" | "audio" => {
            let data = string("data").ok_or("an image or a sound has no data")?;
            is_base64(&data).then_some(()).ok_or("data is no base64")?;
            let kind = string("mimeType").ok_or("an image or a sound has no MIME type")?;
            is_mime_type(&kind).then_some(()).ok_or("a MIME type is none")
        }
        "resource" => contents(&block.get_object("resource").ok_or("a resource is no object")?),
        "resource_link" => resource(block),
        _ => Ok(()),
    }
}

/// A resource's contents.
fn contents(contents: &Object) -> Result<(), Malformed> {
    resource(contents)?;
    if let Some(blob) = contents.get_string("blob") {
        return is_base64(&blob).then_some(()).ok_or("a blob is no base64");
    }
    contents.get_string("text").map(|_| ()).ok_or("a resource has neither text nor blob")
}

fn resource(resource: &Object) -> Result<(), Malformed> {
    let uri = resource.get_string("uri").ok_or("a resource has no URI")?;
    is_uri(&uri).then_some(()).ok_or("a URI is none")?;
    match resource.get("mimeType") {
        None | Some("null") => Ok(()),
        Some(raw) => {
            let kind = json::decode_string(raw);
            kind.filter(|kind| is_mime_type(kind)).map(|_| ()).ok_or("a MIME type is none")
        }
    }
}

/// RFC 4648, 4, with or without line breaks, which some encoders write.
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

/// RFC 6838, 4.2, and parameters behind it.
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

/// A scheme and something behind it, without what RFC 3986 forbids; letters beyond ASCII are let be.
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

    fn judged(method: Method, result: &str) -> Result<(), Malformed> {
        check(method, &Object::parse(result.to_owned()).expect(result))
    }

    fn content(block: &str) -> Result<(), Malformed> {
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
            (r#"{"type":"image","mimeType":"image/png"}"#, "an image or a sound has no data"),
            (r#"{"type":"image","data":"A","mimeType":"image/png"}"#, "data is no base64"),
            (r#"{"type":"image","data":"AA=A","mimeType":"image/png"}"#, "data is no base64"),
            (r#"{"type":"image","data":"A-_=","mimeType":"image/png"}"#, "data is no base64"),
            (r#"{"type":"audio","data":"AA=="}"#, "an image or a sound has no MIME type"),
            (r#"{"type":"audio","data":"AA==","mimeType":"wav"}"#, "a MIME type is none"),
            (r#"{"type":"resource","resource":7}"#, "a resource is no object"),
            (r#"{"type":"resource","resource":{"text":""}}"#, "a resource has no URI"),
            (r#"{"type":"resource","resource":{"uri":"/etc","text":""}}"#, "a URI is none"),
            (r#"{"type":"resource","resource":{"uri":"C:\\a","text":""}}"#, "a URI is none"),
            (
                r#"{"type":"resource","resource":{"uri":"a:b"}}"#,
                "a resource has neither text nor blob",
            ),
            (r#"{"type":"resource","resource":{"uri":"a:b","blob":"?"}}"#, "a blob is no base64"),
            (
                r#"{"type":"resource","resource":{"uri":"a:b","text":"","mimeType":7}}"#,
                "a MIME type is none",
            ),
            (r#"{"type":"resource_link","uri":"a b:c","name":"n"}"#, "a URI is none"),
        ] {
            assert_eq!(content(block), Err(flaw), "{block}");
        }
        for (method, result, flaw) in [
            (Method::GetPrompt, "{}", "`messages` is no array"),
            (Method::GetPrompt, r#"{"messages":[7]}"#, "an element is no object"),
            (
                Method::GetPrompt,
                r#"{"messages":[{"role":"system","content":{"type":"x"}}]}"#,
                "a role is neither user nor assistant",
            ),
            (
                Method::GetPrompt,
                r#"{"messages":[{"role":"user","content":[]}]}"#,
                "a message's content is no object",
            ),
            (Method::CallTool, r#"{"content":{}}"#, "`content` is no array"),
            (Method::ReadResource, "{}", "`contents` is no array"),
        ] {
            assert_eq!(judged(method, result), Err(flaw), "{result}");
        }
    }
}
