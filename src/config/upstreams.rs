//! `[upstreams.<name>]`: the source of an upstream, its name, and the items that it exports.
//!
//! `upstream_defaults.rs` reads the keys that an upstream can inherit.

use std::fmt;
use std::path::{Path, PathBuf};

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};

use super::access::read_patterns;
use super::secrets::{self, SecretResolver};
use super::upstream_defaults::{
    EraChoice, SharingChoice, TableOwner, UpstreamDefaults, read_defaults,
};
use super::{LoadContext, Patterns, guard, headers};
use crate::config::reader::report::{Span, ValueError};
use crate::config::reader::table_reader::{Parsed, SpannedName, SpannedValue, TableReader};
use crate::config::reader::value;
use crate::guard::GuardRules;
use crate::pins::Mode;
use crate::secret::Secret;
use crate::upstream::health::breaker::Settings as Breaker;
use crate::upstream::{HttpTransport, OnDown, RetrySettings, Timeouts, UpstreamLimits};

/// One upstream, with inherited values.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamConfig {
    /// Name of its table, which policy, logs and lists use. Unique.
    pub name: String,
    /// Prefix of its items' public names. Unique.
    pub prefix: String,
    /// Location of the server, or of the prompts.
    pub source: SourceConfig,
    /// Era of MCP that it speaks.
    pub era: EraChoice,
    /// Sharing of connections between clients.
    pub sharing: SharingChoice,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Pauses between attempts to reconnect.
    pub retry: RetrySettings,
    /// Circuit breaker.
    pub breaker: Breaker,
    /// Handling of its lists while it is not connected.
    pub on_down: OnDown,
    /// Limits on its messages and on concurrent calls.
    pub limits: UpstreamLimits,
    /// True if Weir is ready only while it is connected.
    pub required: bool,
    /// True if it is started at its first use.
    pub lazy: bool,
    /// Content checks.
    pub guard: GuardRules,
    /// Handling of changed definitions.
    pub pinning: Mode,
    /// Exported prompts, by original name.
    pub prompts: Patterns,
    /// Exported tools, by original name.
    pub tools: Patterns,
    /// Exported resources and templates, by URI.
    pub resources: Patterns,
    /// Renamed items: kind, original name and new name.
    pub rename: Vec<(RenameKind, String, String)>,
}

/// Source of an upstream.
#[derive(Clone, PartialEq)]
pub enum SourceConfig {
    /// Built-in prompt library.
    Library {
        /// Folder of Markdown files.
        dir: PathBuf,
    },
    /// Child process with MCP over stdio.
    Process {
        /// Program, looked up in `PATH` if it has no slash.
        command: String,
        /// Program as it is in the file, for messages: the value of a variable may be a secret.
        shown: String,
        /// Arguments.
        args: Vec<String>,
        /// Environment variables to set.
        env: Vec<(String, Secret)>,
        /// Variables to pass on from Weir's environment, besides the few that every child gets.
        pass_env: Vec<String>,
        /// Working directory; `None` means that of Weir.
        cwd: Option<PathBuf>,
    },
    /// Server on the network.
    Http {
        /// Endpoint: `http` or `https`, with a host, without credentials.
        url: Uri,
        /// Headers to add to every request; the values are marked sensitive.
        headers: Vec<(HeaderName, HeaderValue)>,
        /// Transport; `None` means that it is detected.
        transport: Option<HttpTransport>,
    },
}

/// Leaves out values that often are secrets although they are not marked as such: arguments, and
/// the query of a URL.
impl fmt::Debug for SourceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library { dir } => f.debug_struct("Library").field("dir", dir).finish(),
            Self::Process { shown, args, env, pass_env, .. } => f
                .debug_struct("Process")
                .field("command", shown)
                .field("args", &format_args!("{} of them", args.len()))
                .field("env", env)
                .field("pass_env", pass_env)
                .finish_non_exhaustive(),
            Self::Http { url, headers, transport } => f
                .debug_struct("Http")
                .field("host", &url.host())
                .field("path", &url.path())
                .field("headers", headers)
                .field("transport", transport)
                .finish(),
        }
    }
}

/// Kinds of items that can be renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameKind {
    /// `prompts/…`
    Prompt,
    /// `tools/…`
    Tool,
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
    pub resources: Option<Patterns>,
}

// === Tables ===

/// All upstream tables of a file.
pub(super) struct Upstreams {
    /// Used upstreams.
    pub(super) used: Vec<UpstreamConfig>,
    /// Summaries of all upstreams.
    pub(super) summaries: Vec<UpstreamSummary>,
    /// Names of all tables, because policy may name a disabled upstream.
    pub(super) names: Vec<String>,
    /// Number of enabled upstreams, valid or not.
    pub(super) enabled: usize,
}

