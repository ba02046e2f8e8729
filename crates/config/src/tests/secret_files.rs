//! Tests of secret files in arguments and URLs.

use super::*;

/// Arguments of the only upstream.
fn args(config: &Config) -> Vec<&str> {
    let UpstreamSource::Process(ChildCommand { args, .. }) = &config.upstreams[0].settings.source
    else {
        panic!("a process")
    };
    args.iter().map(|arg| arg.expose()).collect()
}

#[test]
fn the_content_of_a_file_is_part_of_an_argument_or_a_url_and_is_a_secret() {
    let home = Home::new(&[
        (
            "weir.toml",
            "include = [\"team/a.toml\"]\n[upstreams.a]\ncommand = \"x\"\nargs = [\"--key=${file:secrets/a}\", \"${file:${WHERE}/b}\", \"$${file:x}\"]\n",
        ),
        ("secrets/a", "qxqxq a\n"),
        ("secrets/b", "qxqxq ${B}"),
        ("team/a.toml", "[upstreams.b]\nurl = \"https://h/${file:key}/mcp?k=${file:key}\"\n"),
        ("team/key", "qxqxq-73519"),
    ]);
    let where_ = home.path("secrets").display().to_string();
    let home = home.with(&[("WHERE", &where_)]);
    let config = home.load().unwrap();
    assert_eq!(config.warnings, []);
    assert_eq!(args(&config), ["--key=qxqxq a", "qxqxq ${B}", "${file:x}"]);
    let UpstreamSource::Http { url, .. } = &config.upstreams[1].settings.source else {
        panic!("a server")
    };
    assert_eq!(url, "https://h/qxqxq-73519/mcp?k=qxqxq-73519");
    let shown = format!("{config:?} {:?}", config.upstreams[0].settings);
    assert!(!shown.contains("qxqxq") && !shown.contains("73519"), "{shown}");
    let contents = |at: usize| {
        let contents = config.upstreams[at].file_contents.iter();
        contents.map(|it| it.expose()).collect::<Vec<_>>()
    };
    assert_eq!(contents(0), ["qxqxq a", "qxqxq ${B}"]);
    assert_eq!(contents(1), ["qxqxq-73519", "qxqxq-73519"]);
    // A change of it is a change of the server that Weir calls.
    let before = config.upstreams[0].settings.fingerprint();
    home.write("secrets/a", "another");
    assert_ne!(home.load().unwrap().upstreams[0].settings.fingerprint(), before);
}

#[test]
fn a_secret_file_in_a_string_is_watched_whether_it_exists_or_not() {
    let text = "[upstreams.a]\ncommand = \"x\"\nargs = [\"${file:a}\", \"${NO:-${file:${DIR}/b}}\"]\nenv.A = { file = \"c\" }\n[upstreams.b]\nurl = \"https://h/${file:d}\"\ntls = { ca = \"e\" }\n";
    let home = Home::new(&[("weir.toml", text)]).with(&[("DIR", "sub")]);
    let found = Config::sources(&home.path("weir.toml"), &home.options).unwrap().secrets;
    let expected = ["a", "c", "d", "e", "sub/b"].map(|name| home.path(name));
    assert_eq!(found, expected);
}

