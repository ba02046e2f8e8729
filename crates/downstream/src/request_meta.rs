//! Members of a request's `_meta` that Weir consumes. All other members are forwarded.

use bytes::Bytes;

use weir_base::json::Object;
use weir_mcp::jsonrpc::Id;
use weir_mcp::log_level::{LogLevel, LogLevelSetting};
use weir_mcp::{meta, trace_context};

/// Consumed members, as raw JSON.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RequestMeta {
    /// Token that the client expects progress notifications under.
    pub(super) progress_token: Option<Id>,
    pub(super) version: Option<Bytes>,
    pub(super) info: Option<Bytes>,
    pub(super) capabilities: Option<Bytes>,
    /// Minimum level of the log messages that the client wants.
    pub(super) log_level: Option<Bytes>,
}

/// Invalid `_meta`; the text may be sent to the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidMeta(pub(super) String);

impl RequestMeta {
    /// Returns the log level that the client has requested.
    pub(super) fn logs(&self) -> Result<LogLevelSetting, InvalidMeta> {
        let Some(raw) = &self.log_level else { return Ok(LogLevelSetting::disabled()) };
        // Spec 2026-07-28, logging: an invalid level SHOULD be refused.
        let level = std::str::from_utf8(raw).ok().and_then(LogLevel::parse);
        let text = "`io.modelcontextprotocol/logLevel` must be a level, such as \"info\"";
        level.map(LogLevelSetting::at_least).ok_or_else(|| InvalidMeta(text.into()))
    }
}

/// Removes the members that Weir consumes from `params`, and a trace context that is not
/// well-formed. An emptied `_meta` is removed as well; a `_meta` without any of these members keeps
/// its bytes.
pub(super) fn take(params: &mut Object) -> Result<RequestMeta, InvalidMeta> {
    let Some(meta) = params.take_object("_meta") else {
        return Ok(RequestMeta::default());
    };
    let mut rest = meta.map_err(|malformed| InvalidMeta(malformed.in_member("_meta")))?;
    // Spec, progress: tokens are strings or integers, like ids.
    let progress_token = rest.take(meta::PROGRESS_TOKEN).map(Id::read).transpose();
    let progress_token =
        progress_token.map_err(|bad| InvalidMeta(bad.in_member("progressToken")))?;
    let members = RequestMeta {
        progress_token,
        version: rest.take(meta::PROTOCOL_VERSION),
        info: rest.take(meta::CLIENT_INFO),
        capabilities: rest.take(meta::CLIENT_CAPABILITIES),
        log_level: rest.take(meta::LOG_LEVEL),
    };
    let has_malformed = trace_context::take_malformed(&mut rest);
    if members == RequestMeta::default() && !has_malformed {
        return Ok(members);
    }
    if rest.is_empty() {
        params.take("_meta");
    } else {
        params.set("_meta", rest.to_bytes());
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(text: &'static str) -> (Result<RequestMeta, InvalidMeta>, Bytes) {
        let mut params = Object::parse(text).expect("an object");
        let members = take(&mut params);
        (members, params.to_bytes())
    }

    #[test]
    fn what_weir_owns_is_taken_and_the_rest_stays() {
        let (members, rest) = taken(
            r#"{"name":"x","_meta":{"progressToken":"t","io.modelcontextprotocol/protocolVersion":"v","io.modelcontextprotocol/logLevel":7,"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},"n":1e400}"#,
        );
        let expected = RequestMeta {
            progress_token: Id::parse("\"t\"".into()),
            version: Some("\"v\"".into()),
            log_level: Some("7".into()),
            ..RequestMeta::default()
        };
        assert_eq!(members, Ok(expected));
        assert_eq!(
            rest,
            r#"{"name":"x","_meta":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},"n":1e400}"#
        );
    }

    #[test]
    fn an_emptied_meta_goes_and_a_foreign_one_keeps_its_bytes() {
        assert_eq!(taken(r#"{"a":1,"_meta":{"progressToken":7}}"#).1, r#"{"a":1}"#);
        let foreign = r#"{ "_meta" : { "com.example/x" : 1.0 } }"#;
        assert_eq!(taken(foreign), (Ok(RequestMeta::default()), foreign.into()));
        assert_eq!(taken("{}"), (Ok(RequestMeta::default()), "{}".into()));
        let malformed = r#"{"a":1,"_meta":{"traceparent":"00-1","tracestate":"a=1"}}"#;
        assert_eq!(taken(malformed), (Ok(RequestMeta::default()), r#"{"a":1}"#.into()));
    }

    #[test]
    fn what_is_no_meta_is_told() {
        assert_eq!(
            taken(r#"{"_meta":[]}"#).0,
            Err(InvalidMeta("`_meta` must be an object".into()))
        );
        for token in [r#"{"_meta":{"progressToken":1.5}}"#, r#"{"_meta":{"progressToken":null}}"#] {
            let expected = InvalidMeta("`progressToken` must be a string or an integer".into());
            assert_eq!(taken(token).0, Err(expected), "{token}");
        }
        let twice = InvalidMeta("`_meta`: member \"a\" occurs twice".into());
        assert_eq!(taken(r#"{"_meta":{"a":1,"a":2}}"#).0, Err(twice));
        let long = format!(r#"{{"_meta":{{"progressToken":"{}"}}}}"#, "x".repeat(2_000)).leak();
        let expected = InvalidMeta("`progressToken` must have at most 1024 bytes".into());
        assert_eq!(taken(long).0, Err(expected));
    }
}
