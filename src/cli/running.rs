//! Asking the Weir that runs with a configuration how it is doing.
//!
//! Address and token are found where it found them: in the configuration, and in the folder of the state.
//!
//! Promises: one request, with a bounded answer and a bounded time; the token goes to the configured address only, and
//! what answers for another configuration is not taken for this one.
//!
//! Knows nothing of: what is done with the answer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::admin::whole;
use super::failure::Failure;
use crate::config::Config;
use crate::ops::limits::{self, Left};
use crate::ops::{Route, reload::Reloaded, status::Status, token};
use crate::secret::Secret;

/// Where a Weir of a configuration can be asked.
pub(super) struct Running {
    address: SocketAddr,
    token: Secret,
    /// The configuration's file, as the running one would tell it.
    file: Option<String>,
}

/// Why there is no answer.
pub(super) enum Silence {
    /// Nothing runs.
    Nobody(String),
    /// Something is wrong.
    Failed(Failure),
}

impl From<Silence> for Failure {
    fn from(silence: Silence) -> Self {
        match silence {
            Silence::Nobody(text) => Self::Unreachable(text),
            Silence::Failed(failure) => failure,
        }
    }
}

impl Running {
    /// Finds where the Weir of this configuration is to be asked.
    pub(super) fn of(config: &Config, file: Option<&Path>) -> Result<Self, Silence> {
        let admin = &config.admin;
        if !admin.enabled {
            let text = "a Weir of this configuration cannot be asked: [admin] enabled = false";
            return Err(Silence::Failed(Failure::NoConfig(text.to_owned())));
        }
        let address = reachable(admin.address());
        let kept = || match &config.state.dir {
            Some(dir) => token::read(dir).map_err(|error| (token::path(dir), error)),
            None => Err((token::path(Path::new("")), io::ErrorKind::NotFound.into())),
        };
        let token = match &admin.token {
            Some(token) => token.clone(),
            None => kept().map_err(|(path, error)| match error.kind() {
                io::ErrorKind::NotFound => Silence::Nobody(nobody(address)),
                _ => Silence::Failed(Failure::Unauthenticated(format!(
                    "the token in {} cannot be read: {error}",
                    path.display()
                ))),
            })?,
        };
        Ok(Self { address, token, file: file.map(whole) })
    }

    /// Asks it how it is doing.
    pub(super) async fn status(&self) -> Result<Status, Silence> {
        let failed = |text: String| Silence::Failed(Failure::Unreachable(text));
        let (status, body) = self.fetch(Route::Status, "", PATIENCE).await?;
        if status != StatusCode::OK {
            return Err(failed(format!("what listens at {} answers {status}", self.address)));
        }
        let told = Status::parse(&body);
        let told = told.map_err(|_| failed(format!("{} is no Weir", self.address)))?;
        match (&self.file, &told.configuration) {
            (Some(mine), Some(its)) if mine != its => Err(Silence::Nobody(format!(
                "the Weir at {} runs with {its}; start one with this configuration, and with a `listen` of \
                 its own under [admin]",
                self.address
            ))),
            _ => Ok(told),
        }
    }

    /// Has it read its configuration again, and waits for what becomes of that.
    pub(super) async fn reload(&self) -> Result<Reloaded, Silence> {
        // Not that of another configuration.
        self.status().await?;
        let (_, body) = self.fetch(Route::Reload, "", RELOAD_PATIENCE).await?;
        Reloaded::parse(&body).map_err(|_| {
            let text = format!("the Weir at {} cannot be asked for a reload", self.address);
            Silence::Failed(Failure::Unreachable(text))
        })
    }

    /// Asks it what is left of the limits.
    pub(super) async fn limits(&self, question: &limits::Question) -> Result<Vec<Left>, Silence> {
        // Not those of another configuration.
        self.status().await?;
        let (_, body) = self.fetch(Route::Limits, &question.to_query(), PATIENCE).await?;
        limits::parse(&body).map_err(|_| {
            let text = format!("the Weir at {} cannot be asked for its limits", self.address);
            Silence::Failed(Failure::Unreachable(text))
        })
    }

    async fn fetch(
        &self,
        route: Route,
        query: &str,
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), Silence> {
        let fetched = timeout(patience, fetch(self.address, route, query, &self.token)).await;
        let failed = |text: String| Silence::Failed(Failure::Unreachable(text));
        let (status, body) = match fetched {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Err(Silence::Nobody(nobody(self.address)));
            }
            Ok(Err(error)) => {
                return Err(failed(format!(
                    "{} does not answer as Weir does: {error}",
                    self.address
                )));
            }
            Err(_) => {
                return Err(failed(format!(
                    "{} does not answer within {patience:?}",
                    self.address
                )));
            }
        };
        match status {
            StatusCode::UNAUTHORIZED => Err(Silence::Failed(Failure::Unauthenticated(format!(
                "what listens at {} does not take the token of this configuration; another Weir \
                     may have the address: set `listen` under [admin]",
                self.address
            )))),
            status => Ok((status, body)),
        }
    }
}

fn nobody(address: SocketAddr) -> String {
    format!(
        "no Weir of this configuration runs: nobody answers at {address}; start it with `weir serve`"
    )
}

/// Where a listener that takes connections to any address can be reached from here.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

async fn fetch(
    address: SocketAddr,
    route: Route,
    query: &str,
    token: &Secret,
) -> io::Result<(StatusCode, Bytes)> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let exchange = pin!(async move {
        let mut shown = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
            .map_err(io::Error::other)?;
        shown.set_sensitive(true);
        let method = route.methods()[0].clone();
        let separator = if query.is_empty() { "" } else { "?" };
        let uri = [route.path(), separator, query].concat();
        let request = Request::builder().method(method).uri(uri);
        let request = request.header(HOST, address.to_string());
        let request = request.header(AUTHORIZATION, shown).body(Empty::<Bytes>::new());
        let request = request.map_err(io::Error::other)?;
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BYTES).collect().await;
        Ok((status, body.map_err(io::Error::other)?.to_bytes()))
    });
    match select(exchange, pin!(connection)).await {
        Either::Left((fetched, _)) => fetched,
        // What has arrived can still be read.
        Either::Right((_, exchange)) => exchange.await,
    }
}

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a reload may, with the commands that give secrets.
const RELOAD_PATIENCE: Duration = Duration::from_secs(120);
/// The most bytes of an answer: thousands of upstreams.
const MAX_BYTES: usize = 16 << 20;
