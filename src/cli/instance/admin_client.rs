//! HTTP client of the admin listener of a running Weir, or of its socket.
//!
//! The address and the token come from the state folder, where the instance wrote them, and from
//! the configuration, which may have changed since the instance started. The sockets of `weir
//! stdio` are in the state folder.
//!
//! Invariants: size and time of a response are bounded; a token is sent only to the configured
//! address and to the address in the state folder, where the token is as well; an instance of
//! another configuration is not accepted.

use std::error::Error;
use std::fmt;
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
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::admin::discovery::{self, AdminEndpointFile};
use crate::admin::logs::{LogHead, LogQuery, LogRecord};
use crate::admin::reload::{ReloadReport, RestartQuery};
use crate::admin::remaining_quota::{self, RemainingQuota};
use crate::admin::users::{UserQuery, UserReport};
use crate::admin::{Route, TOKEN_NEEDED, socket, status::Status, token};
use crate::cli::admin::absolute_path;
use crate::cli::exit::Failure;
use weir_base::secrets::secret::Secret;
use weir_config::{AdminConfig, StateConfig};

/// Addresses and tokens for the instance of a configuration.
pub(crate) struct AdminClient {
    /// Announced address first, then the configured one, which may have changed since.
    addresses: Vec<SocketAddr>,
    /// Sockets of processes that a client started.
    sockets: Vec<PathBuf>,
    /// Tokens to try, the most likely first.
    tokens: Vec<Secret>,
    /// Path of the stored token.
    token_path: PathBuf,
    /// Path of the configuration's file, in the form that the instance reports.
    file: String,
    /// Id of the process that announced its address.
    process: Option<u32>,
}

/// Instance that has responded and runs with this configuration.
pub(crate) struct RunningInstance {
    address: AdminAddress,
    token: Option<Secret>,
    /// Status at the time of the response.
    pub(crate) status: Status,
}

/// Address of the routes for operators.
#[derive(Clone)]
enum AdminAddress {
    Listener(SocketAddr),
    /// Path of a socket, which needs no token.
    Socket(PathBuf),
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listener(address) => address.fmt(f),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

impl AdminClient {
    /// Finds the addresses and tokens for the instance of this configuration.
    pub(crate) fn new(
        admin: &AdminConfig,
        state: &StateConfig,
        file: &Path,
    ) -> Result<Self, Failure> {
        let announced_file = announced_endpoint(state, file);
        let state = state.dir.as_deref();
        let sockets = state.map(|dir| socket::find(dir, &absolute_path(file))).unwrap_or_default();
        if !admin.enabled && announced_file.is_none() && sockets.is_empty() {
            let text =
                "the admin listener of this configuration is disabled: [admin] enabled = false";
            return Err(Failure::NoConfig(text.to_owned()));
        }
        let addresses = addresses(admin, announced_file.as_ref());
        let token_path = token::path(state.unwrap_or(Path::new("")));
        let mut tokens = Vec::from_iter(admin.token.clone());
        match state.map_or(Err(io::ErrorKind::NotFound.into()), token::read) {
            Ok(token) => tokens.push(token),
            Err(error) if error.kind() == io::ErrorKind::NotFound || !tokens.is_empty() => {}
            Err(error) => {
                let text = format!("the token in {} cannot be read: {error}", token_path.display());
                return Err(Failure::Unauthenticated(text));
            }
        }
        let process = announced_file.map(|announced_file| announced_file.process);
        Ok(Self { addresses, sockets, tokens, token_path, file: absolute_path(file), process })
    }

    /// Requests the status.
    pub(crate) async fn status(&self) -> Result<Status, Failure> {
        Ok(self.connect().await?.status)
    }

