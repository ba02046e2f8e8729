//! `[upstreams.<name>]`: the source of an upstream, its name, and the items that it exports.
//!
//! `defaults.rs` reads the keys that an upstream can inherit.

pub(super) mod auth;
pub(super) mod defaults;
pub(super) mod egress;
pub(super) mod environment;
pub(super) mod headers;
pub(super) mod sign_in;
pub(super) mod source;

use std::path::Path;

use super::access::patterns;
use super::{LoadContext, guard};
use crate::keys::shape::{self, ValueShape};
use crate::keys::{Described, Key, boolean, custom, settings, variant};
use crate::reader::report::ValueError;
use crate::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::reader::value;
use defaults::{TableOwner, UpstreamDefaults, read_defaults};
use environment::EnvironmentKeys;
use sign_in::SignInSettings;
use source::{ReadSource, UpstreamKeys, source};
use weir_access::catalog::ExportRules;
use weir_access::guard::GuardRules;
use weir_access::pins::Mode;
use weir_base::secrets::secret::Secret;
use weir_mcp::kind::Kind;
use weir_mcp::pattern::AllowDeny;
use weir_mcp::revision::Era;
use weir_oauth as oauth;
use weir_upstream::connect::Egress;
use weir_upstream::{self as upstream, HttpTransport, Sharing, Timeouts, UpstreamSource};

/// One upstream, with inherited values.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamConfig {
    /// Settings of the connection, as for many clients and without a list cache.
    pub settings: upstream::Settings,
    /// Variables of Weir's environment that its process gets, besides those that every child gets:
    /// names, and beginnings of names with a `*`.
    pub pass_env: Vec<String>,
    /// Contents of the secret files that its arguments or its URL contain.
    pub file_contents: Vec<Secret>,
    /// Exported items, and their public names.
    pub exports: ExportRules,
    /// Content checks.
    pub guard: GuardRules,
    /// Handling of changed definitions.
    pub pinning: Mode,
    /// Replicas of a fleet that run it.
    pub replicas: Replicas,
}

/// Replicas of a fleet that run an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Replicas {
    /// Each for itself.
    Each,
    /// One at a time, for all.
    One,
}

impl UpstreamConfig {
    /// Returns the name of its table, which policy, logs and lists use. Unique.
    pub fn name(&self) -> &str {
        self.settings.name.as_str()
    }

    /// Returns why it cannot be started: the missing values, in one line; `None` if it can.
    pub fn unresolved(&self) -> Option<&str> {
        match &self.settings.source {
            UpstreamSource::Unresolved { reason } => Some(reason),
            _ => None,
        }
    }

    /// Returns whether a user has to sign in to it.
    pub fn is_signed_in_to(&self) -> bool {
        self.account().is_some_and(|it| it.grant.is_of_user())
    }

    /// Returns the account at its authorization server.
    pub fn account(&self) -> Option<&oauth::Settings> {
        match &self.settings.source {
            UpstreamSource::Http { account, .. } => account.as_deref(),
            _ => None,
        }
    }
}

/// Summary of an upstream, used or not; enough to decide whether a command needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamSummary {
    /// Name of its table.
    pub name: String,
    /// Value of `enabled`.
    pub enabled: bool,
    /// Prefix of its items' names; `None` if it contains a variable that is not set.
    pub prefix: Option<String>,
    /// Exported resources; `None` if a pattern contains a variable that is not set.
    pub resources: Option<AllowDeny>,
}

// === Exports ===

settings! {
    /// Exports of an upstream.
    pub(super) struct ExportKeys {
        /// The prompts that Weir exports from this upstream, before the rules of roles apply.
        prompts: AllowDeny = AllowDeny::everything(), exports(NAMES);
        /// The tools that Weir exports from this upstream, before the rules of roles apply.
        tools: AllowDeny = AllowDeny::everything(), exports(NAMES);
        /// The resources and resource templates that Weir exports from this upstream, before the
        /// rules of roles apply.
        resources: AllowDeny = AllowDeny::everything(), exports(URIS);
        /// New names for items: `prompts/<original name>` or `tools/<original name>`, and the new
        /// name, 1 to 64 of A-Z, a-z, 0-9, `_`, `.` and `-`. The prefix is added to the new name;
        /// rules still use the original name.
        ///
        /// ```toml
        /// rename = { "prompts/simple-prompt" = "hello", "tools/echo" = "say" }
        /// ```
        rename: Vec<(Kind, String, String)> = Vec::new(),
            custom(
                ValueShape::map(shape::RENAMED, ValueShape::Text("string", shape::PLAIN_NAME)),
                |t, _, _| Some(renames(t)),
            )
            .written(|_| shape::empty_table());
    }
}

