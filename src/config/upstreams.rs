//! `[upstreams.<name>]`: where an upstream is, how it is called, and what leaves it.
//!
//! Knows nothing of: what it inherits, which is told in `tuning.rs`.

use std::fmt;
use std::path::{Path, PathBuf};

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};

use super::secrets::{self, Vault};
use super::upstream_defaults::{EraChoice, Of, SharingChoice, Tuning, tuning};
use super::{Patterns, Surroundings, guard, headers};
use crate::config::reader::report::{Complaint, Span};
use crate::config::reader::table_reader::{Name, Parsed, Table, Value};
use crate::config::reader::value;
use crate::guard::Rules;
use crate::pins::Mode;
use crate::secret::Secret;
use crate::upstream::health::breaker::Settings as Breaker;
use crate::upstream::{Limits, OnDown, Retry, Timeouts, Transport};

/// One upstream, with what it inherits.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// The name of its table: policy, logs and lists go by it. Unique.
    pub name: String,
    /// What clients see before its items' names. Unique.
    pub prefix: String,
    /// Where it is.
    pub source: Source,
    /// Which era it speaks.
    pub era: EraChoice,
    /// Which clients share a connection.
    pub sharing: SharingChoice,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// When to try again.
    pub retry: Retry,
    /// When it is left alone for a while.
    pub breaker: Breaker,
    /// What becomes of its lists while it is not connected.
    pub on_down: OnDown,
    /// How much it may send and how many calls it gets at a time.
    pub limits: Limits,
    /// Whether Weir is not ready while it is not up.
    pub required: bool,
    /// Whether it is started when it is first used.
    pub lazy: bool,
    /// What goes in and comes out.
    pub guard: Rules,
    /// What happens when it changes a definition.
    pub pinning: Mode,
    /// The prompts that leave this upstream at all, by original name.
    pub prompts: Patterns,
    /// The tools that leave this upstream at all, by original name.
    pub tools: Patterns,
    /// The resources and templates that leave this upstream at all, by URI.
    pub resources: Patterns,
    /// Kind, original name and new name of renamed items.
    pub rename: Vec<(RenameKind, String, String)>,
}

/// Where an upstream is.
#[derive(Clone, PartialEq)]
pub enum Source {
    /// The built-in prompt library.
    Library {
        /// The folder of Markdown files.
        dir: PathBuf,
    },
    /// A child process that speaks over stdio.
    Process {
        /// The program, looked up in `PATH` if it has no slash.
        command: String,
        /// How the program stands in the file: what came out of a variable may be a secret.
        shown: String,
        /// Its arguments.
        args: Vec<String>,
        /// Variables to set.
        env: Vec<(String, Secret)>,
        /// Variables to hand on from our own environment, beside the few that every child gets.
        pass_env: Vec<String>,
        /// Its working directory, if not ours.
        cwd: Option<PathBuf>,
    },
    /// A server on the network.
    Http {
        /// Its endpoint: `http` or `https`, with a host, without credentials.
        url: Uri,
        /// Headers to add to every request; the values are marked sensitive.
        headers: Vec<(HeaderName, HeaderValue)>,
        /// How it is spoken to; found out by asking if there is none.
        transport: Option<Transport>,
    },
}

/// Without what often is a secret, though not written as one: arguments, and the query of a URL.
impl fmt::Debug for Source {
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

/// The kinds whose items can be renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameKind {
    /// `prompts/…`
    Prompt,
    /// `tools/…`
    Tool,
}

/// What the file says of an upstream, whether it is used or not: enough to tell what it is needed for.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// The name of its table.
    pub name: String,
    /// Whether it is switched on.
    pub enabled: bool,
    /// What its items' names begin with; none if that depends on a variable that is not set.
    pub prefix: Option<String>,
    /// The resources that may leave it; none if that depends on a variable that is not set.
    pub resources: Option<Patterns>,
}

// === Tables ===

/// All upstream tables of a file.
pub(super) struct Upstreams {
    /// Those that are used.
    pub(super) list: Vec<Upstream>,
    /// All of them.
    pub(super) outlines: Vec<Outline>,
    /// The names of all tables: policy may name an upstream that is switched off.
    pub(super) names: Vec<String>,
    /// How many are enabled, sound or not.
    pub(super) enabled: usize,
}