    /// Checks that an instance runs with this configuration; of several, `weir serve` comes first,
    /// then the one that was started last.
    pub(crate) async fn connect(&self) -> Result<RunningInstance, Failure> {
        let mut text = "no Weir of this configuration runs".to_owned();
        for address in &self.addresses {
            match self.connect_at(*address).await {
                // The announced process has ended; another one may use the configured address.
                Err(Failure::NotRunning(why)) => text = why,
                found => return found,
            }
        }
        for path in &self.sockets {
            if let Ok(found) = self.connect_to_socket(path).await {
                return Ok(found);
            }
        }
        Err(Failure::NotRunning(text))
    }

    /// Connects to all instances of this configuration: `weir serve`, and those that clients have
    /// started. Fails if there is none.
    pub(crate) async fn connect_to_all(&self) -> Result<Vec<RunningInstance>, Failure> {
        let first = self.connect().await?;
        let is_listener = matches!(first.address, AdminAddress::Listener(_));
        let mut all = Vec::from_iter(is_listener.then_some(first));
        for path in &self.sockets {
            all.extend(self.connect_to_socket(path).await.ok());
        }
        Ok(all)
    }

    /// Connects to those instances that respond, as [`Self::connect_to_all`] does; none is no
    /// failure.
    pub(crate) async fn connect_to_responding(&self) -> Vec<RunningInstance> {
        let mut all = Vec::new();
        for address in &self.addresses {
            if let Ok(found) = self.connect_at(*address).await {
                all.push(found);
                break;
            }
        }
        for path in &self.sockets {
            all.extend(self.connect_to_socket(path).await.ok());
        }
        all
    }

    /// Connects to a process that a client has started; one that has ended is no failure of the
    /// others.
    async fn connect_to_socket(&self, path: &Path) -> Result<RunningInstance, Failure> {
        let address = AdminAddress::Socket(path.to_owned());
        let (_, body) = request(&address, None, Route::Status, "", RESPONSE_TIMEOUT).await?;
        match serde_json::from_slice::<Status>(&body) {
            Ok(status) if status.configuration.as_ref() == Some(&self.file) => {
                Ok(RunningInstance { address, token: None, status })
            }
            _ => Err(Failure::Unreachable(format!("the server at {address} is not Weir"))),
        }
    }

    async fn connect_at(&self, address: SocketAddr) -> Result<RunningInstance, Failure> {
        let listener = AdminAddress::Listener(address);
        // Without a token, only the refusal shows whether a Weir listens there.
        let no_token = self.tokens.is_empty().then_some(None);
        for token in self.tokens.iter().map(Some).chain(no_token) {
            let (status, body) =
                request(&listener, token, Route::Status, "", RESPONSE_TIMEOUT).await?;
            if status == StatusCode::UNAUTHORIZED && body == TOKEN_NEEDED {
                continue;
            }
            let document = serde_json::from_slice::<Status>(&body).ok();
            let is_weir =
                |document: &Status| status == StatusCode::OK && !document.version.is_empty();
            let Some(status) = document.filter(is_weir) else {
                return Err(Failure::NotRunning(not_weir(address)));
            };
            return match &status.configuration {
                Some(its) if *its != self.file => Err(Failure::NotRunning(format!(
                    "the Weir at {address} runs with {its}; start one with this configuration, \
                     and with a `listen` of its own under [admin]"
                ))),
                _ => {
                    let (address, token) = (listener, token.cloned());
                    Ok(RunningInstance { address, token, status })
                }
            };
        }
        if self.tokens.is_empty() {
            return Err(Failure::NotRunning(format!(
                "a Weir listens at {address}, but there is no token for it in {}: if it is that of \
                 this configuration, it was started with another `dir` under [state]; if not, set \
                 another `listen` under [admin], and start this one again",
                self.token_path.display()
            )));
        }
        let text = match self.process {
            Some(process) => format!(
                "the Weir at {address} rejects the token of this configuration, which may have \
                 changed since it started: `kill -HUP {process}` reloads it, and a restart \
                 applies the token"
            ),
            None => format!(
                "the server at {address} rejects the token of this configuration; another Weir \
                 may use the address: set `listen` under [admin]"
            ),
        };
        Err(Failure::Unauthenticated(text))
    }
}

impl RunningInstance {
    /// Requests a reload and waits for its result.
    pub(crate) async fn reload(&self) -> Result<ReloadReport, Failure> {
        self.query(Route::Reload, "", LONG_TIMEOUT, "result of the reload").await
    }

