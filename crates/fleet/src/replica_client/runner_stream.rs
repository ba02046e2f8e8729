//! Connection to an upstream that runs on another replica.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::membership::Replica;

/// Connection to an upstream on another replica. It ends when that has ended, or shows no sign of
/// life, also if the process stands still.
pub struct RunnerStream {
    stream: TlsStream<TcpStream>,
    gone: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl RunnerStream {
    pub(super) fn new(stream: TlsStream<TcpStream>, runner: &Replica) -> Self {
        Self { stream, gone: Box::pin(runner.gone.clone().cancelled_owned()) }
    }
}

impl AsyncRead for RunnerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(gone()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for RunnerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(gone()));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn gone() -> io::Error {
    io::Error::other("the replica that runs it is gone, or shows no sign of life")
}
