//! Tests that no problem contains the value of a variable or a secret.

use std::sync::Arc;

use toml_edit::{Array, DocumentMut, Item, Table as EditTable, TableLike, value};

use super::example::example_in_full;
use super::*;
use crate::reader::report::RedactedSource;

/// Secret text that cannot occur in Weir's own texts.
const MARKS: [&str; 2] = ["qxqxq", "73519"];

/// Values of a variable: each is valid for some keys and invalid for others.
const SHAPES: [&str; 26] = [
    "qxqxq",
    "QXQXQ",
    "/qxqxq",
    "qxqxq/qxqxq",
    "qxqxq__qxqxq",
    "/qxqxq/x",
    "*/qxqxq*",
    "qxqxq qxqxq",
    "qxqxq\nqxqxq",
    "qxqxq\0",
    "_qxqxq-qxqxq",
    "prompts/qxqxq",
    "qxqxq:80",
    "localhost:qxqxq",
    "localhost:73519",
    ":73519",
    "https://qxqxq.example.com",
    "https://qxqxq.example.com/#qxqxq",
    "https://qxqxq:qxqxq@h/",
    "ftp://qxqxq/",
    "73519",
    "73519s",
    "73519h",
    "73519GiB",
    "99999999999999999999973519",
    "Bearer qxqxq",
];

fn leaks(text: &str) -> bool {
    let text = text.to_lowercase();
    MARKS.iter().any(|mark| text.contains(mark))
}

/// Checks a report for leaks, or the warnings and the secrets of a valid configuration. Only some
/// problems are rendered, because the rendering shows the file's text and the texts that are
/// checked here.
fn check(judged: Result<Config, ConfigReport>, what: &str) {
    let (config, problems) = match judged {
        Ok(config) => (Some(config.clone()), config.warnings),
        Err(report) => (None, report.problems().to_vec()),
    };
    // The problems of a file share its text, which is longer than all that they say.
    let mut checked: Vec<&Arc<RedactedSource>> = Vec::new();
    for problem in &problems {
        let text =
            format!("{problem:?} {} {} {}", problem.location(), problem.what, problem.remedy);
        assert!(!leaks(&text), "{what}\n{text}");
        if !checked.iter().any(|source| Arc::ptr_eq(source, &problem.source)) {
            assert!(!leaks(problem.source.text()), "{what}\n{}", problem.source.text());
            checked.push(&problem.source);
        }
    }
    if let Some(problem) = problems.first() {
        assert!(!leaks(&problem.render(true)), "{what}\n{problem}");
    }
    let sources =
        config.map(|config| config.upstreams.into_iter().map(|upstream| upstream.settings.source));
    for source in sources.into_iter().flatten() {
        if let UpstreamSource::Process(ChildCommand { env, .. }) = &source {
            assert!(!leaks(&format!("{env:?}")), "{what}");
        }
        if let UpstreamSource::Http { headers, .. } = &source {
            assert!(!leaks(&format!("{headers:?}")), "{what}");
        }
    }
}

/// Returns the paths of all values of a document.
pub(super) fn paths(table: &dyn TableLike, path: &[String], all: &mut Vec<Vec<String>>) {
    for (key, item) in table.iter() {
        let path = [path, &[key.to_owned()]].concat();
        if let Some(table) = item.as_table_like() {
            paths(table, &path, all);
        }
        all.push(path);
    }
}

pub(super) fn put(document: &mut DocumentMut, path: &[String], item: Item) {
    let (last, tables) = path.split_last().unwrap();
    let root: &mut dyn TableLike = document.as_table_mut();
    let table = tables
        .iter()
        .fold(root, |table, key| table.get_mut(key).unwrap().as_table_like_mut().unwrap());
    table.insert(last, item);
}

/// Beginning of every part of the example: what the tables refer to.
const REFERRED_TO: &str = "[server]\npublic_url = \"https://weir.example.com\"\n\
    [upstreams.library]\nprompts_dir = \"./prompts\"\n[roles.developer]\n[clients]\n\
    [state]\ndir = \"./state\"\n";

/// Returns the part of a document that a path leads into, as a configuration of its own, which is
/// read in a fraction of the time: a section, or an upstream, a role or a client.
pub(super) fn part_of(document: &DocumentMut, path: &[String]) -> DocumentMut {
    let is_named = ["upstreams", "roles", "clients"].contains(&&*path[0]);
    let top = &path[..path.len().min(if is_named { 2 } else { 1 })];
    let item = top.iter().fold(document.as_item(), |table, key| &table[key]);
    let mut part = REFERRED_TO.parse().unwrap();
    put(&mut part, top, item.clone());
    part
}

