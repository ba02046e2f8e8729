//! Choice of the connection between a client and Weir: `weir stdio`, or the endpoint of
//! `weir serve`.

use std::path::Path;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

use super::Args;
use super::entry::ConnectMethod;
use crate::cli::clients::{HttpEntry, McpClient};
use crate::cli::exit::Failure;
use crate::cli::{loading, output};
use weir_base::net::allowed_addresses::is_loopback_host;
use weir_config::{self as config, Config};
use weir_upstream::connect::egress::has_valid_port;

/// Decides how the client connects to Weir; the endpoints are those that an entry of Weir may name.
pub(super) fn choose(
    args: &Args,
    client: &McpClient,
) -> Result<(ConnectMethod, Vec<String>), Failure> {
    let is_http_requested =
        args.http || args.url.is_some() || args.key_env.is_some() || args.no_key;
    let config = match args.stdio || args.url.is_some() {
        // The content of the file does not matter, and it need not exist.
        true => None,
        false => match load_config(args) {
            Err(Failure::Config(_)) if !is_http_requested => {
                output::print_stderr(
                    "note: this configuration is invalid, so Weir will not start with it: \
                     `weir check` shows the errors; this is the entry for `weir stdio`",
                );
                None
            }
            config => Some(config?),
        },
    };
    let endpoint = config.as_ref().map(|config| endpoint(&config.server));
    let endpoints = args.url.iter().cloned().chain(endpoint.clone()).collect();
    let has_keys = config.as_ref().is_some_and(|config| {
        let logs_in = !config.providers.is_empty() && config.clients.is_empty();
        !config.auth.anonymous && !logs_in
    });
    let prefers_http =
        config.as_ref().is_some_and(is_shared) && !matches!(client.http, HttpEntry::Bridge);
    if is_http_requested || prefers_http {
        let url = match &args.url {
            Some(url) => check_url(url)?,
            None => endpoint.unwrap_or_default(),
        };
        let default = has_keys.then(|| "WEIR_KEY".to_owned());
        let key = args.key_env.clone().or(default).filter(|_| !args.no_key);
        return Ok((ConnectMethod::Http { url, key }, endpoints));
    }
    let config = loading::config_path(args.config.as_deref())?;
    let config = std::path::absolute(&config)
        .map_err(|error| Failure::Usage(format!("{} is no path: {error}", config.display())))?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::Usage(format!("the path of this program is unknown: {error}")))?;
    if !config.exists() {
        output::print_stderr(&format!(
            "note: {} does not exist yet; `weir init` writes one",
            config.display()
        ));
    }
    let text = |path: &Path| path.to_string_lossy().into_owned();
    Ok((ConnectMethod::Stdio { program: text(&program), config: text(&config) }, endpoints))
}

/// Says what has to run, if nothing listens at an endpoint of this machine.
pub(super) async fn report_unserved(method: &ConnectMethod) {
    let ConnectMethod::Http { url, .. } = method else { return };
    let Ok(parsed) = Url::parse(url) else { return };
    let (Some(host), Some(port)) = (parsed.host_str(), parsed.port_or_known_default()) else {
        return;
    };
    if !is_loopback_host(host) {
        return;
    }
    let connecting = TcpStream::connect((host.trim_matches(['[', ']']), port));
    if !matches!(timeout(CONNECT_TIMEOUT, connecting).await, Ok(Ok(_))) {
        output::print_stderr(&format!(
            "note: nothing listens at {url} now: the client needs a running `weir serve`; \
             `weir status` shows whether one runs"
        ));
    }
}

/// Loads the configuration without its upstreams, which an entry does not need.
fn load_config(args: &Args) -> Result<Config, Failure> {
    let path = loading::config_path(args.config.as_deref())?;
    if !path.exists() {
        let text = format!("{} does not exist; `weir init` writes one", path.display());
        return Err(Failure::Usage(text));
    }
    // Anonymous access from the network does not matter here.
    Config::without_upstreams(&path, &loading::options(true)).map_err(Failure::Config)
}

/// Returns whether a configuration is for several clients, which connect to `weir serve`.
pub(crate) fn is_shared(config: &Config) -> bool {
    !config.clients.is_empty() || config.server.public_url.is_some()
}

/// Endpoint of a configuration for clients on this machine.
pub(crate) fn endpoint(server: &config::ServerConfig) -> String {
    if let Some(url) = &server.public_url {
        // A public URL without a path names only the host.
        return match url.path() {
            "/" | "" => format!("{}{}", url.to_string().trim_end_matches('/'), server.path),
            _ => url.to_string(),
        };
    }
    let port = server.listen.port();
    let host = match server.listen.ip() {
        ip if !ip.is_unspecified() => server.listen.to_string(),
        _ => match server.allowed_hosts.first() {
            Some(host) if host.contains(':') => host.clone(),
            Some(host) => format!("{host}:{port}"),
            None => format!("127.0.0.1:{port}"),
        },
    };
    format!("{}://{host}{}", server.scheme(), server.path)
}

/// Time for a connection to an endpoint of this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

fn check_url(url: &str) -> Result<String, Failure> {
    let is_good = url.parse::<hyper::Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some()
            && has_valid_port(&uri)
    });
    match is_good && !url.contains('@') {
        true => Ok(url.to_owned()),
        false => Err(Failure::Usage(
            "--url must be an http or https URL without credentials, like http://127.0.0.1:8642/mcp"
                .to_owned(),
        )),
    }
}
