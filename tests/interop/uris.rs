//! Spellings of URIs, judged by real parsers: a URI that one of them takes for a resource that a
//! role may not read is not routed, nor one that does not leave its upstream
//! (docs/resource-uris.md).
//!
//! The spellings are a corpus of known tricks and some thousand variants that a generator derives
//! from it, with a fixed seed by day and a new one each night; `WEIR_SEED` repeats one. Python
//! (pydantic's `AnyUrl`, `urllib`), Node and Rust (`url`) parse all of them, each in one process.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::ReadResourceRequestParams;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use weir_access::catalog::{
    Catalog, ExportRules, Filter, ListSnapshot, RoleView, Settings, UriRoute,
};
use weir_access::policy::role::Role;
use weir_mcp::definition::item::Item;
use weir_mcp::kind::Kind;
use weir_mcp::name::Naming;
use weir_mcp::pattern::AllowDeny;

use crate::clients::{Listener, legacy, modern, over_http};
use crate::fleet::{Fleet, soon};
use crate::parts::{part, script};

/// Allowed patterns, denied patterns, and whether a role with these rules may read the resource
/// that a parser sees.
struct Case {
    allow: &'static [&'static str],
    deny: &'static [&'static str],
    may_read: fn(&str) -> bool,
}

const CASES: [Case; 5] = [
    Case {
        allow: &["hub/file:///pub/*", "hub/db://pub/*", "hub/https://h/pub/*", "hub/note:pub/*"],
        deny: &[],
        may_read: |claim| {
            // The root of a host is `db://pub/`.
            claim == "db:/pub"
                || ["file:/pub/", "db:/pub/", "https:/h/pub/", "note:/pub/"]
                    .iter()
                    .any(|head| claim.starts_with(head))
        },
    },
    Case {
        allow: &["*"],
        deny: &[
            "hub/file:///secret/*",
            "hub/db://secret/*",
            "hub/https://h/secret/*",
            "hub/note:secret/*",
            "hub/file:///C:/secret/*",
        ],
        may_read: |claim| {
            let claim = claim.to_lowercase();
            ![
                "file:/secret/",
                "db:/secret/",
                "https:/h/secret/",
                "note:/secret/",
                "file:/c:/secret/",
            ]
            .iter()
            .any(|head| claim.starts_with(head))
        },
    },
    Case { allow: &["hub/*.txt"], deny: &[], may_read: |claim| claim.ends_with(".txt") },
    Case {
        allow: &["*"],
        deny: &["hub/*.key", "hub/*/my geh\u{e4}lter/*"],
        may_read: |claim| {
            let claim = claim.to_lowercase();
            !claim.ends_with(".key") && !claim.contains("/my geh\u{e4}lter/")
        },
    },
    Case {
        allow: &["*"],
        deny: &["hub/https://h", "hub/db://secret"],
        may_read: |claim| !["https:/h", "db:/secret"].contains(&&*claim.to_lowercase()),
    },
];

/// URIs from which the spellings are derived.
const BASES: [&str; 29] = [
    "file:///pub/a.txt",
    "file:///pub/../secret/b.txt",
    "file:///pub/./a.txt",
    "file:///secret/b.txt",
    "file:///C:/secret/b.txt",
    "file:///pub/C:/secret/b.txt",
    "file:///pubC:/secret/b.txt",
    "https://h/",
    "db://secret",
    "db://secret/",
    "file:///pub/b.key",
    "file:///pub/my%20geh%C3%A4lter/a.txt",
    "file:///pub/my+geh%C3%84lter/a.txt",
    "db://pub/1",
    "db://pub/../secret/1",
    "db://secret/1.txt",
    "db://secret:1/1",
    "db:secret/1",
    "db:/secret/1",
    "db:///secret/1",
    "https://h/pub/a.txt",
    "https://h/pub/../secret/a.txt",
    "https://h/secret/b.key?x=.txt",
    "https://h:8443/secret/b.txt",
    "note:pub/a.txt",
    "note:pub/../secret/a.txt",
    "note:secret/b.txt",
    "note:///secret/b.key",
    "note://pub/a.txt?q=a%2Fb",
];

