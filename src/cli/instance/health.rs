//! `weir health`: whether the running Weir of a configuration is alive and ready, for probes of containers.
//!
//! Asks the listener of `[admin]`, which needs no token for this. Where none answers it asks the endpoint.
//!
//! Promises: the exit code says it: 0 ready, 1 alive and not ready, 4 neither. A mistake in the configuration does
//! not make a running Weir unhealthy, since it goes on with the former one. Nothing is started, and no command that
//! gives a secret is run.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, crypto};

use crate::admin::Route;
use crate::cli::exit::Failure;
use crate::cli::instance::admin_client::{addresses, announced, fetch, reachable};
use crate::cli::output;
use crate::cli::query::oneshot::ConfigArgs;
use crate::config::Listeners;

/// What `weir health` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Asks only whether it is alive: then one that is not ready, as while it starts or stops, is healthy.
    #[arg(long)]
    live: bool,
    /// How long each answer may take.
    #[arg(long, value_name = "SECONDS", default_value = "3")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
    #[command(flatten)]
    config: ConfigArgs,
}

/// What an instance has answered.
#[derive(Debug, PartialEq, Eq)]
enum Health {
    Ready,
    /// Alive, and why it is not ready, where it says so.
    Unready(String),
    /// Why there is no answer.
    Unknown(String),
}

/// Asks, and prints one line.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let (listeners, file, problems) = args.config.listeners().await?;
    let patience = Duration::from_secs(args.timeout);
    let announced = announced(&listeners.state, Some(&file));
    let mut health = Health::Unknown("no listener of [admin]".to_owned());
    for address in addresses(&listeners.admin, announced.as_ref()) {
        health = of_admin(address, args.live, patience).await;
        if !matches!(health, Health::Unknown(_)) {
            break;
        }
    }
    if let (Health::Unknown(_), Some(report)) = (&health, problems) {
        // Nor does the endpoint stand anywhere.
        return Err(Failure::Config(report));
    }
    health = match health {
        Health::Unknown(of_admin) => match of_endpoint(&listeners, args.live, patience).await {
            Health::Unknown(of_endpoint) => Health::Unknown(format!("{of_admin}; {of_endpoint}")),
            health => health,
        },
        // What answers at the configured address may be the Weir of another configuration.
        health if announced.is_none() => match connect(&listeners, patience).await {
            Ok(_) => health,
            Err(why) => Health::Unknown(why),
        },
        health => health,
    };
    match health {
        Health::Ready => {
            let word = if args.live { "alive" } else { "ready" };
            output::print(|out| writeln!(out, "{word}"))
        }
        Health::Unready(why) => Err(Failure::Differs(format!("alive, not ready{why}"))),
        Health::Unknown(why) => {
            let text = format!("no Weir of this configuration answers: {why}");
            Err(Failure::Unreachable(text))
        }
    }
}

/// Asks the listener for operators at an address.
async fn of_admin(address: SocketAddr, live: bool, patience: Duration) -> Health {
    let route = if live { Route::Healthz } else { Route::Readyz };
    // On a loopback address the reasons are for everybody.
    let is_verbose = !live && address.ip().is_loopback();
    let uri =
        if is_verbose { format!("{}?verbose", route.path()) } else { route.path().to_owned() };
    let mut answer = timeout(patience, fetch(address, &Method::GET, &uri, None)).await;
    if is_verbose && matches!(&answer, Ok(Ok((StatusCode::UNAUTHORIZED, _)))) {
        // The listener takes connections to all addresses, and tells no reasons.
        answer = timeout(patience, fetch(address, &Method::GET, route.path(), None)).await;
    }
    let (status, body) = match answer {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Health::Unknown(format!("{address}: {error}")),
        Err(_) => return Health::Unknown(format!("{address}: no answer within {patience:?}")),
    };
    let text = String::from_utf8_lossy(&body);
    let reasons: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("[-]")?.split_once(" failed: "))
        .map(|(check, why)| format!("{check}: {why}"))
        .collect();
    match (status, text.lines().last()) {
        (StatusCode::OK, Some("ok" | "ready")) => Health::Ready,
        (StatusCode::SERVICE_UNAVAILABLE, Some("not ready")) if reasons.is_empty() => {
            Health::Unready(String::new())
        }
        (StatusCode::SERVICE_UNAVAILABLE, Some("not ready")) => {
            Health::Unready(format!(": {}", reasons.join("; ")))
        }
        _ => Health::Unknown(format!("{address} does not answer as Weir does ({status})")),
    }
}

/// Asks the endpoint for clients. It answers while it takes requests; why it does not is not told there.
async fn of_endpoint(listeners: &Listeners, live: bool, patience: Duration) -> Health {
    if listeners.server.tls.is_some() {
        return match connect(listeners, patience).await {
            Ok(stream) => match timeout(patience, answers_tls(stream)).await {
                Ok(true) => Health::Ready,
                _ => Health::Unknown("the endpoint does not answer a TLS handshake".to_owned()),
            },
            Err(why) => Health::Unknown(why),
        };
    }
    let address = reachable(listeners.server.listen);
    match timeout(patience, fetch(address, &Method::GET, &listeners.server.path, None)).await {
        Ok(Ok((StatusCode::SERVICE_UNAVAILABLE, _))) if !live => Health::Unready(String::new()),
        // Without credentials or a session it refuses, which is as good.
        Ok(Ok(_)) => Health::Ready,
        Ok(Err(error)) => Health::Unknown(format!("{address}: {error}")),
        Err(_) => Health::Unknown(format!("{address}: no answer within {patience:?}")),
    }
}

/// Connects to the endpoint.
async fn connect(listeners: &Listeners, patience: Duration) -> Result<TcpStream, String> {
    let address = reachable(listeners.server.listen);
    match timeout(patience, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(format!("{address}: {error}")),
        Err(_) => Err(format!("{address}: no connection within {patience:?}")),
    }
}

/// Whether a TLS server answers. Its certificate is for other names than this address, so it is not trusted: nothing is
/// sent, and that there is one is enough.
async fn answers_tls(stream: TcpStream) -> bool {
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
        Err(error) => is_about_certificate(&error),
    }
}

fn is_about_certificate(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::InvalidCertificate(_)))
}
