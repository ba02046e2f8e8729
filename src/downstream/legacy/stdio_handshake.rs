//! What the one client of `weir stdio` declares, read ahead: upstreams that are there for it alone are
//! opened with that.
//!
//! Promise: every byte that was read here is read again by whoever serves the client.
//!
//! Knows nothing of: what is answered.

use std::io::Cursor;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::json::Object;
use crate::jsonrpc::Message;
use crate::mcp::call::Caller;
use crate::mcp::input_request::Abilities;
use crate::mcp::meta;
use crate::mcp::revision::Revision;

/// Reads a client's first message, of at most `limit` bytes, and returns what it declares, and the input
/// from its beginning on. A client that says something else first declares nothing.
pub async fn introduction<R: AsyncRead + Unpin>(
    mut input: R,
    limit: usize,
) -> (Caller, impl AsyncRead + Unpin) {
    let mut text = BytesMut::new();
    let mut line = None;
    while line.is_none() && text.len() <= limit {
        line = match input.read_buf(&mut text).await {
            Ok(1..) => text.iter().position(|byte| *byte == b'\n'),
            // The last line may have no end.
            Ok(0) | Err(_) => Some(text.len()),
        };
    }
    let text = text.freeze();
    let caller = line.and_then(|end| declared(text.slice(..end)));
    let caller = caller.unwrap_or_else(|| Caller::plain(Revision::NEWEST_LEGACY));
    (caller, Cursor::new(text).chain(input))
}

/// What a client says of itself in `member`, to be kept for as long as it stays: a copy, so that the rest of the message
/// is not kept with it. The error says what is wrong, for the client.
pub(crate) fn kept(params: &Object, member: &str) -> Result<Option<Bytes>, String> {
    let Some(said) = params.get_object(member) else { return Ok(None) };
    let said = said.to_bytes();
    if said.len() > MAX_KEPT_BYTES {
        return Err(format!("`{member}` may have {MAX_KEPT_BYTES} bytes at most"));
    }
    Ok(Some(Bytes::copy_from_slice(&said)))
}

/// How much of what a client says of itself is kept: room for an icon or two.
const MAX_KEPT_BYTES: usize = 64 * 1024;

fn declared(message: Bytes) -> Option<Caller> {
    let Ok(Message::Request(request)) = Message::parse(message) else { return None };
    let context = request.params.get_object("_meta").unwrap_or_default();
    let (capabilities, revision) = match context.get_object(meta::CLIENT_CAPABILITIES) {
        Some(capabilities) => (capabilities, Revision::NEWEST),
        None => {
            let version = request.params.get_string("protocolVersion");
            let revision = version.and_then(|version| version.parse().ok());
            let capabilities = request.params.get_object("capabilities")?;
            (capabilities, revision.unwrap_or(Revision::NEWEST_LEGACY))
        }
    };
    Some(Caller {
        abilities: Abilities::read(&capabilities).within(revision),
        capabilities: Object::to_bytes(&capabilities),
        ..Caller::plain(revision)
    })
}

#[cfg(test)]
mod tests {
    use crate::downstream::legacy::stdio_handshake::*;

    async fn read(text: &'static str) -> (Abilities, Bytes, String) {
        let (caller, mut input) = introduction(text.as_bytes(), 1_000).await;
        let mut rest = String::new();
        input.read_to_string(&mut rest).await.expect("text");
        (caller.abilities, caller.capabilities, rest)
    }

    #[tokio::test]
    async fn what_the_first_message_declares_is_known_and_nothing_is_lost() {
        let roots = Abilities { roots: true, ..Abilities::default() };
        let form = Abilities { form: true, ..Abilities::default() };
        let none = Abilities::default();
        for (text, expected, capabilities) in [
            (
                concat!(
                    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
                    r#""capabilities":{"roots":{}}}}"#,
                    "\nmore"
                ),
                roots,
                r#"{"roots":{}}"#,
            ),
            (
                concat!(
                    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05","#,
                    r#""capabilities":{"roots":{},"elicitation":{}}}}"#,
                    "\n"
                ),
                roots,
                r#"{"roots":{},"elicitation":{}}"#,
            ),
            (
                concat!(
                    r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"#,
                    r#""io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}}}}}"#,
                    "\n"
                ),
                form,
                r#"{"elicitation":{"form":{}}}"#,
            ),
            ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n{}\n", none, "{}"),
            ("no message\n", none, "{}"),
            ("no line", none, "{}"),
            ("", none, "{}"),
        ] {
            let expected = (expected, Bytes::from_static(capabilities.as_bytes()), text.to_owned());
            assert_eq!(read(text).await, expected);
        }
    }
}
