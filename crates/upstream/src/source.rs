//! Source of an upstream: the process, URL or folder that it is reached at.

use std::fmt;
use std::path::PathBuf;

use hyper::{HeaderMap, Uri};

use crate::Settings;
use crate::connect::{ChildCommand, Egress};
use crate::process::child_command::MIN_SECRET_BYTES;
use weir_base::secrets::secret::Secret;
use weir_base::secrets::secret_parts::with_parts;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;
use weir_oauth as oauth;

/// Process, URL or folder of an upstream.
#[derive(Clone, PartialEq)]
pub enum UpstreamSource {
    /// The built-in prompt library.
    Library {
        /// The folder of Markdown files.
        dir: PathBuf,
    },
    /// A text in the place of servers, which a single tool returns.
    Notice {
        /// The text: for people and models.
        text: String,
    },
    /// A child process that speaks over stdio.
    Process(ChildCommand),
    /// A server on the network.
    Http {
        /// Endpoint URL.
        url: Uri,
        /// Headers to add to every request.
        headers: HeaderMap,
        /// Account whose access tokens are sent with every request.
        account: Option<Box<oauth::Settings>>,
        /// Way to the server, and to its authorization servers.
        egress: Egress,
        /// HTTP transport; `None` means that it is detected.
        transport: Option<HttpTransport>,
    },
    /// None: a value that decides about it is missing, so it is not started.
    Unresolved {
        /// Missing values with their remedies, as text for the operator.
        reason: String,
    },
    /// A server that one replica of the fleet runs at a time.
    OnOneReplica {
        /// Endpoint URL on that replica.
        url: Uri,
        /// Settings under which that replica runs it.
        settings: Box<Settings>,
    },
}

impl UpstreamSource {
    /// Returns what the configuration gives the server and may be a secret, whatever its length:
    /// values of variables, parts of headers and of the query, and the secret of the account.
    pub fn configured_secrets(&self) -> Vec<&str> {
        match self {
            Self::Process(command) => command.env.iter().map(|(_, value)| value.expose()).collect(),
            Self::Http { url, headers, account, .. } => {
                let query = url.query().unwrap_or_default().split('&');
                let query = query.filter_map(|pair| pair.split_once('=')).map(|(_, value)| value);
                // Of a header like `Bearer …` the server knows the part behind the scheme.
                let headers = headers.values().filter_map(|value| value.to_str().ok());
                let headers = headers.flat_map(|value| value.split(' ').chain([value]));
                let account = account.as_ref().and_then(|account| account.client_secret());
                query.chain(headers).chain(account.map(Secret::expose)).collect()
            }
            Self::OnOneReplica { settings, .. } => settings.source.configured_secrets(),
            Self::Library { .. } | Self::Notice { .. } | Self::Unresolved { .. } => Vec::new(),
        }
    }

    /// Returns what is replaced in texts of the server, which may repeat it or a part of it: words
    /// and numbers are not.
    pub(crate) fn secrets(&self) -> Vec<Secret> {
        let secrets: Vec<&str> = match self {
            Self::Process(command) => command.secrets().collect(),
            Self::OnOneReplica { settings, .. } => return settings.source.secrets(),
            _ => {
                let all = self.configured_secrets().into_iter();
                all.filter(|value| value.len() >= MIN_SECRET_BYTES).collect()
            }
        };
        with_parts(secrets, MIN_SECRET_BYTES)
    }
}

/// Leaves out the query of a URL, which often is a secret although it is not marked as such, and
/// shows of its path, which may hold one, only whether two of them differ.
impl fmt::Debug for UpstreamSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library { dir } => f.debug_struct("Library").field("dir", dir).finish(),
            Self::Notice { text } => f.debug_struct("Notice").field("text", text).finish(),
            Self::Process(command) => command.fmt(f),
            Self::Http { url, headers, account, egress, transport } => f
                .debug_struct("Http")
                .field("host", &url.host())
                .field("path", &format_args!("#{}", &hex(&sha256(url.path()))[..8]))
                .field("headers", headers)
                .field("account", account)
                .field("egress", egress)
                .field("transport", transport)
                .finish(),
            Self::Unresolved { reason } => {
                f.debug_struct("Unresolved").field("reason", reason).finish()
            }
            Self::OnOneReplica { settings, .. } => settings.source.fmt(f),
        }
    }
}

/// HTTP transport of a remote server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpTransport {
    /// Streamable HTTP.
    Http,
    /// HTTP+SSE: an event stream and an endpoint for messages (spec 2024-11-05, deprecated since).
    Sse,
}
