//! A scripted upstream over the HTTP+SSE pair: one stream for all its messages, and an endpoint for
//! the client's.

use std::io;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response};
use tokio::sync::mpsc;
use weir_base::text::sse;
use weir_mcp::jsonrpc::Message;
use weir_mcp::revision::Revision;

use super::call::{Output, OutputSink};
use super::http::{Body, later, status, text};
use super::{Listener, QUEUE, Upstream};

impl Upstream {
    /// Serves the stream at `/mcp` and the endpoint at `/messages`, and refuses everything else.
    pub(super) async fn serve_pair(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        self.record_headers(&head.headers);
        match (&head.method, head.uri.path()) {
            (&Method::GET, "/mcp") => self.open_pair(),
            (&Method::POST, "/messages") => match body.collect().await {
                Ok(body) => self.handle_post(&head, body.to_bytes()),
                Err(_) => status(400),
            },
            _ => status(405),
        }
    }

    fn open_pair(&self) -> Response<Body> {
        let (sender, outs) = mpsc::channel(QUEUE);
        let sink = OutputSink(sender);
        let session = {
            let mut state = self.lock();
            let of = state.number();
            let session = format!("session-{of}");
            state.sessions.insert(session.clone(), of);
            state.streams.insert(of, sink.clone());
            session
        };
        let endpoint = format!("event: endpoint\ndata: /messages?session={session}\n\n");
        sink.send(Output::Piece(endpoint.into()));
        let pieces = stream::unfold(outs, |mut outs| async {
            let piece = match outs.recv().await? {
                Output::Note(message) | Output::Last(message) => Ok(sse::write_message(&message)),
                Output::Piece(piece) => Ok(piece),
                Output::HangUp | Output::Status(..) => Err(io::ErrorKind::BrokenPipe.into()),
            };
            Some((piece.map(Frame::data), outs))
        });
        let mut response = Response::new(StreamBody::new(pieces).boxed_unsync());
        let value = "text/event-stream".parse().expect("a header value");
        response.headers_mut().insert(CONTENT_TYPE, value);
        response
    }

    /// Takes a message. What it is answered with goes to the stream, but for a status.
    fn handle_post(&self, head: &Parts, body: Bytes) -> Response<Body> {
        let query = head.uri.query().unwrap_or_default();
        let session = query.strip_prefix("session=").unwrap_or_default();
        let found = {
            let state = self.lock();
            let of = state.sessions.get(session).copied();
            of.and_then(|of| Some((of, state.streams.get(&of)?.clone())))
        };
        let Some((of, stream)) = found else { return status(404) };
        self.check_received(&body);
        let message = match Message::parse(body.clone()) {
            Ok(message) => message,
            Err(invalid) => {
                self.record_violation(format!("an odd body: {invalid}: {body:?}"));
                return status(400);
            }
        };
        let opens =
            matches!(&message, Message::Request(request) if &*request.method == "initialize");
        let revision = self.side().revision;
        let version = text(&head.headers, "mcp-protocol-version");
        let expected = (revision >= Revision::V2025_06_18 && !opens).then_some(revision.as_str());
        if version.as_deref() != expected || head.headers.contains_key("mcp-session-id") {
            self.record_violation(format!("a message of the pair speaks {version:?}"));
        }
        let request = match message {
            Message::Request(request) => request,
            Message::Notification(note) => {
                match &*note.method {
                    "notifications/initialized" => {
                        self.add_listener(Listener { of, sink: stream, listen: None });
                    }
                    "notifications/cancelled" => self.cancelled(of, &note.params),
                    other => self.record_violation(format!("unknown notification {other}")),
                }
                return status(202);
            }
            Message::Response(_) => {
                self.record_response(String::from_utf8_lossy(&body).into_owned());
                return status(202);
            }
        };
        let (sender, mut outs) = mpsc::channel(QUEUE);
        self.receive(of, request, head.headers.clone(), OutputSink(sender));
        match outs.try_recv() {
            Ok(Output::Status(code, after)) => return later(code, after),
            Ok(first) => stream.send(first),
            Err(_) => {}
        }
        self.tasks.spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    () = stream.0.closed() => return,
                    out = outs.recv() => match out {
                        Some(out) => stream.send(out),
                        None => return,
                    },
                }
            }
        });
        status(202)
    }
}