/// Texts that are inserted into a spelling, at some place.
const INSERTED: [&str; 58] = [
    "\t",
    "\n",
    "\r",
    " ",
    "\0",
    "\u{b}",
    "\u{7f}",
    "\u{85}",
    "\u{a0}",
    "\\",
    "/",
    "//",
    "/./",
    "/../",
    "..",
    ".",
    "%2e",
    "%2E",
    "%2e%2e/",
    "%2f",
    "%2F",
    "%5c",
    "%5C",
    "%00",
    "%09",
    "%0A",
    "%20",
    "%25",
    "%252e",
    "%252F",
    "%3F",
    "%23",
    "%3B",
    "%3A",
    "%7C",
    "%FF",
    "%C0%AE",
    "%EF%BC%8E",
    "%EF%BC%8F",
    "%E2%80%8B",
    "%E2%80%8D",
    "%E2%80%A4",
    "%E2%84%80",
    "%CC%81",
    "\u{ff0f}",
    "\u{ff0e}",
    "\u{2044}",
    ";x",
    ";",
    "?",
    "#",
    "?/../",
    "|",
    ":",
    "@",
    "+",
    "::$DATA",
    "localhost",
];

/// Spellings that other seeds have found to be read in different ways.
const FOUND: [&str; 4] = [
    "db://secret%7C1.txt",
    "db://localhost/secret/1",
    "note://localhost/secret/%EF%BD%82.key",
    // Twice decoded, with compatibility forms in between, it is `db:///secret`.
    "db://%252%EF%BC%A6secret",
];

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    /// Begins with the seed of `WEIR_SEED`, by night with that of the run, by day always with the
    /// same one.
    fn new() -> Self {
        let is_night = std::env::var_os("WEIR_NIGHTLY").is_some();
        let of_run = || std::env::var("PROPTEST_RNG_SEED").ok().filter(|_| is_night);
        let given = std::env::var("WEIR_SEED").ok().or_else(of_run);
        let seed = given.map(|seed| seed.parse().expect("a number")).unwrap_or(0x57e1_2026);
        println!("WEIR_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Another spelling of a URI, possibly of another resource.
fn changed(uri: &str, random: &mut Random) -> String {
    let mut letters: Vec<char> = uri.chars().collect();
    let at = random.below(letters.len());
    match random.below(6) {
        0 | 1 => {
            letters.splice(at..at, INSERTED[random.below(INSERTED.len())].chars());
        }
        2 => {
            letters.splice(at..=at, INSERTED[random.below(INSERTED.len())].chars());
        }
        3 => {
            let mut bytes = [0; 4];
            let bytes = letters[at].encode_utf8(&mut bytes).bytes();
            let is_capital = random.below(2) == 0;
            let escape = |byte| match is_capital {
                true => format!("%{byte:02X}"),
                false => format!("%{byte:02x}"),
            };
            let escaped: String = bytes.map(escape).collect();
            letters.splice(at..=at, escaped.chars());
        }
        4 => {
            let capital: Vec<_> = letters[at].to_uppercase().collect();
            letters.splice(at..=at, capital);
        }
        _ => {
            // Fullwidth forms have the order of ASCII.
            let wide = u32::from(letters[at]).checked_sub(0x21).filter(|place| *place < 0x5e);
            let wide = wide.and_then(|place| char::from_u32(0xff01 + place));
            let wide = wide.unwrap_or('\u{3000}').to_string();
            let escaped: String = wide.bytes().map(|byte| format!("%{byte:02X}")).collect();
            letters.splice(at..=at, escaped.chars());
        }
    }
    letters.into_iter().collect()
}

fn spellings() -> Vec<String> {
    let mut random = Random::new();
    let mut all: Vec<String> = BASES.into_iter().chain(FOUND).map(str::to_owned).collect();
    for base in BASES {
        for inserted in INSERTED {
            let (head, tail) = base.split_at(random.below(base.len()));
            all.push([head, inserted, tail].concat());
        }
    }
    for _ in 0..2_000 {
        let mut uri = BASES[random.below(BASES.len())].to_owned();
        for _ in 0..=random.below(3) {
            uri = changed(&uri, &mut random);
        }
        all.push(uri);
    }
    all.sort();
    all.dedup();
    all
}

/// Maximum time of one parser for all spellings, which is seconds on an idle machine.
const READING: Duration = Duration::from_secs(300);

/// Result of a parser for each URI: its normalized form, and the resources that it may mean.
async fn parsed_by(
    program: &str,
    file: &str,
    uris: &[String],
) -> Vec<(Option<String>, Vec<String>)> {
    let mut command = Command::new(part(program));
    command.arg(script(file)).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let text = serde_json::to_vec(uris).unwrap();
    let write = async move { stdin.write_all(&text).await.unwrap() };
    let both = async { tokio::join!(child.wait_with_output(), write) };
    let (output, ()) = tokio::time::timeout(READING, both).await.expect("the reader ends");
    let read: Vec<Value> = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    let claims = |one: &Value| {
        one["claims"].as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    read.iter().map(|one| (one["written"].as_str().map(str::to_owned), claims(one))).collect()
}

fn parsed_by_rust(uri: &str) -> (Option<String>, Vec<String>) {
    let Ok(url) = url::Url::parse(uri) else { return (None, Vec::new()) };
    let (scheme, host) = (url.scheme(), url.host_str().unwrap_or_default());
    // A URI without a path names no root either.
    let whole = match url.path() {
        "" => host.to_owned(),
        path => format!("{host}/{path}").replace("//", "/"),
    };
    let mut claims = vec![format!("{scheme}:/{whole}")];
    // It gives paths for other schemes as well, which mean nothing.
    let file = (scheme == "file").then(|| url.to_file_path().ok()).flatten();
    let path = file.and_then(|path| path.to_str().map(str::to_owned));
    claims.extend(path.map(|path| format!("{scheme}:{path}")));
    let claims = claims.into_iter().map(|claim| claim.replace(":///", ":/").replace("://", ":/"));
    (Some(url.to_string()), claims.collect())
}

/// Place of the rules of a case.
#[derive(Debug, Clone, Copy)]
enum RuleOwner {
    Role,
    /// The upstream's own `resources`: equal rules without the upstream's name.
    Upstream,
}

/// View of a role with these rules on an upstream that has a template for every URI.
fn view(case: &Case, owner: RuleOwner) -> Arc<RoleView> {
    let name = || "hub".parse().unwrap();
    let everything = AllowDeny::everything;
    // Also allows the template itself, which is no URI: only the rules for URIs matter.
    let allow: Vec<_> = case.allow.iter().copied().chain(["hub/{+any}"]).collect();
    let own = |patterns: &[&'static str]| -> Vec<_> {
        patterns.iter().map(|it| it.strip_prefix("hub/").unwrap_or(it)).collect()
    };
    let (of_role, of_upstream) = match owner {
        RuleOwner::Role => (AllowDeny::new(&allow, case.deny), everything()),
        RuleOwner::Upstream => (everything(), AllowDeny::new(&own(&allow), &own(case.deny))),
    };
    let export = ExportRules {
        name: name(),
        prefix: name(),
        prompts: everything(),
        tools: everything(),
        resources: of_upstream,
        rename: Vec::new(),
    };
    let catalog = Catalog::new(Settings {
        naming: Naming::default(),
        exports: vec![export],
        page_items: 100,
        page_bytes: 100_000,
        instructions: false,
    });
    let template = br#"{"uriTemplate":"{+any}","name":"any"}"#.as_slice();
    let items = vec![Item::parse(Kind::Template, template.into()).unwrap()];
    let snapshot = ListSnapshot { items, fresh_until: None, is_private: false, cut: None };
    catalog.publish(&name(), Kind::Template, snapshot);
    let role: Arc<dyn Filter> = Arc::new(Role { resources: of_role, ..Role::default() });
    Arc::clone(&catalog.view("guest", &role).borrow())
}

#[tokio::test]
async fn a_uri_that_any_reader_takes_for_what_a_role_may_not_read_is_not_routed() {
    let uris = spellings();
    let python = parsed_by("mcp1/bin/python", "uri_readers.py", &uris).await;
    let node = parsed_by("bin/node", "uri_readers.mjs", &uris).await;
    assert_eq!((python.len(), node.len()), (uris.len(), uris.len()));
    let rust: Vec<_> = uris.iter().map(|uri| parsed_by_rust(uri)).collect();
    let mut problems = Vec::new();
    let passes = [RuleOwner::Role, RuleOwner::Upstream];
    for (case, owner) in CASES.iter().flat_map(|case| passes.map(|owner| (case, owner))) {
        let view = view(case, owner);
        let (mut routed, mut kept) = (0, 0);
        for (at, uri) in uris.iter().enumerate() {
            let readers = [("python", &python[at]), ("node", &node[at]), ("rust", &rust[at])];
            let barred = readers.iter().find_map(|(reader, (_, claims))| {
                let claim = claims.iter().find(|claim| !(case.may_read)(claim))?;
                Some(format!(
                    "{reader} reads {uri:?} as {claim:?}, beside {:?} of {owner:?}",
                    case.allow
                ))
            });
            if !matches!(view.route(uri), UriRoute::Template(_)) {
                kept += usize::from(barred.is_some());
                continue;
            }
            routed += 1;
            problems.extend(barred);
            for (reader, (written, _)) in readers {
                if written.as_ref().is_some_and(|written| written != uri) {
                    problems.push(format!("{reader} writes {uri:?} as {written:?}"));
                }
            }
        }
        let counts = format!("{:?} of {owner:?}: {routed} routed, {kept} kept", case.allow);
        assert!(routed > 50 && kept > 100, "{counts}");
    }
    let shown = problems.iter().take(40).cloned().collect::<Vec<_>>().join("\n");
    assert!(problems.is_empty(), "{} problems:\n{shown}", problems.len());
}

#[tokio::test]
async fn a_server_of_the_python_sdk_is_asked_for_no_file_that_the_client_may_not_read() {
    let spellings = [
        "file:///secret/b.txt",
        "file:///pub/..\t/secret/b.txt",
        "file:///pub/.\n./secret/b.txt",
        "file:///pub/%2\te%2e/secret/b.txt",
        "file:///pub/%2e%2e/secret/b.txt",
        "file:///sec\tret/b.txt",
        "file:///secret\\b.txt",
        "file:////secret/b.txt",
        "file:///%73ecret/b.txt",
        "FILE:///secret/b.txt",
        "file://localhost/secret/b.txt",
        "file:/secret/b.txt",
    ];
    for part_of in ["mcp1", "mcp2"] {
        let python = part(&format!("{part_of}/bin/python"));
        let server = script("files_server.py");
        for rules in [
            "resources.allow = [\"files/file:///pub/*\"]",
            "resources.allow = [\"*\"]\nresources.deny = [\"files/file:///secret/*\"]",
        ] {
            let fleet = Fleet::plain(&format!(
                "[upstreams.files]\ncommand = {python:?}\nargs = [{server:?}]\n\
                 [auth]\nanonymous_role = \"guest\"\n[roles.guest]\n{rules}\n"
            ));
            let mut served = fleet.serve().await;
            served.log.logged("upstream listed", "files").await;
            for lifecycle in [legacy(), modern()] {
                let client = over_http(&served, lifecycle, &Listener::default()).await;
                let read = |uri: &str| client.read_resource(ReadResourceRequestParams::new(uri));
                let public = soon(read("file:///pub/a.txt")).await.unwrap();
                assert!(format!("{public:?}").contains("for everybody"), "{public:?}");
                for uri in spellings {
                    let error = soon(read(uri)).await.expect_err(uri).to_string();
                    assert!(!error.contains("for nobody"), "{uri:?}: {error}");
                }
                soon(client.cancel()).await.unwrap();
            }
            served.stop().await;
        }
    }
}
