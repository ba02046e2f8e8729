//! Handshake of the client of `weir stdio`, read before it is served: upstream connections that
//! exist for this client alone are opened with its capabilities.
//!
//! Invariants: every byte that is read here is read again when the client is served; nothing is
//! read after the end of the input, which a terminal announces once.

use std::io::Cursor;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use weir_base::json::Object;
use weir_mcp::call::CallContext;
use weir_mcp::input_request::ClientFeatures;
use weir_mcp::jsonrpc::Message;
use weir_mcp::meta;
use weir_mcp::revision::Revision;

/// Reads a client's first message, of at most `limit` bytes. Returns the context that it declares,
/// and the input from its beginning. Any other first message declares nothing.
pub async fn read_handshake<R: AsyncRead + Unpin>(
    mut input: R,
    limit: usize,
) -> (CallContext, impl AsyncRead + Unpin) {
    let mut text = BytesMut::new();
    let (mut line, mut has_ended) = (None, false);
    while line.is_none() && text.len() <= limit {
        let read = input.read_buf(&mut text).await;
        has_ended = matches!(read, Ok(0));
        line = match read {
            Ok(1..) => text.iter().position(|byte| *byte == b'\n'),
            // The last line may lack a line feed.
            Ok(0) | Err(_) => Some(text.len()),
        };
    }
    let text = text.freeze();
    let context = line.and_then(|end| parse_context(text.slice(..end)));
    let context = context.unwrap_or_else(|| CallContext::without_features(Revision::NEWEST_LEGACY));
    (context, Cursor::new(text).chain(input.take(if has_ended { 0 } else { u64::MAX })))
}

fn parse_context(message: Bytes) -> Option<CallContext> {
    let Ok(Message::Request(request)) = Message::parse(message) else { return None };
    let meta_object = request.params.get_object("_meta").unwrap_or_default();
    let (capabilities, revision) = match meta_object.get_object(meta::CLIENT_CAPABILITIES) {
        Some(capabilities) => (capabilities, Revision::NEWEST),
        None => {
            let version = request.params.get_string("protocolVersion");
            let revision = version.and_then(|version| version.parse().ok());
            let capabilities = request.params.get_object("capabilities")?;
            (capabilities, revision.unwrap_or(Revision::NEWEST_LEGACY))
        }
    };
    Some(CallContext {
        features: ClientFeatures::read(&capabilities).within(revision),
        capabilities: Object::to_bytes(&capabilities),
        ..CallContext::without_features(revision)
    })
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::ReadBuf;

    use crate::legacy::stdio_handshake::*;

    /// Terminal on which the user has typed the end of input, and goes on typing.
    struct Terminal {
        has_ended: bool,
    }

    impl AsyncRead for Terminal {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            assert!(!self.has_ended, "it is read after its end");
            self.has_ended = true;
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn nothing_is_read_after_the_end_of_the_input() {
        let (_, mut input) = read_handshake(Terminal { has_ended: false }, 1_000).await;
        let mut rest = String::new();
        input.read_to_string(&mut rest).await.expect("an end");
        assert_eq!(rest, "");
    }

    async fn read(text: &'static str) -> (ClientFeatures, Bytes, String) {
        let (context, mut input) = read_handshake(text.as_bytes(), 1_000).await;
        let mut rest = String::new();
        input.read_to_string(&mut rest).await.expect("text");
        (context.features, context.capabilities, rest)
    }

    #[tokio::test]
    async fn what_the_first_message_declares_is_known_and_nothing_is_lost() {
        let roots = ClientFeatures { roots: true, ..ClientFeatures::default() };
        let form = ClientFeatures { form: true, ..ClientFeatures::default() };
        let none = ClientFeatures::default();
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
