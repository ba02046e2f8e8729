//! `[admin]`: the admin listener.

use std::net::{Ipv4Addr, SocketAddr};

use super::{LoadContext, secrets};
use crate::config::reader::report::ValueError;
use crate::config::reader::table_reader::TableReader;
use crate::config::reader::value;
use crate::secret::Secret;

/// Admin listener.
#[derive(Clone, Debug, PartialEq)]
pub struct AdminConfig {
    /// True if Weir opens the listener.
    pub enabled: bool,
    /// Configured address, which must be free; `None` means the default address, if it is free.
    pub listen: Option<SocketAddr>,
    /// Token for requests; `None` if Weir generates it.
    pub token: Option<Secret>,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self { enabled: true, listen: None, token: None }
    }
}

impl AdminConfig {
    /// Returns the address to listen on.
    pub fn address(&self) -> SocketAddr {
        self.listen.unwrap_or(DEFAULT_ADDRESS)
    }

    /// True if only this machine can connect.
    pub fn is_loopback(&self) -> bool {
        self.address().ip().to_canonical().is_loopback()
    }
}

pub(super) fn read_admin(t: &TableReader<'_>, context: &LoadContext<'_>) -> AdminConfig {
    let enabled = t.read("enabled", value::boolean).unwrap_or(true);
    let listen = t.read("listen", value::socket);
    let token = secrets::read_secret(t, "token", &context.resolver, enabled);
    let is_valid = |token: &Secret| {
        let text = token.expose();
        text.len() >= MIN_TOKEN_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if token.as_ref().is_some_and(|token| !is_valid(token)) {
        let what = "a token is at least 16 visible ASCII characters, without spaces";
        let remedy = "write a longer one, or remove this key: then Weir makes one";
        t.error("token", ValueError::new(what, remedy));
    }
    AdminConfig { enabled, listen, token: token.filter(is_valid) }
}

/// Default address; the Prometheus project reserves the port for exporters of OpenTelemetry.
pub(super) const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// Minimum length of a token.
const MIN_TOKEN_BYTES: usize = 16;
