//! Which upstreams a command needs: no other is started, waited for or heard of.
//!
//! Promise: an upstream that is left out could not have answered. A public name begins with the prefix
//! of its upstream, however it was shortened or renamed; a URI leaves its upstream only if the
//! upstream's own rules let it out.
//!
//! Knows nothing of: policy, which hides items and no upstreams.

use super::failure::Failure;
use crate::config::{Config, NamingMode, Patterns, Source, Upstream};
use crate::mcp::kind::Kind;
use crate::mcp::name::{Naming, UpstreamName};
use crate::mcp::pattern::Rules;

/// What a command asks for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted<'a> {
    /// What the upstreams of these names have; of all, where none is named.
    Of(&'a [String]),
    /// One item, by public name or URI.
    Item(Kind, &'a str),
}

/// Takes all upstreams out of the configuration that are not needed.
pub(super) fn keep_needed(config: &mut Config, wanted: Wanted<'_>) -> Result<(), Failure> {
    match wanted {
        Wanted::Of([]) => Ok(()),
        Wanted::Of(names) => keep_named(config, names),
        Wanted::Item(kind, name) if kind.has_name() => keep_owner(config, kind, name),
        Wanted::Item(kind, uri) => keep_outlets(config, kind, uri),
    }
}

fn keep_named(config: &mut Config, names: &[String]) -> Result<(), Failure> {
    for name in names {
        if config.switched_off.iter().any(|off| off.name == *name) {
            return Err(switched_off(name));
        }
        if !config.upstreams.iter().any(|upstream| upstream.name == *name) {
            let near = nearest(name, config.upstreams.iter().map(|it| it.name.as_str()));
            let hint = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
            let there = there_are(config);
            return Err(Failure::Usage(format!("no upstream `{name}`; {hint}{there}")));
        }
    }
    config.upstreams.retain(|upstream| names.contains(&upstream.name));
    Ok(())
}

fn keep_owner(config: &mut Config, kind: Kind, name: &str) -> Result<(), Failure> {
    let naming = match config.naming.mode {
        NamingMode::Always => Naming::prefixed(&config.naming.separator, config.naming.max_length),
        NamingMode::None => Naming::plain(),
    };
    let may_own = |prefix: &str| match prefix.parse::<UpstreamName>() {
        Ok(prefix) => naming.may_belong(&prefix, name),
        Err(_) => false,
    };
    if config.upstreams.iter().any(|upstream| may_own(&upstream.prefix)) {
        config.upstreams.retain(|upstream| may_own(&upstream.prefix));
        return Ok(());
    }
    if let Some(off) = config.switched_off.iter().find(|off| may_own(&off.prefix)) {
        return Err(switched_off(&off.name));
    }
    let separator = &config.naming.separator;
    let there = there_are(config);
    let Some((prefix, own)) = name.split_once(separator) else {
        return Err(Failure::Usage(format!(
            "no {kind} `{name}`: names begin with their upstream's, as in \
             `{}{separator}{name}`; {there}",
            config.upstreams.first().map_or("upstream", |first| &first.prefix)
        )));
    };
    // Whoever knows the configuration may type the table's name for the prefix.
    let named = config.upstreams.iter().find(|upstream| upstream.name == prefix);
    let prefixes = config.upstreams.iter().map(|upstream| upstream.prefix.as_str());
    let near = named.map(|upstream| upstream.prefix.as_str()).or_else(|| nearest(prefix, prefixes));
    let hint = near.map(|near| format!("did you mean `{near}{separator}{own}`? "));
    Err(Failure::Usage(format!("no {kind} `{name}`; {}{there}", hint.unwrap_or_default())))
}

fn keep_outlets(config: &mut Config, kind: Kind, uri: &str) -> Result<(), Failure> {
    let lets_out = |upstream: &Upstream| {
        let Patterns { allow, deny } = &upstream.resources;
        !matches!(upstream.source, Source::Library { .. }) && Rules::new(allow, deny).allow(uri)
    };
    if config.upstreams.iter().any(lets_out) {
        config.upstreams.retain(lets_out);
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "no {kind} `{uri}`: no upstream lets it out, as `resources` rules are; {}",
        there_are(config)
    )))
}

fn switched_off(name: &str) -> Failure {
    Failure::Unreachable(format!(
        "upstream `{name}` is switched off: its table says `enabled = false`"
    ))
}

/// What upstreams there are.
fn there_are(config: &Config) -> String {
    let on = config.upstreams.iter().map(|upstream| match upstream.prefix == upstream.name {
        true => upstream.name.clone(),
        false => format!("{} (prefix {})", upstream.name, upstream.prefix),
    });
    let off = config.switched_off.iter().map(|off| format!("{} (switched off)", off.name));
    format!("upstreams: {}", on.chain(off).collect::<Vec<_>>().join(", "))
}

/// The one of some words that was probably meant.
pub(super) fn nearest<'a>(typed: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = words.map(|word| (strsim::damerau_levenshtein(word, typed), word));
    // One slip in three characters; more than that is another word.
    let tolerance = (typed.chars().count() / 3).max(1);
    near.filter(|(distance, _)| *distance <= tolerance).min().map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
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
        let config = Config::parse(file, Path::new("weir.toml"), &Options::default());
        let mut config = config.unwrap_or_else(|report| panic!("{report}"));
        match keep_needed(&mut config, wanted) {
            Err(failure) => failure.to_string(),
            Ok(()) => {
                let names = config.upstreams.iter().map(|upstream| upstream.name.as_str());
                names.collect::<Vec<_>>().join(" ")
            }
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
    fn upstreams_can_be_named() {
        let of = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            check(FILE, Wanted::Of(&names))
        };
        assert_eq!(of(&[]), "notes shop house");
        assert_eq!(of(&["house", "notes"]), "notes house");
        assert!(of(&["attic"]).contains("is switched off"));
        assert!(of(&["note"]).starts_with("no upstream `note`; did you mean `notes`?"));
    }
}
