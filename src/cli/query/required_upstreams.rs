//! Selection of the upstreams that a command needs; no other is started, and no other secrets are
//! fetched.
//!
//! Invariant: an upstream that is left out could not have responded. A public name begins with the
//! prefix of its upstream, even if it was shortened or renamed; an upstream exports a URI only if
//! its own rules allow it. If that depends on a variable that is not set, the upstream is selected.
//!
//! Does not know about the policy: it hides items, not upstreams.

use std::fmt;

use crate::app;
use crate::cli::exit::Failure;
use weir_config::{Config, UpstreamSummary, nearest};
use weir_mcp::kind::Kind;

/// Upstreams that a command needs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum UpstreamSelection<'a> {
    /// Upstreams with these names; all of them if the list is empty.
    Named(&'a [String]),
    /// Upstreams that may own an item with this public name or URI; or the upstream that a name
    /// such as `notes/add`, as in rules, begins with.
    OwnersOf(Kind, &'a str),
    /// Upstreams of everything that a name may mean, for `weir explain`.
    Matching(Option<Kind>, &'a str),
}

impl UpstreamSelection<'_> {
    /// Returns whether every upstream is needed, independent of the file.
    pub(crate) fn is_all(&self) -> bool {
        matches!(self, Self::Named([]))
    }
}

/// Returns the names of the selected upstreams.
pub(crate) fn resolve(
    config: &Config,
    selection: UpstreamSelection<'_>,
) -> Result<Vec<String>, Failure> {
    let all_enabled = || enabled(config).map(|upstream| upstream.name.clone()).collect();
    match selection {
        UpstreamSelection::Named([]) => Ok(all_enabled()),
        UpstreamSelection::Named(names) => check_names(config, names),
        UpstreamSelection::OwnersOf(kind, name) if kind.has_name() => owners(config, &kind, name),
        UpstreamSelection::OwnersOf(kind, uri) => exporters(config, kind, uri),
        UpstreamSelection::Matching(kind, name) => {
            let meant = NameMeaning::classify(config, kind, name);
            match (meant.upstream, meant.is_uri) {
                // The report is that the upstream is disabled.
                (Some(off), _) if !off.enabled => Ok(Vec::new()),
                // An upstream whose rules do not export a URI may still list it, and so may
                // another.
                (_, true) => Ok(all_enabled()),
                (Some(it), false) => Ok(vec![it.name.clone()]),
                (None, false) => match (owners(config, &"item", name), name.split_once('/')) {
                    (Err(Failure::Usage(_)), Some((upstream, _))) => {
                        check_names(config, &[upstream.to_owned()])
                    }
                    (owners, _) => owners,
                },
            }
        }
    }
}

/// Meaning of a name, according to the file.
pub(crate) struct NameMeaning<'c, 'n> {
    /// Upstream that the name begins with, or is.
    pub(crate) upstream: Option<&'c UpstreamSummary>,
    /// Own name or URI of an item at that upstream.
    pub(crate) own: Option<&'n str>,
    /// It is a URI or a URI template, not a name.
    pub(crate) is_uri: bool,
}

impl<'c, 'n> NameMeaning<'c, 'n> {
    /// Classifies a name of this kind, or of any kind. An upstream's name contains no `_` and no
    /// `:`, so text that begins with such a name and a `/` is neither a public name nor a URI.
    pub(crate) fn classify(config: &'c Config, kind: Option<Kind>, name: &'n str) -> Self {
        let table = |name: &str| config.summaries.iter().find(|upstream| upstream.name == name);
        if let Some(upstream) = table(name).filter(|_| kind.is_none()) {
            return Self { upstream: Some(upstream), own: None, is_uri: false };
        }
        let is_scheme_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        let has_scheme = |text: &str| {
            text.split_once(':').is_some_and(|(scheme, _)| scheme.chars().all(is_scheme_char))
        };
        let is_uri = |text: &str| kind.map_or(has_scheme(text), |kind| !kind.has_name());
        let own = name.split_once('/').and_then(|(upstream, own)| Some((table(upstream)?, own)));
        let (upstream, own) = own.unzip();
        Self { upstream, own, is_uri: is_uri(own.unwrap_or(name)) }
    }
}

fn check_names(config: &Config, names: &[String]) -> Result<Vec<String>, Failure> {
    for name in names {
        match config.summaries.iter().find(|upstream| upstream.name == *name) {
            Some(upstream) if upstream.enabled => {}
            Some(off) => return Err(disabled_upstream(&off.name)),
            None => {
                return Err(no_upstream(config, name));
            }
        }
    }
    Ok(names.to_vec())
}

fn owners(config: &Config, what: &dyn fmt::Display, name: &str) -> Result<Vec<String>, Failure> {
    let naming = app::naming(&config.naming);
    let may_own = |upstream: &&UpstreamSummary| match upstream.prefix.as_deref().map(str::parse) {
        Some(Ok(prefix)) => naming.may_belong(&prefix, name),
        Some(Err(_)) => false,
        None => true,
    };
    let owners: Vec<_> = enabled(config).filter(may_own).map(|it| it.name.clone()).collect();
    if !owners.is_empty() {
        return Ok(owners);
    }
    let named =
        |(upstream, _): (&str, &str)| config.summaries.iter().find(|it| it.name == upstream);
    match name.split_once('/').and_then(named) {
        Some(it) if it.enabled => return Ok(vec![it.name.clone()]),
        Some(off) => return Err(disabled_upstream(&off.name)),
        None => {}
    }
    if let Some(off) = config.summaries.iter().filter(|it| !it.enabled).find(may_own) {
        return Err(disabled_upstream(&off.name));
    }
    let known = describe_upstreams(config);
    if let Some((upstream, _)) = name.split_once('/') {
        return Err(no_upstream(config, upstream));
    }
    let separator = &config.naming.separator;
    let mut prefixes = enabled(config).filter_map(|upstream| upstream.prefix.as_deref());
    let Some((prefix, own)) = name.split_once(separator) else {
        return Err(Failure::Usage(format!(
            "no {what} `{name}`: names begin with the prefix of their upstream, as in \
             `{}{separator}{name}`; {known}",
            prefixes.next().unwrap_or("upstream")
        )));
    };
    // The user may have typed the name of the upstream's table instead of its prefix.
    let named = enabled(config).find(|upstream| upstream.name == prefix);
    let near = named.and_then(|it| it.prefix.as_deref()).or_else(|| nearest(prefix, prefixes));
    let hint = near.map(|near| format!("did you mean `{near}{separator}{own}`? "));
    Err(Failure::Usage(format!("no {what} `{name}`; {}{known}", hint.unwrap_or_default())))
}

fn exporters(config: &Config, kind: Kind, uri: &str) -> Result<Vec<String>, Failure> {
    let exports = |upstream: &&UpstreamSummary| {
        upstream.resources.as_ref().is_none_or(|patterns| patterns.allow(uri))
    };
    let exporters: Vec<_> = enabled(config).filter(exports).map(|it| it.name.clone()).collect();
    if !exporters.is_empty() {
        return Ok(exporters);
    }
    Err(Failure::Usage(format!(
        "no {kind} `{uri}`: no upstream exports it under its `resources` rules; {}",
        describe_upstreams(config)
    )))
}

fn enabled(config: &Config) -> impl Iterator<Item = &UpstreamSummary> {
    config.summaries.iter().filter(|upstream| upstream.enabled)
}

fn no_upstream(config: &Config, name: &str) -> Failure {
    let near = nearest(name, enabled(config).map(|upstream| upstream.name.as_str()));
    let hint = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
    let known = describe_upstreams(config);
    Failure::Usage(format!("no upstream `{name}`; {hint}{known}"))
}

fn disabled_upstream(name: &str) -> Failure {
    Failure::Unreachable(format!("upstream `{name}` is disabled: its table has `enabled = false`"))
}

/// Text that lists the upstreams.
fn describe_upstreams(config: &Config) -> String {
    let on = enabled(config).map(|upstream| match &upstream.prefix {
        Some(prefix) if *prefix != upstream.name => format!("{} (prefix {prefix})", upstream.name),
        _ => upstream.name.clone(),
    });
    let off = config.summaries.iter().filter(|upstream| !upstream.enabled);
    let off = off.map(|off| format!("{} (disabled)", off.name));
    format!("upstreams: {}", on.chain(off).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::cli::query::required_upstreams::*;
    use weir_config::Options;

    const FILE: &str = r#"
        [naming]
        separator = "_-"
        [upstreams.notes]
        command = "notes"
        prefix = "n"
        resources.deny = ["secret:*"]
        rename = { "tools/old" = "new" }
        [upstreams.shop]
        url = "http://127.0.0.1:1/mcp"
        resources.allow = ["product:*"]
        [upstreams.library]
        prompts_dir = "prompts"
        [upstreams.attic]
        command = "attic"
        enabled = false
    "#;

    fn check(file: &str, selection: UpstreamSelection<'_>) -> String {
        let options = Options { only: Some(Vec::new()), ..Options::default() };
        let config = Config::parse(file, Path::new("weir.toml"), &options);
        match resolve(&config.unwrap_or_else(|report| panic!("{report}")), selection) {
            Err(failure) => failure.to_string(),
            Ok(names) => names.join(" "),
        }
    }

    #[test]
    fn a_name_needs_the_upstream_of_its_prefix() {
        let tool = |name: &str| check(FILE, UpstreamSelection::OwnersOf(Kind::Tool, name));
        let known = "upstreams: notes (prefix n), shop, library, attic (disabled)";
        assert_eq!(tool("n_-new"), "notes");
        assert_eq!(tool("n_-0123abcd_tail"), "notes");
        assert_eq!(tool("shop_-n_-new"), "shop");
        assert_eq!(tool("notes/old"), "notes");
        assert_eq!(
            tool("attic/x"),
            "upstream `attic` is disabled: its table has `enabled = false`"
        );
        assert_eq!(
            tool("attic_-x"),
            "upstream `attic` is disabled: its table has `enabled = false`"
        );
        assert_eq!(tool("shpo_-x"), format!("no tool `shpo_-x`; did you mean `shop_-x`? {known}"));
        assert_eq!(tool("elsewhere_-x"), format!("no tool `elsewhere_-x`; {known}"));
        assert_eq!(
            tool("shop__x"),
            format!(
                "no tool `shop__x`: names begin with the prefix of their upstream, as in `n_-shop__x`; {known}"
            )
        );
    }

    #[test]
    fn without_prefixes_the_only_upstream_is_needed() {
        let file = "[naming]\nmode = \"none\"\n[upstreams.notes]\ncommand = \"notes\"\n";
        assert_eq!(check(file, UpstreamSelection::OwnersOf(Kind::Prompt, "anything")), "notes");
    }

    #[test]
    fn a_uri_needs_those_that_may_let_it_out() {
        for (uri, expected) in
            [("product:///1", "notes shop"), ("note:///1", "notes"), ("file:///x", "notes")]
        {
            assert_eq!(check(FILE, UpstreamSelection::OwnersOf(Kind::Resource, uri)), expected);
            assert_eq!(check(FILE, UpstreamSelection::OwnersOf(Kind::Template, uri)), expected);
        }
        let none = check(FILE, UpstreamSelection::OwnersOf(Kind::Resource, "secret:///1"));
        assert!(none.starts_with("no resource `secret:///1`: no upstream exports it"), "{none}");
    }

    #[test]
    fn who_cannot_be_told_from_the_owner_is_needed() {
        let file = "[upstreams.a]\ncommand = \"${GONE}\"\nresources.allow = [\"a:*\"]\n\
                    [upstreams.b]\ncommand = \"b\"\nprefix = \"${GONE}\"\n\
                    resources.deny = [\"${GONE}\"]\n";
        assert_eq!(check(file, UpstreamSelection::OwnersOf(Kind::Tool, "a__x")), "a b");
        assert_eq!(check(file, UpstreamSelection::OwnersOf(Kind::Tool, "c__x")), "b");
        assert_eq!(check(file, UpstreamSelection::OwnersOf(Kind::Resource, "a:1")), "a b");
        assert_eq!(check(file, UpstreamSelection::OwnersOf(Kind::Resource, "c:1")), "b");
    }

    #[test]
    fn what_is_to_be_explained_needs_whoever_may_be_meant() {
        let meant =
            |kind: Option<Kind>, name: &str| check(FILE, UpstreamSelection::Matching(kind, name));
        assert_eq!(meant(None, "notes"), "notes");
        assert_eq!(meant(None, "shop/look"), "shop");
        assert_eq!(meant(None, "shop/product:///1"), "notes shop library");
        assert_eq!(meant(None, "n_-new"), "notes");
        // An upstream that does not export it may be the one that has it.
        assert_eq!(meant(None, "secret:///1"), "notes shop library");
        assert_eq!(meant(Some(Kind::Resource), "x"), "notes shop library");
        // It is reported, not started.
        assert_eq!((meant(None, "attic"), meant(None, "attic/x")), (String::new(), String::new()));
        let known = "upstreams: notes (prefix n), shop, library, attic (disabled)";
        assert_eq!(
            meant(None, "shpo/x"),
            format!("no upstream `shpo`; did you mean `shop`? {known}")
        );
        assert_eq!(
            meant(None, "shpo_-x"),
            format!("no item `shpo_-x`; did you mean `shop_-x`? {known}")
        );
        assert_eq!(
            meant(Some(Kind::Tool), "notes"),
            format!(
                "no item `notes`: names begin with the prefix of their upstream, as in `n_-notes`; {known}"
            )
        );
    }

    #[test]
    fn upstreams_can_be_named() {
        let of = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            check(FILE, UpstreamSelection::Named(&names))
        };
        assert_eq!(of(&[]), "notes shop library");
        assert_eq!(of(&["library", "notes"]), "library notes");
        assert!(of(&["attic"]).contains("is disabled"));
        assert!(of(&["note"]).starts_with("no upstream `note`; did you mean `notes`?"));
    }
}
