//! Asking the Weir that runs with a configuration how it is doing.
//!
//! Address and token are found where it left or found them: in the folder of the state, and in the configuration,
//! which may have been changed since it started.
//!
//! Promises: an answer is bounded, and so is the time; a token goes to the configured address only, and to the one that
//! stands in the state's folder, beside the token; what answers for another configuration is not taken for this one.
//!
//! Knows nothing of: what is done with the answer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::admin::discovery::{self, Whereabouts};
use crate::admin::remaining_quota::{self, Left};
use crate::admin::{Route, reload::Reloaded, status::Status, token};
use crate::cli::admin::whole;
use crate::cli::exit::Failure;
use crate::config::{Admin, Config, State};
use crate::secret::Secret;

/// Where a Weir of a configuration can be asked.
pub(crate) struct Running {
    /// Where it said that it is, and where the configuration says so: it may have been changed since.
    addresses: Vec<SocketAddr>,
    /// What may have to be shown, the likeliest first.
    tokens: Vec<Secret>,
    /// Where a token would be kept.
    token_path: PathBuf,
    /// The configuration's file, as the running one would tell it.
    file: Option<String>,
    /// The process that said where it is.
    process: Option<u32>,
}

/// A Weir that has answered for a configuration.
pub(crate) struct Confirmed {
    address: SocketAddr,
    token: Secret,
    status: Status,
}

/// Why there is no answer.
pub(crate) enum Silence {
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
    /// Finds where the Weir of this configuration is to be asked: where it said that it is, else where the
    /// configuration says so.
    pub(crate) fn of(config: &Config, file: Option<&Path>) -> Result<Self, Silence> {
        let admin = &config.admin;
        let said = announced(&config.state, file);
        let file = file.map(whole);
        let state = config.state.dir.as_deref();
        if !admin.enabled && said.is_none() {
            let text = "a Weir of this configuration cannot be asked: [admin] enabled = false";
            return Err(Silence::Failed(Failure::NoConfig(text.to_owned())));
        }
        let addresses = addresses(admin, said.as_ref());
        let token_path = token::path(state.unwrap_or(Path::new("")));
        let mut tokens = Vec::from_iter(admin.token.clone());
        match state.map_or(Err(io::ErrorKind::NotFound.into()), token::read) {
            Ok(token) => tokens.push(token),
            Err(error) if error.kind() == io::ErrorKind::NotFound || !tokens.is_empty() => {}
            Err(error) => {
                let text = format!("the token in {} cannot be read: {error}", token_path.display());
                return Err(Silence::Failed(Failure::Unauthenticated(text)));
            }
        }
        let process = said.map(|said| said.process);
        Ok(Self { addresses, tokens, token_path, file, process })
    }

    /// Asks it how it is doing.
    pub(crate) async fn status(&self) -> Result<Status, Silence> {
        Ok(self.confirm().await?.status)
    }

    /// Makes sure that it runs, and with this configuration.
    pub(crate) async fn confirm(&self) -> Result<Confirmed, Silence> {
        let mut silence = None;
        for address in &self.addresses {
            match self.find_at(*address).await {
                // Whoever said that it is there has ended, and somebody else may have come.
                Err(Silence::Nobody(text)) => silence = Some(Silence::Nobody(text)),
                found => return found,
            }
        }
        Err(silence
            .unwrap_or_else(|| Silence::Nobody("no Weir of this configuration runs".to_owned())))
    }

