//! Tests of the table of keys: it agrees with the reader, and the generated files are up to date.

#![expect(clippy::disallowed_types, reason = "a schema is read here, no payload passes")]

use std::collections::BTreeSet;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::super::keys::{DefaultValue, KeySpec, ValueShape};
use super::super::schema::keys;
use super::super::schema::page::toml as written;
use super::super::secrets::SecretSource;
use super::super::upstreams::defaults::DEFAULT_HTTP_CONCURRENCY;
use super::example::{example_in_full, known_keys};
use super::example_file::example_file;
use super::*;
use weir_upstream::UpstreamLimits;

fn validator() -> Validator {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    jsonschema::draft7::new(&schema).unwrap()
}

/// Converts a file to JSON like validators of TOML: a date is a string.
fn to_json(text: &str) -> Value {
    fn value(toml: toml::Value) -> Value {
        match toml {
            toml::Value::String(text) => text.into(),
            toml::Value::Integer(number) => number.into(),
            toml::Value::Float(number) => number.into(),
            toml::Value::Boolean(yes) => yes.into(),
            toml::Value::Datetime(moment) => moment.to_string().into(),
            toml::Value::Array(list) => list.into_iter().map(value).collect(),
            toml::Value::Table(table) => {
                Value::Object(table.into_iter().map(|(name, it)| (name, value(it))).collect())
            }
        }
    }
    value(toml::Value::Table(toml::from_str(text).unwrap_or_else(|e| panic!("{e}\n{text}"))))
}

/// Returns the errors of the schema for a file; empty if it is valid.
fn schema_errors(validator: &Validator, text: &str) -> String {
    let document = to_json(text);
    let errors = validator.iter_errors(&document);
    errors.map(|e| format!("{}: {e}\n", e.instance_path())).collect()
}

// === The keys ===

/// Collects the paths of all keys below a table.
fn described(table: &[KeySpec], path: &str, paths: &mut BTreeSet<String>) {
    for key in table {
        let path =
            if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
        paths.insert(path.clone());
        match &key.shape {
            ValueShape::Table(keys) => described(keys, &path, paths),
            ValueShape::List { of, .. } => {
                if let ValueShape::Table(keys) = &**of {
                    described(keys, &path, paths);
                }
            }
            ValueShape::Map { of, .. } => match &**of {
                ValueShape::Table(keys) => described(keys, &format!("{path}.<name>"), paths),
                ValueShape::Secret(_) => {
                    paths.insert(format!("{path}.<name>"));
                }
                _ => {}
            },
            _ => {}
        }
    }
}

#[test]
fn every_key_that_the_reader_asks_for_is_described_and_no_other() {
    let mut paths = BTreeSet::new();
    described(&keys(), "", &mut paths);
    described(&SecretSource::keys(), "<secret>", &mut paths);
    let known_keys = known_keys();
    assert_eq!(
        known_keys.difference(&paths).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "not described"
    );
    assert_eq!(
        paths.difference(&known_keys).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "not asked for"
    );
}

// === The defaults ===

/// Returns a line for each described default of a table, except for the keys in `without`.
fn defaults(table: &[KeySpec], path: &str, without: &[&str]) -> String {
    let line = |key: &KeySpec| {
        let path = format!("{path}{}", key.name);
        match (&key.default, &key.shape) {
            (DefaultValue::Value(default), _) => format!("{path} = {}\n", written(default)),
            (_, ValueShape::Table(keys)) => defaults(keys, &format!("{path}."), &[]),
            _ => String::new(),
        }
    };
    table.iter().filter(|key| !without.contains(&key.name)).map(line).collect()
}

/// Returns the keys of a top-level table.
pub(super) fn keys_of(name: &str) -> Vec<KeySpec> {
    let key = keys().into_iter().find(|key| key.name == name).unwrap();
    match key.shape {
        ValueShape::Table(keys) => keys,
        ValueShape::Map { of, .. } => match *of {
            ValueShape::Table(keys) => keys,
            _ => panic!("{name} holds tables"),
        },
        _ => panic!("{name} is a table"),
    }
}

