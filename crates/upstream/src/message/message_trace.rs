//! Trace of the messages between Weir and one upstream, for a [`TraceSink`].
//!
//! Invariants: a line has no secret that the upstream was given, no token of a sign-in, and no
//! character that a terminal executes or that changes the order of a line. Of headers it has the
//! names, and the values of those of the protocol. Without a sink there is no trace, and no message
//! is read for one.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{HeaderMap, Request, Response};
use tokio::sync::watch;

use crate::connect::{TraceDirection, TraceLine, TraceSink};
use crate::message::TransportError;
use crate::{Settings, UpstreamSource};
use weir_base::secrets::secret::Secret;
use weir_base::secrets::secret_search::SecretPatterns;
use weir_base::text::invisible_chars::{is_invisible, is_mark_of_direction};
use weir_base::text::sse::Event;
use weir_mcp::name::UpstreamName;
use weir_oauth::{Account, TokenFinders};

/// Trace of the messages of one upstream.
pub(crate) struct MessageTrace {
    sink: Arc<dyn TraceSink>,
    upstream: UpstreamName,
    secrets: SecretPatterns,
    /// Access tokens of the account at the upstream.
    tokens: Option<watch::Receiver<TokenFinders>>,
}

impl MessageTrace {
    pub(crate) fn new(
        sink: Arc<dyn TraceSink>,
        settings: &Settings,
        account: Option<&Arc<Account>>,
    ) -> Self {
        let others = sink.secrets(&settings.name);
        let given = [settings.source.secrets(), others].concat();
        let in_url = tokens_in_url(settings.server());
        let secrets = SecretPatterns::new(given.iter().map(Secret::expose).chain(in_url));
        let tokens = account.map(|account| account.token_finders());
        Self { sink, upstream: settings.name.clone(), secrets, tokens }
    }

    /// Writes a message to the server.
    pub(crate) fn sent(&self, message: &[u8]) {
        self.write(TraceDirection::ToServer, message, message.len(), None);
    }

    /// Writes a message from the server.
    pub(crate) fn received(&self, message: &[u8]) {
        self.write(TraceDirection::FromServer, message, message.len(), None);
    }

    /// Writes the beginning of a message from the server that cannot be buffered.
    pub(crate) fn received_beginning(&self, beginning: &[u8]) {
        let remark = Some("the rest was too large to be read");
        self.write(TraceDirection::FromServer, beginning, beginning.len(), remark);
    }

    /// Writes an event from the server. One without data has only an id, and is no message.
    pub(crate) fn received_event(&self, event: &Event) {
        let Event { name, data, .. } = event;
        match &**name {
            _ if event.truncated.is_some() => self.received_beginning(data),
            "" | "message" if data.iter().all(u8::is_ascii_whitespace) => {}
            "" | "message" => self.received(data),
            // Its data are a URL that names the session.
            "endpoint" => {
                let url = shown_url(&String::from_utf8_lossy(data));
                self.received(format!("event endpoint: {url}").as_bytes());
            }
            _ => self.received(&[&b"event "[..], name.as_bytes(), b": ", &data[..]].concat()),
        }
    }

    /// Writes an HTTP request to the server: its head, and the message in its body.
    pub(crate) fn request<B>(&self, request: &Request<B>, body: &[u8]) {
        let url = shown_url(&request.uri().to_string());
        let headers = shown_headers(request.headers());
        self.sent(format!("{} {url}{headers}", request.method()).as_bytes());
        if !body.is_empty() {
            self.sent(body);
        }
    }

    /// Writes the head of an HTTP response from the server.
    pub(crate) fn response<B>(&self, response: &Response<B>) {
        let headers = shown_headers(response.headers());
        self.received(format!("{}{headers}", response.status()).as_bytes());
    }

    /// Writes that an HTTP request has no response.
    pub(crate) fn no_response(&self, error: &TransportError) {
        let reason = match error {
            TransportError::NotSent(reason)
            | TransportError::ConnectionLost(reason)
            | TransportError::Protocol(reason) => format!("no response: {reason}"),
            _ => "no response".to_owned(),
        };
        self.received(reason.as_bytes());
    }