    async fn find_at(&self, address: SocketAddr) -> Result<Confirmed, Silence> {
        let failed = |text: String| Silence::Failed(Failure::Unreachable(text));
        let mut refused = None;
        for token in &self.tokens {
            let (status, body) = ask(address, token, Route::Status, "", PATIENCE).await?;
            if status == StatusCode::UNAUTHORIZED {
                refused = Some(status);
                continue;
            }
            if status != StatusCode::OK {
                return Err(failed(format!("what listens at {address} answers {status}")));
            }
            let told = Status::parse(&body);
            let status = told.map_err(|_| failed(format!("{address} is no Weir")))?;
            return match (&self.file, &status.configuration) {
                (Some(mine), Some(its)) if mine != its => Err(Silence::Nobody(format!(
                    "the Weir at {address} runs with {its}; start one with this configuration, and with a `listen` \
                     of its own under [admin]"
                ))),
                _ => Ok(Confirmed { address, token: token.clone(), status }),
            };
        }
        if refused.is_none() {
            // There is nothing to show; perhaps there is nobody either.
            let connecting = timeout(PATIENCE, TcpStream::connect(address)).await;
            let text = match connecting {
                Ok(Ok(_)) => format!(
                    "something listens at {address}, and there is no token in {} to ask it with: if it is the Weir \
                     of this configuration, `dir` under [state] is not what it was started with",
                    self.token_path.display()
                ),
                _ => nobody(address),
            };
            return Err(Silence::Nobody(text));
        }
        let text = match self.process {
            Some(process) => format!(
                "the Weir at {address} does not take the token of this configuration, which was perhaps changed \
                 since it started: `kill -HUP {process}` reloads it, and a restart takes the token up"
            ),
            None => format!(
                "what listens at {address} does not take the token of this configuration; another Weir may have the \
                 address: set `listen` under [admin]"
            ),
        };
        Err(Silence::Failed(Failure::Unauthenticated(text)))
    }
}

impl Confirmed {
    /// How it was doing when it answered.
    pub(crate) fn status(&self) -> &Status {
        &self.status
    }

    /// Has it read its configuration again, and waits for what becomes of that.
    pub(crate) async fn reload(&self) -> Result<Reloaded, Silence> {
        let (_, body) = ask(self.address, &self.token, Route::Reload, "", RELOAD_PATIENCE).await?;
        Reloaded::parse(&body).map_err(|_| self.cannot("a reload"))
    }

    /// Asks it what is left of the limits.
    pub(crate) async fn limits(
        &self,
        question: &remaining_quota::Question,
    ) -> Result<Vec<Left>, Silence> {
        let query = question.to_query();
        let (_, body) = ask(self.address, &self.token, Route::Limits, &query, PATIENCE).await?;
        remaining_quota::parse(&body).map_err(|_| self.cannot("its limits"))
    }

    fn cannot(&self, what: &str) -> Silence {
        let text = format!("the Weir at {} cannot be asked for {what}", self.address);
        Silence::Failed(Failure::Unreachable(text))
    }
}

/// Where the Weir that runs with a configuration said that it listens for operators.
pub(crate) fn announced(state: &State, file: Option<&Path>) -> Option<Whereabouts> {
    let (dir, file) = state.dir.as_deref().zip(file)?;
    discovery::find(dir, &whole(file))
}

/// Where operators can ask it: where it said that it listens, and where the configuration says so.
pub(crate) fn addresses(admin: &Admin, announced: Option<&Whereabouts>) -> Vec<SocketAddr> {
    let mut addresses = Vec::from_iter(announced.map(|it| reachable(it.address)));
    addresses.extend(admin.enabled.then(|| reachable(admin.address())));
    addresses.dedup();
    addresses
}

/// Asks for something, for so long.
async fn ask(
    address: SocketAddr,
    token: &Secret,
    route: Route,
    query: &str,
    patience: Duration,
) -> Result<(StatusCode, Bytes), Silence> {
    let failed = |text: String| Silence::Failed(Failure::Unreachable(text));
    let separator = if query.is_empty() { "" } else { "?" };
    let uri = [route.path(), separator, query].concat();
    match timeout(patience, fetch(address, &route.methods()[0], &uri, Some(token))).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Err(Silence::Nobody(nobody(address)))
        }
        Ok(Err(error)) => Err(failed(format!("{address} does not answer as Weir does: {error}"))),
        Err(_) => Err(failed(format!("{address} does not answer within {patience:?}"))),
    }
}

fn nobody(address: SocketAddr) -> String {
    format!(
        "no Weir of this configuration runs: nobody answers at {address}; start it with `weir serve`"
    )
}

/// Where a listener that takes connections to any address can be reached from here.
pub(crate) fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// Sends one request on a connection of its own, and reads the answer.
pub(crate) async fn fetch(
    address: SocketAddr,
    method: &Method,
    uri: &str,
    token: Option<&Secret>,
) -> io::Result<(StatusCode, Bytes)> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let exchange = pin!(async move {
        let request = Request::builder().method(method).uri(uri);
        let mut request = request.header(HOST, address.to_string());
        if let Some(token) = token {
            let mut shown = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
                .map_err(io::Error::other)?;
            shown.set_sensitive(true);
            request = request.header(AUTHORIZATION, shown);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
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