fn exports(allow: &'static str) -> Key<AllowDeny> {
    let deny = "Patterns of items that are not exported although `allow` matches them: deny wins.";
    let of = ValueShape::Text("pattern", shape::ITEM_PATTERN);
    patterns([allow, deny], of, &AllowDeny::everything(), pattern)
}

// === Tables ===

/// All upstream tables of a file.
#[derive(Default)]
pub(super) struct Upstreams {
    /// Used upstreams.
    pub(super) used: Vec<UpstreamConfig>,
    /// Summaries of all upstreams.
    pub(super) summaries: Vec<UpstreamSummary>,
    /// Names of all tables, because policy may name a disabled upstream.
    pub(super) names: Vec<String>,
}

impl Upstreams {
    /// Returns the number of enabled upstreams, valid or not.
    pub(super) fn enabled(&self) -> usize {
        self.summaries.iter().filter(|summary| summary.enabled).count()
    }
}

pub(super) fn read_upstreams(
    root: &TableReader<'_>,
    context: &LoadContext<'_>,
    guard: (&guard::GuardConfig, &Path),
    network: (&SignInSettings, &Egress),
) -> Upstreams {
    let (inherited, environment) = root.table("defaults", |t| {
        let defaults = read_defaults(t, &UpstreamDefaults::default(), TableOwner::All);
        (defaults, EnvironmentKeys::read(t))
    });
    let (mut result, has_fleet) = (Upstreams::default(), root.get("fleet").is_some());
    let mut prefixes: Vec<(String, String)> = Vec::new();
    root.named_tables("upstreams", |name, t| {
        let name = name.get_ref().as_ref();
        result.names.push(name.to_owned());
        if !value::is_upstream_name(name) {
            t.table_error(value::bad_upstream_name(name));
        }
        if name == OWN_NAME {
            t.table_error(reserved());
        }
        let prefix = t.read("prefix", prefix).unwrap_or_else(|| name.to_owned());
        let enabled = boolean().read(t, "enabled", &UpstreamKeys::default().enabled);
        ["enabled", "command", "url"].into_iter().for_each(|key| t.record_location(key));
        let used = enabled && context.only.is_none_or(|only| only.iter().any(|it| it == name));
        if !used {
            t.ignore_unresolved();
        }
        let inherited =
            Inherited { defaults: &inherited, environment: &environment, guard, network };
        let (resources, upstream) = upstream(name, &prefix, t, &inherited, context, used);
        result.summaries.push(UpstreamSummary {
            name: name.to_owned(),
            enabled,
            prefix: t.is_resolved("prefix").then(|| prefix.clone()),
            resources: t.is_resolved("resources").then(|| match t.has("prompts_dir") {
                true => AllowDeny::default(),
                false => resources,
            }),
        });
        if !enabled {
            return;
        }
        let enforces = upstream.as_ref().is_some_and(|it| it.pinning == Mode::Enforce);
        if has_fleet && enforces && t.is_resolved("guard") {
            let what = "pinning is \"enforce\", and each replica would approve what it lists first";
            let remedy = "set pinning = \"locked\", and give all replicas the same lock file";
            t.error("guard", ValueError::new(what, remedy));
        }
        if has_fleet && upstream.as_ref().is_some_and(UpstreamConfig::is_signed_in_to) {
            let what =
                "a user signs in on one machine, and the replicas of a fleet do not share it";
            let remedy = "use another grant, or remove [fleet]";
            t.error("auth", ValueError::new(what, remedy));
        }
        // One that is missing is unknown.
        if t.is_resolved("prefix") {
            if let Some((_, owner)) = prefixes.iter().find(|(taken, _)| *taken == prefix) {
                let what = format!("this prefix belongs to [upstreams.{owner}] already");
                t.error("prefix", ValueError::new(what, "give one of the two another prefix"));
            }
            prefixes.push((prefix, name.to_owned()));
        }
        result.used.extend(upstream.filter(|_| used));
    });
    let none_is_written = root
        .get("upstreams")
        .is_none_or(|v| v.get_ref().as_table().is_some_and(|tables| tables.is_empty()));
    if none_is_written {
        let remedy = "add at least one [upstreams.<name>] table with prompts_dir, command or url";
        root.error("upstreams", ValueError::new("there is nothing to serve", remedy));
    } else if result.enabled() == 0 && !result.names.is_empty() {
        root.warning(
            "upstreams",
            ValueError::new("every upstream is disabled", "remove enabled = false from one"),
        );
    }
    result
}

