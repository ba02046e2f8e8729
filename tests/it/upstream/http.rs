//! A scripted upstream over Streamable HTTP, in both eras.

use std::convert::Infallible;
use std::io;

use base64::Engine;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use weir_base::text::sse;
use weir_mcp::call;
use weir_mcp::jsonrpc::{self, Message};
use weir_mcp::revision::Revision;

use super::call::{Output, OutputSink};
use super::{Listener, QUEUE, Replies, Upstream};
use crate::cell::Transport;

/// Bytes that either side may write before the other reads.
const PIPE: usize = 64 * 1024;

pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

impl Upstream {
    /// Opens a connection.
    pub(crate) fn connect(&self) -> io::Result<DuplexStream> {
        let (_, stop) = self.connected()?;
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let upstream = self.clone();
        let service = service_fn(move |request| {
            let upstream = upstream.clone();
            async move {
                Ok::<_, Infallible>(match upstream.side().transport {
                    Transport::Sse => upstream.serve_pair(request).await,
                    _ => upstream.serve(request).await,
                })
            }
        });
        let serving = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(ours), service);
        self.tasks.spawn(async move {
            // Many tests break connections on purpose.
            let _ = stop.run_until_cancelled(serving).await;
        });
        Ok(theirs)
    }

    async fn serve(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        self.record_headers(&head.headers);
        let modern = self.side().is_modern();
        match head.method {
            Method::POST => {
                let Ok(body) = body.collect().await else { return status(400) };
                self.post(head.headers, body.to_bytes()).await
            }
            Method::GET if !modern => match self.session(&head.headers) {
                Ok(of) => {
                    let (sender, outs) = mpsc::channel(QUEUE);
                    self.add_listener(Listener { of, sink: OutputSink(sender), listen: None });
                    events(outs, None)
                }
                Err(refusal) => status(refusal),
            },
            Method::DELETE if !modern => match self.session(&head.headers) {
                Ok(of) => {
                    let mut state = self.lock();
                    state.sessions.retain(|_, session| *session != of);
                    state.subscriptions.remove(&of);
                    status(200)
                }
                Err(refusal) => status(refusal),
            },
            _ => {
                let mut refusal = status(405);
                refusal.headers_mut().insert(ALLOW, "POST".parse().expect("a header value"));
                refusal
            }
        }
    }

    async fn post(&self, headers: HeaderMap, body: Bytes) -> Response<Body> {
        let accept = text(&headers, ACCEPT.as_str()).unwrap_or_default();
        if !accept.contains("application/json") || !accept.contains("text/event-stream") {
            self.record_violation(format!("a POST that accepts {accept:?}"));
        }
        self.check_received(&body);
        let message = match Message::parse(body.clone()) {
            Ok(message) => message,
            Err(invalid) => {
                self.record_violation(format!("an odd body: {invalid}: {body:?}"));
                return status(400);
            }
        };
        let method = match &message {
            Message::Request(request) => &*request.method,
            _ => "",
        };
        let modern = self.side().is_modern();
        let stateless = modern || matches!(method, "initialize" | "server/discover");
        let opens = !modern && method == "initialize";
        let of = match self.session(&headers) {
            _ if stateless => self.lock().number(),
            Ok(of) => of,
            Err(refusal) => return status(refusal),
        };
        let request = match message {
            Message::Request(request) => request,
            Message::Notification(note) => {
                match &*note.method {
                    "notifications/initialized" if !modern => {}
                    "notifications/cancelled" if !modern => self.cancelled(of, &note.params),
                    other => self.record_violation(format!("unknown notification {other}")),
                }
                return status(202);
            }
            Message::Response(_) => {
                self.record_response(String::from_utf8_lossy(&body).into_owned());
                return status(202);
            }
        };
        if modern {
            self.check_headers(&headers, &request);
        }
        let (sender, outs) = mpsc::channel(QUEUE);
        let method = request.method.clone();
        self.receive(of, request, headers, OutputSink(sender));
        let mut response = self.respond(outs, &method).await;
        if opens && response.status() == StatusCode::OK {
            let session = format!("session-{of}");
            let value = session.parse().expect("a header value");
            response.headers_mut().insert("mcp-session-id", value);
            self.lock().sessions.insert(session, of);
        }
        response
    }

    /// Conversation of a legacy request, or the status of its refusal.
    fn session(&self, headers: &HeaderMap) -> Result<u64, u16> {
        let session = text(headers, "mcp-session-id").ok_or(400_u16)?;
        let of = *self.lock().sessions.get(&session).ok_or(404_u16)?;
        let revision = self.side().revision;
        if revision >= Revision::V2025_06_18 {
            let version = text(headers, "mcp-protocol-version");
            if version.as_deref() != Some(revision.as_str()) {
                self.record_violation(format!("a session's request speaks {version:?}"));
            }
        }
        Ok(of)
    }

    /// Spec 2026-07-28, streamable HTTP, request metadata: the headers repeat the body.
    fn check_headers(&self, headers: &HeaderMap, request: &jsonrpc::Request) {
        let method = &*request.method;
        let member = call::Method::of(method).and_then(call::Method::header_member);
        let name = member.and_then(|member| request.params.get_string(member));
        for (header, expected) in [
            ("mcp-protocol-version", Some(self.side().revision.as_str())),
            ("mcp-method", Some(method)),
            ("mcp-name", name.as_deref()),
        ] {
            let found = text(headers, header).map(|value| decoded(&value));
            if found.as_deref() != expected {
                self.record_violation(format!("{method}: {header} is {found:?}, not {expected:?}"));
            }
        }
        if headers.contains_key("mcp-session-id") {
            self.record_violation(format!("{method} with a session"));
        }
    }

    async fn respond(&self, mut outs: mpsc::Receiver<Output>, method: &str) -> Response<Body> {
        let as_events = self.script.replies == Replies::Events;
        match outs.recv().await {
            Some(Output::Last(answer)) if !as_events => {
                // A modern client recognizes a legacy server by this error (versioning, HTTP).
                let unknown = method != "server/discover"
                    && self.side().is_modern()
                    && answer.windows(6).any(|window| window == b"-32601");
                json(
                    if unknown { 404 } else { 200 },
                    Full::new(answer).map_err(never).boxed_unsync(),
                )
            }
            Some(Output::Piece(first)) => {
                let rest = stream::unfold(outs, |mut outs| async {
                    match outs.recv().await {
                        Some(Output::Piece(piece)) => Some((Ok(Frame::data(piece)), outs)),
                        Some(Output::HangUp) => Some((Err(io::ErrorKind::BrokenPipe.into()), outs)),
                        _ => None,
                    }
                });
                let first = stream::once(async { Ok(Frame::data(first)) });
                json(200, StreamBody::new(first.chain(rest)).boxed_unsync())
            }
            Some(Output::Status(code, after)) => later(code, after),
            Some(Output::HangUp) | None => {
                let cut = stream::once(async { Err(io::ErrorKind::BrokenPipe.into()) });
                json(200, StreamBody::new(cut).boxed_unsync())
            }
            first @ Some(Output::Note(_) | Output::Last(_)) => events(outs, first),
        }
    }
}

