//! Places of upstreams: the replica that runs one for all, and the one that has the connection of a
//! client.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::client::TlsStream;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::membership::Replica;
use crate::replica_client::{self, CONNECT_TIMEOUT};
use crate::replica_tls::ACCEPTED;
use crate::{Fleet, HEARTBEAT};
use weir_base::secrets::sealing::Instance;
use weir_base::secrets::sha256::sha256;

/// Connection to an upstream on another replica. It ends when that is no member any more, or shows
/// no sign of life, also if the process stands still.
pub struct RunnerStream {
    stream: TlsStream<TcpStream>,
    gone: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Fleet {
    /// Returns the replica that runs an upstream, except this one.
    pub fn runner_of(&self, upstream: &str) -> Option<Arc<Replica>> {
        let view = self.view();
        let number = |it: &&Arc<Replica>| it.record.running.get(upstream).copied();
        let runner = view.members().filter(|it| number(it).is_some()).max_by_key(number)?;
        (runner.instance != self.instance()).then(|| Arc::clone(runner))
    }

    /// Tells the other replicas that this one runs an upstream, under the lease of this number, or
    /// that it runs it no more.
    pub fn set_running(&self, upstream: &str, number: Option<u64>) {
        let mut running = self.running.lock();
        match number {
            Some(number) => running.insert(upstream.to_owned(), number),
            None => running.remove(upstream),
        };
        drop(running);
        self.beat_now.notify_one();
    }

    /// Connects to an upstream on the replica that runs it. Fails if that does not run it any more.
    pub async fn connect_to(&self, runner: &Replica, upstream: &str) -> io::Result<RunnerStream> {
        let opening = async {
            let mut stream = replica_client::open(&self.tls.upstream_connector, runner).await?;
            stream.write_all(format!("{upstream}\n").as_bytes()).await?;
            match stream.read_u8().await? {
                ACCEPTED => Ok(stream),
                _ => Err(io::ErrorKind::InvalidData.into()),
            }
        };
        let stream = timeout(CONNECT_TIMEOUT, opening).await.map_err(io::Error::from).flatten()?;
        Ok(RunnerStream { stream, gone: Box::pin(runner.gone.clone().cancelled_owned()) })
    }

    /// Returns the replica that has the connection of a client to an upstream; `None` if it is this
    /// one. All replicas that know the same of the members return the same one.
    pub fn place_of_connection(&self, client: &str, upstream: &str) -> Option<Instance> {
        let (view, now) = (self.view(), Instant::now());
        let serving = view.members().filter(|it| !it.record.draining);
        let serving = serving.filter(|it| !view.is_passed_over(it.instance, now));
        // The one with the highest hash: when another one joins or leaves, only its own move.
        let rank = |it: &Instance| sha256(format!("{it}/{upstream}/{client}"));
        let place = serving.map(|it| it.instance).max_by_key(rank)?;
        (place != self.instance()).then_some(place)
    }

    /// Waits for the next heartbeat, whether it succeeds or not, or for the time of one.
    pub async fn next_heartbeat(&self) {
        let _ = timeout(HEARTBEAT, self.beats.subscribe().changed()).await;
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
