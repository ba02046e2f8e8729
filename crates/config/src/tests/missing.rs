//! Tests of values that are missing: which upstreams they stop, and where they are mistakes.

use toml_edit::{Array, DocumentMut, Item, value};

use super::leaks::{example_without_comments, part_of, paths, put};
use super::*;

/// Returns the upstreams that cannot be started, each with the reason.
fn unresolved(config: &Config) -> String {
    let line = |it: &UpstreamConfig| Some(format!("{}: {}\n", it.name(), it.unresolved()?));
    config.upstreams.iter().filter_map(line).collect()
}

#[test]
fn a_missing_value_stops_its_upstream_and_no_other() {
    let text = r#"
[upstreams.notion]
command = "x"
env = { TOKEN = "${NOTION_TOKEN}" }
[upstreams.github]
url = "http://h/mcp"
headers.A = { file = "secrets/github" }
[upstreams.shop]
url = "http://h/mcp"
auth = { type = "bearer", token = { command = ["sh", "-c", "exit 3"] } }
[upstreams.all]
command = "${GONE:?ask for it}"
args = ["${GONE:?ask for it}", "--key=${file:secrets/key}"]
env = { A = { env = "A" }, B = { file = "secrets/b" }, C = { command = ["gone"] } }
[upstreams.fine]
command = "x"
"#;
    let path = std::env::var("PATH").unwrap();
    let home = Home::new(&[("weir.toml", text)]).with(&[("PATH", &path)]);
    let config = home.load().unwrap();
    insta::assert_snapshot!(home.local(&unresolved(&config)), @r"
    notion: the variable NOTION_TOKEN is not set: set it where Weir starts (weir.toml:4)
    github: secrets/github cannot be read: No such file or directory (os error 2): make it, or correct the path (weir.toml:7)
    shop: sh failed with exit code 3: run it by hand to see what it says (weir.toml:10)
    all: the variable GONE is not set, or empty: ask for it: set it where Weir starts (weir.toml:12); secrets/key cannot be read: No such file or directory (os error 2): make it, or correct the path (weir.toml:13); the variable A is not set: set it where Weir starts (weir.toml:14); secrets/b cannot be read: No such file or directory (os error 2): make it, or correct the path (weir.toml:14); and 1 more
    ");
    // Each is a warning at its place as well, with the whole remedy.
    insta::assert_snapshot!(home.lines(), @r"
    weir.toml:4:17: upstreams.notion.env.TOKEN: the variable NOTION_TOKEN is not set (set NOTION_TOKEN where Weir starts, or write ${NOTION_TOKEN:-default})
    weir.toml:7:22: upstreams.github.headers.A.file: secrets/github cannot be read: No such file or directory (os error 2) (check the path, which starts from the folder of this file, and its permissions)
    weir.toml:10:47: upstreams.shop.auth.token.command: sh failed with exit code 3 (run it by hand to see what it says)
    weir.toml:12:11: upstreams.all.command: the variable GONE is not set, or empty: ask for it (set GONE where Weir starts)
    weir.toml:13:9: upstreams.all.args: the variable GONE is not set, or empty: ask for it (set GONE where Weir starts)
    weir.toml:13:32: upstreams.all.args: secrets/key cannot be read: No such file or directory (os error 2) (check the path, which starts from the folder of this file, and its permissions)
    weir.toml:14:21: upstreams.all.env.A.env: the variable A is not set (set A where Weir starts, or name another)
    weir.toml:14:41: upstreams.all.env.B.file: secrets/b cannot be read: No such file or directory (os error 2) (check the path, which starts from the folder of this file, and its permissions)
    weir.toml:14:72: upstreams.all.env.C.command: gone is not there (install it, or write its whole path; each argument is a string of its own)
    ");
    assert!(config.warnings.iter().all(|it| it.is_missing_value));
    // Offline no command is run, and the rest is the same.
    let warnings = Config::check(&home.path("weir.toml"), &home.options).unwrap();
    assert_eq!(warnings.len(), config.warnings.len() - 2);
}

#[test]
fn what_else_is_wrong_stops_everything_as_before() {
    let missing = "[upstreams.a]\ncommand = \"x\"\nargs = [\"${GONE}\"]\n";
    assert!(parse(missing).is_ok());
    for mistake in [
        "required = true",
        "argz = []",
        "env.A = { env = \"B C\" }",
        "env.A = \"${env:A}\"",
        "env.A = \"${A\"",
        "url = \"http://h/\"",
        "timeouts.call = 7",
        "[server]\npath = \"${GONE}\"",
        "[defaults]\nera = \"${GONE}\"",
        "[admin]\ntoken = { env = \"GONE\" }",
        "[upstreams.b]\ncommand = \"x\"\nrequired = true\nenv.A = { env = \"GONE\" }",
    ] {
        let report = parse(&format!("{missing}{mistake}\n")).expect_err(mistake);
        let errors = report.problems().iter().filter(|it| it.severity == Severity::Error);
        assert_eq!(errors.count(), 1, "{mistake}: {report}");
    }
    // A file that is there and wrong is a mistake, and no missing value.
    let home = Home::new(&[("weir.toml", &format!("{missing}env.A = {{ file = \"key\" }}\n"))]);
    std::fs::write(home.path("key"), "hunter2").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(home.path("key"), open).unwrap();
    assert!(home.mistakes().contains("chmod 600 key"));
}

#[test]
fn what_a_missing_value_would_decide_is_no_mistake_of_another_key() {
    for lines in [
        "timeouts = { call = \"${GONE}\", call_max = \"1s\" }",
        "timeouts.idle = \"1m\"\nlazy = \"${GONE}\"",
        "sharing = \"${GONE}\"\nreplicas = \"one\"",
        "prefix = \"${GONE}\"\n[upstreams.b]\nurl = \"http://h/\"\nprefix = \"a\"",
    ] {
        let defaults = "[defaults]\nsharing = \"client\"\n";
        let config = config(&format!("{defaults}[upstreams.a]\ncommand = \"x\"\n{lines}\n"));
        assert_eq!(unresolved(&config).lines().count(), 1, "{lines}");
    }
    for lines in [
        "transport = \"sse\"\nera = \"${GONE}\"",
        "url = \"https://h/\"\nauth = { type = \"oauth\", client_id = \"${GONE}\", client_secret = \"s\" }",
        "url = \"https://h/\"\nauth = { type = \"oauth\", grant = \"jwt_bearer\", assertion = { file = \"${GONE}\" } }",
        "auth = { type = \"oauth\", issuer = \"https://i\", allow_http = \"${GONE}\" }",
        "auth = { type = \"oauth\", issuer = \"http://i\", metadata_url = \"${GONE}\", allow_http = true }",
        "tls = { cert = \"${GONE}\", key = \"k\" }\nurl = \"https://h/\"",
    ] {
        let url = if lines.contains("url = \"https") { "" } else { "url = \"http://h/\"\n" };
        let defaults = "[defaults]\nera = \"modern\"\n";
        let config = config(&format!("{defaults}[upstreams.a]\n{url}{lines}\n"));
        assert_eq!(unresolved(&config).lines().count(), 1, "{lines}");
    }
}

#[test]
fn an_unset_variable_at_each_place_of_an_upstream_stops_that_one_only() {
    let mut document = example_without_comments();
    document["upstreams"]["office"].as_table_like_mut().unwrap().remove("enabled");
    let mut all = Vec::new();
    paths(document.as_table(), &[], &mut all);
    let is_table = |path: &[String]| all.iter().any(|other| other.split_last().unwrap().1 == path);
    let leaves: Vec<_> = all.iter().filter(|path| !is_table(path)).collect();
    let mut places: Vec<(DocumentMut, Vec<String>, Item)> = Vec::new();
    for leaf in &leaves {
        let written = leaf.iter().fold(document.as_item(), |table, key| &table[key]);
        if written.is_table_like() {
            continue;
        }
        // A list is one whatever its entries stand for.
        let unset = match written.is_array() {
            true => value(Array::from_iter(["${UNSET}"])),
            false => value("${UNSET}"),
        };
        match &*leaf[0] {
            "upstreams" => places.push((part_of(&document, leaf), (*leaf).clone(), unset)),
            // A table of an upstream may have these keys, too.
            "defaults" | "guard"
                if !["lock_file", "login_path"].contains(&&*leaf[leaf.len() - 1]) =>
            {
                let keys = if leaf[0] == "guard" { &leaf[..] } else { &leaf[1..] };
                let path = [&["upstreams".to_owned(), "own".to_owned()], keys].concat();
                let part = "[upstreams.library]\nprompts_dir = \"p\"\n[upstreams.own]\n\
                    command = \"x\"\nlazy = true\ntimeouts = {}\nretry = {}\nbreaker = {}\nlimits = {}\n\
                    guard = { redact = {} }\n";
                let part = part.parse().unwrap();
                places.push((part, path, unset));
            }
            _ => {}
        }
    }
    assert!(places.len() > 90, "{}", places.len());
    for (mut document, place, unset) in places {
        put(&mut document, &place, unset);
        let main = file(Path::new("weir.toml"), document.to_string());
        let names = ["EVERYTHING_KEY", "WIKI_PASSWORD"].map(|name| (name, "hunter2"));
        let options = Options { environment: names.into_iter().collect(), ..Options::default() };
        let config = Config::from_file(&main, &options, false, false)
            .unwrap_or_else(|report| panic!("{place:?}: {report}"));
        let stopped: Vec<_> =
            config.upstreams.iter().filter(|it| it.unresolved().is_some()).collect();
        let [stopped] = stopped[..] else { panic!("{place:?}: {} are stopped", stopped.len()) };
        assert_eq!(stopped.name(), place[1], "{place:?}");
        let reason = stopped.unresolved().unwrap();
        assert!(reason.contains("the variable UNSET is not set"), "{place:?}: {reason}");
    }
}

#[test]
fn values_that_an_upstream_would_lose_are_named_as_errors_by_a_report() {
    let config = config(
        "[upstreams.a]\nurl = \"${A}\"\n[upstreams.ab]\ncommand = \"${B}\"\n\
         [upstreams.c]\ncommand = \"x\"\n",
    );
    assert_eq!(ConfigReport::of_missing_values(&config.warnings, &[]), None);
    let report = ConfigReport::of_missing_values(&config.warnings, &["a"]).unwrap();
    let found = report.problems().iter().map(|it| (it.key.as_str(), it.severity));
    let expected =
        [("upstreams.a.url", Severity::Error), ("upstreams.ab.command", Severity::Warning)];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}