#[test]
fn the_described_defaults_are_those_of_the_reader() {
    let library = |lines: &str| format!("[upstreams.a]\nprompts_dir = \"p\"\n{lines}");
    let process = |lines: &str| format!("[upstreams.b]\ncommand = \"x\"\n{lines}");
    let network = |lines: &str| format!("[upstreams.c]\nurl = \"http://h/\"\n{lines}");
    let staff = |lines: &str| format!("[roles.staff]\n{lines}");
    let plain = [library(""), process(""), network(""), staff("")].concat();

    let upstream = keys_of("upstreams");
    let (of_process, of_network) =
        (["args", "env", "pass_env", "cwd"], ["headers", "auth", "tls", "transport"]);
    let mut full = String::from("include = []\n");
    for table in [
        "server", "protocol", "naming", "guard", "defaults", "auth", "log", "admin", "audit",
        "state",
    ] {
        full += &format!("[{table}]\n{}", defaults(&keys_of(table), "", &["tls"]));
    }
    full += &library(&defaults(&upstream, "", &[of_process.as_slice(), &of_network].concat()));
    full += &process(&defaults(&upstream, "", &of_network));
    full += &network(&defaults(&upstream, "", &of_process));
    full += &staff(&defaults(&keys_of("roles"), "", &[]));

    assert!(
        full.contains("max_backoff = \"30s\"") && full.contains("transport = \"auto\""),
        "{full}"
    );
    assert_eq!(config(&full), config(&plain), "{full}");
    assert_eq!(schema_errors(&validator(), &full), "");
    let messages = format!(
        "default: {}; {DEFAULT_HTTP_CONCURRENCY} for an upstream with a `url`",
        UpstreamLimits::default().concurrency
    );
    assert!(page().contains(&messages), "the page says {messages}");
}

// === The schema ===

#[test]
fn the_schema_is_one_and_every_editor_can_follow_it() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    jsonschema::draft7::meta::validate(&schema).unwrap();
    let text = schema.to_string();
    assert!(!text.contains("\"allOf\"") && !text.contains("\"$ref\""));
}