#[test]
fn a_secret_file_in_a_string_has_the_rules_of_any_secret_file_and_its_places() {
    let text = r#"
[upstreams.a]
command = "${file:fine}"
args = ["${file:folder}", "${file:fifo}", "${file:large}", "${file:latin}", "${file:}"]
cwd = "${file:fine}"
env = { A = "${file:fine}", url = "${file:fine}" }
[upstreams.b]
url = "https://h/${file:open}"
headers.A = "x ${file:fine}"
auth = { type = "bearer", token = "${file:fine}" }
[upstreams.c]
url = "https://h/?${file:two-lines}"
[log]
level = "${file:fine}"
"#;
    let home = Home::new(&[
        ("weir.toml", text),
        ("fine", "hunter2"),
        ("open", "hunter2"),
        ("folder/x", ""),
        ("large", &"x".repeat(65_537)),
        ("two-lines", "hunter2\nhunter2\n"),
    ]);
    home.write("latin", b"hunter2\xff");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o640);
    std::fs::set_permissions(home.path("open"), open).unwrap();
    let made = std::process::Command::new("mkfifo").arg(home.path("fifo")).status();
    assert!(made.unwrap().success());
    assert!(!home.load().unwrap_err().render(true).contains("hunter2"));
    insta::assert_snapshot!(home.lines(), @r#"
    weir.toml:3:11: upstreams.a.command: ${file:…} is replaced in args and url of an upstream only (write { file = "…" } where a secret is read, or else a variable)
    weir.toml:4:9: upstreams.a.args: folder is not a file (name the file that holds the secret)
    weir.toml:4:27: upstreams.a.args: fifo is not a file (name the file that holds the secret)
    weir.toml:4:43: upstreams.a.args: large gives more than 64 KiB (check that it gives the secret alone)
    weir.toml:4:60: upstreams.a.args: latin does not give UTF-8 (check that it gives the secret alone, as text)
    weir.toml:4:77: upstreams.a.args: this names no file (write ${file:PATH})
    weir.toml:5:7: upstreams.a.cwd: ${file:…} is replaced in args and url of an upstream only (write { file = "…" } where a secret is read, or else a variable)
    weir.toml:6:13: upstreams.a.env.A: ${file:…} is replaced in args and url of an upstream only (write { file = "…" } where a secret is read, or else a variable)
    weir.toml:6:35: upstreams.a.env.url: ${file:…} is replaced in args and url of an upstream only (write { file = "…" } where a secret is read, or else a variable)
    weir.toml:8:7: upstreams.b.url: open is open to its group or to others (chmod 600 open)
    weir.toml:9:13: upstreams.b.headers.A: ${file:…} is replaced in args and url of an upstream only (write { file = "…" } where a secret is read, or else a variable)
    weir.toml:10:35: upstreams.b.auth.token: ${file:…} is replaced in args and url of an upstream only (write { file = "…" } where a secret is read, or else a variable)
    weir.toml:12:7: upstreams.c.url: this is not a URL (write it like "https://mcp.example.com/mcp")
    weir.toml:14:9: log.level: ${file:…} is replaced in args and url of an upstream only (write { file = "…" } where a secret is read, or else a variable)
    "#);
}

#[test]
fn a_check_says_that_an_argument_with_a_secret_can_be_seen() {
    let text = "[upstreams.a]\ncommand = \"x\"\nargs = [\"-y\", \"${file:a}\"]\n[upstreams.b]\nurl = \"https://h/${file:a}\"\n[upstreams.c]\ncommand = \"x\"\nargs = [\"-y\"]\n";
    let mut home = Home::new(&[("weir.toml", text), ("a", "qxqxq")]);
    assert_eq!(home.load().unwrap().warnings, []);
    home.options.now = Some(SystemTime::UNIX_EPOCH);
    insta::assert_snapshot!(home.lines(), @"weir.toml:3:8: upstreams.a.args: `ps` shows the arguments of a process to all users of this machine, and one of these holds a secret (move it to env, if the server can read it from there)");
}

#[test]
fn a_secret_file_of_an_upstream_that_is_not_used_is_not_read() {
    let text = "[upstreams.a]\ncommand = \"x\"\nargs = [\"${file:folder}\", \"${file:gone}\"]\n[upstreams.b]\ncommand = \"x\"\n";
    let mut home = Home::new(&[("weir.toml", text), ("folder/x", "")]);
    home.options.only = Some(vec!["b".to_owned()]);
    assert_eq!(home.load().unwrap().warnings, []);
    let off = text.replacen("command", "enabled = false\ncommand", 1);
    home.write("weir.toml", off);
    home.options.only = None;
    assert_eq!(home.load().unwrap().warnings, []);
}