#[test]
fn each_part_of_the_example_is_read_to_its_end() {
    let names = ["EVERYTHING_KEY", "WIKI_PASSWORD", "PROXY_PASSWORD"];
    let environment = names.map(|name| (name, "hunter2")).into_iter().collect();
    let options = Options { environment, ..Options::default() };
    let document = example_without_comments();
    let mut all = Vec::new();
    paths(document.as_table(), &[], &mut all);
    let of_part = |path: &Vec<String>| {
        let main = file(Path::new("weir.toml"), part_of(&document, path).to_string());
        let judged = Config::from_file(&main, &options, false, true);
        let problems = judged.err().map(|report| report.problems().to_vec()).unwrap_or_default();
        // The files that it names are missing here, and the CA of clients in another part.
        problems.into_iter().filter(|it| {
            it.severity == Severity::Error
                && !it.what.contains("No such file")
                && it.key != "clients.ci.certificates"
        })
    };
    let others: Vec<_> = all.iter().flat_map(of_part).collect();
    assert!(others.is_empty(), "{others:#?}");
}

pub(super) fn example_without_comments() -> DocumentMut {
    let example = example_in_full();
    let lines = example.lines().map(|line| line.split("  # ").next().unwrap());
    let lines = lines.filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.collect::<Vec<_>>().join("\n").parse().unwrap()
}

#[test]
fn no_key_leaks_what_its_variable_stands_for() {
    let document = example_without_comments();
    let mut all = Vec::new();
    paths(document.as_table(), &[], &mut all);
    assert!(all.len() > 80, "{}", all.len());
    let few = || SHAPES.iter().step_by(7);
    let mut table = EditTable::new();
    table.insert("x", value("${LEAK}"));
    table.insert("file", value("${LEAK}"));
    let items = [
        value("${LEAK}"),
        value("a ${LEAK}"),
        value(Array::from_iter(["${LEAK}"])),
        Item::Table(table),
    ];
    for path in &all {
        let part = part_of(&document, path);
        for item in &items {
            check_with(&part, &[path], item, few());
        }
    }
    // Each shape is set for all values of a table at once, and of the whole document.
    let is_table = |path: &Vec<String>| all.iter().any(|p| p.split_last().unwrap().1 == path);
    let leaves: Vec<_> = all.iter().filter(|path| !is_table(path)).collect();
    for leaves in leaves.chunk_by(|a, b| a.split_last().unwrap().1 == b.split_last().unwrap().1) {
        let part = part_of(&document, leaves[0]);
        check_with(&part, leaves, &value("${LEAK}"), SHAPES.iter());
    }
    check_with(&document, &leaves, &value("${LEAK}"), SHAPES.iter());
}

/// Inserts `item` at paths of the document, and checks the document with each of the shapes.
fn check_with<'s>(
    document: &DocumentMut,
    paths: &[&Vec<String>],
    item: &Item,
    shapes: impl Iterator<Item = &'s &'s str>,
) {
    let mut document = document.clone();
    paths.iter().for_each(|path| put(&mut document, path, item.clone()));
    let main = file(Path::new("weir.toml"), document.to_string());
    for shape in shapes {
        let variables = ["LEAK", "EVERYTHING_KEY", "WIKI_PASSWORD"].map(|name| (name, *shape));
        let options =
            Options { environment: variables.into_iter().collect(), ..Options::default() };
        check(Config::from_file(&main, &options, false, true), &format!("{paths:?} = {shape:?}"));
    }
}

#[test]
fn what_two_values_say_together_is_no_leak() {
    let texts = [
        "[upstreams.a]\ncommand = \"x\"\nprefix = \"${NAME}\"\n[upstreams.b]\ncommand = \"x\"\nprefix = \"${NAME}\"\n",
        "[upstreams.a]\ncommand = \"x\"\nrename = { \"tools/a\" = \"${NAME}\", \"tools/b\" = \"${NAME}\" }\n",
        "[upstreams.a]\ncommand = \"x\"\ntimeouts = { call = \"${LONG}\", call_max = \"${SHORT}\" }\n",
        "[defaults]\ntimeouts.call = \"2s\"\n[upstreams.a]\ncommand = \"x\"\ntimeouts.call_max = \"${SHORT}\"\n",
        "[server]\nlisten = \"${LISTEN}\"\n[auth]\nmode = \"anonymous\"\n[upstreams.a]\ncommand = \"x\"\n",
        "[upstreams.a]\ncommand = \"x\"\n[roles.x]\ntools.allow = [\"${NAME}/x\", \"x__${NAME}\"]\n[auth]\nanonymous_role = \"${NAME}\"\n",
        "[upstreams.a]\ncommand = \"x\"\ncwd = \"${NAME}\"\nenv.A = { file = \"${NAME}\" }\nenv.B = { env = \"${NAME}\" }\n",
        "[upstreams.a]\nurl = \"${URL}\"\nauth = { type = \"${NAME}\", user = \"${URL}\" }\n",
    ];
    let variables = [
        ("NAME", "qxqxq"),
        ("LONG", "73519s"),
        ("SHORT", "73519ms"),
        ("LISTEN", "0.0.0.0:7351"),
        ("URL", "https://qxqxq:x@h/"),
    ];
    for text in texts {
        let options =
            Options { environment: variables.into_iter().collect(), ..Options::default() };
        let judged =
            Config::from_file(&file(Path::new("weir.toml"), text.to_owned()), &options, true, true);
        if let Err(report) = &judged {
            assert!(!report.to_string().contains("7351"), "{report}");
        }
        check(judged, text);
    }
}