#[test]
fn the_files_that_are_shipped_are_sound_by_the_schema() {
    let validator = validator();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut files = vec![example_file(), example_in_full()];
    // The demonstration inserts the addresses of its servers.
    files.push(
        include_str!("../../../../src/cli/demo.toml")
            .replace("{modern_http}", "http://127.0.0.1:1/mcp"),
    );
    for entry in std::fs::read_dir(root.join("deploy/config")).unwrap() {
        files.push(std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    assert!(files.len() > 3);
    for file in files {
        assert_eq!(schema_errors(&validator, &file), "", "{file}");
    }
}

/// Valid files.
const SOUND: [&str; 32] = [
    "[upstreams.a]\nprompts_dir = \"p\"\ntimeouts.call = \"5s\"\nlimits.concurrency = 7\nretry.jitter = false",
    "[upstreams.a-1]\ncommand = \"x\"\nargs = [\"\", \"-y\"]\nenv = { A = \"\", B = { env = \"SET\" } }",
    "[upstreams.a]\nurl = \"HTTPS://h:1/x?y=z\"\nheaders = { Authorization = \"a b\", X = { command = [\"x\", \"\"] } }",
    "[upstreams.a]\nurl = \"http://[::1]:80\"\nauth = { type = \"basic\", user = \"\", password = \"a:b c\" }",
    "[upstreams.a]\nurl = \"http://h\"\nauth = { type = \"bearer\", token = { env = \"SET\" } }\ntransport = \"sse\"",
    "[upstreams.a]\nurl = \"http://h\"\nauth.type = \"${KIND:-none}\"",
    "[upstreams.a]\nurl = \"https://h\"\nauth = { type = \"oauth\", grant = \"client_credentials\", client_id = \"w\", client_secret = { env = \"SET\" } }",
    "[upstreams.a]\nurl = \"https://h\"\nauth = { type = \"oauth\", grant = \"${G:-jwt_bearer}\", assertion.file = \"x\", issuer = \"https://i/\" }",
    "[upstreams.a]\nurl = \"https://h\"\nauth.type = \"oauth\"",
    "[upstreams.a]\nurl = \"https://h\"\nauth = { type = \"oauth\", client_id = \"w\", client_key_id = \"k\", scopes = [] }",
    "[upstreams.a]\nurl = \"http://h\"\nauth = { type = \"oauth\", issuer = \"https://i\", allow_http = true }",
    "[sign_in]\nprivate_networks = [\"10.0.0.0/8\", \"::1\"]\ninsecure_loopback = true",
    "[upstreams.a]\nenabled = false\nurl = \"${GONE}\"\nauth = { type = \"bearer\", token = { file = \"gone\" } }",
    "[upstreams.a]\ncommand = \"x\"\nrename = { \"prompts/a/b\" = \"c\", \"tools/x\" = \"c\" }\nprefix = \"b\"",
    "[upstreams.a]\ncommand = \"x\"\nera = \"${ERA:-legacy}\"\ntimeouts.list = \"${TIME:-2s}\"",
    "[server]\nlisten = \"${WEIR_LISTEN:-127.0.0.1:8642}\"\nmax_body = \"${SIZE:-4MiB}\"",
    "[server]\nlisten = \"[::1]:1\"\nmax_body = 4096\nmax_connections = 0x10\nshutdown_grace = \"0250ms\"",
    "[server]\nallowed_hosts = [\"A.b\", \"[::1]:80\", \"10.0.0.5\"]\nallowed_origins = [\"https://a:1\", \"app+x://b\"]",
    "[server]\npublic_url = \"https://a/x\"\npath = \"/a$$b\"",
    "[protocol]\nversions = [\"2024-11-05\", \"${REVISION:-2026-07-28}\"]\nlegacy_sse = true",
    "[naming]\nseparator = \"_-x\"\nmax_length = 32\ncharacters = \"any\"",
    "[roles.a_B-1]\nprompts.allow = [\"*\", \"*/x\", \"guide/a/b\", \"${WHO:-guide}/*\"]\ntools = {}",
    "[roles.staff]\n[auth]\nmode = \"anonymous\"\nanonymous_role = \"staff\"",
    "[clients.a]\nrole = \"local\"\nexpires = 2000-03-01 01:00:00.5+01:00\n\
     key_sha256 = [\"Aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"]",
    "[clients.a]\ntools.allow = [\"guide/*\"]\n\
     key_sha256 = [\"${HASH:-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}\"]",
    "[log]\nlevel = \"trace\"\nformat = \"${FORMAT:-json}\"",
    "[defaults]\nlimits = { concurrency = 1, max_pages = 100000 }\nretry = { backoff = \"1ms\" }",
    "[defaults]\npass_env = [\"UV_*\", \"${NAME:-A}\"]\nlogin_path = \"never\"\n[upstreams.a]\ncommand = \"x\"\npass_env = [\"npm_config_*\"]",
    "include = []",
    "[[limits]]\nper = \"role\"\nmethod = [\"*/list\", \"ping\"]\nrate = \"7/h\"\n[[limits]]\nper = \"${PER:-global}\"\n\
     match = \"*/x\"\nconcurrency = 1",
    "[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\nissuer = \"https://id/x/\"\naudience = [\"a b\"]\n\
     roles = { \"a/b c\" = \"local\" }\nscopes_required = [\"api://weir/use\"]",
    "[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\nissuer = \"http://127.0.0.1:1\"\naudience = [\"a\"]\n\
     preset = \"okta\"\nalgorithms = [\"EdDSA\"]\njwks_uri = \"http://localhost/k\"\ndefault_role = \"local\"",
];

/// Files with a mistake that the schema detects.
const MISTAKEN: [&str; 82] = [
    "include = [\"*/a.toml\"]",
    "[server]\nlistne = \"127.0.0.1:1\"",
    "[log]\ncolor = \"red\"",
    "log = \"info\"",
    "[server]\nallowed_hosts = \"a\"",
    "[server]\nallowed_hosts = [\"https://a\"]",
    "[server]\nallowed_origins = [\"*\"]",
    "[server]\nallowed_origins = [\"https://a/b\"]",
    "[server]\npath = 7",
    "[server]\npath = \"mcp\"",
    "[server]\npath = \"/mcp?x\"",
    "[server]\nlisten = \"localhost:8642\"",
    "[server]\nlisten = \":8642\"",
    "[server]\npublic_url = \"https://a/?x\"",
    "[server]\npublic_url = \"mcp.example.com\"",
    "[server]\nmax_body = \"0MiB\"",
    "[server]\nmax_body = \"4MB\"",
    "[server]\nmax_body = -4",
    "[server]\nmax_connections = 0",
    "[server]\nmax_connections = 1000001",
    "[server]\nmax_connections = \"${MANY:-10}\"",
    "[server]\nshutdown_grace = \"0s\"",
    "[server]\nshutdown_grace = \"1.5s\"",
    "[protocol]\nsession_ttl = 30",
    "[protocol]\nversions = []",
    "[protocol]\nversions = [\"2025-06-81\"]",
    "[protocol]\nlegacy_sse = \"yes\"",
    "[naming]\nmode = \"sometimes\"",
    "[naming]\nseparator = \"-\"",
    "[naming]\nmax_length = 12",
    "[naming]\ncharacters = \"ascii\"",
    "[defaults]\ntimeouts = { cal = \"20m\" }",
    "[defaults]\npass_env = [\"*\"]",
    "[upstreams.a]\ncommand = \"x\"\npass_env = [\"*_TOKEN\"]",
    "[upstreams.a]\ncommand = \"x\"\npass_env = [\"\"]",
    "[upstreams.a]\ncommand = \"x\"\nlogin_path = \"never\"",
    "[upstreams.Guide]\ncommand = \"x\"",
    "[upstreams]\nguide = \"p\"",
    "[upstreams.a]",
    "[upstreams.a]\ncommand = \"x\"\nurl = \"http://h/\"",
    "[upstreams.a]\nurl = \"http://h/\"\nargs = [\"x\"]",
    "[upstreams.a]\ncommand = \"x\"\nheaders = {}",
    "[upstreams.a]\ncommand = \"x\"\ntransport = \"http\"",
    "[upstreams.a]\ncommand = \"\"",
    "[upstreams.a]\ncommand = \"x\"\nenv = { \"A=B\" = \"x\" }",
    "[upstreams.a]\ncommand = \"x\"\nenv = { A = { env = \"SET\", file = \"x\" } }",
    "[upstreams.a]\ncommand = \"x\"\nenv = { A = {} }",
    "[upstreams.a]\ncommand = \"x\"\nrename = { \"resources/x\" = \"y\" }",
    "[upstreams.a]\ncommand = \"x\"\nrename = { \"tools/x\" = \"a b\" }",
    "[upstreams.a]\ncommand = \"x\"\nprompts.allow = [\"\"]",
    "[upstreams.a]\nprompts_dir = \"p\"\nera = \"modern\"",
    "[upstreams.a]\nprompts_dir = \"p\"\ntimeouts = { list = \"5s\", call = \"5s\" }",
    "[upstreams.a]\nurl = \"https://me:hunter2@h/\"",
    "[upstreams.a]\nurl = \"http://h/\"\nheaders = { hOst = \"x\" }",
    "[upstreams.a]\nurl = \"http://h/\"\nheaders = { Mcp-Name = \"x\" }",
    "[upstreams.a]\nurl = \"http://h/\"\nheaders = { X = \"a\\u0001\" }",
    "[upstreams.a]\nurl = \"http://h/\"\ntransport = \"sse\"\nera = \"modern\"",
    "[upstreams.a]\nurl = \"http://h/\"\nauth = { type = \"bearer\", user = \"a\", token = \"b\" }",
    "[upstreams.a]\nurl = \"http://h/\"\nauth = { type = \"basic\", user = \"a\" }",
    "[upstreams.a]\nurl = \"http://h/\"\nheaders = { authorization = \"x\" }\nauth = { type = \"none\" }",
    "[upstreams.a]\nurl = \"https://h/\"\nauth = { type = \"oauth\", assertion = { file = \"x\" } }",
    "[sign_in]\nclient_metadata_url = \"weir.json\"",
    "[upstreams.a]\nurl = \"https://h/\"\nauth = { type = \"oauth\", grant = \"client_credentials\", client_id = \"w\" }",
    "[upstreams.a]\nurl = \"https://h/\"\nauth = { type = \"oauth\", grant = \"client_credentials\", client_id = \"w\", client_secret = \"s\", client_key = \"k\" }",
    "[upstreams.a]\nurl = \"https://h/\"\nauth = { type = \"oauth\", grant = \"jwt_bearer\", assertion = { file = \"x\" }, client_id = \"w\" }",
    "[upstreams.a]\nurl = \"http://h/\"\nauth = { type = \"bearer\", token = \"b\", scopes = [\"a\"] }",
    "[sign_in]\nprivate_networks = [\"lan\"]",
    "[roles.staff]\nprompts.allow = [\"guide\"]",
    "[limits]\nper = \"client\"\nrate = \"1/s\"",
    "[[limits]]\nrate = \"1/s\"",
    "[[limits]]\nper = \"client\"",
    "[[limits]]\nper = \"client\"\nrate = \"0/s\"",
    "[[limits]]\nper = \"client\"\nmatch = \"guide\"\nconcurrency = 0",
    "[clients.a]\nrole = \"local\"\nprompts.allow = [\"guide/*\"]\n\
     key_sha256 = [\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"]",
    "[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\naudience = [\"a\"]",
    "[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\nissuer = \"https://id\"",
    "[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\nissuer = \"https://id\"\naudience = []",
    "[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\nissuer = \"http://id\"\naudience = [\"a\"]",
    "[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\nissuer = \"https://id\"\naudience = [\"a\"]\nalgorithms = [\"HS256\"]",
    "[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\nissuer = \"https://id\"\naudience = [\"a\"]\nalgorithms = []",
    "[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\nissuer = \"https://id\"\naudience = [\"a\"]\nscopes_supported = [\"a b\"]",
    "[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\nissuer = \"https://id\"\naudience = [\"a\"]\npreset = \"azure\"",
];

