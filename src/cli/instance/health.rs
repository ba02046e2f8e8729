//! `weir health`: liveness and readiness of a running Weir, for container probes.
//!
//! It queries the listener of `[admin]`, which needs no token for this. If none responds, it
//! queries the MCP endpoint.
//!
//! Invariants: the exit code is 0 if ready, 1 if alive but not ready, 4 otherwise. An invalid
//! configuration file does not make a running Weir unhealthy, because it keeps the previous
//! configuration. Nothing is started, and no command that returns a secret is run.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, crypto};

use crate::admin::Route;
use crate::cli::exit::Failure;
use crate::cli::instance::admin_client::{addresses, announced_endpoint, fetch, reachable};
use crate::cli::loading::ConfigArgs;
use crate::cli::output;
use weir_config::Listeners;

/// Arguments of `weir health`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Checks only whether it is alive; an instance that is starting or stopping is healthy then.
    #[arg(long)]
    live: bool,
    /// Time limit of each response.
    #[arg(long, value_name = "SECONDS", default_value = "3")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Result of a probe with a valid response.
enum ProbeResult {
    Ready,
    /// Alive but not ready, with the reasons if the instance reports them.
    Unready(String),
}

/// Probes the instance and prints one line.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let (listeners, file, problems) = args.config.listeners().await?;
    let time_limit = Duration::from_secs(args.timeout);
    let announced = announced_endpoint(&listeners.state, &file);
    let mut health = Err("no listener of [admin]".to_owned());
    for address in addresses(&listeners.admin, announced.as_ref()) {
        health = probe_admin(address, args.live, time_limit).await;
        if health.is_ok() {
            break;
        }
    }
    let health = match (health, problems) {
        // An unreadable configuration does not name the MCP endpoint either.
        (Err(_), Some(report)) => return Err(Failure::Config(report)),
        (Err(admin_reason), None) => {
            let health = probe_endpoint(&listeners, args.live, time_limit).await;
            health.map_err(|reason| format!("{admin_reason}; {reason}"))
        }
        // The server at the configured address may belong to another configuration.
        (Ok(health), _) if announced.is_none() => {
            connect(&listeners, time_limit).await.map(|_| health)
        }
        (health, _) => health,
    };
    match health {
        Ok(ProbeResult::Ready) => {
            let word = if args.live { "alive" } else { "ready" };
            output::print(|out| writeln!(out, "{word}"))
        }
        Ok(ProbeResult::Unready(why)) if why.is_empty() => {
            Err(Failure::CheckFailed("alive, not ready".to_owned()))
        }
        Ok(ProbeResult::Unready(why)) => {
            Err(Failure::CheckFailed(format!("alive, not ready: {why}")))
        }
        Err(why) => {
            let text = format!("no Weir of this configuration responds: {why}");
            Err(Failure::Unreachable(text))
        }
    }
}

/// Probes the admin listener at an address.
async fn probe_admin(
    address: SocketAddr,
    live: bool,
    time_limit: Duration,
) -> Result<ProbeResult, String> {
    let route = if live { Route::Healthz } else { Route::Readyz };
    // On a loopback address the listener shows the reasons without a token.
    let is_verbose = !live && address.ip().is_loopback();
    let uri =
        if is_verbose { format!("{}?verbose", route.path()) } else { route.path().to_owned() };
    let mut answer = get(address, &uri, time_limit).await;
    if is_verbose && matches!(&answer, Ok((StatusCode::UNAUTHORIZED, _))) {
        // A listener on all addresses shows the reasons only with a token.
        answer = get(address, route.path(), time_limit).await;
    }
    let (status, body) = answer?;
    let text = String::from_utf8_lossy(&body);
    let reasons: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("[-]")?.split_once(" failed: "))
        .map(|(check, why)| format!("{check}: {why}"))
        .collect();
    match (status, text.lines().last()) {
        (StatusCode::OK, Some("ok" | "ready")) => Ok(ProbeResult::Ready),
        (StatusCode::SERVICE_UNAVAILABLE, Some("not ready")) => {
            Ok(ProbeResult::Unready(reasons.join("; ")))
        }
        _ => Err(format!("the server at {address} does not respond as Weir does ({status})")),
    }
}

/// Probes the MCP endpoint. It responds while it accepts requests, but reports no reasons.
async fn probe_endpoint(
    listeners: &Listeners,
    live: bool,
    time_limit: Duration,
) -> Result<ProbeResult, String> {
    if listeners.server.tls.is_some() {
        let stream = connect(listeners, time_limit).await?;
        return match timeout(time_limit, completes_tls_handshake(stream)).await {
            Ok(true) => Ok(ProbeResult::Ready),
            _ => Err("the endpoint does not complete a TLS handshake".to_owned()),
        };
    }
    let address = reachable(listeners.server.listen);
    match get(address, &listeners.server.path, time_limit).await? {
        (StatusCode::SERVICE_UNAVAILABLE, _) if !live => Ok(ProbeResult::Unready(String::new())),
        // A rejection without credentials or a session also proves that it serves.
        _ => Ok(ProbeResult::Ready),
    }
}

/// Sends a GET request without a token.
async fn get(
    address: SocketAddr,
    uri: &str,
    time_limit: Duration,
) -> Result<(StatusCode, Bytes), String> {
    within(address, time_limit, "response", fetch(address, &Method::GET, uri, None)).await
}

/// Runs an exchange with an address; the error says why there is no result.
async fn within<T>(
    address: SocketAddr,
    time_limit: Duration,
    what: &str,
    exchange: impl Future<Output = io::Result<T>>,
) -> Result<T, String> {
    match timeout(time_limit, exchange).await {
        Ok(done) => done.map_err(|error| format!("{address}: {error}")),
        Err(_) => Err(format!("{address}: no {what} within {time_limit:?}")),
    }
}

/// Connects to the MCP endpoint.
async fn connect(listeners: &Listeners, time_limit: Duration) -> Result<TcpStream, String> {
    let address = reachable(listeners.server.listen);
    within(address, time_limit, "connection", TcpStream::connect(address)).await
}

/// Returns whether a TLS server responds. Its certificate is for other names than this address and
/// is not trusted; no data is sent, so any certificate is sufficient.
async fn completes_tls_handshake(stream: TcpStream) -> bool {
    let provider = Arc::new(crypto::aws_lc_rs::default_provider());
    let Ok(config) =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
    else {
        return false;
    };
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let Ok(name) = ServerName::try_from("localhost") else { return false };
    match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(_) => true,
        Err(error) => is_certificate_error(&error),
    }
}

fn is_certificate_error(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::InvalidCertificate(_)))
}