    /// Writes a message of `total` bytes, of which these come first.
    fn write(
        &self,
        direction: TraceDirection,
        message: &[u8],
        total: usize,
        remark: Option<&'static str>,
    ) {
        let (text, shown) = self.show(message);
        let (upstream, left_out) = (&self.upstream, total - shown);
        self.sink.write(&TraceLine { upstream, direction, text: &text, left_out, remark });
    }

    /// Number of bytes of a message that decide about the part that is shown: behind its end a
    /// secret may go on.
    fn window(&self) -> usize {
        self.sink.limit().saturating_add(BEYOND_LIMIT)
    }

    /// Returns the part of a message that is shown, and the number of its bytes.
    fn show(&self, message: &[u8]) -> (String, usize) {
        let limit = self.sink.limit();
        let (mut text, mut at) = (String::new(), 0);
        for chunk in message[..message.len().min(self.window())].utf8_chunks() {
            let valid = chunk.valid();
            let shown = self.show_text(valid, limit.saturating_sub(at), &mut text);
            at += shown;
            if shown < valid.len() {
                break;
            }
            for byte in chunk.invalid() {
                if at >= limit {
                    return (text, at);
                }
                text.push_str(&format!("\\x{byte:02x}"));
                at += 1;
            }
        }
        (text, at)
    }

    /// Adds the beginning of a text to `shown`, and returns how much of it that is: `limit`
    /// bytes, or with a secret that begins before them, a few more.
    fn show_text(&self, text: &str, limit: usize, shown: &mut String) -> usize {
        let limit = text.floor_char_boundary(limit);
        let mut end = 0;
        for place in self.secret_places(text).iter().take_while(|place| place.start < limit) {
            if place.start >= end {
                push_visible(shown, &text[end..place.start]);
                shown.push_str("***");
            }
            end = end.max(place.end);
        }
        if end < limit {
            push_visible(shown, &text[end..limit]);
            end = limit;
        }
        end
    }

    /// Returns the places of secrets and tokens in a text, in their order.
    fn secret_places(&self, text: &str) -> Vec<Range<usize>> {
        let mut places = self.secrets.places_in(text);
        if let Some(tokens) = &self.tokens {
            let tokens = Arc::clone(&tokens.borrow());
            places.extend(tokens.places_in(text));
            places.sort_unstable_by_key(|place| place.start);
        }
        places
    }
}

// === BodyTrace ===

/// Trace of the body of one HTTP response, which is written as one message when it has ended.
pub(crate) struct BodyTrace {
    trace: Arc<MessageTrace>,
    /// Its beginning, as far as it is needed.
    text: BytesMut,
    total: usize,
    is_at_end: bool,
}

impl BodyTrace {
    pub(crate) fn new(trace: Arc<MessageTrace>) -> Self {
        Self { trace, text: BytesMut::new(), total: 0, is_at_end: false }
    }

    /// Reads the next piece of the body; `None` is its end.
    pub(crate) fn read(&mut self, piece: Option<&Bytes>) {
        let Some(piece) = piece else {
            self.is_at_end = true;
            return self.write();
        };
        self.total += piece.len();
        let missing = self.trace.window().saturating_sub(self.text.len());
        self.text.extend_from_slice(&piece[..piece.len().min(missing)]);
    }

    /// Returns the trace, for a body that has several messages.
    pub(crate) fn into_trace(self) -> Arc<MessageTrace> {
        Arc::clone(&self.trace)
    }

    /// Writes what was read, once.
    fn write(&mut self) {
        let total = std::mem::take(&mut self.total);
        if total > 0 {
            let remark = (!self.is_at_end).then_some("the rest was not read");
            self.trace.write(TraceDirection::FromServer, &self.text, total, remark);
        }
    }
}

impl Drop for BodyTrace {
    fn drop(&mut self) {
        self.write();
    }
}

// === Text ===

/// Adds a text with escapes for all characters that a reader would not see, or see elsewhere. In
/// JSON they occur within strings, where these escapes are equivalent, and as line breaks.
fn push_visible(shown: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            hidden if is_invisible(hidden) || is_mark_of_direction(hidden) => {
                for unit in hidden.encode_utf16(&mut [0; 2]) {
                    shown.push_str(&format!("\\u{unit:04x}"));
                }
            }
            seen => shown.push(seen),
        }
    }
}