pub(super) fn read_upstreams(
    root: &TableReader<'_>,
    context: &LoadContext<'_>,
    guard: (&guard::GuardConfig, &Path),
) -> Upstreams {
    let inherited =
        root.table("defaults", |t| read_defaults(t, &UpstreamDefaults::default(), TableOwner::All));
    let mut result =
        Upstreams { used: Vec::new(), summaries: Vec::new(), names: Vec::new(), enabled: 0 };
    let mut prefixes: Vec<(String, String)> = Vec::new();
    root.named_tables("upstreams", |name, t| {
        let name = name.get_ref().as_ref();
        result.names.push(name.to_owned());
        if !value::is_upstream_name(name) {
            t.table_error(value::bad_upstream_name(name));
        }
        let prefix = t.read("prefix", prefix).unwrap_or_else(|| name.to_owned());
        let enabled = t.read("enabled", value::boolean).unwrap_or(true);
        t.record_location("enabled");
        let used = enabled && context.only.is_none_or(|only| only.iter().any(|it| it == name));
        if !used {
            t.ignore_unresolved();
        }
        let inherited = (&inherited, guard);
        let (resources, upstream) = upstream(name, &prefix, t, inherited, context, used);
        result.summaries.push(UpstreamSummary {
            name: name.to_owned(),
            enabled,
            prefix: t.is_resolved("prefix").then(|| prefix.clone()),
            resources: t.is_resolved("resources").then(|| match t.has("prompts_dir") {
                true => Patterns::nothing(),
                false => resources,
            }),
        });
        if !enabled {
            return;
        }
        result.enabled += 1;
        if let Some((_, owner)) = prefixes.iter().find(|(taken, _)| *taken == prefix) {
            let what = format!("this prefix belongs to [upstreams.{owner}] already");
            t.error("prefix", ValueError::new(what, "give one of the two another prefix"));
        }
        prefixes.push((prefix, name.to_owned()));
        result.used.extend(upstream.filter(|_| used));
    });
    let none_is_written = root
        .get("upstreams")
        .is_none_or(|v| v.get_ref().as_table().is_some_and(|tables| tables.is_empty()));
    if none_is_written {
        let remedy = "add at least one [upstreams.<name>] table with prompts_dir, command or url";
        root.error("upstreams", ValueError::new("there is nothing to serve", remedy));
    } else if result.enabled == 0 && !result.names.is_empty() {
        root.warning(
            "upstreams",
            ValueError::new("every upstream is disabled", "remove enabled = false from one"),
        );
    }
    result
}

fn prefix(v: &SpannedValue<'_>) -> Parsed<String> {
    let prefix = value::string(v)?;
    match value::is_upstream_name(prefix) {
        true => Ok(prefix.to_owned()),
        false => Err(value::bad_upstream_name(prefix)),
    }
}

/// Reads one table. Returns the exported resources, and the upstream; no upstream if the table has
/// no source.
fn upstream(
    name: &str,
    prefix: &str,
    t: &TableReader<'_>,
    (inherited, (guard, lock)): (&UpstreamDefaults, (&guard::GuardConfig, &Path)),
    context: &LoadContext<'_>,
    used: bool,
) -> (Patterns, Option<UpstreamConfig>) {
    let source = source(t, context, used);
    let is_library = matches!(source, Some(SourceConfig::Library { .. }));
    let defaults = read_defaults(
        t,
        inherited,
        if is_library { TableOwner::Library } else { TableOwner::Server },
    );
    let lazy = defaults.lazy && !is_library;
    let [prompts, tools, resources] = ["prompts", "tools", "resources"]
        .map(|kind| t.table(kind, |t| read_patterns(t, Patterns::everything(), pattern)));
    let rename = renames(t);
    let required = t.read("required", value::boolean).unwrap_or(false);
    if required && lazy {
        let what =
            "this upstream is lazy, and Weir cannot know whether a stopped server would start";
        let remedy = "remove required, or set lazy = false here";
        t.error("required", ValueError::new(what, remedy));
    }
    let guard = t.table("guard", |t| guard::read_guard(t, guard));
    if used {
        guard::warn_of_unapproved(t, guard.pinning, name, lock, context.on_disk);
    }
    if let Some(SourceConfig::Http { transport: Some(HttpTransport::Sse), .. }) = &source
        && defaults.era == EraChoice::Modern
    {
        let what = "era is \"modern\", and modern servers have no HTTP+SSE";
        t.error("transport", ValueError::new(what, "remove it, or set era = \"legacy\""));
    }
    let upstream = source.map(|source| UpstreamConfig {
        name: name.to_owned(),
        prefix: prefix.to_owned(),
        era: defaults.era,
        sharing: defaults.sharing,
        timeouts: Timeouts { idle: defaults.timeouts.idle.filter(|_| lazy), ..defaults.timeouts },
        retry: defaults.retry,
        required,
        lazy,
        breaker: defaults.breaker,
        on_down: defaults.on_down(),
        guard: guard.rules,
        pinning: guard.pinning,
        limits: defaults.limits(matches!(source, SourceConfig::Http { .. })),
        source,
        prompts,
        tools,
        resources: resources.clone(),
        rename,
    });
    (resources, upstream)
}

// === Source ===

