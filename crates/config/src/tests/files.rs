//! Tests of several files: which files are read, how they merge, and the locations of mistakes.

use super::*;

fn names(config: &Config) -> Vec<&str> {
    config.upstreams.iter().map(|upstream| upstream.name()).collect()
}

/// Returns an upstream in a single line.
fn upstream(name: &str) -> String {
    format!("upstreams.{name}.command = \"x\"\n")
}

#[test]
fn included_files_come_after_the_main_one_in_the_order_of_their_names() {
    let home = Home::new(&[
        ("weir.toml", &format!("include = [\"z.toml\", \"conf.d/*.toml\"]\n{}", upstream("main"))),
        ("z.toml", &upstream("zebra")),
        ("conf.d/20.toml", &upstream("ant")),
        ("conf.d/10.toml", &upstream("bee")),
        ("conf.d/.swap.toml", "not TOML"),
        ("conf.d/10.toml~", "not TOML"),
        ("conf.d/folder.toml/x", "not TOML"),
    ]);
    assert_eq!(names(&home.load().unwrap()), ["main", "zebra", "bee", "ant"]);
}

#[test]
fn tables_grow_together() {
    let home = Home::new(&[
        (
            "weir.toml",
            "include = [\"a.toml\"]\n[protocol]\npage_size = 7\n[upstreams.a]\ncommand = \"x\"\n",
        ),
        (
            "a.toml",
            "[protocol]\nsession_ttl = \"7s\"\n[upstreams.a]\nargs = [\"y\"]\ntimeouts.call = \"7s\"\n",
        ),
    ]);
    let config = home.load().unwrap();
    let seven = Duration::from_secs(7);
    assert_eq!((config.protocol.page_size, config.protocol.session_ttl), (7, seven));
    assert_eq!(config.upstreams[0].settings.timeouts.call, seven);
    let UpstreamSource::Process(ChildCommand { args, .. }) = &config.upstreams[0].settings.source
    else {
        panic!("a process")
    };
    assert_eq!(args.iter().map(|arg| arg.expose()).collect::<Vec<_>>(), ["y"]);
}

#[test]
fn nothing_to_include_is_fine_where_a_pattern_says_so() {
    let text = format!("include = [\"conf.d/*.toml\", \"*.conf\"]\n{}", upstream("main"));
    let home = Home::new(&[("weir.toml", &text)]);
    assert_eq!(home.load().unwrap().warnings, []);
}

#[test]
fn relative_paths_start_from_the_folder_of_their_own_file() {
    let home = Home::new(&[
        ("weir.toml", "include = [\"team/a.toml\"]\n[upstreams.b]\nprompts_dir = \"p\"\n"),
        ("team/a.toml", "[upstreams.a]\nprompts_dir = \"p\"\n[upstreams.c]\ncommand = \"x\"\ncwd = \"w\"\nenv.T = { file = \"t\" }\n[upstreams.d]\ncommand = \"x\"\nenv.T = { command = [\"cat\", \"t\"] }\n"),
        ("team/t", "found\n"),
        ("p/x.md", ""),
        ("team/p/x.md", ""),
        ("team/w/x", ""),
    ])
    .with(&[("PATH", &std::env::var("PATH").unwrap())]);
    let config = home.load().unwrap();
    assert_eq!(config.warnings, []);
    let [b, a, c, d] = &config.upstreams[..] else { panic!("four upstreams") };
    assert_eq!(b.settings.source, UpstreamSource::Library { dir: home.path("p") });
    assert_eq!(a.settings.source, UpstreamSource::Library { dir: home.path("team/p") });
    let UpstreamSource::Process(ChildCommand { cwd, .. }) = &c.settings.source else {
        panic!("a process")
    };
    assert_eq!(cwd.as_deref(), Some(&*home.path("team/w")));
    for upstream in [c, d] {
        let UpstreamSource::Process(ChildCommand { env, .. }) = &upstream.settings.source else {
            panic!("a process")
        };
        assert_eq!(env[0].1.expose(), "found");
    }
}

