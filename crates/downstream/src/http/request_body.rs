//! Request body, read within limits of size and time.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::EXPECT;
use hyper::{HeaderMap, StatusCode};

use super::ClientConnection;
use super::response_body::HttpRefusal;
use crate::ServerState;
use crate::response::ErrorResponse;
use crate::response::results;
use weir_base::tasks::fairness::Workload;
use weir_base::tasks::suppressible_waker::SuppressibleWaker;
use weir_mcp::jsonrpc::PartialMessage;

/// Body of a request until it is read.
pub(super) type UnreadBody = Option<Incoming>;

/// Reads a body within limits of size and time; the connection of a body that is refused ends. A
/// body that was read before is empty.
pub(super) async fn read(
    state: &ServerState,
    connection: &ClientConnection,
    body: &mut UnreadBody,
) -> Result<Bytes, HttpRefusal> {
    let Some(incoming) = body.take() else { return Ok(Bytes::new()) };
    let reading = read_all(state, &connection.waker, incoming);
    let reading = tokio::time::timeout(state.settings.timeouts.body, reading);
    let late = (StatusCode::REQUEST_TIMEOUT, "timeout while reading the body");
    let read = reading.await.unwrap_or_else(|_| Err(late.into()));
    read.map_err(HttpRefusal::with_connection_close)
}

async fn read_all(
    state: &ServerState,
    waker: &SuppressibleWaker,
    mut incoming: Incoming,
) -> Result<Bytes, HttpRefusal> {
    let limit = state.settings.max_body;
    let too_large = || ErrorResponse {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        ..results::too_large("the client", limit)
    };
    let announced = usize::try_from(incoming.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(too_large().into());
    }
    let (mut text, mut reservation) = (BytesMut::new(), state.budget().start_reservation());
    let mut workload = Workload::default();
    while !incoming.is_end_stream()
        && let Some(frame) = poll_fn(|cx| poll_frame(&mut incoming, waker, cx)).await
    {
        let frame = frame.map_err(|_| (StatusCode::BAD_REQUEST, "the body is incomplete"))?;
        let Ok(data) = frame.into_data() else { continue };
        let refuse = |refused: ErrorResponse| {
            let beginning = [&text[..], &data].concat();
            HttpRefusal::from(refused).naming(PartialMessage::read(&beginning).id.as_ref())
        };
        if text.len() + data.len() > limit {
            return Err(refuse(too_large()));
        }
        // Received bytes count against the budget, not announced ones: announcing costs the client
        // nothing.
        reservation.grow(data.len()).map_err(|_| refuse(results::memory_scarce()))?;
        // A buffer that doubles each time leaves as much behind as it has, and the allocator keeps
        // it. Before its first bytes, an announcement reserves nothing.
        if text.len() >= PROVEN_BYTES && text.capacity() < announced {
            text.reserve(announced - text.len());
        }
        text.extend_from_slice(&data);
        workload.add(data.len());
        workload.yield_if_due().await;
    }
    Ok(reservation.attach(text.freeze()))
}

/// Polls a body for its next frame. hyper wakes the task of the connection for each piece that is
/// taken, to read the next one; after the last one there is nothing to read.
fn poll_frame(
    incoming: &mut Incoming,
    waker: &SuppressibleWaker,
    cx: &mut Context<'_>,
) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
    // The next piece comes while the connection is polled, which then polls this.
    let noop = &mut Context::from_waker(Waker::noop());
    let (frame, wakes) = waker.without_waking(|| Pin::new(&mut *incoming).poll_frame(noop));
    let is_last = matches!(frame, Poll::Ready(Some(Ok(_)))) && incoming.is_end_stream();
    forward(wakes, is_last, cx.waker());
    frame
}

/// Wakes the task if anything but the last piece of a body would have woken it.
fn forward(wakes: usize, is_last: bool, task: &Waker) {
    // hyper wakes it exactly once with each piece.
    let needless = usize::from(is_last);
    if wakes > needless {
        task.wake_by_ref();
    }
}