#[test]
fn a_key_that_stands_in_the_place_of_its_hash_is_not_shown() {
    let text = "[upstreams.a]\ncommand = \"x\"\n[clients.me]\nkey_sha256 = [\"qxqxq\"]\n";
    let report = Config::parse(text, Path::new("weir.toml"), &Options::default()).unwrap_err();
    assert!(!leaks(&report.to_string()), "{report}");
}

#[test]
fn a_program_from_a_variable_is_not_shown() {
    let text = "[upstreams.a]\ncommand = \"/${NAME}\"\nargs = [\"${NAME}\"]\ncwd = \"${NAME}\"\n";
    let options =
        Options { environment: [("NAME", "qxqxq")].into_iter().collect(), ..Options::default() };
    let config = Config::parse(text, Path::new("weir.toml"), &options).expect("good");
    assert!(!leaks(&format!("{config:?}")), "{config:?}");
    let UpstreamSource::Process(ChildCommand { program, display_name, .. }) =
        &config.upstreams[0].settings.source
    else {
        panic!("a process")
    };
    assert_eq!((program.as_str(), display_name.as_str()), ("/qxqxq", "/${NAME}"));
}

#[test]
fn a_complaint_quotes_what_is_written_and_is_about_what_it_stands_for() {
    let text = "[server]\nlisten = \"${ADDRESS}\"\npath = \"${FINE}\"\n[protocol]\nsession_ttl = \"${TTL}\"\npage_size = \"${TTL}\"\n\
                [upstreams.a]\nurl = \"${URL}\"\n[upstreams.b]\ncommand = \"${NUL:-}\"\nrename = { \"tools/a\" = \"${NAME:-b b}\" }\n";
    let variables =
        [("ADDRESS", "localhost:1"), ("FINE", "/x"), ("TTL", "30"), ("URL", "https://me:qxqxq@h/")];
    let options = Options { environment: variables.into_iter().collect(), ..Options::default() };
    let report = Config::parse(text, Path::new("weir.toml"), &options).unwrap_err();
    insta::assert_snapshot!(report, @r#"
    error: server.listen: "${ADDRESS}" is not an IP address with a port
     --> weir.toml:2:10
      |
    2 | listen = "${ADDRESS}"
      |          ^^^^^^^^^^^^ write it like "127.0.0.1:8642" or "[::1]:8642"

    error: protocol.session_ttl: "${TTL}" is not a duration
     --> weir.toml:5:15
      |
    5 | session_ttl = "${TTL}"
      |               ^^^^^^^^ write it like "250ms", "60s", "10m" or "1h"

    error: protocol.page_size: expected a whole number, found a string
     --> weir.toml:6:13
      |
    6 | page_size = "${TTL}"
      |             ^^^^^^^^ write a number without quotes

    error: upstreams.a.url: a URL must not hold credentials
     --> weir.toml:8:7
      |
    8 | url = "${URL}"
      |       ^^^^^^^^ put them in auth, with type = "basic"

    error: upstreams.b.command: an empty string means nothing here
      --> weir.toml:10:11
       |
    10 | command = "${NUL:-}"
       |           ^^^^^^^^^^ write a value, or remove the key

    error: upstreams.b.rename."tools/a": "${NAME:-b b}" cannot be used as a name
      --> weir.toml:11:24
       |
    11 | rename = { "tools/a" = "${NAME:-b b}" }
       |                        ^^^^^^^^^^^^^^ 1 to 64 of A-Z, a-z, 0-9, _, . and -
    "#);
}

#[test]
fn what_is_read_as_a_secret_is_no_leak_wherever_it_stands() {
    let values = [
        "\"qxqxq\"",
        "[\"qxqxq\"]",
        "{ x = \"qxqxq\" }",
        "\"qxqxq\\n\"",
        "73519",
        "2027-06-30T00:00:00Z",
    ];
    let keys = [
        "env",
        "headers",
        "auth",
        "env.A",
        "headers.A",
        "headers.Host",
        "auth.token",
        "auth.password",
        "token",
        "headrs",
        "secret.x",
    ];
    for source in ["command = \"x\"", "url = \"http://h/\"", "prompts_dir = \"x\"", ""] {
        for key in keys {
            for value in values {
                let text = format!("[upstreams.a]\n{source}\n{key} = {value}\n");
                check(parse(&text), &text);
                let twice = format!("include = [\"two\"]\n{text}");
                let home = Home::new(&[("weir.toml", &twice), ("two", &text)]);
                check(home.load(), &twice);
            }
        }
    }
}