#[test]
fn each_mistake_is_drawn_on_its_own_file() {
    let home = Home::new(&[
        ("weir.toml", "include = [\"conf.d/*.toml\"]\n[server]\npath = \"mcp\"\n"),
        ("conf.d/a.toml", "# nothing here\n\n[upstreams.a]\ncomand = \"x\"\n"),
        (
            "conf.d/b.toml",
            "[upstreams.b]\nurl = \"http://h/\"\nera = \"ancient\"\n[server]\npath = \"/x\"\n",
        ),
    ]);
    insta::assert_snapshot!(home.mistakes(), @r#"
    error: server.path: "mcp" is not the path of a URL
     --> weir.toml:3:8
      |
    3 | path = "mcp"
      |        ^^^^^ write it like "/mcp"

    error: upstreams.a.comand: no such key
     --> conf.d/a.toml:4:1
      |
    4 | comand = "x"
      | ^^^^^^ did you mean `command`?

    error: upstreams.b.era: "ancient" is not a choice here
     --> conf.d/b.toml:3:7
      |
    3 | era = "ancient"
      |       ^^^^^^^^^ one of: auto, modern, legacy

    error: server.path: weir.toml:3 defines this already
     --> conf.d/b.toml:5:1
      |
    5 | path = "/x"
      | ^^^^ remove one of the two
    "#);
}

#[test]
fn a_key_that_two_files_define_names_its_first_place() {
    let home = Home::new(&[
        (
            "weir.toml",
            "include = [\"a.toml\", \"b.toml\"]\nlog.level = \"info\"\n[upstreams.a]\ncommand = \"x\"\n",
        ),
        ("a.toml", "[upstreams.a]\nargs = []\ncommand = \"y\"\n[upstreams.b]\ncommand = \"x\"\n"),
        ("b.toml", "upstreams.b = \"x\"\nlog.level = \"info\"\n[upstreams.a.args]\n"),
    ]);
    insta::assert_snapshot!(home.lines(), @r"
    a.toml:3:1: upstreams.a.command: weir.toml:4 defines this already (remove one of the two)
    b.toml:1:11: upstreams.b: a.toml:4 defines this already (remove one of the two)
    b.toml:2:5: log.level: weir.toml:2 defines this already (remove one of the two)
    b.toml:3:14: upstreams.a.args: a.toml:2 defines this already (remove one of the two)
    ");
}

#[test]
fn what_cannot_be_included_is_told_where_it_is_named() {
    let home = Home::new(&[
        (
            "weir.toml",
            "include = [\n\"gone.toml\",\n\"*.d/a.toml\",\n\"a.toml\",\n\"./a.toml\",\n\"*.toml\",\n\"folder\",\n\"\",\n5,\n\"latin\",\n\"a.toml/*\"\n]\nupstreams.x.command = \"x\"\n",
        ),
        ("a.toml", "include = [\"b.toml\"]\n"),
        ("folder/x", ""),
    ]);
    home.write("latin", [b'#', 0xff]);
    insta::assert_snapshot!(home.lines(), @r#"
    weir.toml:2:1: include: gone.toml cannot be read: No such file or directory (os error 2) (check the path and its permissions)
    weir.toml:3:1: include: a * can stand in the name of a file only, not of a folder (name each folder by itself, like "a.d/*.toml", "b.d/*.toml")
    weir.toml:5:1: include: ./a.toml belongs to the configuration already (name each file once, and keep what is included in a folder of its own)
    weir.toml:6:1: include: a.toml belongs to the configuration already (name each file once, and keep what is included in a folder of its own)
    weir.toml:6:1: include: weir.toml belongs to the configuration already (name each file once, and keep what is included in a folder of its own)
    weir.toml:7:1: include: folder is not a file (name files of TOML)
    weir.toml:8:1: include: an empty string means nothing here (write a value, or remove the key)
    weir.toml:9:1: include: expected a string, found an integer (put it in quotes)
    weir.toml:10:1: include: latin is not UTF-8: invalid utf-8 sequence of 1 bytes from index 1 (save it as UTF-8)
    weir.toml:11:1: include: the folder cannot be listed: Not a directory (os error 20) (check the path and its permissions)
    a.toml:1:1: include: an included file cannot include others (name them in the include of the main file)
    "#);
    home.write("weir.toml", "include = \"a.toml\"\nupstreams.x.command = \"x\"\n");
    insta::assert_snapshot!(home.lines(), @r#"weir.toml:1:11: include: expected a list, found a string (put it in brackets: ["…"])"#);
}

#[test]
fn what_is_no_toml_is_told_for_all_files_at_once() {
    let home = Home::new(&[
        (
            "weir.toml",
            "include = [\"*.d/*\", \"a.toml\", \"b.toml\", \"c.toml\"]\n[upstreams.a]\nenv.T = \"hunter2\"\n",
        ),
        ("a.toml", "[server\n"),
        ("b.toml", "\n {\"mcpServers\": {\"x\": {\"env\": {\"T\": \"hunter2=\"}}}}\n"),
        ("c.toml", "x = \n"),
    ]);
    insta::assert_snapshot!(home.mistakes(), @r#"
    error: include: a * can stand in the name of a file only, not of a folder
     --> weir.toml:1:12
      |
    1 | include = ["*.d/*", "a.toml", "b.toml", "c.toml"]
      |            ^^^^^^^ name each folder by itself, like "a.d/*.toml", "b.d/*.toml"

    error: not TOML: unclosed table
     --> a.toml:1:8
      |
    1 | [server
      |        ^ expected `]`

    error: this is JSON, and the configuration is TOML
     --> b.toml:2:2
      |
    2 |  {
      |  ^ `weir init --from FILE` makes one from the configuration of an MCP client

    error: not TOML: string values must be quoted
     --> c.toml:1:5
      |
    1 | * *
      |     ^ expected literal string
    "#);
}

#[test]
fn an_open_bracket_is_told_once() {
    let home = Home::new(&[("weir.toml", "b = [\n[upstreams.x\n")]);
    let lines = home.lines();
    let mut messages: Vec<_> = lines.lines().collect();
    messages.dedup();
    assert_eq!(messages.join("\n"), lines.trim_end());
    assert!(lines.contains("unclosed array"), "{lines}");
}

#[test]
fn json_is_told_apart() {
    for text in ["{\"url\": \"hunter2\"}", "\u{feff}\n\t{\n\"env\": {\"T\": \"hunter2\"}}"] {
        let home = Home::new(&[("weir.toml", text)]);
        let messages = home.mistakes();
        assert!(messages.contains("this is JSON") && !messages.contains("hunter2"), "{messages}");
    }
    let home = Home::new(&[("weir.toml", "{\"mcpServers\": {}}")]);
    insta::assert_snapshot!(home.mistakes(), @r"
    error: this is JSON, and the configuration is TOML
     --> weir.toml:1:1
      |
    1 | {
      | ^ `weir init --from FILE` makes one from the configuration of an MCP client
    ");
}

#[test]
fn files_are_bounded_in_number_and_size() {
    let home = Home::new(&[("weir.toml", "include = [\"d/*\"]\nupstreams.x.command = \"x\"\n")]);
    for i in 0..256 {
        home.write(&format!("d/{i}"), "");
    }
    home.load().unwrap();
    home.write("d/last", "");
    assert!(home.mistakes().contains("include: more than 256 files are included"));

    let home = Home::new(&[
        ("weir.toml", "include = [\"large\"]\nupstreams.x.command = \"x\"\n"),
        ("large", &"\n".repeat((4 << 20) + 1)),
    ]);
    assert!(home.mistakes().contains("include: large is larger than 4 MiB"), "{}", home.mistakes());
}

#[test]
fn a_file_whose_name_holds_a_variable_is_named_as_it_is_written() {
    let home = Home::new(&[
        ("weir.toml", "include = [\"${DIR}/*.toml\", \"conf.${WHO}\", \"${DIR}/gone\"]\nupstreams.x.command = \"x\"\n"),
        ("hunter2/a.toml", "x = 1\n"),
        ("conf.hunter2", "y = 1\n"),
    ])
    .with(&[("DIR", "hunter2"), ("WHO", "hunter2")]);
    insta::assert_snapshot!(home.lines(), @r"
    weir.toml:1:44: include: ${DIR}/gone cannot be read: No such file or directory (os error 2) (check the path and its permissions)
    ${DIR}/a.toml:1:1: x: no such key (known here: include, server, fleet, protocol, guard, sign_in, egress, defaults, upstreams, naming, roles, clients, auth, limits, log, admin, state, audit)
    conf.${WHO}:1:1: y: no such key (known here: include, server, fleet, protocol, guard, sign_in, egress, defaults, upstreams, naming, roles, clients, auth, limits, log, admin, state, audit)
    ");
}

#[test]
fn a_folder_that_is_not_there_is_a_warning() {
    let home = Home::new(&[(
        "weir.toml",
        "[upstreams.a]\nprompts_dir = \"gone\"\n[upstreams.b]\ncommand = \"x\"\ncwd = \"gone\"\n[upstreams.c]\nprompts_dir = \"gone\"\nenabled = false\n[upstreams.d]\nprompts_dir = \"~/p\"\n",
    )]);
    insta::assert_snapshot!(home.lines(), @r"
    weir.toml:2:15: upstreams.a.prompts_dir: there is no folder gone (make it, or correct the path: it starts from the folder of this file)
    weir.toml:5:7: upstreams.b.cwd: there is no folder gone (make it, or correct the path: it starts from the folder of this file)
    weir.toml:10:15: upstreams.d.prompts_dir: there is no folder ~/p (write ${HOME}/ for ~/, which means nothing here)
    ");
    let warnings = Config::check(&home.path("weir.toml"), &home.options).unwrap();
    assert_eq!(warnings, home.load().unwrap().warnings);
}

#[test]
fn ten_different_mistakes_in_two_files_have_ten_places_and_remedies() {
    let home = Home::new(&TEN_MISTAKES);
    let report = home.load().unwrap_err();
    assert_eq!(report.problems().len(), 10);
    assert!(report.problems().iter().all(|problem| !problem.remedy.is_empty()));
    let messages = include_str!("../../../../tests/ten_mistakes/report.txt");
    assert_eq!(format!("{}\n", home.mistakes()), messages);
}

/// Also tested with the program, in tests/cli/checking.rs.
const TEN_MISTAKES: [(&str, &str); 3] = [
    ("weir.toml", include_str!("../../../../tests/ten_mistakes/weir.toml")),
    ("conf.d/wiki.toml", include_str!("../../../../tests/ten_mistakes/conf.d/wiki.toml")),
    ("prompts/hello.md", "Hello!\n"),
];

#[test]
fn the_places_of_rules_are_known_in_whichever_file_they_stand() {
    let home = Home::new(&[
        (
            "weir.toml",
            "include = [\"a.toml\"]\n[upstreams.x]\ncommand = \"x\"\nenabled = true\n\
             tools.deny = [\n  \"p\",\n  \"q\",\n]\n[roles.\"a.b\"]\n",
        ),
        (
            "a.toml",
            "[roles.\"a.b\"]\ntools.allow = [\"x/p\", \"x/q\"]\n\n[clients.ci]\n\
             key_sha256 = [\"1111111111111111111111111111111111111111111111111111111111111111\"]\n\
             resources.allow = [\"x/*\"]\n",
        ),
    ]);
    let config = home.load().unwrap();
    let (main, other) = (home.path("weir.toml"), home.path("a.toml"));
    let at = |file: &Path, line: u32| Some(format!("{}:{line}", file.display()));
    let places = &config.rule_locations;
    let rule = |role: &str, kind: &str, list: &str, index: usize| {
        places.of_rule(role, kind, list, index).map(str::to_owned)
    };
    assert_eq!(rule("a.b", "tools", "allow", 0), at(&other, 2));
    assert_eq!(rule("a.b", "tools", "allow", 1), at(&other, 2));
    assert_eq!(rule("client:ci", "resources", "allow", 0), at(&other, 6));
    // These values are defaults.
    assert_eq!(rule("a.b", "tools", "allow", 2), None);
    assert_eq!(rule("a.b", "tools", "deny", 0), None);
    assert_eq!(rule("local", "tools", "allow", 0), None);
    let place = |list: &str, index: usize| {
        places.of_entry(&["upstreams", "x", "tools", list], index).map(str::to_owned)
    };
    assert_eq!(place("deny", 1), at(&main, 7));
    assert_eq!(place("allow", 0), None);
    assert_eq!(places.of(&["upstreams", "x", "enabled"]).map(str::to_owned), at(&main, 4));
    // Equal configurations are equal, whatever their locations.
    assert_eq!(*places, RuleLocations::default());
}
