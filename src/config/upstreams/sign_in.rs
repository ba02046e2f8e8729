//! `[sign_in]`: where Weir signs in to upstreams.

use ipnet::IpNet;

use crate::allowed_addresses::AllowedAddresses;
use crate::config::ServerConfig;
use crate::config::keys::shape::{self, ValueShape};
use crate::config::keys::{Described, boolean, list, settings};
use crate::config::reader::report::ValueError;
use crate::config::reader::table_reader::TableReader;
use crate::config::reader::value;

settings! {
    /// Sign-in to upstreams with `auth = { type = "oauth" }`. An upstream names the servers at
    /// which Weir signs in; these keys say where they may be.
    pub(in crate::config) struct SignInConfig {
        /// The networks in which these servers may be, although their addresses are not public. The
        /// server of the upstream itself may be anywhere.
        ///
        /// ```toml
        /// private_networks = ["10.0.0.0/8"]
        /// ```
        private_networks: Vec<IpNet> = Vec::new(),
            list(ValueShape::Text("network", shape::NETWORK), value::network)
                .written(|networks| networks.iter().map(ToString::to_string).collect());
        /// With `true` they may be on this machine, and there they may use plain http. For tests
        /// only; not allowed with `server.public_url`.
        insecure_loopback: bool = false, boolean();
    }
}

/// Reads the table, and returns the addresses of authorization servers that are allowed.
pub(in crate::config) fn read_sign_in(
    t: &TableReader<'_>,
    server: &ServerConfig,
) -> AllowedAddresses {
    let SignInConfig { private_networks, insecure_loopback } = SignInConfig::read(t);
    if insecure_loopback && server.public_url.is_some() {
        let what = "server.public_url says that this Weir is not for tests";
        t.error("insecure_loopback", ValueError::new(what, "remove one of the two"));
    }
    AllowedAddresses { private_networks, loopback: insecure_loopback }
}
