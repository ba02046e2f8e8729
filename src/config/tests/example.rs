//! The example is complete, sound, and says what the defaults are.

use std::collections::BTreeSet;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::super::file::{Ledger, Table};
use super::super::value::EXAMPLE_HASHES;
use super::*;

const EXAMPLE: &str = include_str!("../../../config.example.toml");

/// The example with its switched-off lines switched on, and with hashes that are not refused.
fn example_in_full() -> String {
    let on = |line: &str| match line.strip_prefix('#') {
        Some(off) if off.starts_with(|c: char| c == '[' || c.is_ascii_lowercase()) => {
            off.to_owned()
        }
        _ => line.to_owned(),
    };
    let mut text = EXAMPLE.lines().map(on).collect::<Vec<_>>().join("\n");
    for (i, hash) in EXAMPLE_HASHES.iter().enumerate() {
        text = text.replace(hash, &format!("{i:064}"));
    }
    text
}

#[test]
fn the_example_shows_the_defaults() {
    assert_eq!(config(EXAMPLE), config(HOUSE));
    let Config { upstreams, .. } = config(HOUSE);
    assert_eq!(config(HOUSE), Config { upstreams, ..Config::default() });
}

#[test]
fn what_the_example_switches_off_is_sound_and_elsewhere_at_its_default() {
    let (full, default) = (config(&example_in_full()), Config::default());

    assert_eq!(full.warnings, []);
    let server = Server { public_url: None, allowed_hosts: Vec::new(), ..full.server };
    assert_eq!(
        (server, full.protocol, full.naming, full.log),
        (default.server, default.protocol, default.naming, default.log)
    );
    assert_eq!(full.upstreams.first(), config(HOUSE).upstreams.first());
}

#[test]
fn the_example_holds_every_key_that_the_reader_asks_for() {
    let text = example_in_full();
    let document = DeTable::parse(&text).unwrap();
    let ledger = Ledger::default();
    Table::root(&ledger, document.get_ref())
        .walk(|root| Config::read(root, Path::new(""), &Options::default()));
    let asked: BTreeSet<String> =
        ledger.asked.into_inner().iter().map(|path| without_name(path)).collect();

    let mut shown = BTreeSet::new();
    collect("", document.get_ref(), &mut shown);
    // What is inherited is shown once, where it is inherited from; a client's rules are like a role's.
    let same = |path: &str| {
        let inherited = path.replacen("upstreams.<name>.", "defaults.", 1);
        [inherited, path.replacen("clients.<name>.", "roles.<name>.", 1)]
    };
    let missing: Vec<_> = asked
        .iter()
        .filter(|path| !shown.contains(*path) && !same(path).iter().any(|p| shown.contains(p)))
        .collect();
    assert_eq!(missing, Vec::<&String>::new());
    assert!(asked.len() > 60, "the reader asks for {} keys", asked.len());
}

fn collect(path: &str, table: &DeTable<'_>, shown: &mut BTreeSet<String>) {
    for (key, value) in table.iter() {
        let path = if path.is_empty() {
            key.get_ref().to_string()
        } else {
            format!("{path}.{}", key.get_ref())
        };
        shown.insert(without_name(&path));
        if let DeValue::Table(table) = value.get_ref() {
            collect(&path, table, shown);
        }
    }
}

fn without_name(path: &str) -> String {
    let mut parts: Vec<&str> = path.split('.').collect();
    if let ["upstreams" | "roles" | "clients", name, ..] = &mut parts[..] {
        *name = "<name>";
    }
    parts.join(".")
}

#[test]
fn the_example_as_it_is_shipped_opens_no_door() {
    let with_clients = EXAMPLE.replace("\n#[", "\n[").replace("\n#key", "\nkey");
    assert!(parse(&with_clients).unwrap_err().to_string().contains("its key is public"));
}
