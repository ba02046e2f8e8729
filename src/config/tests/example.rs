//! The example is complete, sound, and says what the defaults are.

use std::collections::BTreeSet;

use toml::de::{DeTable, DeValue};

use super::*;
use crate::config::reader::diagnostics::Ledger;
use crate::config::reader::table_reader::Table;
use crate::config::reader::value::EXAMPLE_HASHES;

pub(super) const EXAMPLE: &str = include_str!("../../../config.example.toml");

/// The example with its switched-off lines switched on, and with hashes that are not refused.
pub(super) fn example_in_full() -> String {
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

/// The example in full where all that it names can be found. No command is run.
fn config_in_full() -> Config {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("secrets")).unwrap();
    write_private(&folder.path().join("secrets/team"), "blue\n");
    write_private(&folder.path().join("secrets/admin"), "0123456789abcdef\n");
    write_private(&folder.path().join("secrets/tls.key"), "a key\n");
    let environment = ["EVERYTHING_KEY", "WIKI_PASSWORD"].map(|name| (name, "hunter2"));
    let options = Options { environment: environment.into_iter().collect(), ..Options::default() };
    let main = file(&folder.path().join("weir.toml"), example_in_full());
    Config::judge(&main, &options, false, false).unwrap()
}

#[test]
fn the_example_shows_the_defaults() {
    assert_eq!(config(EXAMPLE), config(HOUSE));
    let Config { upstreams, outlines, .. } = config(HOUSE);
    assert_eq!(config(HOUSE), Config { upstreams, outlines, ..Config::default() });
}

#[test]
fn what_the_example_switches_off_is_sound_and_elsewhere_at_its_default() {
    let (full, default) = (config_in_full(), Config::default());

    assert_eq!(full.warnings, []);
    assert_eq!(full.upstreams.len(), 4);
    let server = Server {
        public_url: None,
        allowed_hosts: Vec::new(),
        tls: None,
        shutdown_delay: None,
        ..full.server
    };
    assert_eq!(
        (server, full.protocol, full.naming, full.log),
        (default.server, default.protocol, default.naming, default.log)
    );
    let [full, alone] = [full.upstreams, config(HOUSE).upstreams].map(|all| all[0].clone());
    assert_eq!(Upstream { source: alone.source.clone(), ..full }, alone);
}

/// Every key that the reader asks for while it reads the example in full.
pub(super) fn asked() -> BTreeSet<String> {
    let text = example_in_full();
    let document = DeTable::parse(&text).unwrap();
    let ledger = Ledger::default();
    let options = Options::default();
    let vault = Vault::new(&options.environment, &options.stop, false);
    let surroundings = Surroundings { vault, on_disk: false, only: None };
    Table::root(&ledger, document.get_ref())
        .walk(|root| Config::read(root, &options, &surroundings));
    ledger.asked.into_inner().iter().map(|path| without_name(path)).collect()
}

#[test]
fn the_example_holds_every_key_that_the_reader_asks_for() {
    let asked = asked();
    let text = example_in_full();
    let document = DeTable::parse(&text).unwrap();
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
        match value.get_ref() {
            DeValue::Table(table) => collect(&path, table, shown),
            DeValue::Array(rows) => {
                let tables = rows.iter().filter_map(|row| row.get_ref().as_table());
                tables.for_each(|table| collect(&path, table, shown));
            }
            _ => {}
        }
    }
}

fn without_name(path: &str) -> String {
    let mut parts: Vec<&str> = path.split('.').collect();
    if let ["upstreams" | "roles" | "clients", name, ..] = &mut parts[..] {
        *name = "<name>";
    }
    if let ["auth", "oidc", name, ..] = &mut parts[..] {
        *name = "<name>";
    }
    if let [_, _, "env" | "headers", name, ..] = &mut parts[..] {
        *name = "<name>";
    }
    // A secret can say in the same ways everywhere where it is.
    if let [_, _, "env" | "headers", _, way]
    | [_, _, "auth", "token" | "password", way]
    | ["server", "tls", "key", way]
    | ["admin", "token", way] = parts[..]
    {
        return format!("<secret>.{way}");
    }
    parts.join(".")
}

#[test]
fn the_example_as_it_is_shipped_opens_no_door() {
    let with_clients = EXAMPLE.replace("\n#[", "\n[").replace("\n#key", "\nkey");
    assert!(parse(&with_clients).unwrap_err().to_string().contains("its key is public"));
}
