//! Which upstreams a command needs: no other is started, waited for or heard of, and nobody asks for its
//! secrets.
//!
//! Promise: an upstream that is left out could not have answered. A public name begins with the prefix
//! of its upstream, however it was shortened or renamed; a URI leaves its upstream only if the
//! upstream's own rules let it out. Where that depends on a variable that is not set, it is needed, and told.
//!
//! Knows nothing of: policy, which hides items and no upstreams.

use std::fmt;

use crate::app;
use crate::cli::exit::Failure;
use crate::config::{Config, Outline, nearest};
use crate::mcp::kind::Kind;

/// What a command asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted<'a> {
    /// What the upstreams of these names have; of all, where none is named.
    Of(&'a [String]),
    /// One item, by public name or URI.
    Item(Kind, &'a str),
    /// Whatever a name may mean, for whoever asks why it is seen or not.
    Meant(Option<Kind>, &'a str),
}

impl Wanted<'_> {
    /// Whether every upstream is needed, whatever the file says.
    pub(crate) fn is_all(&self) -> bool {
        matches!(self, Self::Of([]))
    }
}

/// Tells which upstreams are needed, by what the file says of each.
pub(crate) fn needed(config: &Config, wanted: Wanted<'_>) -> Result<Vec<String>, Failure> {
    match wanted {
        Wanted::Of([]) => Ok(enabled(config).map(|upstream| upstream.name.clone()).collect()),
        Wanted::Of(names) => named(config, names),
        Wanted::Item(kind, name) if kind.has_name() => owners(config, &kind, name),
        Wanted::Item(kind, uri) => outlets(config, kind, uri),
        Wanted::Meant(kind, name) => match Meant::of(config, kind, name) {
            // That one is switched off is what is to be told.
            Meant::Upstream(it) | Meant::Own(it, _) | Meant::OwnUri(it, _) if !it.enabled => {
                Ok(Vec::new())
            }
            Meant::Upstream(it) | Meant::Own(it, _) => Ok(vec![it.name.clone()]),
            // Whose rules keep a URI in may be the one that lists it, and another may have it, too.
            Meant::OwnUri(..) | Meant::Uri => {
                Ok(enabled(config).map(|upstream| upstream.name.clone()).collect())
            }
            Meant::Public => match (owners(config, &"item", name), name.split_once('/')) {
                (Err(Failure::Usage(_)), Some((upstream, _))) => {
                    named(config, &[upstream.to_owned()])
                }
                (owners, _) => owners,
            },
        },
    }
}

/// What a name can mean, by what the file says.
pub(crate) enum Meant<'c, 'n> {
    /// An upstream.
    Upstream(&'c Outline),
    /// What an upstream itself calls so.
    Own(&'c Outline, &'n str),
    /// A URI, or a template, at this upstream.
    OwnUri(&'c Outline, &'n str),
    /// A URI, or a template of URIs.
    Uri,
    /// What clients call a prompt or a tool.
    Public,
}

impl<'c, 'n> Meant<'c, 'n> {
    /// Judges a name of this kind, or of any. An upstream's name has no `_` and no `:` in it, so that what begins
    /// with one and a `/` is no public name and no URI.
    pub(crate) fn of(config: &'c Config, kind: Option<Kind>, name: &'n str) -> Self {
        let table = |name: &str| config.outlines.iter().find(|upstream| upstream.name == name);
        if let Some(upstream) = table(name).filter(|_| kind.is_none()) {
            return Self::Upstream(upstream);
        }
        let is_scheme_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        let has_scheme = |text: &str| {
            text.split_once(':').is_some_and(|(scheme, _)| scheme.chars().all(is_scheme_char))
        };
        let is_uri = |text: &str| kind.map_or(has_scheme(text), |kind| !kind.has_name());
        let own = name.split_once('/').and_then(|(upstream, own)| Some((table(upstream)?, own)));
        match own {
            Some((upstream, own)) if is_uri(own) => Self::OwnUri(upstream, own),
            Some((upstream, own)) => Self::Own(upstream, own),
            None if is_uri(name) => Self::Uri,
            None => Self::Public,
        }
    }
}

fn named(config: &Config, names: &[String]) -> Result<Vec<String>, Failure> {
    for name in names {
        match config.outlines.iter().find(|upstream| upstream.name == *name) {
            Some(upstream) if upstream.enabled => {}
            Some(off) => return Err(switched_off(&off.name)),
            None => {
                let near = nearest(name, enabled(config).map(|upstream| upstream.name.as_str()));
                let hint = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
                let there = there_are(config);
                return Err(Failure::Usage(format!("no upstream `{name}`; {hint}{there}")));
            }
        }
    }
    Ok(names.to_vec())
}

fn owners(config: &Config, what: &dyn fmt::Display, name: &str) -> Result<Vec<String>, Failure> {
    let naming = app::naming(&config.naming);
    let may_own = |upstream: &&Outline| match upstream.prefix.as_deref().map(str::parse) {
        Some(Ok(prefix)) => naming.may_belong(&prefix, name),
        Some(Err(_)) => false,
        None => true,
    };
    let owners: Vec<_> = enabled(config).filter(may_own).map(|it| it.name.clone()).collect();
    if !owners.is_empty() {
        return Ok(owners);
    }
    if let Some(off) = config.outlines.iter().filter(|it| !it.enabled).find(may_own) {
        return Err(switched_off(&off.name));
    }
    let separator = &config.naming.separator;
    let there = there_are(config);
    let mut prefixes = enabled(config).filter_map(|upstream| upstream.prefix.as_deref());
    let Some((prefix, own)) = name.split_once(separator) else {
        return Err(Failure::Usage(format!(
            "no {what} `{name}`: names begin with their upstream's, as in \
             `{}{separator}{name}`; {there}",
            prefixes.next().unwrap_or("upstream")
        )));
    };
    // Whoever knows the configuration may type the table's name for the prefix.
    let named = enabled(config).find(|upstream| upstream.name == prefix);
    let near = named.and_then(|it| it.prefix.as_deref()).or_else(|| nearest(prefix, prefixes));
    let hint = near.map(|near| format!("did you mean `{near}{separator}{own}`? "));
    Err(Failure::Usage(format!("no {what} `{name}`; {}{there}", hint.unwrap_or_default())))
}

fn outlets(config: &Config, kind: Kind, uri: &str) -> Result<Vec<String>, Failure> {
    let lets_out = |upstream: &&Outline| {
        upstream.resources.as_ref().is_none_or(|patterns| app::rules(patterns).allow(uri))
    };
    let outlets: Vec<_> = enabled(config).filter(lets_out).map(|it| it.name.clone()).collect();
    if !outlets.is_empty() {
        return Ok(outlets);
    }
    Err(Failure::Usage(format!(
        "no {kind} `{uri}`: no upstream lets it out, as `resources` rules are; {}",
        there_are(config)
    )))
}

fn enabled(config: &Config) -> impl Iterator<Item = &Outline> {
    config.outlines.iter().filter(|upstream| upstream.enabled)
}

fn switched_off(name: &str) -> Failure {
    Failure::Unreachable(format!(
        "upstream `{name}` is switched off: its table says `enabled = false`"
    ))
}

/// What upstreams there are.
fn there_are(config: &Config) -> String {
    let on = enabled(config).map(|upstream| match &upstream.prefix {
        Some(prefix) if *prefix != upstream.name => format!("{} (prefix {prefix})", upstream.name),
        _ => upstream.name.clone(),
    });
    let off = config.outlines.iter().filter(|upstream| !upstream.enabled);
    let off = off.map(|off| format!("{} (switched off)", off.name));
    format!("upstreams: {}", on.chain(off).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::cli::query::required_upstreams::*;
    use crate::config::Options;

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
        [upstreams.house]
        prompts_dir = "prompts"
        [upstreams.attic]
        command = "attic"
        enabled = false
    "#;

    fn check(file: &str, wanted: Wanted<'_>) -> String {
        let options = Options { only: Some(Vec::new()), ..Options::default() };
        let config = Config::parse(file, Path::new("weir.toml"), &options);
        match needed(&config.unwrap_or_else(|report| panic!("{report}")), wanted) {
            Err(failure) => failure.to_string(),
            Ok(names) => names.join(" "),
        }
    }

    #[test]
    fn a_name_needs_the_upstream_of_its_prefix() {
        let tool = |name: &str| check(FILE, Wanted::Item(Kind::Tool, name));
        let there = "upstreams: notes (prefix n), shop, house, attic (switched off)";
        assert_eq!(tool("n_-new"), "notes");
        assert_eq!(tool("n_-0123abcd_tail"), "notes");
        assert_eq!(tool("shop_-n_-new"), "shop");
        assert_eq!(
            tool("attic_-x"),
            "upstream `attic` is switched off: its table says `enabled = false`"
        );
        assert_eq!(tool("shpo_-x"), format!("no tool `shpo_-x`; did you mean `shop_-x`? {there}"));
        assert_eq!(tool("elsewhere_-x"), format!("no tool `elsewhere_-x`; {there}"));
        assert_eq!(
            tool("shop__x"),
            format!(
                "no tool `shop__x`: names begin with their upstream's, as in `n_-shop__x`; {there}"
            )
        );
    }

    #[test]
    fn without_prefixes_the_only_upstream_is_needed() {
        let file = "[naming]\nmode = \"none\"\n[upstreams.notes]\ncommand = \"notes\"\n";
        assert_eq!(check(file, Wanted::Item(Kind::Prompt, "anything")), "notes");
    }

    #[test]
    fn a_uri_needs_those_that_may_let_it_out() {
        for (uri, expected) in
            [("product:///1", "notes shop"), ("note:///1", "notes"), ("file:///x", "notes")]
        {
            assert_eq!(check(FILE, Wanted::Item(Kind::Resource, uri)), expected);
            assert_eq!(check(FILE, Wanted::Item(Kind::Template, uri)), expected);
        }
        let nobody = check(FILE, Wanted::Item(Kind::Resource, "secret:///1"));
        assert!(
            nobody.starts_with("no resource `secret:///1`: no upstream lets it out"),
            "{nobody}"
        );
    }

    #[test]
    fn who_cannot_be_told_from_the_owner_is_needed() {
        let file = "[upstreams.a]\ncommand = \"${GONE}\"\nresources.allow = [\"a:*\"]\n\
                    [upstreams.b]\ncommand = \"b\"\nprefix = \"${GONE}\"\n\
                    resources.deny = [\"${GONE}\"]\n";
        assert_eq!(check(file, Wanted::Item(Kind::Tool, "a__x")), "a b");
        assert_eq!(check(file, Wanted::Item(Kind::Tool, "c__x")), "b");
        assert_eq!(check(file, Wanted::Item(Kind::Resource, "a:1")), "a b");
        assert_eq!(check(file, Wanted::Item(Kind::Resource, "c:1")), "b");
    }

    #[test]
    fn what_is_to_be_explained_needs_whoever_may_be_meant() {
        let meant = |kind: Option<Kind>, name: &str| check(FILE, Wanted::Meant(kind, name));
        assert_eq!(meant(None, "notes"), "notes");
        assert_eq!(meant(None, "shop/look"), "shop");
        assert_eq!(meant(None, "shop/product:///1"), "notes shop house");
        assert_eq!(meant(None, "n_-new"), "notes");
        // One that keeps it in may be the one that has it.
        assert_eq!(meant(None, "secret:///1"), "notes shop house");
        assert_eq!(meant(Some(Kind::Resource), "x"), "notes shop house");
        // It is told of, not started.
        assert_eq!((meant(None, "attic"), meant(None, "attic/x")), (String::new(), String::new()));
        let there = "upstreams: notes (prefix n), shop, house, attic (switched off)";
        assert_eq!(
            meant(None, "shpo/x"),
            format!("no upstream `shpo`; did you mean `shop`? {there}")
        );
        assert_eq!(
            meant(None, "shpo_-x"),
            format!("no item `shpo_-x`; did you mean `shop_-x`? {there}")
        );
        assert_eq!(
            meant(Some(Kind::Tool), "notes"),
            format!(
                "no item `notes`: names begin with their upstream's, as in `n_-notes`; {there}"
            )
        );
    }

    #[test]
    fn upstreams_can_be_named() {
        let of = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            check(FILE, Wanted::Of(&names))
        };
        assert_eq!(of(&[]), "notes shop house");
        assert_eq!(of(&["house", "notes"]), "house notes");
        assert!(of(&["attic"]).contains("is switched off"));
        assert!(of(&["note"]).starts_with("no upstream `note`; did you mean `notes`?"));
    }
}