/// Returns the upstream whose only tool returns a text.
pub(super) fn notice(text: &str) -> UpstreamConfig {
    let (defaults, everything) = (UpstreamDefaults::default(), AllowDeny::everything);
    let exports = ExportRules {
        name: OWN_NAME.parse().expect("a name"),
        prefix: OWN_NAME.parse().expect("a name"),
        prompts: everything(),
        tools: everything(),
        resources: everything(),
        rename: Vec::new(),
    };
    UpstreamConfig {
        settings: upstream::Settings {
            instance: None,
            name: exports.name.clone(),
            era: None,
            sharing: Sharing::Shared,
            timeouts: defaults.timeouts,
            retry: defaults.retry,
            limits: defaults.limits(false),
            required: false,
            lazy: false,
            breaker: defaults.breaker,
            on_down: defaults.on_down(),
            source: UpstreamSource::Notice { text: text.to_owned() },
            list_cache_dir: None,
            reads_list_cache: false,
        },
        pass_env: Vec::new(),
        file_contents: Vec::new(),
        exports,
        guard: GuardRules::default(),
        pinning: Mode::Off,
        replicas: Replicas::Each,
    }
}

/// Name of the upstream that stands for Weir itself, and prefix of Weir's own tools.
const OWN_NAME: &str = "weir";

fn prefix(v: &SpannedValue<'_>) -> Parsed<String> {
    let prefix = value::string(v)?;
    if prefix == OWN_NAME {
        return Err(reserved());
    }
    match value::is_upstream_name(prefix) {
        true => Ok(prefix.to_owned()),
        false => Err(value::bad_upstream_name(prefix)),
    }
}

fn reserved() -> ValueError {
    ValueError::new("\"weir\" names the tools of Weir itself", "give the upstream another name")
}

/// Tables of the file from which upstreams inherit.
struct Inherited<'r> {
    defaults: &'r UpstreamDefaults,
    environment: &'r EnvironmentKeys,
    /// With the path of the lock file.
    guard: (&'r guard::GuardConfig, &'r Path),
    network: (&'r SignInSettings, &'r Egress),
}

