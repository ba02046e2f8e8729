//! `[sign_in]`: where Weir signs in to upstreams.

use ipnet::IpNet;

use crate::ServerConfig;
use crate::keys::shape;
use crate::keys::{Described, boolean, networks, settings, string};
use crate::reader::report::ValueError;
use crate::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::reader::value;
use weir_base::net::allowed_addresses::AllowedAddresses;

settings! {
    /// Sign-in to upstreams with `auth = { type = "oauth" }`. An upstream names the servers at
    /// which Weir signs in; these keys say where they may be.
    pub(crate) struct SignInConfig {
        /// The networks in which these servers may be, although their addresses are not public. The
        /// origin of the upstream itself may be anywhere.
        ///
        /// ```toml
        /// private_networks = ["10.0.0.0/8"]
        /// ```
        private_networks: Vec<IpNet> = Vec::new(), networks();
        /// With `true` they may be on this machine, and there they may use plain http. For tests
        /// only; not allowed with `server.public_url`.
        insecure_loopback: bool = false, boolean();
        /// The URL of a document that describes Weir as a client (client ID metadata document), for
        /// authorization servers that support it. Without it Weir registers itself, where it has no
        /// `client_id`.
        ///
        /// ```toml
        /// client_metadata_url = "https://mcp.example.com/oauth/weir.json"
        /// ```
        client_metadata_url: Option<String> = None,
            string("https URL", shape::URL, client_metadata_url).optional();
    }
}

/// Settings of `[sign_in]` that all accounts have.
#[derive(Clone, Debug, Default)]
pub(crate) struct SignInSettings {
    /// Addresses where authorization servers may be.
    pub(super) allowed: AllowedAddresses,
    /// URL that identifies Weir as a client.
    pub(super) client_metadata_url: Option<String>,
}

/// Reads the table.
pub(crate) fn read_sign_in(t: &TableReader<'_>, server: &ServerConfig) -> SignInSettings {
    let SignInConfig { private_networks, insecure_loopback, client_metadata_url } =
        SignInConfig::read(t);
    if insecure_loopback && server.public_url.is_some() {
        let what = "server.public_url says that this Weir is not for tests";
        t.error("insecure_loopback", ValueError::new(what, "remove one of the two"));
    }
    let allowed =
        AllowedAddresses { private_networks, loopback: insecure_loopback, any_name: false };
    SignInSettings { allowed, client_metadata_url }
}

/// Parses the URL of a client ID metadata document, which is https with a path (spec 2026-07-28,
/// authorization, client ID metadata documents).
fn client_metadata_url(v: &SpannedValue<'_>) -> Parsed<String> {
    let url = value::url(v)?;
    match url.scheme_str() == Some("https") && url.path().len() > 1 {
        true => value::text(v),
        false => Err(ValueError::new(
            "an authorization server accepts no such URL",
            "write the https:// URL of the document, with its path",
        )),
    }
}