/// Files with a mistake that only `weir check` detects: it is between tables, or not a matter of
/// syntax.
const BEYOND: [&str; 22] = [
    "[naming]\nmax_length = 32\n[upstreams.twenty-long-abcdefgh]\ncommand = \"x\"",
    "[defaults]\ntimeouts = { call = \"20m\" }",
    "[server]\nshutdown_grace = \"8761h\"",
    "[naming]\nmode = \"none\"\n[upstreams.b]\ncommand = \"x\"\n[upstreams.c]\ncommand = \"x\"",
    "[auth]\nanonymous_role = \"nobody\"",
    "[[limits]]\nper = \"client\"\nmethod = \"tools/cal\"\nrate = \"1/s\"",
    "[[limits]]\nper = \"client\"\nmethod = \"ping\"\nmatch = \"guide/*\"\nrate = \"1/s\"",
    "[server]\nlisten = \"${GONE}\"",
    "[server]\npublic_url = \"https://a\"\n[sign_in]\ninsecure_loopback = true",
    "[sign_in]\nclient_metadata_url = \"http://a/weir.json\"",
    "[upstreams.a]\nurl = \"https://h/\"\nauth = { type = \"oauth\", client_secret = \"s\" }",
    "[fleet]\nstore = { url = \"redis://127.0.0.1:1\" }\nkeys = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"\nlisten = \"127.0.0.1:1\"\n[upstreams.a]\nurl = \"https://h/\"\nauth.type = \"oauth\"",
    "[upstreams.a]\nurl = \"http://h/\"\nauth = { type = \"oauth\", issuer = \"https://i\" }",
    "[upstreams.a]\nurl = \"https://h/\"\nauth = { type = \"oauth\", issuer = \"http://i\" }",
    "[upstreams.a]\nurl = \"https://h:99999/\"",
    "[egress]\nproxy = \"http://p:99999\"",
    "[egress]\nno_proxy = [\"10.0.0.0/33\"]",
    "[protocol]\nlegacy_sse = true\nversions = [\"2026-07-28\"]",
    "[auth.oidc.a]\nissuer = \"https://id\"\naudience = [\"a\"]\n",
    "[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\nissuer = \"https://id\"\naudience = [\"a\"]\ndefault_role = \"nobody\"",
    "[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\nissuer = \"https://id\"\naudience = [\"a\"]\njwks_uri = \"http://id/k\"",
    "[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\nissuer = \"https://id\"\naudience = [\"a\"]\n[auth.oidc.b]\nissuer = \"https://id\"\naudience = [\"a\"]\n",
];