    /// Requests a restart and waits until it has begun.
    pub(crate) async fn restart(&self, restart: &RestartQuery) -> Result<ReloadReport, Failure> {
        let query = restart.to_query();
        self.query(Route::Restart, &query, LONG_TIMEOUT, "result of the restart").await
    }

    /// Requests the remaining quotas.
    pub(crate) async fn limits(
        &self,
        query_params: &remaining_quota::QuotaQuery,
    ) -> Result<Vec<RemainingQuota>, Failure> {
        let query = query_params.to_query();
        self.query(Route::Limits, &query, RESPONSE_TIMEOUT, "remaining quotas").await
    }

    /// Requests the role of a user.
    pub(crate) async fn user(&self, user: &UserQuery) -> Result<UserReport, Failure> {
        self.query(Route::Users, &user.to_query(), RESPONSE_TIMEOUT, "role of a user").await
    }

    /// Requests entries of the log of an upstream; `None` if there is no such upstream.
    pub(crate) async fn logs(
        &self,
        about: &LogQuery,
    ) -> Result<Option<(LogHead, Vec<LogRecord>)>, Failure> {
        let (token, query) = (self.token.as_ref(), about.to_query());
        let (status, body) =
            request(&self.address, token, Route::Logs, &query, RESPONSE_TIMEOUT).await?;
        if status == StatusCode::NOT_FOUND {
            return match body.starts_with(b"no upstream") {
                true => Ok(None),
                false => Err(Failure::Unreachable(format!(
                    "the Weir at {} is of a version without logs: start it again",
                    self.address
                ))),
            };
        }
        let mut lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let unexpected = || self.unexpected_response("log of an upstream");
        let head = lines.next().and_then(|line| serde_json::from_slice(line).ok());
        let records = lines.map(serde_json::from_slice).collect::<Result<_, _>>();
        Ok(Some((head.ok_or_else(unexpected)?, records.map_err(|_| unexpected())?)))
    }

    async fn query<T: DeserializeOwned>(
        &self,
        route: Route,
        query: &str,
        time_limit: Duration,
        what: &str,
    ) -> Result<T, Failure> {
        let (_, body) =
            request(&self.address, self.token.as_ref(), route, query, time_limit).await?;
        serde_json::from_slice(&body).map_err(|_| self.unexpected_response(what))
    }

    fn unexpected_response(&self, what: &str) -> Failure {
        let text = format!("unexpected response of the Weir at {}: no {what}", self.address);
        Failure::Unreachable(text)
    }
}

/// Reads the address that the instance of a configuration announced.
pub(crate) fn announced_endpoint(state: &StateConfig, file: &Path) -> Option<AdminEndpointFile> {
    discovery::find(state.dir.as_deref()?, &absolute_path(file))
}

/// Addresses of the admin listener: the announced one, then the configured one.
pub(crate) fn addresses(
    admin: &AdminConfig,
    announced: Option<&AdminEndpointFile>,
) -> Vec<SocketAddr> {
    let mut addresses = Vec::from_iter(announced.map(|it| reachable(it.address)));
    addresses.extend(admin.enabled.then(|| reachable(admin.address())));
    addresses.dedup();
    addresses
}

/// Sends a request with a time limit.
async fn request(
    address: &AdminAddress,
    token: Option<&Secret>,
    route: Route,
    query: &str,
    time_limit: Duration,
) -> Result<(StatusCode, Bytes), Failure> {
    let separator = if query.is_empty() { "" } else { "?" };
    let uri = [route.path(), separator, query].concat();
    let method = &route.methods()[0];
    let fetched = timeout(time_limit, async {
        match address {
            AdminAddress::Listener(address) => fetch(*address, method, &uri, token).await,
            AdminAddress::Socket(path) => {
                exchange(socket::connect(path).await?, "localhost", method, &uri, None).await
            }
        }
    });
    match fetched.await {
        Ok(Ok(answer)) => Ok(answer),
        // The file of a socket is removed by its process.
        Ok(Err(error))
            if matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
            ) =>
        {
            Err(Failure::NotRunning(not_running(address)))
        }
        Ok(Err(error)) => Err(match address {
            AdminAddress::Listener(address) if is_not_http(&error) => {
                Failure::NotRunning(not_weir(*address))
            }
            _ => Failure::Unreachable(format!("{address} does not respond as Weir does: {error}")),
        }),
        Err(_) => {
            Err(Failure::Unreachable(format!("no response from {address} within {time_limit:?}")))
        }
    }
}

