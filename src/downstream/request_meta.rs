//! What Weir owns in a request's `_meta`: taken out at the door, everything else travels on.
//!
//! Knows nothing of: which of it an era requires.

use bytes::Bytes;

use crate::json::Object;
use crate::jsonrpc::Id;
use crate::mcp::log_level::{Level, Wanted};
use crate::mcp::{meta, trace_context};

/// The owned members, raw.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Owned {
    /// The token under which the client wants to hear of progress.
    pub(super) progress_token: Option<Id>,
    pub(super) version: Option<Bytes>,
    pub(super) info: Option<Bytes>,
    pub(super) capabilities: Option<Bytes>,
    /// The least severe log message that the client wants to hear of.
    pub(super) log_level: Option<Bytes>,
}

/// `_meta` is not what it must be; the text is fit for the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadMeta(pub(super) String);

impl Owned {
    /// Which log messages the request's client wants.
    pub(super) fn logs(&self) -> Result<Wanted, BadMeta> {
        let Some(raw) = &self.log_level else { return Ok(Wanted::nothing()) };
        // Spec 2026-07-28, logging: what is no level SHOULD be refused.
        let level = std::str::from_utf8(raw).ok().and_then(Level::parse);
        let text = "`io.modelcontextprotocol/logLevel` must be a level, such as \"info\"";
        level.map(Wanted::from).ok_or(BadMeta(text.into()))
    }
}

/// Takes what Weir owns out of `params`, and a trace context that is not well-formed. A `_meta` that held nothing else
/// goes with it; one that held nothing of either stays as it came.
pub(super) fn take(params: &mut Object) -> Result<Owned, BadMeta> {
    let Some(meta) = params.take_object("_meta") else {
        return Ok(Owned::default());
    };
    let mut rest = meta.map_err(|malformed| BadMeta(malformed.in_member("_meta")))?;
    // Spec, progress: tokens are strings or integers, like ids.
    let progress_token = rest.take(meta::PROGRESS_TOKEN).map(Id::read).transpose();
    let progress_token = progress_token.map_err(|bad| BadMeta(bad.in_member("progressToken")))?;
    let owned = Owned {
        progress_token,
        version: rest.take(meta::PROTOCOL_VERSION),
        info: rest.take(meta::CLIENT_INFO),
        capabilities: rest.take(meta::CLIENT_CAPABILITIES),
        log_level: rest.take(meta::LOG_LEVEL),
    };
    let has_malformed = trace_context::take_malformed(&mut rest);
    if owned == Owned::default() && !has_malformed {
        return Ok(owned);
    }
    if rest.is_empty() {
        params.take("_meta");
    } else {
        params.set("_meta", rest.to_bytes());
    }
    Ok(owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(text: &'static str) -> (Result<Owned, BadMeta>, Bytes) {
        let mut params = Object::parse(text).expect("an object");
        let owned = take(&mut params);
        (owned, params.to_bytes())
    }

    #[test]
    fn what_weir_owns_is_taken_and_the_rest_stays() {
        let (owned, rest) = taken(
            r#"{"name":"x","_meta":{"progressToken":"t","io.modelcontextprotocol/protocolVersion":"v","io.modelcontextprotocol/logLevel":7,"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},"n":1e400}"#,
        );
        let expected = Owned {
            progress_token: Id::parse("\"t\"".into()),
            version: Some("\"v\"".into()),
            log_level: Some("7".into()),
            ..Owned::default()
        };
        assert_eq!(owned, Ok(expected));
        assert_eq!(
            rest,
            r#"{"name":"x","_meta":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},"n":1e400}"#
        );
    }

    #[test]
    fn an_emptied_meta_goes_and_a_foreign_one_keeps_its_bytes() {
        assert_eq!(taken(r#"{"a":1,"_meta":{"progressToken":7}}"#).1, r#"{"a":1}"#);
        let foreign = r#"{ "_meta" : { "com.example/x" : 1.0 } }"#;
        assert_eq!(taken(foreign), (Ok(Owned::default()), foreign.into()));
        assert_eq!(taken("{}"), (Ok(Owned::default()), "{}".into()));
        let malformed = r#"{"a":1,"_meta":{"traceparent":"00-1","tracestate":"a=1"}}"#;
        assert_eq!(taken(malformed), (Ok(Owned::default()), r#"{"a":1}"#.into()));
    }

    #[test]
    fn what_is_no_meta_is_told() {
        assert_eq!(taken(r#"{"_meta":[]}"#).0, Err(BadMeta("`_meta` must be an object".into())));
        for token in [r#"{"_meta":{"progressToken":1.5}}"#, r#"{"_meta":{"progressToken":null}}"#] {
            let expected = BadMeta("`progressToken` must be a string or an integer".into());
            assert_eq!(taken(token).0, Err(expected), "{token}");
        }
        let twice = BadMeta("`_meta`: member \"a\" stands twice".into());
        assert_eq!(taken(r#"{"_meta":{"a":1,"a":2}}"#).0, Err(twice));
        let long = format!(r#"{{"_meta":{{"progressToken":"{}"}}}}"#, "x".repeat(2_000)).leak();
        let expected = BadMeta("`progressToken` must have at most 1024 bytes".into());
        assert_eq!(taken(long).0, Err(expected));
    }
}