/// Returns the path of a URL, or a reference to one, and the names of its parameters. Their values
/// may be secret or name a session, and so may a part of the path that is like a token.
fn shown_url(url: &str) -> String {
    let (path, query) =
        url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
    let path: Vec<_> = path.split('/').map(shown_part).collect();
    let parameters = query.map(|query| {
        let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
            Some((name, _)) => format!("{}=***", shown_part(name)),
            None => "***".to_owned(),
        });
        format!("?{}", parameters.collect::<Vec<_>>().join("&"))
    });
    path.join("/") + &parameters.unwrap_or_default()
}

/// Returns a part of a URL, unless it is like a token or has a password.
fn shown_part(part: &str) -> &str {
    if is_like_a_token(part) || part.contains('@') { "***" } else { part }
}

/// Returns the parts of a server's URL that are like tokens: it may repeat them in its messages.
fn tokens_in_url(server: &UpstreamSource) -> impl Iterator<Item = &str> {
    let url = match server {
        UpstreamSource::Http { url, .. } => url.path_and_query().map(PathAndQuery::as_str),
        _ => None,
    };
    url.unwrap_or_default().split(['/', '?', '&']).filter(|part| is_like_a_token(part))
}

fn is_like_a_token(part: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || matches!(c, '-' | '_' | '.');
    part.len() >= MIN_TOKEN_BYTES && !part.chars().all(is_word)
}

/// Describes headers: the values of the media type and of the headers of MCP, and the names of all
/// others. The id of a session is like a password for it.
fn shown_headers(headers: &HeaderMap) -> String {
    let mut shown = String::new();
    let mut values: Vec<_> = headers.iter().filter(|(name, _)| has_shown_value(name)).collect();
    values.sort_by_key(|(name, _)| name.as_str());
    for (name, value) in values {
        let is_secret = value.is_sensitive() || name.as_str().ends_with("session-id");
        let value = if is_secret { "***".into() } else { shown_value(value) };
        shown.push_str(&format!("; {name}: {value}"));
    }
    let others = headers.keys().filter(|name| !has_shown_value(name));
    let mut others: Vec<_> = others.map(HeaderName::as_str).collect();
    others.sort_unstable();
    if !others.is_empty() {
        shown.push_str(&format!("; other headers: {}", others.join(", ")));
    }
    shown
}

fn has_shown_value(name: &HeaderName) -> bool {
    name == CONTENT_TYPE || name.as_str().starts_with("mcp-")
}