pub(super) fn read(
    root: &Table<'_>,
    surroundings: &Surroundings<'_>,
    guard: (&guard::Guard, &Path),
) -> Upstreams {
    let inherited = root.table("defaults", |t| tuning(t, &Tuning::default(), Of::All));
    let mut result =
        Upstreams { list: Vec::new(), outlines: Vec::new(), names: Vec::new(), enabled: 0 };
    let mut prefixes: Vec<(String, String)> = Vec::new();
    root.tables("upstreams", |name, t| {
        let name = name.get_ref().as_ref();
        result.names.push(name.to_owned());
        if !value::is_upstream_name(name) {
            t.object_to_all(value::bad_upstream_name(name));
        }
        let prefix = t.read("prefix", prefix).unwrap_or_else(|| name.to_owned());
        let enabled = t.read("enabled", value::boolean).unwrap_or(true);
        t.keep_place("enabled");
        let used = enabled && surroundings.only.is_none_or(|only| only.iter().any(|it| it == name));
        if !used {
            t.excuse();
        }
        let inherited = (&inherited, guard);
        let (resources, upstream) = upstream(name, &prefix, t, inherited, surroundings, used);
        result.outlines.push(Outline {
            name: name.to_owned(),
            enabled,
            prefix: t.is_known("prefix").then(|| prefix.clone()),
            resources: t.is_known("resources").then(|| match t.has("prompts_dir") {
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
            t.object("prefix", Complaint::new(what, "give one of the two another prefix"));
        }
        prefixes.push((prefix, name.to_owned()));
        result.list.extend(upstream.filter(|_| used));
    });
    let none_is_written = root
        .written("upstreams")
        .is_none_or(|v| v.get_ref().as_table().is_some_and(|tables| tables.is_empty()));
    if none_is_written {
        let remedy = "add at least one [upstreams.<name>] table with prompts_dir, command or url";
        root.object("upstreams", Complaint::new("there is nothing to serve", remedy));
    } else if result.enabled == 0 && !result.names.is_empty() {
        root.warn(
            "upstreams",
            Complaint::new("every upstream is disabled", "remove enabled = false from one"),
        );
    }
    result
}

fn prefix(v: &Value<'_>) -> Parsed<String> {
    let prefix = value::string(v)?;
    match value::is_upstream_name(prefix) {
        true => Ok(prefix.to_owned()),
        false => Err(value::bad_upstream_name(prefix)),
    }
}

/// Reads one table. Returns the resources that may leave, and the upstream; none if the table does not say
/// where it is.
fn upstream(
    name: &str,
    prefix: &str,
    t: &Table<'_>,
    (inherited, (guard, lock)): (&Tuning, (&guard::Guard, &Path)),
    surroundings: &Surroundings<'_>,
    used: bool,
) -> (Patterns, Option<Upstream>) {
    let source = source(t, surroundings, used);
    let is_library = matches!(source, Some(Source::Library { .. }));
    let tuning = tuning(t, inherited, if is_library { Of::Library } else { Of::Server });
    let lazy = tuning.lazy && !is_library;
    let [prompts, tools, resources] = ["prompts", "tools", "resources"]
        .map(|kind| t.table(kind, |t| patterns(t, Patterns::everything(), pattern)));
    let rename = renames(t);
    let required = t.read("required", value::boolean).unwrap_or(false);
    if required && lazy {
        let what =
            "this upstream is lazy, and nobody knows of one that sleeps whether it can be up";
        let remedy = "remove required, or set lazy = false here";
        t.object("required", Complaint::new(what, remedy));
    }
    let guard = t.table("guard", |t| guard::guard(t, guard));
    if used {
        guard::warn_of_nothing(t, guard.pinning, name, lock, surroundings.on_disk);
    }
    if let Some(Source::Http { transport: Some(Transport::Sse), .. }) = &source
        && tuning.era == EraChoice::Modern
    {
        let what = "era is \"modern\", and modern servers have no HTTP+SSE";
        t.object("transport", Complaint::new(what, "remove it, or set era = \"legacy\""));
    }
    let upstream = source.map(|source| Upstream {
        name: name.to_owned(),
        prefix: prefix.to_owned(),
        era: tuning.era,
        sharing: tuning.sharing,
        timeouts: Timeouts { idle: tuning.timeouts.idle.filter(|_| lazy), ..tuning.timeouts },
        retry: tuning.retry,
        required,
        lazy,
        breaker: tuning.breaker,
        on_down: tuning.on_down(),
        guard: guard.rules,
        pinning: guard.pinning,
        limits: tuning.limits(matches!(source, Source::Http { .. })),
        source,
        prompts,
        tools,
        resources: resources.clone(),
        rename,
    });
    (resources, upstream)
}

// === Where it is ===

/// Reads the one of three keys that says where the upstream is, and the keys that go with it.
fn source(t: &Table<'_>, surroundings: &Surroundings<'_>, used: bool) -> Option<Source> {
    let dir = folder(t, "prompts_dir", surroundings.on_disk && used);
    let command = t.read("command", value::text);
    let args = t.list("args", value::text_or_empty).unwrap_or_default();
    let env = env(t, &surroundings.vault, used);
    let pass_env =
        t.list("pass_env", |v| variable(value::string(v)?, v.span())).unwrap_or_default();
    let cwd = folder(t, "cwd", surroundings.on_disk && used);
    let url = t.read("url", |v| value::url(v).inspect_err(|_| t.hide("url")));
    let headers = headers::headers(t, &surroundings.vault, used);
    let transport = t.read("transport", value::choice(&TRANSPORTS)).unwrap_or(None);
    for key in ["env", "headers", "auth"] {
        t.hide_unless_table(key);
    }

    let written: Vec<_> =
        ["prompts_dir", "command", "url"].into_iter().filter(|key| t.has(key)).collect();
    let [kind] = written[..] else {
        match written[..] {
            [first, second, ..] => t.object(
                second,
                Complaint::new(
                    format!("{first} says already where this upstream is"),
                    "keep one of the two: each is a different upstream",
                ),
            ),
            _ => t.object_to_all(Complaint::new(
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
        t.object(key, Complaint::new(format!("goes with {owner}, not with {kind}"), "remove it"));
    }
    match kind {
        "prompts_dir" => dir.map(|dir| Source::Library { dir }),
        "command" => {
            let shown = t.quote("command");
            command.map(|command| Source::Process { command, shown, args, env, pass_env, cwd })
        }
        _ => url.map(|url| Source::Http { url, headers, transport }),
    }
}

/// Reads a folder; a relative one starts from the folder of its file. A missing one is a warning: it may be
/// mounted or made later, and until then the other upstreams are served.
fn folder<'a>(t: &Table<'a>, key: &'a str, must_be: bool) -> Option<PathBuf> {
    let text = t.read(key, value::text)?;
    let folder = t.folder(key).join(&text);
    // Behind the dot is what may be entered only.
    match std::fs::metadata(folder.join(".")) {
        Ok(_) => {}
        Err(error) if must_be && error.kind() == std::io::ErrorKind::PermissionDenied => {
            let what = format!("the folder {} may not be entered", t.quote(key));
            t.warn(key, Complaint::new(what, "check its permissions"));
        }
        Err(_) if must_be => {
            let what = format!("there is no folder {}", t.quote(key));
            // Shells expand it, nobody else does.
            let remedy = match text.starts_with("~/") {
                true => "write ${HOME}/ for ~/, which means nothing here",
                false => "make it, or correct the path: it starts from the folder of this file",
            };
            t.warn(key, Complaint::new(what, remedy));
        }
        Err(_) => {}
    }
    Some(folder)
}

/// Reads the variables to set.
fn env<'a>(t: &Table<'a>, vault: &Vault<'_>, used: bool) -> Vec<(String, Secret)> {
    t.table("env", |t| {
        let read = |name: Name<'a>| {
            let value = secrets::secret(t, name.get_ref(), vault, used);
            match variable(name.get_ref(), name.span()) {
                Ok(name) => Some((name, value?)),
                Err(complaint) => {
                    t.object(name.get_ref(), complaint);
                    None
                }
            }
        };
        t.names().into_iter().filter_map(read).collect()
    })
}

fn variable(name: &str, place: Span) -> Parsed<String> {
    match name.is_empty() || name.contains(['=', '\0']) {
        true => Err(Complaint::new("this cannot name a variable", "write a name like HTTPS_PROXY")
            .at(place)),
        false => Ok(name.to_owned()),
    }
}

// === What leaves it ===

/// Reads `allow` and `deny`, and keeps where each pattern stands; what is not written is as in `default`.
pub(super) fn patterns(
    t: &Table<'_>,
    default: Patterns,
    pattern: impl Fn(&Value<'_>) -> Parsed<String>,
) -> Patterns {
    Patterns {
        allow: t.list_with_places("allow", &pattern).unwrap_or(default.allow),
        deny: t.list_with_places("deny", &pattern).unwrap_or(default.deny),
    }
}

/// A pattern over the names of one upstream.
fn pattern(v: &Value<'_>) -> Parsed<String> {
    match value::string(v)? {
        "" => Err(Complaint::new(
            "an empty pattern matches nothing",
            "write \"*\" for everything, or remove it",
        )),
        pattern => Ok(pattern.to_owned()),
    }
}

fn renames(t: &Table<'_>) -> Vec<(RenameKind, String, String)> {
    let renames = t.map("rename", |name, v| {
        let (kind, old) = name.get_ref().split_once('/').unwrap_or_default();
        let kind = match kind {
            "prompts" if !old.is_empty() => RenameKind::Prompt,
            "tools" if !old.is_empty() => RenameKind::Tool,
            _ => {
                let remedy = "write it like \"prompts/old\" or \"tools/old\"";
                return Err(
                    Complaint::new("this does not name a prompt or a tool", remedy).at(name.span())
                );
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
            let complaint = Complaint::new("two items get this name", "give one of them another");
            t.object("rename", complaint.at(place.clone()));
        }
    }
    renames.into_iter().map(|(rename, _)| rename).collect()
}

/// How a server on the network is spoken to; found out by asking if there is none.
pub(super) const TRANSPORTS: [(&str, Option<Transport>); 3] =
    [("auto", None), ("http", Some(Transport::Http)), ("sse", Some(Transport::Sse))];