/// Adds an upstream to a sample without one, and returns whether reader and schema accept it.
fn verdicts(validator: &Validator, sample: &str) -> (bool, bool) {
    let text = match sample.contains("[upstreams") {
        true => sample.to_owned(),
        false => format!("{sample}\n{PROMPT_LIBRARY}"),
    };
    let options =
        Options { environment: [("SET", "x")].into_iter().collect(), ..Options::default() };
    let main = file(Path::new("weir.toml"), text.clone());
    let read = Config::from_file(&main, &options, false, false).is_ok();
    (read, schema_errors(validator, &text).is_empty())
}

#[test]
fn the_schema_refuses_what_the_reader_refuses_and_nothing_else() {
    let validator = validator();
    let all = [(&SOUND[..], (true, true)), (&MISTAKEN, (false, false)), (&BEYOND, (false, true))];
    for (samples, expected) in all {
        for sample in samples {
            assert_eq!(verdicts(&validator, sample), expected, "reader and schema on:\n{sample}");
        }
    }
    // The upstreams may be in included files, and the file may be included itself.
    assert!(parse("").is_err() && schema_errors(&validator, "[log]\nlevel = \"info\"").is_empty());
}

#[test]
fn the_schema_explains_and_gives_the_default() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let key = schema.pointer("/properties/upstreams/additionalProperties/properties/enabled");
    assert_eq!(key.and_then(|key| key.get("default")), Some(&json!(true)));
    let all = schema.to_string();
    assert_eq!(all.matches("\"description\":\"\"").count(), 0);
    assert!(all.matches("\"description\":").count() > 100);
}

