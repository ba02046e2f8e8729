//! `[admin]`: the admin listener.

use std::net::{Ipv4Addr, SocketAddr};

use super::{LoadContext, secrets};
use crate::keys::shape::{self, ValueShape};
use crate::keys::{Described, boolean, by_hand, settings, string};
use crate::reader::report::ValueError;
use crate::reader::table_reader::TableReader;
use crate::reader::value;
use weir_base::secrets::secret::Secret;

settings! {
    /// The admin listener of `weir serve`: health, metrics, status.
    pub struct AdminConfig {
        /// With `false` `weir serve` opens no admin listener. Then `weir status`, `weir top` and
        /// `weir reload` cannot reach it.
        enabled: bool = true, boolean();
        /// The address and port to listen on. If the key is not set and another process uses the
        /// default port, Weir runs without the admin listener; an address that is set must be free.
        /// On any address other than a loopback address everything except `/healthz` and the one
        /// word of `/readyz` requires the token.
        ///
        /// ```toml
        /// listen = "0.0.0.0:9464"
        /// ```
        listen: Option<SocketAddr> = None,
            string("IP address and port", shape::SOCKET, value::socket)
                .optional()
                .default_text("`127.0.0.1:9464`, if it is free");
        /// The token that `/status`, `/limits`, `/users`, `/logs`, `/reload` and `/restart`
        /// require, and on other than loopback addresses also `/metrics` and `/readyz?verbose`, as
        /// `Authorization: Bearer <token>`.
        ///
        /// ```toml
        /// token = { file = "secrets/admin" }
        /// ```
        token: Option<Secret> = None,
            by_hand(ValueShape::Secret(shape::ADMIN_TOKEN)).default_text(
                "generated at the first start and stored in `admin-token` under `[state]`, \
                 readable by its owner only",
            );
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
    let mut admin = AdminConfig::read(t);
    let token = secrets::read_secret(t, "token", &context.resolver, admin.enabled);
    let is_valid = |token: &Secret| {
        let text = token.expose();
        text.len() >= MIN_TOKEN_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if token.as_ref().is_some_and(|token| !is_valid(token)) {
        let what = "a token is at least 16 visible ASCII characters, without spaces";
        let remedy = "write a longer one, or remove this key: then Weir makes one";
        t.error("token", ValueError::new(what, remedy));
    }
    admin.token = token.filter(is_valid);
    admin
}

/// Default address; the Prometheus project reserves the port for exporters of OpenTelemetry.
const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// Minimum length of a token.
const MIN_TOKEN_BYTES: usize = 16;