/// Reads one table. Returns the exported resources, and the upstream; no upstream if the table has
/// no source. One that lacks a value from outside has no other source than the reason, unless it is
/// required: then the missing value is an error.
fn upstream(
    name: &str,
    prefix: &str,
    t: &TableReader<'_>,
    &Inherited { defaults: inherited, environment, guard: (guard, lock), network }: &Inherited<'_>,
    context: &LoadContext<'_>,
    used: bool,
) -> (AllowDeny, Option<UpstreamConfig>) {
    let ReadSource { source, mut pass_env, file_contents } =
        source(t, context, network, environment.login_path, used);
    pass_env.extend(environment.pass_env.iter().cloned());
    let is_library = matches!(source, Some(UpstreamSource::Library { .. }));
    let defaults = read_defaults(
        t,
        inherited,
        if is_library { TableOwner::Library } else { TableOwner::Server },
    );
    let lazy = defaults.lazy && !is_library;
    let ExportKeys { prompts, tools, resources, rename } = ExportKeys::read(t);
    let exported_resources = resources.clone();
    // An illegal name has been reported already.
    let exports = match (name.parse(), prefix.parse()) {
        (Ok(name), Ok(prefix)) => {
            Some(ExportRules { name, prefix, prompts, tools, resources, rename })
        }
        _ => None,
    };
    let required = boolean().read(t, "required", &UpstreamKeys::default().required);
    if required && lazy {
        let what =
            "this upstream is lazy, and Weir cannot know whether a stopped server would start";
        let remedy = "remove required, or set lazy = false here";
        t.error("required", ValueError::new(what, remedy));
    }
    let replicas = variant().read(t, "replicas", &UpstreamKeys::default().replicas);
    if replicas == Replicas::One && is_library {
        let remedy = "remove it: every replica reads the folder";
        t.error("replicas", ValueError::new("a folder of prompts is not run", remedy));
    }
    let is_for_each = defaults.sharing == Sharing::Client && t.is_resolved("sharing");
    if replicas == Replicas::One && is_for_each {
        let what = "sharing is \"client\", and so there is a connection for each client";
        t.error("replicas", ValueError::new(what, "remove it, or set sharing = \"shared\""));
    }
    let guard = t.table("guard", |t| guard::read_guard(t, guard));
    if used {
        guard::warn_of_unapproved(t, guard.pinning, name, lock, context.on_disk);
    }
    if let Some(UpstreamSource::Http { transport: Some(HttpTransport::Sse), .. }) = &source
        && defaults.era == Some(Era::Modern)
        && t.is_resolved("era")
    {
        let what = "era is \"modern\", and modern servers have no HTTP+SSE";
        t.error("transport", ValueError::new(what, "remove it, or set era = \"legacy\""));
    }
    let over_http = matches!(source, Some(UpstreamSource::Http { .. }));
    let missing = if used && !required { t.collect_unresolved() } else { None };
    let source = missing.map(|reason| UpstreamSource::Unresolved { reason }).or(source);
    let upstream = source.zip(exports).map(|(source, exports)| UpstreamConfig {
        settings: upstream::Settings {
            instance: None,
            name: exports.name.clone(),
            era: defaults.era,
            sharing: defaults.sharing.clone(),
            timeouts: Timeouts {
                idle: defaults.timeouts.idle.filter(|_| lazy),
                ..defaults.timeouts
            },
            retry: defaults.retry,
            limits: defaults.limits(over_http),
            required,
            lazy,
            breaker: defaults.breaker,
            on_down: defaults.on_down(),
            source,
            list_cache_dir: None,
            reads_list_cache: true,
        },
        pass_env,
        file_contents,
        exports,
        guard: guard.rules,
        pinning: guard.pinning,
        replicas,
    });
    (exported_resources, upstream)
}

/// Parses a pattern over the names of one upstream.
fn pattern(v: &SpannedValue<'_>) -> Parsed<String> {
    match value::string(v)? {
        "" => Err(ValueError::new(
            "an empty pattern matches nothing",
            "write \"*\" for everything, or remove it",
        )),
        pattern => Ok(pattern.to_owned()),
    }
}

fn renames(t: &TableReader<'_>) -> Vec<(Kind, String, String)> {
    let renames = t.map("rename", |name, v| {
        let (kind, old) = name.get_ref().split_once('/').unwrap_or_default();
        let kind = match kind {
            "prompts" if !old.is_empty() => Kind::Prompt,
            "tools" if !old.is_empty() => Kind::Tool,
            _ => {
                let remedy = "write it like \"prompts/old\" or \"tools/old\"";
                return Err(ValueError::new("this does not name a prompt or a tool", remedy)
                    .at(name.span()));
            }
        };
        match value::string(v)? {
            new if value::is_plain_name(new) => {
                Ok(((kind, old.to_owned(), new.to_owned()), v.span()))
            }
            new => Err(value::bad_plain_name(new)),
        }
    });
    for (i, ((kind, _, new), place)) in renames.iter().enumerate() {
        if renames.iter().take(i).any(|((k, _, n), _)| k == kind && n == new) {
            let error = ValueError::new("two items get this name", "give one of them another");
            t.error("rename", error.at(place.clone()));
        }
    }
    renames.into_iter().map(|(rename, _)| rename).collect()
}

const NAMES: &str =
    "Patterns of original names that are exported; `*` matches any run of characters.";
const URIS: &str = "Patterns of URIs that are exported; `*` matches any run of characters.";
