//! JSON schema and Markdown page of all configuration keys, made from their descriptions.
//!
//! Tests keep both in step with the reader: every key that is read is described and the other way
//! round, the defaults are those of the reader, and the schema and the reader agree on a collection
//! of files.
//!
//! Decision: docs/decisions/0020-configuration-and-schema.md

#![expect(clippy::disallowed_types, reason = "a schema is written here, no payload passes")]

mod constraints;
mod json;
pub(super) mod page;

use super::access;
use super::guard::{self, GuardConfig, LockFile};
use super::limits::LimitKeys;
use super::log::LogConfig;
use super::oidc::ProviderConfig;
use super::server::fleet::FleetKeys;
use super::upstreams::ExportKeys;
use super::upstreams::defaults::UpstreamDefaults;
use super::upstreams::egress::EgressKeys;
use super::upstreams::environment::EnvironmentKeys;
use super::upstreams::sign_in::SignInConfig;
use super::upstreams::source::UpstreamKeys;
use super::{
    AdminConfig, AuditConfig, AuthConfig, NamingConfig, ProtocolConfig, ServerConfig, StateConfig,
};
use crate::keys::shape::{self, ValueShape};
use crate::keys::{Described, KeySpec, by_hand};
use weir_access::policy::ClientCredentials;
use weir_access::policy::role::Role;
use weir_access::policy::tokens;

pub use json::schema;
pub use page::page;

/// Returns all keys of the top table, in the order of the example.
pub(super) fn keys() -> Vec<KeySpec> {
    vec![
        include(),
        table::<ServerConfig>("server", ServerConfig::keys()),
        table::<FleetKeys>("fleet", FleetKeys::keys()),
        table::<ProtocolConfig>("protocol", ProtocolConfig::keys()),
        table::<NamingConfig>("naming", NamingConfig::keys()),
        table::<UpstreamDefaults>("defaults", defaults_keys()),
        named::<UpstreamKeys>("upstreams", shape::UPSTREAM_NAME, upstream_keys()),
        table::<SignInConfig>("sign_in", SignInConfig::keys()),
        table::<EgressKeys>("egress", EgressKeys::keys()),
        table::<GuardConfig>("guard", [guard::guard_keys(), LockFile::keys()].concat()),
        table::<AuthConfig>("auth", [AuthConfig::keys(), vec![providers()]].concat()),
        named::<Role>("roles", shape::PLAIN_NAME, Role::keys()),
        named::<ClientCredentials>("clients", shape::PLAIN_NAME, client_keys()),
        KeySpec::new(
            "limits",
            ValueShape::list(ValueShape::Table(LimitKeys::keys())),
            LimitKeys::DOC,
        ),
        table::<LogConfig>("log", LogConfig::keys()),
        table::<AdminConfig>("admin", AdminConfig::keys()),
        table::<AuditConfig>("audit", AuditConfig::keys()),
        table::<StateConfig>("state", StateConfig::keys()),
    ]
}

/// Describes a table, whose documentation is that of `T`.
fn table<T: Described>(name: &'static str, keys: Vec<KeySpec>) -> KeySpec {
    KeySpec::new(name, ValueShape::Table(keys), T::DOC)
}

/// Describes a table of tables with free names.
fn named<T: Described>(name: &'static str, names: &str, keys: Vec<KeySpec>) -> KeySpec {
    KeySpec::new(name, ValueShape::map(names, ValueShape::Table(keys)), T::DOC)
}

fn defaults_keys() -> Vec<KeySpec> {
    [UpstreamDefaults::keys(), EnvironmentKeys::keys()].concat()
}

fn upstream_keys() -> Vec<KeySpec> {
    let inherited = UpstreamDefaults::keys().into_iter();
    let inherited = inherited.map(|key| key.inherited("defaults", "as in `[defaults]`"));
    let text = "Content checks for this upstream, where they differ from `[guard]`.";
    let guard = KeySpec::new("guard", ValueShape::Table(guard::guard_keys()), &[text]);
    let guard = guard.inherited("guard", "as in `[guard]`");
    let own = UpstreamKeys::keys().into_iter();
    own.chain(inherited).chain([guard]).chain(ExportKeys::keys()).collect()
}

fn client_keys() -> Vec<KeySpec> {
    ClientCredentials::keys().into_iter().chain(access::own_rules()).collect()
}

fn providers() -> KeySpec {
    let keys = [tokens::Settings::keys(), ProviderConfig::keys()].concat();
    named::<tokens::Settings>("oidc", shape::PLAIN_NAME, keys)
}

fn include() -> KeySpec {
    let files = ValueShape::list(ValueShape::Text("path", shape::FILES));
    let text = "Further files that belong to this configuration, each path relative to the folder \
                of this file. A `*` is allowed in the name of a file, not of a folder; the \
                matching files are read in the order of their names, without those that begin with \
                a dot. A pattern may match nothing; a file that is named without `*` must exist.";
    let example = ["", "```toml", "include = [\"conf.d/*.toml\"]", "```"];
    let key = by_hand::<Vec<String>>(files).written(|files| files.clone().into());
    key.describe("include", &[&[text], &example[..]].concat(), &Vec::new())
}
