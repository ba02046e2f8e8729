//! `[admin]`: where operators look at a running Weir.

use std::net::{Ipv4Addr, SocketAddr};

use super::{Surroundings, secrets};
use crate::config::reader::report::Complaint;
use crate::config::reader::table_reader::Table;
use crate::config::reader::value;
use crate::secret::Secret;

/// Where operators look at a running Weir.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Whether there is such a place at all.
    pub enabled: bool,
    /// The address to listen on, if one is written: then it has to be free.
    pub listen: Option<SocketAddr>,
    /// What has to be shown there; `None` if Weir makes it.
    pub token: Option<Secret>,
}

impl Default for Admin {
    fn default() -> Self {
        Self { enabled: true, listen: None, token: None }
    }
}

impl Admin {
    /// The address to listen on.
    pub fn address(&self) -> SocketAddr {
        self.listen.unwrap_or(DEFAULT)
    }

    /// Whether only this machine can connect.
    pub fn is_loopback(&self) -> bool {
        self.address().ip().to_canonical().is_loopback()
    }
}

pub(super) fn admin(t: &Table<'_>, surroundings: &Surroundings<'_>) -> Admin {
    let enabled = t.read("enabled", value::boolean).unwrap_or(true);
    let listen = t.read("listen", value::socket);
    let token = secrets::secret(t, "token", &surroundings.vault, enabled);
    let is_good = |token: &Secret| {
        let text = token.expose();
        text.len() >= MIN_TOKEN && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if token.as_ref().is_some_and(|token| !is_good(token)) {
        let what = "a token is at least 16 visible ASCII characters, without spaces";
        let remedy = "write a longer one, or remove this key: then Weir makes one";
        t.object("token", Complaint::new(what, remedy));
    }
    Admin { enabled, listen, token: token.filter(is_good) }
}

/// The one that the Prometheus project keeps for exporters of OpenTelemetry.
pub(super) const DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// The shortest token.
const MIN_TOKEN: usize = 16;
