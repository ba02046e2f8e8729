//! Tests of config.example.toml: it is complete and valid, and shows the defaults.

use std::collections::BTreeSet;

use toml::de::{DeTable, DeValue};

use super::super::keys::enabled;
use super::example_file::{completed, example_file, line};
use super::schema::keys_of;
use super::*;
use crate::reader::diagnostics::Diagnostics;
use crate::reader::table_reader::TableReader;
use crate::reader::value::EXAMPLE_HASHES;
use weir_upstream as upstream;

const EXAMPLE_LIBRARY: &str = "[upstreams.library]\nprompts_dir = \"./prompts\"\n";

/// Returns the example with its disabled lines enabled, and with hashes that are accepted.
pub(super) fn example_in_full() -> String {
    let mut text = enabled(&example_file());
    for (i, hash) in EXAMPLE_HASHES.iter().enumerate() {
        text = text.replace(hash, &format!("{i:064}"));
    }
    text
}

/// Reads the full example in a folder with all files that it names, without running commands.
fn config_in_full() -> Config {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("secrets")).unwrap();
    write_private(&folder.path().join("secrets/team"), "blue\n");
    write_private(&folder.path().join("secrets/admin"), "0123456789abcdef\n");
    write_private(&folder.path().join("secrets/tls.key"), "a key\n");
    write_private(&folder.path().join("secrets/valkey"), "hunter2\n");
    write_private(&folder.path().join("secrets/s"), "hunter2\n");
    write_private(&folder.path().join("secrets/orders"), "hunter2\n");
    let client_key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    write_private(&folder.path().join("secrets/weir-client.pem"), client_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
    write_private(&folder.path().join("ca.crt"), &certificate);
    write_private(&folder.path().join("weir.crt"), &certificate);
    write_private(&folder.path().join("secrets/weir.key"), key.serialize_pem());
    write_private(&folder.path().join("secrets/fleet-keys"), format!("{}\n", "A".repeat(43)));
    let environment =
        ["EVERYTHING_KEY", "WIKI_PASSWORD", "PROXY_PASSWORD"].map(|name| (name, "hunter2"));
    let options = Options { environment: environment.into_iter().collect(), ..Options::default() };
    let main = file(&folder.path().join("weir.toml"), example_in_full());
    Config::from_file(&main, &options, false, false).unwrap()
}

#[test]
fn the_example_shows_the_defaults() {
    assert_eq!(config(&example_file()), config(EXAMPLE_LIBRARY));
    let Config { upstreams, summaries, .. } = config(EXAMPLE_LIBRARY);
    assert_eq!(config(EXAMPLE_LIBRARY), Config { upstreams, summaries, ..Config::default() });
}

#[test]
fn what_the_example_switches_off_is_sound_and_elsewhere_at_its_default() {
    let (full, default) = (config_in_full(), Config::default());

    assert_eq!(full.warnings, []);
    assert_eq!(full.upstreams.len(), 8);
    let server = ServerConfig {
        public_url: None,
        allowed_hosts: Vec::new(),
        tls: None,
        shutdown_delay: None,
        ..full.server
    };
    let log = LogConfig { level: None, ..full.log };
    assert_eq!(
        (server, full.protocol, full.naming, log),
        (default.server, default.protocol, default.naming, default.log)
    );
    let [full, alone] =
        [full.upstreams, config(EXAMPLE_LIBRARY).upstreams].map(|all| all[0].clone());
    let settings =
        upstream::Settings { source: alone.settings.source.clone(), ..full.settings.clone() };
    assert_eq!(UpstreamConfig { settings, ..full }, alone);
}

/// Returns every key that the reader reads in the full example.
pub(super) fn known_keys() -> BTreeSet<String> {
    let text = example_in_full();
    let document = DeTable::parse(&text).unwrap();
    let diagnostics = Diagnostics::default();
    let options = Options::default();
    let resolver = SecretResolver::new(&options.environment, &options.stop, false);
    let context = LoadContext { resolver, on_disk: false, only: None, is_check: false };
    TableReader::root(&diagnostics, document.get_ref())
        .read_checked(|root| Config::read(root, &options, &context));
    diagnostics.known_keys.into_inner().iter().map(|path| without_name(path)).collect()
}

#[test]
fn the_example_holds_every_key_that_the_reader_asks_for() {
    let known_keys = known_keys();
    let text = example_in_full();
    let document = DeTable::parse(&text).unwrap();
    let mut shown = BTreeSet::new();
    collect("", document.get_ref(), &mut shown);
    // Inherited keys are shown only where they are inherited from, and the rules of clients only as
    // those of roles.
    let same = |path: &str| {
        [
            path.replacen("upstreams.<name>.", "defaults.", 1),
            path.replacen("upstreams.<name>.guard.", "guard.", 1),
            path.replacen("clients.<name>.", "roles.<name>.", 1),
        ]
    };
    let missing: Vec<_> = known_keys
        .iter()
        .filter(|path| !shown.contains(*path) && !same(path).iter().any(|p| shown.contains(p)))
        .collect();
    assert_eq!(missing, Vec::<&String>::new());
    assert!(known_keys.len() > 60, "the reader reads {} keys", known_keys.len());
}

#[test]
fn a_key_that_the_example_lacks_is_added_to_its_table() {
    let text =
        |line: &str| format!("#[log]\n#level = \"info\"  # level\n{line}\n#[log]\n#format = 1\n");
    let log = keys_of("log");
    let example = text("").replace("#format = 1\n", "");
    let expected =
        "#format = \"auto\"                      # auto | pretty | json: format of the lines\n";
    assert_eq!(completed(&example, &log), text(expected).replace("#format = 1\n", ""));
    let server = keys_of("server");
    let key = |name: &str| line(server.iter().find(|key| key.name == name).unwrap(), "");
    assert_eq!(
        key("shutdown_delay"),
        "#shutdown_delay = \"5s\"               # time after SIGTERM, SIGINT or SIGQUIT in which \
         Weir serves as before but is no\n                                     # longer ready, so \
         that a load balancer can notice\n"
    );
    assert_eq!(
        key("max_headers"),
        "max_headers = 100                    # 16 to 1000: maximum number of header fields of a \
         request; a request with more\n                                     # gets 431\n"
    );
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
    // The sources of a secret are the same for all keys.
    if let [_, _, "env" | "headers", _, way]
    | [_, _, "auth", "token" | "password" | "client_secret" | "client_key", way]
    | ["server", "tls", "key", way]
    | [_, _, "tls", "key", way]
    | ["fleet", "keys", way]
    | ["fleet", "store", "password", way]
    | ["fleet", "store", "sentinel", "password", way]
    | ["admin", "token", way] = parts[..]
    {
        return format!("<secret>.{way}");
    }
    parts.join(".")
}

#[test]
fn the_keys_of_the_shipped_example_admit_no_client() {
    let with_clients = example_file().replace("\n#[", "\n[").replace("\n#key", "\nkey");
    assert!(parse(&with_clients).unwrap_err().to_string().contains("its key is public"));
}
