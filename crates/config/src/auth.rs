//! `[auth]`: which requests need credentials.

use strum::{IntoStaticStr, VariantArray};

use super::access::{LOCAL_ROLE, ROLE_NAME, RoleConfigs, existing_role};
use super::{Options, ProviderConfig, ServerConfig};
use crate::keys::{Described, by_hand, settings, variant};
use crate::reader::report::ValueError;
use crate::reader::table_reader::TableReader;
use weir_access::policy::ClientCredentials;

settings! {
    /// Access over HTTP without a key, or with a token of an identity provider. The client of `weir
    /// stdio` is the user who starts it, and needs no key.
    pub struct AuthConfig {
        /// Need of credentials. `required`: every request needs a client's key or certificate, or a
        /// token. `anonymous`: requests without a key are accepted with the role `anonymous_role`;
        /// on an address that the network can reach this is an error unless Weir is started with
        /// `--allow-anonymous-network`. `auto`: `anonymous` on a loopback address as long as no
        /// client and no identity provider is defined, otherwise `required`.
        mode: AuthMode = AuthMode::Auto, variant();
        /// The role of clients without a key: a `[roles.<name>]` table, or `local`.
        anonymous_role: String = LOCAL_ROLE.to_owned(),
            by_hand(ROLE_NAME).written(|role: &String| role.as_str().into());
        =>
        /// Result of `mode`: true if requests without a key are accepted, with that role.
        anonymous: bool = true;
    }
}

/// Requirement of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum AuthMode {
    /// `Anonymous` on a loopback address with neither clients nor identity providers, otherwise
    /// `Required`.
    Auto,
    /// Every request needs credentials.
    Required,
    /// Requests without credentials are accepted.
    Anonymous,
}

pub(super) fn read_auth(
    t: &TableReader<'_>,
    server: &ServerConfig,
    roles: &RoleConfigs,
    no_credentials: bool,
    options: &Options,
) -> AuthConfig {
    let mut auth = AuthConfig::read(t);
    if let Some(role) = t.read("anonymous_role", |v| existing_role(v, roles)) {
        auth.anonymous_role = role;
    }
    t.record_location("anonymous_role");
    let on_loopback = server.listen.ip().to_canonical().is_loopback();
    auth.anonymous = match auth.mode {
        AuthMode::Auto => on_loopback && no_credentials,
        AuthMode::Required => false,
        AuthMode::Anonymous => true,
    };
    if auth.anonymous && !on_loopback && !options.allow_anonymous_network {
        let what =
            "server.listen is an address where anyone on the network could connect without a key";
        let remedy = "remove it and define a client, listen on 127.0.0.1, or start with \
                      --allow-anonymous-network if access is restricted elsewhere";
        t.error("mode", ValueError::new(what, remedy));
    } else if auth.anonymous && server.public_url.is_some() {
        let what = "server.public_url is set, and its clients need no key";
        t.warning(
            "mode",
            ValueError::new(what, "write mode = \"required\" in [auth] and define a client"),
        );
    } else if !auth.anonymous && no_credentials {
        let what = "a key is required, and no client has one: every request is refused";
        t.warning("mode", ValueError::new(what, "add a [clients.<name>] table"));
    }
    auth
}

/// Warns of roles that no client has. The client of `weir stdio` has the role of clients without a
/// key.
pub(super) fn warn_of_unused_roles(
    root: &TableReader<'_>,
    roles: &RoleConfigs,
    clients: &[ClientCredentials],
    providers: &[ProviderConfig],
    auth: &AuthConfig,
) {
    // If the role of a client could not be read, its role may be any of them.
    if !clients.iter().all(|client| roles.contains_key(&client.role)) {
        return;
    }
    root.warn_names("roles", |role| {
        let is_used = [LOCAL_ROLE, &auth.anonymous_role].contains(&role)
            || clients.iter().any(|client| client.role == role)
            || providers.iter().any(|provider| provider.tokens.can_grant(role));
        let remedy = format!("`weir keys add NAME --role {role}` makes a client that has it");
        (!is_used).then(|| ValueError::new("no client has this role", remedy))
    });
}