/// Reads the one of three keys that names the source, and the keys that belong to it.
fn source(t: &TableReader<'_>, context: &LoadContext<'_>, used: bool) -> Option<SourceConfig> {
    let dir = folder(t, "prompts_dir", context.on_disk && used);
    let command = t.read("command", value::text);
    let args = t.list("args", value::text_or_empty).unwrap_or_default();
    let env = env(t, &context.resolver, used);
    let pass_env =
        t.list("pass_env", |v| variable(value::string(v)?, v.span())).unwrap_or_default();
    let cwd = folder(t, "cwd", context.on_disk && used);
    let url = t.read("url", |v| value::url(v).inspect_err(|_| t.redact("url")));
    let headers = headers::read_headers(t, &context.resolver, used);
    let transport = t.read("transport", value::choice(&TRANSPORTS)).unwrap_or(None);
    for key in ["env", "headers", "auth"] {
        t.redact_unless_table(key);
    }

    let written: Vec<_> =
        ["prompts_dir", "command", "url"].into_iter().filter(|key| t.has(key)).collect();
    let [kind] = written[..] else {
        match written[..] {
            [first, second, ..] => t.error(
                second,
                ValueError::new(
                    format!("{first} says already where this upstream is"),
                    "keep one of the two: each is a different upstream",
                ),
            ),
            _ => t.table_error(ValueError::new(
                "nothing says where this upstream is",
                "write exactly one of prompts_dir, command, url",
            )),
        }
        return None;
    };
    let owners = [
        ("args", "command"),
        ("env", "command"),
        ("pass_env", "command"),
        ("cwd", "command"),
        ("headers", "url"),
        ("auth", "url"),
        ("transport", "url"),
    ];
    for (key, owner) in owners.into_iter().filter(|(key, owner)| t.has(key) && kind != *owner) {
        t.error(key, ValueError::new(format!("goes with {owner}, not with {kind}"), "remove it"));
    }
    match kind {
        "prompts_dir" => dir.map(|dir| SourceConfig::Library { dir }),
        "command" => {
            let shown = t.source_text("command");
            command.map(|command| SourceConfig::Process {
                command,
                shown,
                args,
                env,
                pass_env,
                cwd,
            })
        }
        _ => url.map(|url| SourceConfig::Http { url, headers, transport }),
    }
}

/// Reads the path of a folder; a relative one starts from the folder of its file. A missing folder
/// is a warning, because it may be mounted or made later, and the other upstreams are served until
/// then.
fn folder<'a>(t: &TableReader<'a>, key: &'a str, must_be: bool) -> Option<PathBuf> {
    let text = t.read(key, value::text)?;
    let folder = t.base_folder(key).join(&text);
    // The path with the dot exists only if the folder may be entered.
    match std::fs::metadata(folder.join(".")) {
        Ok(_) => {}
        Err(error) if must_be && error.kind() == std::io::ErrorKind::PermissionDenied => {
            let what = format!("the folder {} may not be entered", t.source_text(key));
            t.warning(key, ValueError::new(what, "check its permissions"));
        }
        Err(_) if must_be => {
            let what = format!("there is no folder {}", t.source_text(key));
            // Only shells expand `~`.
            let remedy = match text.starts_with("~/") {
                true => "write ${HOME}/ for ~/, which means nothing here",
                false => "make it, or correct the path: it starts from the folder of this file",
            };
            t.warning(key, ValueError::new(what, remedy));
        }
        Err(_) => {}
    }
    Some(folder)
}

/// Reads the environment variables to set.
fn env<'a>(
    t: &TableReader<'a>,
    resolver: &SecretResolver<'_>,
    used: bool,
) -> Vec<(String, Secret)> {
    t.table("env", |t| {
        let read = |name: SpannedName<'a>| {
            let value = secrets::read_secret(t, name.get_ref(), resolver, used);
            match variable(name.get_ref(), name.span()) {
                Ok(name) => Some((name, value?)),
                Err(error) => {
                    t.error(name.get_ref(), error);
                    None
                }
            }
        };
        t.keys().into_iter().filter_map(read).collect()
    })
}

fn variable(name: &str, place: Span) -> Parsed<String> {
    match name.is_empty() || name.contains(['=', '\0']) {
        true => {
            Err(ValueError::new("this cannot name a variable", "write a name like HTTPS_PROXY")
                .at(place))
        }
        false => Ok(name.to_owned()),
    }
}

// === Exports ===

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

fn renames(t: &TableReader<'_>) -> Vec<(RenameKind, String, String)> {
    let renames = t.map("rename", |name, v| {
        let (kind, old) = name.get_ref().split_once('/').unwrap_or_default();
        let kind = match kind {
            "prompts" if !old.is_empty() => RenameKind::Prompt,
            "tools" if !old.is_empty() => RenameKind::Tool,
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

/// Transports to a server on the network; `None` means that the transport is detected.
pub(super) const TRANSPORTS: [(&str, Option<HttpTransport>); 3] =
    [("auto", None), ("http", Some(HttpTransport::Http)), ("sse", Some(HttpTransport::Sse))];