// === The files ===

#[test]
fn the_files_made_from_the_description_are_up_to_date() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let files = [
        ("config.schema.json", schema()),
        ("docs/configuration.md", page()),
        ("config.example.toml", example_file()),
    ];
    for (name, made) in files {
        if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
            std::fs::write(root.join(name), &made).unwrap();
        }
        let shipped = std::fs::read_to_string(root.join(name)).unwrap_or_default();
        assert!(
            shipped == made,
            "{name} is old: write it with `WEIR_WRITE_DOCS=1 cargo test -p weir-config --lib`"
        );
    }
}

#[test]
fn the_page_leads_somewhere_and_its_examples_are_sound() {
    let (page, validator) = (page(), validator());
    let anchor = |title: &str| {
        let kept = |c: &char| c.is_alphanumeric() || *c == '-' || *c == '_' || *c == ' ';
        title.chars().filter(kept).collect::<String>().trim().to_lowercase().replace(' ', "-")
    };
    let titles = page.lines().filter(|line| line.starts_with('#'));
    let anchors: BTreeSet<_> = titles.map(anchor).collect();
    for link in page.split("](#").skip(1) {
        let target = link.split(')').next().unwrap_or_default();
        assert!(anchors.contains(target), "no section #{target}");
    }
    let blocks = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    for block in blocks {
        let document = to_json(block);
        let is_whole = block.lines().any(|line| line.starts_with(['[', '#']))
            || document.get("include").is_some();
        if is_whole && !block.contains('<') {
            assert_eq!(schema_errors(&validator, block), "", "{block}");
        }
    }
}