/// Returns whether what has arrived is no response of an HTTP server.
fn is_not_http(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<hyper::Error>());
    // What arrives before the request was sent is the reason why it is not sent.
    let reason = error.and_then(|error| error.source()?.downcast_ref::<hyper::Error>());
    // hyper has no predicate for what arrives unasked.
    let is_unasked = |error: &hyper::Error| error.to_string() == UNASKED;
    [error, reason].into_iter().flatten().any(|error| error.is_parse() || is_unasked(error))
}

/// Text of hyper's error for bytes that arrive before a request was sent.
const UNASKED: &str = "received unexpected message from connection";

fn not_weir(address: SocketAddr) -> String {
    format!(
        "something else answers at {address}, and no Weir: a Weir of this configuration cannot \
         listen there for operators; set another `listen` under [admin], then start it again"
    )
}

fn not_running(address: &AdminAddress) -> String {
    format!(
        "no Weir of this configuration runs: nothing listens at {address}; start it with `weir \
         serve`"
    )
}

/// Replaces an unspecified listen address with the loopback address.
pub(crate) fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// Sends one request on a new connection and reads the response.
pub(crate) async fn fetch(
    address: SocketAddr,
    method: &Method,
    uri: &str,
    token: Option<&Secret>,
) -> io::Result<(StatusCode, Bytes)> {
    exchange(TcpStream::connect(address).await?, &address.to_string(), method, uri, token).await
}

/// Sends the only request on a connection and reads the response.
async fn exchange<S>(
    stream: S,
    host: &str,
    method: &Method,
    uri: &str,
    token: Option<&Secret>,
) -> io::Result<(StatusCode, Bytes)>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let exchange = pin!(async move {
        let request = Request::builder().method(method).uri(uri);
        let mut request = request.header(HOST, host);
        if let Some(token) = token {
            let mut authorization = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
                .map_err(io::Error::other)?;
            authorization.set_sensitive(true);
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        Ok((status, body.map_err(io::Error::other)?.to_bytes()))
    });
    match select(exchange, pin!(connection)).await {
        Either::Left((fetched, _)) => fetched,
        // The connection has ended; data that has arrived can still be read.
        Either::Right((ended, exchange)) => match (exchange.await, ended) {
            // It says more than that the request was cancelled.
            (Err(_), Err(error)) => Err(io::Error::other(error)),
            (fetched, _) => fetched,
        },
    }
}

/// Time limit of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a reload or restart, including the commands that return secrets.
const LONG_TIMEOUT: Duration = Duration::from_secs(120);
/// Largest response: enough for thousands of upstreams.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Instance with this process id, which nothing is requested of.
    pub(crate) fn instance(process: u32) -> RunningInstance {
        let address = AdminAddress::Socket(PathBuf::new());
        RunningInstance { address, token: None, status: Status { process, ..Status::default() } }
    }
}