/// Skips the body of a refused request; true if the connection can be reused. That is the case if
/// the body is small and arrives soon. Otherwise the connection has to be closed with a notice to
/// the client (RFC 9112, 9.6), which would send its next request on it.
///
/// Many clients send a head and its body separately. A client that waits for `100 Continue` (RFC
/// 9110, 10.1.1) does not get it.
pub(super) async fn skip_body(headers: &HeaderMap, mut unread: Incoming) -> bool {
    if headers.contains_key(EXPECT) || unread.size_hint().lower() > MAX_SKIPPED_BYTES {
        return false;
    }
    let skipping = async {
        let mut skipped = 0;
        while let Some(frame) = unread.frame().await {
            let Ok(frame) = frame else { return false };
            skipped += frame.data_ref().map_or(0, Bytes::len) as u64;
            if skipped > MAX_SKIPPED_BYTES {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(SKIP_TIMEOUT, skipping).await.unwrap_or(false)
}

/// Bytes of a body that must have arrived before the announced length is believed: from then on its
/// buffer has that size. Memory that is not written takes none of the machine.
const PROVEN_BYTES: usize = 64 * 1024;
/// Largest body that is skipped.
const MAX_SKIPPED_BYTES: u64 = 64 * 1024;
/// Time limit for skipping a body.
const SKIP_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::TokioIo;
    use std::convert::Infallible;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use weir_base::tasks::suppressible_waker::WakeCounter;

    /// Serves one request that arrives in pieces, and returns how often the task of the connection
    /// was woken by its own poll after each of them, and the response, which repeats the body.
    async fn serve(pieces: &[&str]) -> (Vec<usize>, String) {
        let (suppressible, task) = (Arc::<SuppressibleWaker>::default(), Arc::default());
        suppressible.register(&Waker::from(Arc::<WakeCounter>::clone(&task)));
        let (ours, mut client) = duplex(1_024);
        let service = service_fn(|request: Request<Incoming>| {
            let (mut body, waker) = (request.into_body(), Arc::clone(&suppressible));
            async move {
                let mut text = Vec::new();
                while !body.is_end_stream()
                    && let Some(frame) = poll_fn(|cx| poll_frame(&mut body, &waker, cx)).await
                {
                    text.extend(frame.expect("ok").into_data().expect("data"));
                }
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
            }
        });
        let mut connection =
            pin!(http1::Builder::new().serve_connection(TokioIo::new(ours), service));
        let waker = Waker::from(Arc::clone(&suppressible));
        let mut wakes = Vec::new();
        for piece in pieces {
            client.write_all(piece.as_bytes()).await.expect("space");
            task.take_wakes();
            suppressible.register(&Waker::from(Arc::clone(&task)));
            assert!(connection.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            wakes.push(task.take_wakes());
        }
        while wakes.last() != Some(&0) {
            suppressible.register(&Waker::from(Arc::clone(&task)));
            assert!(connection.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            wakes.push(task.take_wakes());
        }
        let mut response = vec![0; 1_024];
        let length = client.read(&mut response).await.expect("a response");
        response.truncate(length);
        (wakes, String::from_utf8(response).expect("text"))
    }

    #[tokio::test]
    async fn only_a_body_that_is_not_complete_wakes_its_connection_to_read_more() {
        const HEAD: &str = "POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\n";
        for (pieces, expected) in [
            (&[HEAD, "body"][..], &[0, 0][..]),
            (&[&format!("{HEAD}body")], &[0]),
            (&[&format!("{HEAD}bo"), "dy"], &[1, 0]),
        ] {
            let (wakes, response) = serve(pieces).await;
            assert_eq!(wakes, expected, "{pieces:?}");
            assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with("body"));
        }
    }

    #[tokio::test]
    async fn a_wake_by_another_thread_while_the_last_piece_is_taken_is_not_lost() {
        let (suppressible, task) = (Arc::<SuppressibleWaker>::default(), Arc::default());
        suppressible.register(&Waker::from(Arc::<WakeCounter>::clone(&task)));
        let waker = Waker::from(Arc::clone(&suppressible));
        // hyper's wake and another one.
        let (_, wakes) = suppressible.without_waking(|| {
            waker.wake_by_ref();
            std::thread::scope(|scope| scope.spawn(|| waker.wake_by_ref()).join().expect("ok"));
        });
        forward(wakes, true, &waker);
        assert_eq!(task.take_wakes(), 1);
        forward(1, true, &waker);
        assert_eq!(task.take_wakes(), 0);
    }
}