/// Event stream that ends with the response.
fn events(outs: mpsc::Receiver<Output>, first: Option<Output>) -> Response<Body> {
    // The next output and its source; `None` after the end.
    let next = |state: Option<(Option<Output>, mpsc::Receiver<Output>)>| async {
        let (first, mut outs) = state?;
        let out = match first {
            Some(first) => Some(first),
            None => outs.recv().await,
        };
        Some(match out {
            Some(Output::Note(note)) => {
                (Ok(Frame::data(sse::write_message(&note))), Some((None, outs)))
            }
            Some(Output::Last(answer)) => (Ok(Frame::data(sse::write_message(&answer))), None),
            Some(Output::Piece(piece)) => (Ok(Frame::data(piece)), Some((None, outs))),
            Some(Output::HangUp | Output::Status(..)) => {
                (Err(io::ErrorKind::BrokenPipe.into()), None)
            }
            None => return None,
        })
    };
    let body = StreamBody::new(stream::unfold(Some((first, outs)), next)).boxed_unsync();
    let mut response = Response::new(body);
    let value = "text/event-stream".parse().expect("a header value");
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}

fn json(code: u16, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).expect("a status");
    let value = "application/json".parse().expect("a header value");
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}

/// Response with this status and perhaps `Retry-After`.
pub(super) fn later(code: u16, retry_after: Option<u64>) -> Response<Body> {
    let mut response = status(code);
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

pub(super) fn status(code: u16) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::new()).map_err(never).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).expect("a status");
    response
}

fn never(never: Infallible) -> io::Error {
    match never {}
}

pub(super) fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().expect("an ASCII header").to_owned())
}

/// A header's value without the sentinel (spec, value encoding).
fn decoded(value: &str) -> String {
    let inner = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    let Some(inner) = inner else { return value.to_owned() };
    let bytes = base64::engine::general_purpose::STANDARD.decode(inner).expect("base64");
    String::from_utf8(bytes).expect("UTF-8")
}