fn shown_value(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// Bytes beyond the limit in which the end of a secret is looked for. Of a longer one, no more than
/// its beginning is in the text, and that is found as well.
const BEYOND_LIMIT: usize = 4 * 1024;
/// Length from which a part of a URL may be a token: identifiers of routes are shorter, or words.
const MIN_TOKEN_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::ChildCommand;
    use crate::testing::{TestTransport, TraceRecorder, settings};

    /// Traces messages of a process whose variable has this value; returns the lines.
    fn traced(limit: usize, secret: &str, trace: impl FnOnce(&MessageTrace)) -> Vec<String> {
        let secrets = vec![Secret::from("in-url")];
        let recorder = Arc::new(TraceRecorder { limit, secrets, ..TraceRecorder::default() });
        let mut settings = settings(TestTransport::Stdio);
        settings.source = UpstreamSource::Process(ChildCommand {
            env: vec![("KEY".to_owned(), Secret::from(secret))],
            ..ChildCommand::default()
        });
        trace(&MessageTrace::new(recorder.clone(), &settings, None));
        recorder.take_lines()
    }

    #[test]
    fn a_long_message_is_cut_between_characters_and_its_rest_is_counted() {
        for (limit, expected) in [
            (0, "->  +8"),
            (1, "-> a +7"),
            // The second character has two bytes.
            (2, "-> a +7"),
            (3, "-> aä +5"),
            (7, r"-> aä\xff\u0000bc +1"),
            (8, r"-> aä\xff\u0000bcd"),
            (usize::MAX, r"-> aä\xff\u0000bcd"),
        ] {
            let lines = traced(limit, "unused", |trace| trace.sent(b"a\xc3\xa4\xff\0bcd"));
            assert_eq!(lines, [expected], "{limit}");
        }
        let mebibyte = "x".repeat(1 << 20);
        let lines = traced(4_096, "unused", |trace| trace.received(mebibyte.as_bytes()));
        assert_eq!(lines, [format!("<- {} +1044480", "x".repeat(4_096))]);
    }

    #[test]
    fn no_part_of_a_secret_is_shown_wherever_the_message_is_cut() {
        let secret = "hunter2-0123456789-/abcdef";
        let spelled = r"hunter2-0123456789-\/\u0061bcdef";
        let encoded = "hunter2%2D0123456789-%2Fabcdef";
        for message in [
            format!("ab{secret}{secret}cd"),
            format!("ab{spelled}\u{e4}{encoded}cd"),
            format!("ab{secret}"),
            format!("ab{}", &secret[..20]),
        ] {
            for limit in 0..=message.len() {
                let lines = traced(limit, secret, |trace| trace.sent(message.as_bytes()));
                assert!(!lines[0].contains("hunter2"), "{limit}: {lines:?}");
                assert!(!lines[0].contains("0123"), "{limit}: {lines:?}");
            }
        }
        let text = format!("{secret} in-url {}", "x".repeat(10_000));
        let lines = traced(4, secret, |trace| trace.sent(text.as_bytes()));
        assert_eq!(lines, [format!("-> *** +{}", text.len() - secret.len())]);
        let lines = traced(40, secret, |trace| trace.sent(b"in-url, in-urls"));
        assert_eq!(lines, ["-> ***, ***s"]);
        // A longer one than is looked at.
        let long = "s3cret".repeat(10_000);
        let text = format!("a{long}b");
        let lines = traced(8, &long, |trace| trace.sent(text.as_bytes()));
        assert!(lines[0].starts_with("-> a*** +"), "{lines:?}");
    }

    #[test]
    fn a_value_of_five_characters_is_a_word_and_stays() {
        let lines = traced(99, "debug", |trace| trace.sent(b"debug"));
        assert_eq!(lines, ["-> debug"]);
        let lines = traced(99, "debug1", |trace| trace.sent(b"debug1"));
        assert_eq!(lines, ["-> ***"]);
    }

    #[test]
    fn each_character_is_visible_and_on_one_line() {
        let text =
            "{\r\n\t\"a\": \"\u{1b}[2J\u{202e}\u{200e}\u{2028}\u{e0041}\u{7f}\u{9b}\u{e4}\"}";
        let lines = traced(usize::MAX, "unused", |trace| trace.received(text.as_bytes()));
        let expected = r#"<- {\r\n\t"a": "\u001b[2J\u202e\u200e\u2028\udb40\udc41\u007f\u009b"#;
        assert_eq!(lines, [format!("{expected}\u{e4}\"}}")]);
    }

    #[test]
    fn of_urls_the_path_and_names_of_parameters_are_shown() {
        for (url, shown) in [
            ("/mcp", "/mcp"),
            ("/", "/"),
            ("/v1/sse?x=1&key=2&z", "/v1/sse?x=***&key=***&***"),
            ("/a?b?c=d", "/a?b?c=***"),
            ("/s/3f2a9c1d-77aa-4b0e/mcp", "/s/***/mcp"),
            ("/s/AbCdEfGhIjKlMnOp", "/s/***"),
            ("/model-context-protocol", "/model-context-protocol"),
            ("http://ann:pw@h/m", "http://***/m"),
            ("/m?", "/m?***"),
        ] {
            assert_eq!(shown_url(url), shown, "{url}");
        }
    }

    #[test]
    fn of_headers_those_of_the_protocol_have_values() {
        let mut headers = HeaderMap::new();
        let mut sensitive = HeaderValue::from_static("canary-1");
        sensitive.set_sensitive(true);
        for (name, value) in [
            ("x-api-key", "canary-2"),
            ("mcp-session-id", "canary-3"),
            ("mcp-method", "tools/call"),
            ("authorization", "Bearer canary-4"),
            ("content-type", "application/json"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers.append(HeaderName::from_static("mcp-param-a"), sensitive);
        assert_eq!(
            shown_headers(&headers),
            "; content-type: application/json; mcp-method: tools/call; mcp-param-a: ***; \
             mcp-session-id: ***; other headers: authorization, x-api-key"
        );
        assert_eq!(shown_headers(&HeaderMap::new()), "");
    }
}
