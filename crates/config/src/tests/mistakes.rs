//! Tests of every kind of mistake, with its exact rendering.

use super::*;

fn mistakes(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

fn warnings(text: &str) -> String {
    let warnings = config(text).warnings;
    warnings.iter().map(ConfigProblem::to_string).collect::<Vec<_>>().join("\n\n")
}

#[test]
fn keys_of_other_programs_are_told_in_weirs_words() {
    let messages = mistakes(
        r#"
[mcp_servers.a]
command = "x"
[upstreams.b]
command = "x"
type = "stdio"
disabled = true
[log]
type = "json"
"#,
    );
    let remedies: Vec<_> = messages.lines().filter_map(|line| line.split_once('^')).collect();
    let remedies: Vec<_> =
        remedies.iter().map(|(_, rest)| rest.trim_start_matches('^').trim()).collect();
    assert_eq!(
        remedies,
        [
            "write [upstreams.<name>]",
            "leave it out: `command` or `url` says it",
            "write `enabled = false`",
            "known here: level, format",
        ]
    );
}

#[test]
fn ten_mistakes_have_ten_places() {
    let report = parse(
        r#"
        [server]
        path = "mcp"
        allowed_hosts = ["https://a"]
        allowed_origins = ["*", "https://a/b"]
        [protocol]
        versions = ["2025-06-81"]
        [naming]
        separator = "-"
        max_length = 12
        [upstreams.Guide]
        command = ""
        rename = { "resources/x" = "y", "tools/x" = "a b" }
        [clients.a]
        expires = 2027-01-01
        "#,
    )
    .unwrap_err();
    let problems: Vec<_> = report.problems().iter().map(|p| format!("{p:?}")).collect();
    insta::assert_snapshot!(problems.join("\n"), @r#"
    weir.toml:3:16: server.path: "mcp" is not the path of a URL (write it like "/mcp")
    weir.toml:4:26: server.allowed_hosts: "https://a" is not a host (write it like "mcp.example.com" or "mcp.example.com:8443")
    weir.toml:5:28: server.allowed_origins: "*" is not an origin (write it like "https://app.example.com": each origin by itself, without a path)
    weir.toml:5:33: server.allowed_origins: "https://a/b" is not an origin (write it like "https://app.example.com": each origin by itself, without a path)
    weir.toml:7:21: protocol.versions: "2025-06-81" is not a revision of the protocol (did you mean `2025-06-18`?)
    weir.toml:9:21: naming.separator: "-" cannot separate names (start with _, then at most 7 of A-Z, a-z, 0-9, _ and -)
    weir.toml:10:22: naming.max_length: 12 is out of bounds (write 32 to 128)
    weir.toml:11:20: upstreams.Guide: "Guide" cannot name an upstream (a lower-case letter, then at most 31 of a-z, 0-9 and -)
    weir.toml:12:19: upstreams.Guide.command: an empty string means nothing here (write a value, or remove the key)
    weir.toml:13:20: upstreams.Guide.rename."resources/x": this does not name a prompt or a tool (write it like "prompts/old" or "tools/old")
    weir.toml:13:53: upstreams.Guide.rename."tools/x": "a b" cannot be used as a name (1 to 64 of A-Z, a-z, 0-9, _, . and -)
    weir.toml:14:18: clients.a.key_sha256: is missing (add key_sha256 = ["<hash of the client's key>"])
    weir.toml:14:18: clients.a: nothing says what this client may use (add role = "<name>", or prompts.allow = ["<upstream>/*"])
    weir.toml:15:19: clients.a.expires: a date, a time and an offset are required (write it without quotes, like 2027-06-30T00:00:00Z)
    "#);
}

#[test]
fn a_file_that_cannot_be_read_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.toml");
    let rendered = || Config::load(&path, &Options::default()).unwrap_err().to_string();
    assert!(rendered().contains("cannot be read: No such file"), "{}", rendered());
    std::fs::write(&path, b"# \xff").unwrap();
    assert!(
        rendered().contains("is not UTF-8: invalid utf-8 sequence of 1 bytes from index 2"),
        "{}",
        rendered()
    );
    std::fs::write(&path, PROMPT_LIBRARY).unwrap();
    assert_eq!(Config::load(&path, &Options::default()).unwrap().upstreams.len(), 1);
}

#[test]
fn a_misspelled_key_is_drawn_with_the_one_that_was_meant() {
    let rendered = mistakes(
        r#"[server]
listne = "127.0.0.1:1"
[upstreams.guide]
prompts_dir = "p"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: server.listne: no such key
     --> weir.toml:2:1
      |
    2 | listne = "127.0.0.1:1"
      | ^^^^^^ did you mean `listen`?
    "#);
}

#[test]
fn a_key_of_another_release_is_answered_with_the_known_ones() {
    let rendered = mistakes(
        r#"[upstreams.guide]
prompts_dir = "p"
hasty = true
[log]
color = "red"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: upstreams.guide.hasty: no such key
     --> weir.toml:3:1
      |
    3 | hasty = true
      | ^^^^^ known here: prefix, enabled, command, url, prompts_dir, args, env, pass_env, cwd, headers, auth, tls, transport, era, sharing, lazy, breaker, timeouts, retry, on_down, on_down_grace, limits, prompts, tools, resources, rename, required, replicas, guard

    error: log.color: no such key
     --> weir.toml:5:1
      |
    5 | color = "red"
      | ^^^^^ known here: level, format
    "#);
}

#[test]
fn a_file_without_upstreams_is_an_error() {
    let rendered = mistakes(r#""#);
    insta::assert_snapshot!(rendered, @r#"
    error: upstreams: there is nothing to serve
    --> weir.toml
     = help: add at least one [upstreams.<name>] table with prompts_dir, command or url
    "#);
}

#[test]
fn a_number_is_no_duration() {
    let rendered = mistakes(
        r#"[protocol]
session_ttl = 30
[upstreams.guide]
prompts_dir = "p"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: protocol.session_ttl: a duration needs a unit
     --> weir.toml:2:15
      |
    2 | session_ttl = 30
      |               ^^ write "30s" for seconds; units are ms, s, m, h
    "#);
}

#[test]
fn zero_never_means_unlimited() {
    let rendered = mistakes(
        r#"[server]
max_body = "0MiB"
max_connections = 0
shutdown_grace = "0s"
[upstreams.guide]
prompts_dir = "p"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: server.max_body: zero never means unlimited
     --> weir.toml:2:12
      |
    2 | max_body = "0MiB"
      |            ^^^^^^ write the limit that you want, or remove the key for the default

    error: server.max_connections: zero never means unlimited
     --> weir.toml:3:19
      |
    3 | max_connections = 0
      |                   ^ write the limit that you want, or remove the key for the default

    error: server.shutdown_grace: zero never means unlimited
     --> weir.toml:4:18
      |
    4 | shutdown_grace = "0s"
      |                  ^^^^ write the limit that you want, or remove the key for the default
    "#);
}

#[test]
fn a_host_name_is_no_address_to_listen_on() {
    let rendered = mistakes(
        r#"[server]
listen = "localhost:8642"
[upstreams.guide]
prompts_dir = "p"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: server.listen: "localhost:8642" is not an IP address with a port
     --> weir.toml:2:10
      |
    2 | listen = "localhost:8642"
      |          ^^^^^^^^^^^^^^^^ write the address itself: "127.0.0.1:8642"
    "#);
}

#[test]
fn an_upstream_is_in_exactly_one_place() {
    let rendered = mistakes(
        r#"[upstreams.a]
[upstreams.b]
command = "x"
url = "http://h/"
[upstreams.c]
url = "http://h/"
args = ["x"]
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: upstreams.a: nothing says where this upstream is
     --> weir.toml:1:12
      |
    1 | [upstreams.a]
      |            ^ write exactly one of prompts_dir, command, url

    error: upstreams.b.url: command says already where this upstream is
     --> weir.toml:4:7
      |
    4 | url = "http://h/"
      |       ^^^^^^^^^^^ keep one of the two: each is a different upstream

    error: upstreams.c.args: goes with command, not with url
     --> weir.toml:7:8
      |
    7 | args = ["*"]
      |        ^^^^^ remove it
    "#);
}

#[test]
fn a_transport_goes_with_a_url_and_http_sse_with_no_modern_era() {
    let rendered = mistakes(
        r#"[defaults]
era = "modern"
[upstreams.a]
command = "x"
transport = "http"
[upstreams.b]
url = "http://h/sse"
transport = "sse"
[upstreams.c]
url = "http://h/"
transport = "stdio"
[upstreams.d]
url = "http://h/"
era = "legacy"
transport = "sse"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: upstreams.a.transport: goes with url, not with command
     --> weir.toml:5:13
      |
    5 | transport = "http"
      |             ^^^^^^ remove it

    error: upstreams.b.transport: era is "modern", and modern servers have no HTTP+SSE
     --> weir.toml:8:13
      |
    8 | transport = "sse"
      |             ^^^^^ remove it, or set era = "legacy"

    error: upstreams.c.transport: "stdio" is not a choice here
      --> weir.toml:11:13
       |
    11 | transport = "stdio"
       |             ^^^^^^^ one of: auto, http, sse
    "#);
}

#[test]
fn two_upstreams_cannot_share_a_prefix() {
    let rendered = mistakes(
        r#"[upstreams.guide]
prompts_dir = "p"
[upstreams.other]
command = "x"
prefix = "guide"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: upstreams.other.prefix: this prefix belongs to [upstreams.guide] already
     --> weir.toml:5:10
      |
    5 | prefix = "guide"
      |          ^^^^^^^ give one of the two another prefix
    "#);
}

#[test]
fn a_length_without_room_behind_the_longest_prefix_is_refused() {
    let file = |max_length: usize, prefix: &str| {
        format!(
            "[naming]\nmax_length = {max_length}\n[upstreams.guide]\nprompts_dir = \"p\"\n\
             prefix = \"{prefix}\"\n[upstreams.b]\nprompts_dir = \"p\"\n"
        )
    };
    let rendered = mistakes(&file(34, "twenty-long-abcdefgh"));
    insta::assert_snapshot!(rendered, @r#"
    error: naming.max_length: 34 leaves no space for names after the prefix "twenty-long-abcdefgh"
     --> weir.toml:2:14
      |
    2 | max_length = 34
      |              ^^ write at least 35, or give that upstream a shorter prefix
    "#);
    for good in [file(35, "twenty-long-abcdefgh"), file(32, "guide")] {
        assert!(parse(&good).is_ok(), "{good}");
    }
}

#[test]
fn names_without_a_prefix_are_for_one_upstream() {
    let rendered = mistakes(
        r#"[naming]
mode = "none"
[upstreams.guide]
prompts_dir = "p"
[upstreams.other]
command = "x"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: naming.mode: "none" is for exactly one upstream, and 2 are enabled
     --> weir.toml:2:8
      |
    2 | mode = "none"
      |        ^^^^^^ write "always", or set enabled = false on the others
    "#);
}

#[test]
fn a_pattern_names_its_upstream() {
    let rendered = mistakes(
        r#"[upstreams.guide]
prompts_dir = "p"
[roles.staff]
prompts.allow = ["guide", "/x", "guide__review"]
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: roles.staff.prompts.allow: "guide" is not a pattern like "<upstream>/<name>"
     --> weir.toml:4:18
      |
    4 | prompts.allow = ["guide", "/x", "guide__review"]
      |                  ^^^^^^^ write "guide/*" for all of that upstream, or "*/guide" for the name anywhere

    error: roles.staff.prompts.allow: "/x" names no upstream
     --> weir.toml:4:27
      |
    4 | prompts.allow = ["guide", "/x", "guide__review"]
      |                           ^^^^ write "*/x" for every upstream, or "<upstream>/x"

    error: roles.staff.prompts.allow: "guide__review" is not a pattern like "<upstream>/<name>"
     --> weir.toml:4:33
      |
    4 | prompts.allow = ["guide", "/x", "guide__review"]
      |                                 ^^^^^^^^^^^^^^^ write "guide/review": the upstream, then the name that it uses itself
    "#);
}

#[test]
fn a_client_needs_a_key_and_a_role_that_exists() {
    let rendered = mistakes(
        r#"[upstreams.guide]
prompts_dir = "p"
[roles.developer]
[clients.a]
role = "develper"
[clients.b]
key_sha256 = ["abc"]
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: clients.a.key_sha256: is missing
     --> weir.toml:4:10
      |
    4 | [clients.a]
      |          ^ add key_sha256 = ["<hash of the client's key>"]

    error: clients.a.role: there is no role "develper"
     --> weir.toml:5:8
      |
    5 | role = "develper"
      |        ^^^^^^^^^^ did you mean `developer`?

    error: clients.b: nothing says what this client may use
     --> weir.toml:6:10
      |
    6 | [clients.b]
      |          ^ add role = "<name>", or prompts.allow = ["<upstream>/*"]

    error: clients.b.key_sha256: this is not 64 hexadecimal digits
     --> weir.toml:7:15
      |
    7 | key_sha256 = [*****]
      |               ^^^^^ make a key with `openssl rand -hex 32`, and its hash with `printf %s KEY | sha256sum`
    "#);
}

#[test]
fn the_hashes_of_the_example_are_refused() {
    let rendered = mistakes(
        r#"[upstreams.guide]
prompts_dir = "p"
[clients.a]
role = "local"
key_sha256 = ["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: clients.a.key_sha256: this is the example's hash, and its key is public
     --> weir.toml:5:15
      |
    5 | key_sha256 = [******************************************************************]
      |               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ make a key with `openssl rand -hex 32`, and its hash with `printf %s KEY | sha256sum`
    "#);
}

#[test]
fn anonymous_access_from_the_network_is_an_error() {
    let rendered = mistakes(
        r#"[server]
listen = "0.0.0.0:8642"
allowed_hosts = ["weir.lan"]
[auth]
mode = "anonymous"
[upstreams.guide]
prompts_dir = "p"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: auth.mode: server.listen is an address where anyone on the network could connect without a key
     --> weir.toml:5:8
      |
    5 | mode = "anonymous"
      |        ^^^^^^^^^^^ remove it and define a client, listen on 127.0.0.1, or start with --allow-anonymous-network if access is restricted elsewhere
    "#);
}

#[test]
fn a_call_cannot_be_longer_than_the_longest_call() {
    let rendered = mistakes(
        r#"[defaults]
timeouts = { call = "20m" }
[upstreams.guide]
prompts_dir = "p"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: defaults.timeouts.call: call is longer than call_max, which is 600s unless it is written
     --> weir.toml:2:21
      |
    2 | timeouts = { call = "20m" }
      |                     ^^^^^ shorten call, or lengthen call_max
    "#);
}

#[test]
fn the_pauses_of_retrying_and_of_the_breaker_are_in_their_order() {
    let report = parse(
        r#"[defaults]
retry.backoff = "31s"
[upstreams.guide]
prompts_dir = "p"
[upstreams.web]
url = "http://h/"
retry = { backoff = "2s", max_backoff = "1s" }
breaker = { cool_down = "2s", max_cool_down = "1s" }
"#,
    );
    let report = report.unwrap_err();
    let messages: Vec<_> = report.problems().iter().map(|problem| format!("{problem:?}")).collect();
    insta::assert_snapshot!(messages.join("\n"), @r"
    weir.toml:2:17: defaults.retry.backoff: backoff is longer than max_backoff, which is 30s unless it is written (shorten backoff, or lengthen max_backoff)
    weir.toml:7:21: upstreams.web.retry.backoff: backoff is longer than max_backoff (shorten backoff, or lengthen max_backoff)
    weir.toml:8:25: upstreams.web.breaker.cool_down: cool_down is longer than max_cool_down (shorten cool_down, or lengthen max_cool_down)
    ");
}

#[test]
fn broken_toml_is_drawn_at_its_places() {
    let rendered = mistakes(
        r#"[server]
listen = 127.0.0.1:8642
path = "/mcp"
path = "/mcp"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: not TOML: invalid float
     --> weir.toml:2:15
      |
    2 | listen = 127.0.0.1:8642
      |               ^^^^^^^^^ if it is text, put it in quotes

    error: not TOML: duplicate key
     --> weir.toml:4:1
      |
    4 | path = "/mcp"
      | ^^^^ remove one of the two
    "#);
}

#[test]
fn a_wrong_type_says_what_to_write() {
    let rendered = mistakes(
        r#"log = "info"
[server]
allowed_hosts = "a"
path = 7
[upstreams]
guide = "p"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: log: expected a table, found a string
     --> weir.toml:1:7
      |
    1 | log = "info"
      |       ^^^^^^ write [log] and its keys below

    error: server.allowed_hosts: expected a list, found a string
     --> weir.toml:3:17
      |
    3 | allowed_hosts = "a"
      |                 ^^^ put it in brackets: ["…"]

    error: server.path: expected a string, found an integer
     --> weir.toml:4:8
      |
    4 | path = 7
      |        ^ put it in quotes

    error: upstreams.guide: expected a table, found a string
     --> weir.toml:6:9
      |
    6 | guide = "p"
      |         ^^^ write [upstreams.guide] and its keys below
    "#);
}

#[test]
fn headers_of_the_protocol_cannot_be_set() {
    let rendered = mistakes(
        r#"[upstreams.a]
url = "http://h/"
headers = { Host = "x", "Mcp-Name" = "y", "a b" = "z" }
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: upstreams.a.headers.Host: this header belongs to the protocol, and Weir sets it
     --> weir.toml:3:13
      |
    3 | headers = { Host = ***, "Mcp-Name" = ***, "a b" = *** }
      |             ^^^^ remove it

    error: upstreams.a.headers.Mcp-Name: this header belongs to the protocol, and Weir sets it
     --> weir.toml:3:25
      |
    3 | headers = { Host = ***, "Mcp-Name" = ***, "a b" = *** }
      |                         ^^^^^^^^^^ remove it

    error: upstreams.a.headers."a b": this cannot name a header
     --> weir.toml:3:43
      |
    3 | headers = { Host = ***, "Mcp-Name" = ***, "a b" = *** }
      |                                           ^^^^^ write a name like X-Team
    "#);
}

#[test]
fn a_secret_is_not_drawn() {
    let rendered = mistakes(
        r#"[upstreams.a]
url = "https://me:hunter2@h/"
header = { Authorization = "hunter2" }
headers = { Authorization = "hunter2\u0001", X = 5 }
[upstreams.b]
command = "x"
env = { "A=B" = "hunter2" }
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: upstreams.a.url: a URL must not hold credentials
     --> weir.toml:2:7
      |
    2 | url = "https://**********@h/"
      |       ^^^^^^^^^^^^^^^^^^^^^^^ put them in auth, with type = "basic"

    error: upstreams.a.header: no such key
     --> weir.toml:3:1
      |
    3 | header = { Authorization = ********* }
      | ^^^^^^ did you mean `headers`?

    error: upstreams.a.headers.Authorization: a header's value cannot hold this
     --> weir.toml:4:29
      |
    4 | headers = { Authorization = ***************, X = * }
      |                             ^^^^^^^^^^^^^^^ write visible ASCII characters

    error: upstreams.a.headers.X: expected a string, found an integer
     --> weir.toml:4:50
      |
    4 | headers = { Authorization = ***************, X = * }
      |                                                  ^ put it in quotes

    error: upstreams.b.env."A=B": this cannot name a variable
     --> weir.toml:7:9
      |
    7 | env = { "A=B" = ********* }
      |         ^^^^^ write a name like HTTPS_PROXY
    "#);
}

#[test]
fn a_lone_star_passes_no_variables_on_and_says_why() {
    let rendered = mistakes(
        r#"[defaults]
pass_env = ["*"]
[upstreams.a]
command = "x"
pass_env = ["UV_*", "**", "A*B", "A=B", ""]
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: defaults.pass_env: this would give a server every variable, and so the tokens of all others
     --> weir.toml:2:13
      |
    2 | pass_env = ["*"]
      |             ^^^ name the variables that it needs, or the beginning of several like UV_*

    error: upstreams.a.pass_env: this cannot name a variable
     --> weir.toml:5:21
      |
    5 | pass_env = ["UV_*", "**", "A*B", "A=B", ""]
      |                     ^^^^ write a name like NODE_OPTIONS, or the beginning of several like UV_*

    error: upstreams.a.pass_env: this cannot name a variable
     --> weir.toml:5:27
      |
    5 | pass_env = ["UV_*", "**", "A*B", "A=B", ""]
      |                           ^^^^^ write a name like NODE_OPTIONS, or the beginning of several like UV_*

    error: upstreams.a.pass_env: this cannot name a variable
     --> weir.toml:5:34
      |
    5 | pass_env = ["UV_*", "**", "A*B", "A=B", ""]
      |                                  ^^^^^ write a name like NODE_OPTIONS, or the beginning of several like UV_*

    error: upstreams.a.pass_env: this cannot name a variable
     --> weir.toml:5:41
      |
    5 | pass_env = ["UV_*", "**", "A*B", "A=B", ""]
      |                                         ^^ write a name like NODE_OPTIONS, or the beginning of several like UV_*
    "#);
}

#[test]
fn a_password_in_a_url_is_not_drawn_whichever_key_holds_it() {
    let config = "[upstreams.a]\ncommand = \"x\"\nargs = [\"postgres://me:hunter2@h/x\", 4]\ncwd = 'ftp://hunter2@h' 7\n";
    let messages = mistakes(config) + &mistakes(config.trim_end_matches(" 7\n"));
    assert!(messages.contains("args = [\"postgres://**********@h/x\", 4]"), "{messages}");
    assert!(messages.contains("not TOML") && !messages.contains("hunter2"), "{messages}");
}

#[test]
fn a_secret_is_not_drawn_from_broken_toml_either() {
    let rendered = mistakes(
        r#"[upstreams.a]
url = "https://h/"
headers = { Authorization = "hunter2 }
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: not TOML: unclosed inline table
     --> weir.toml:3:39
      |
    3 | headers = * ************* * ******** *
      |                                       ^ expected `}`

    error: not TOML: invalid basic string
     --> weir.toml:3:39
      |
    3 | headers = * ************* * ******** *
      |                                       ^ expected `"`
    "#);
}

#[test]
fn an_unknown_upstream_in_a_pattern_is_a_warning() {
    let rendered = warnings(
        r#"[upstreams.guide]
prompts_dir = "p"
[roles.staff]
prompts.allow = ["giude/*", "*/x", "guide/y"]
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    warning: roles.staff.prompts.allow: there is no upstream "giude"
     --> weir.toml:4:18
      |
    4 | prompts.allow = ["giude/*", "*/x", "guide/y"]
      |                  ^^^^^^^^^ did you mean `guide`?
    "#);
}

#[test]
fn a_listener_that_no_client_can_use_is_a_warning() {
    let rendered = warnings(
        r#"[auth]
mode = "required"
[upstreams.guide]
prompts_dir = "p"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    warning: auth.mode: a key is required, and no client has one: every request is refused
     --> weir.toml:2:8
      |
    2 | mode = "required"
      |        ^^^^^^^^^^ add a [clients.<name>] table
    "#);
}

#[test]
fn what_says_how_a_server_is_spoken_to_does_not_go_with_a_folder() {
    let rendered = mistakes(
        r#"[upstreams.guide]
prompts_dir = "p"
era = "modern"
timeouts = { list = "5s", call = "5s" }
limits.max_pages = 3
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: upstreams.guide.era: has no effect on a prompts_dir, which has no connection
     --> weir.toml:3:7
      |
    3 | era = "modern"
      |       ^^^^^^^^ remove it

    error: upstreams.guide.timeouts.list: has no effect on a prompts_dir, which has no connection
     --> weir.toml:4:21
      |
    4 | timeouts = { list = "5s", call = "5s" }
      |                     ^^^^ remove it

    error: upstreams.guide.limits.max_pages: has no effect on a prompts_dir, which has no connection
     --> weir.toml:5:20
      |
    5 | limits.max_pages = 3
      |                    ^ remove it
    "#);
}

#[test]
fn http_sse_needs_a_revision_and_paths_of_its_own() {
    let rendered = mistakes(
        r#"[server]
path = "/messages"
[protocol]
versions = ["2026-07-28"]
legacy_sse = true
[upstreams.guide]
prompts_dir = "p"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: protocol.legacy_sse: no revision in `versions` uses HTTP+SSE
     --> weir.toml:5:14
      |
    5 | legacy_sse = true
      |              ^^^^ add one before 2026-07-28 to `versions`, or remove this key

    error: protocol.legacy_sse: server.path is "/messages", which is a path of HTTP+SSE
     --> weir.toml:5:14
      |
    5 | legacy_sse = true
      |              ^^^^ set another server.path, or remove this key
    "#);
    let fine = "[server]\npath = \"/sse\"\n[protocol]\nversions = [\"2026-07-28\"]\n";
    assert!(
        !config(&format!("{fine}{PROMPT_LIBRARY}")).protocol.legacy_sse,
        "by default it is not served"
    );
}

#[test]
fn a_network_address_that_no_host_leads_to_is_a_warning() {
    let rendered = warnings(
        r#"[server]
listen = "0.0.0.0:8642"
[upstreams.guide]
prompts_dir = "p"
[clients.a]
role = "local"
key_sha256 = ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    warning: server.listen: no request can be addressed to this server: no Host is allowed, and only loopback names are allowed by default
     --> weir.toml:2:10
      |
    2 | listen = "0.0.0.0:8642"
      |          ^^^^^^^^^^^^^^ set public_url, or name the hosts that clients use in allowed_hosts
    "#);
}

#[test]
fn anonymous_access_behind_a_public_url_is_a_warning() {
    let rendered = warnings(
        r#"[server]
public_url = "https://mcp.example.com"
[upstreams.guide]
prompts_dir = "p"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    warning: auth.mode: server.public_url is set, and its clients need no key
    --> weir.toml
     = help: write mode = "required" in [auth] and define a client
    "#);
}

#[test]
fn two_clients_cannot_share_a_key() {
    let client = |name: &str| {
        format!("[clients.{name}]\nrole = \"local\"\nkey_sha256 = [\"{}\"]\n", "a".repeat(64))
    };
    let rendered = mistakes(&format!("{PROMPT_LIBRARY}{}{}", client("one"), client("two")));
    assert!(
        rendered.contains("clients.two.key_sha256: this key belongs to [clients.one] already"),
        "{rendered}"
    );
}

#[test]
fn a_file_broken_anywhere_is_drawn_without_its_secrets() {
    let text = "[upstreams.a]\nurl = \"http://h/\"\nheaders = { X = \"hunter2\", Y = 'hunter2é' }\n\
                [upstreams.b]\ncommand = \"x\"\nenv.TOKEN = \"\"\"hunter2\nhunter2\"\"\"\n\
                [upstreams.c]\nurl = \"http://h/\"\n[upstreams.c.headers]\nZ = \"hunter2\"\n[log]\n\
                [upstreams.d]\nurl = \"http://h/\"\nauth = { type = \"bearer\", token = \"hunter2\" }\n\
                [upstreams.e]\nurl = \"http://h/\"\n[upstreams.e.auth]\ntype = \"basic\"\nuser = \"x\"\npassword = \"\"\"\nhunter2=hunter2\"\"\"\n";
    config(text);
    for i in (0..text.len()).filter(|i| text.is_char_boundary(*i)) {
        let (before, after) = text.split_at(i);
        for broken in [before.to_owned(), format!("{before}\"{after}"), format!("{before}]{after}")]
        {
            let rendered =
                parse(&broken).err().map(|report| report.render(true)).unwrap_or_default();
            assert!(!rendered.contains("hunt"), "{rendered}");
        }
    }
}

#[test]
fn a_client_cannot_have_both_a_role_and_rules() {
    let rendered = mistakes(
        r#"[upstreams.guide]
prompts_dir = "p"
[clients.a]
role = "local"
key_sha256 = "x"
prompts.allow = ["guide/*"]
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: clients.a.key_sha256: expected a list, found a string
     --> weir.toml:5:14
      |
    5 | key_sha256 = "x"
      |              ^^^ put it in brackets: ["…"]

    error: clients.a.prompts: a client has a role or rules of its own, not both
     --> weir.toml:6:1
      |
    6 | prompts.allow = ["guide/*"]
      | ^^^^^^^ remove it, or remove role
    "#);
}

#[test]
fn the_own_role_of_a_client_is_nobody_elses() {
    let text = format!(
        "{PROMPT_LIBRARY}[auth]\nanonymous_role = \"client:ci\"\n[clients.ci]\nkey_sha256 = [\"{}\"]\ntools.allow = [\"*\"]\n",
        "a".repeat(64)
    );
    let rendered = mistakes(&text);
    assert!(rendered.contains("auth.anonymous_role: there is no role \"client:ci\""), "{rendered}");
}

#[test]
fn a_guard_says_what_is_wrong_with_it() {
    let messages = parse(
        r#"
[guard]
arguments = "strict"
max_argument = 0
output = "drop"
hidden_text = "remove"
results = ["prompts", "prompt"]
redact = { open = "a(", "a b" = "x", nothing = "a*", ahead = "(?=a)", huge = "\\w{1000}{1000}", number = 7 }
pinning = "lock"
[upstreams.a]
command = "x"
guard = { lock_file = "x", redact = { k = "[" } }
"#,
    );
    let report = messages.unwrap_err();
    let problems: Vec<_> = report.problems().iter().map(|p| format!("{p:?}")).collect();
    insta::assert_snapshot!(problems.join("\n"), @r#"
    weir.toml:3:13: guard.arguments: "strict" is not a choice here (one of: off, required, declared)
    weir.toml:4:16: guard.max_argument: zero never means unlimited (write the limit that you want, or remove the key for the default)
    weir.toml:5:10: guard.output: "drop" is not a choice here (one of: off, flag, refuse)
    weir.toml:6:15: guard.hidden_text: "remove" is not a choice here (one of: pass, flag, escape, strip, refuse)
    weir.toml:7:23: guard.results: "prompt" is not a choice here (did you mean `prompts`?)
    weir.toml:8:19: guard.redact.open: this is not a regular expression: unclosed group (write it in Rust's syntax, which has no look-around and no references back)
    weir.toml:8:25: guard.redact."a b": "a b" cannot be used as a name (1 to 64 of A-Z, a-z, 0-9, _, . and -)
    weir.toml:8:48: guard.redact.nothing: this is a pattern that matches the empty text (match at least one character: a+, not a*)
    weir.toml:8:62: guard.redact.ahead: this is not a regular expression: look-around, including look-ahead and look-behind, is not supported (write it in Rust's syntax, which has no look-around and no references back)
    weir.toml:8:78: guard.redact.huge: this is a pattern that takes too much memory (shorten it, or make two of it)
    weir.toml:8:106: guard.redact.number: expected a string, found an integer (put it in quotes)
    weir.toml:9:11: guard.pinning: "lock" is not a choice here (one of: off, alert, enforce, locked)
    weir.toml:12:11: upstreams.a.guard.lock_file: no such key (known here: pinning, results, redact, arguments, max_argument, output, hidden_text)
    weir.toml:12:43: upstreams.a.guard.redact.k: this is not a regular expression: unclosed character class (write it in Rust's syntax, which has no look-around and no references back)
    "#);
}

#[test]
fn keys_that_have_expired_or_soon_will_are_told_by_whoever_knows_the_time() {
    let client = |name: &str, expires: &str| {
        let hash = format!("{:064x}", name.len());
        format!(
            "[clients.{name}]\nkey_sha256 = [\"{hash}\"]\nrole = \"local\"\nexpires = {expires}\n"
        )
    };
    let text = [
        PROMPT_LIBRARY.to_owned(),
        client("a", "2026-11-21T04:20:12Z"),
        client("bb", "2026-11-22T04:20:12Z"),
        client("ccc", "2026-11-26T04:20:13Z"),
        client("dddd", "2026-12-05T04:20:11Z"),
        client("eeeee", "2026-12-05T04:20:12Z"),
    ];
    let now = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_234_812));
    let read = |now| {
        let options = Options { now, ..Options::default() };
        Config::parse(&text.concat(), Path::new("weir.toml"), &options).unwrap().warnings
    };
    let messages: Vec<_> = read(now).iter().map(|it| format!("{}: {}", it.key, it.what)).collect();
    assert_eq!(
        messages,
        [
            "clients.a.expires: the keys of this client have expired",
            "clients.bb.expires: the keys of this client expire within a day",
            "clients.ccc.expires: the keys of this client expire within 6 days",
            "clients.dddd.expires: the keys of this client expire within 14 days",
        ]
    );
    assert_eq!(read(None), []);
}

#[test]
fn a_role_that_nobody_has_is_told_to_whoever_looks_after_the_file() {
    let text = "[upstreams.guide]\nprompts_dir = \"p\"\n[roles.local]\n[roles.staff]\n[roles.gest]\n\
                [auth]\nanonymous_role = \"staff\"\n";
    let options = Options { now: Some(SystemTime::now()), ..Options::default() };
    let read = Config::parse(text, Path::new("weir.toml"), &options).unwrap();
    let messages: Vec<_> = read.warnings.iter().map(|it| format!("{it:?}")).collect();
    assert_eq!(
        messages,
        [
            "weir.toml:5:8: roles.gest: no client has this role (`weir keys add NAME --role gest` makes a client that has it)"
        ]
    );
    assert_eq!(warnings(text), "");
}

#[test]
fn a_provider_that_would_let_in_too_many_or_nobody_is_a_mistake() {
    let rendered = parse(
        r#"
        [upstreams.guide]
        prompts_dir = "p"
        [auth.oidc.a]
        issuer = "http://id.example.com"
        audience = []
        algorithms = ["RS256", "HS256", "none", "RS257"]
        roles = { devs = "devs" }
        default_role = "nobody"
        scopes_supported = ["a b", "offline_access"]
        jwks_uri = "http://id.example.com/keys"
        [auth.oidc.b]
        issuer = "https://login.microsoftonline.com/{tenantid}/v2.0"
        [auth.oidc.c]
        preset = "entra"
        issuer = "https://login.microsoftonline.com/common/v2.0"
        audience = ["x"]
        [auth.oidc.d]
        issuer = "https://login.microsoftonline.com/common/v2.0"
        audience = ["x"]
        rolls = {}
        "#,
    )
    .unwrap_err();
    let problems: Vec<_> = rendered.problems().iter().map(|p| format!("{p:?}")).collect();
    let messages =
        |text: &str| assert!(problems.iter().any(|it| it.contains(text)), "{text}: {problems:#?}");
    messages("auth.oidc.a: server.public_url is not set, and clients need it to request tokens");
    messages(
        "weir.toml:5:18: auth.oidc.a.issuer: over http anyone on the network path could inject other keys",
    );
    messages("weir.toml:6:20: auth.oidc.a.audience: the list is empty");
    messages("weir.toml:7:32: auth.oidc.a.algorithms: \"HS256\" is not safe");
    messages("weir.toml:7:41: auth.oidc.a.algorithms: \"none\" is not safe");
    messages(
        "weir.toml:7:49: auth.oidc.a.algorithms: \"RS257\" is not a choice here (did you mean `RS256`?)",
    );
    messages("weir.toml:8:26: auth.oidc.a.roles.devs: there is no role \"devs\"");
    messages("weir.toml:9:24: auth.oidc.a.default_role: there is no role \"nobody\"");
    messages("weir.toml:10:29: auth.oidc.a.scopes_supported: \"a b\" is not a scope");
    messages(
        "weir.toml:10:36: auth.oidc.a.scopes_supported: \"offline_access\" is a matter between a client and the provider",
    );
    messages("weir.toml:13:18: auth.oidc.b.issuer: this holds a placeholder");
    messages("auth.oidc.b.audience: is missing (add audience = [\"api://weir\"])");
    messages("weir.toml:16:18: auth.oidc.c.issuer: this address is that of many tenants");
    messages("weir.toml:19:18: auth.oidc.d.issuer: this is the issuer of [auth.oidc.c] already");
    messages("weir.toml:21:9: auth.oidc.d.rolls: no such key (did you mean `roles`?)");
    assert_eq!(problems.iter().filter(|it| it.contains("public_url")).count(), 4);
}

#[test]
fn a_provider_that_gives_no_role_is_a_warning_and_one_refuses_anonymous_clients() {
    let text = |more: &str| {
        format!(
            "{PROMPT_LIBRARY}[server]\npublic_url = \"https://a\"\n[auth.oidc.a]\nissuer = \"https://id\"\n\
             audience = [\"x\"]\n{more}"
        )
    };
    let rendered = warnings(&text(""));
    assert!(
        rendered.contains("auth.oidc.a.roles: no token of this provider gives a role"),
        "{rendered}"
    );
    let config = config(&text("default_role = \"local\""));
    assert_eq!((config.warnings, config.auth.anonymous), (vec![], false));
}

#[test]
fn no_client_is_called_what_weir_calls_somebody_without_a_key() {
    for name in ["anonymous", "local", "operator"] {
        let text = format!(
            "{PROMPT_LIBRARY}[clients.{name}]\nkey_sha256 = [\"{:064x}\"]\nrole = \"local\"\n",
            7
        );
        let messages = parse(&text).unwrap_err().to_string();
        assert!(messages.contains("give the client another name"), "{messages}");
    }
}

#[test]
fn an_upstream_that_runs_once_is_one_server_for_all_clients() {
    let rendered = mistakes(
        r#"[upstreams.guide]
prompts_dir = "p"
replicas = "one"
[upstreams.each]
command = "x"
sharing = "client"
replicas = "one"
[upstreams.any]
command = "x"
replicas = "some"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: upstreams.guide.replicas: a folder of prompts is not run
     --> weir.toml:3:12
      |
    3 | replicas = "one"
      |            ^^^^^ remove it: every replica reads the folder

    error: upstreams.each.replicas: sharing is "client", and so there is a connection for each client
     --> weir.toml:7:12
      |
    7 | replicas = "one"
      |            ^^^^^ remove it, or set sharing = "shared"

    error: upstreams.any.replicas: "some" is not a choice here
      --> weir.toml:10:12
       |
    10 | replicas = "some"
       |            ^^^^^^ one of: each, one
    "#);
}

#[test]
fn replicas_do_not_approve_what_they_list_first() {
    let rendered = mistakes(
        r#"[upstreams.each]
command = "x"
guard = { pinning = "enforce" }
[upstreams.any]
command = "x"
guard = { pinning = "locked" }
[fleet]
store = { url = "redis://s" }
keys = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
listen = "10.0.0.1:1"
"#,
    );
    insta::assert_snapshot!(rendered, @r#"
    error: upstreams.each.guard: pinning is "enforce", and each replica would approve what it lists first
     --> weir.toml:3:9
      |
    3 | guard = { pinning = "enforce" }
      |         ^^^^^^^^^^^^^^^^^^^^^^^ set pinning = "locked", and give all replicas the same lock file
    "#);
}

#[test]
fn a_host_or_an_origin_that_no_request_can_have_is_refused_when_it_is_read() {
    for (key, value) in [
        ("allowed_hosts", "a~b"),
        ("allowed_hosts", "mcp.example.com."),
        ("allowed_hosts", "a:99999"),
        ("allowed_hosts", "a:"),
        ("allowed_origins", "https://a~b"),
        ("allowed_origins", "https://a."),
        ("allowed_origins", "https://a:99999"),
        ("allowed_origins", "1x://a"),
        ("allowed_origins", "null"),
        ("allowed_origins", "https://*.example.com"),
    ] {
        let error = parse(&format!("[server]\n{key} = [{value:?}]\n")).expect_err(value);
        let error = error.to_string();
        assert!(error.contains(&format!("server.{key}: {value:?} is not")), "{error}");
    }
    for url in ["https://mcp.example.com./mcp", "https://a~b", "https://mcp.example.com:x"] {
        let error = parse(&format!("[server]\npublic_url = {url:?}\n")).expect_err(url);
        assert!(error.to_string().contains("server.public_url"), "{error}");
    }
}

#[test]
fn a_value_that_is_no_secret_is_shown_as_it_stands_in_the_file() {
    let drawn = |line: &str| {
        let url = if line.starts_with("url") { "" } else { "url = \"https://h/\"\n" };
        let text = format!("[upstreams.a]\n{url}{line}\n");
        let rendered = mistakes(&text);
        let lines = rendered.lines().filter_map(|line| line.split_once(" | "));
        assert!(!rendered.contains("hunt"), "{rendered}");
        lines.map(|(_, line)| line).collect::<Vec<_>>().join("\n")
    };
    for shown in [
        r#"url = "htp://x""#,
        r#"url = "example.com""#,
        r#"url = "https://h:99999/mcp""#,
        r#"url = "${LEAK}""#,
        "retries = 5",
        "retries = true",
        "retries = 1.5",
        "tries = [1, 2]",
        r#"tiemouts = { call = "5s" }"#,
        r#"color = "blue""#,
        r#"transprot = "htp""#,
        r#"lazzy = "yes""#,
        r#"transport = "stdio""#,
    ] {
        let text = format!("[upstreams.a]\n{shown}\n");
        let text = if shown.starts_with("url") { text } else { text + "url = \"https://h/\"\n" };
        let environment = [("LEAK", "ftp://hunter2")].into_iter().collect();
        let options = Options { environment, ..Options::default() };
        let rendered = Config::parse(&text, Path::new("weir.toml"), &options).unwrap_err();
        assert!(rendered.to_string().contains(shown), "{shown}: {rendered}");
        assert!(!rendered.to_string().contains("hunt"), "{shown}: {rendered}");
    }
    for (written, shown) in [
        (r#"url = "htp://me:hunter2@x/""#, r#"url = "htp://**********@x/""#),
        (r#"url = "htp://x/p?key=hunter2""#, r#"url = "htp://x/p?***********""#),
        (r#"url = "me:hunter2@x""#, r#"url = "**********@x""#),
        (r#"url = "x/y?hunter2""#, r#"url = "x/y?*******""#),
        (r#"url = "https://h/#hunter2""#, r#"url = "https://h/#*******""#),
        (r#"url = "https://me:hunt?er2@h/""#, r#"url = "https://***********@h/""#),
        (r#"url = "ftp:me:hunter2\u0040h/?x""#, "url = ******"),
        (r#"url = { x = "hunter2" }"#, "url = { x = *********"),
        (r#"headrs = { X = "hunter2" }"#, "headrs = { X = *********"),
        (r#"http_headers = { X = "hunter2", Y = 1 }"#, "http_headers = { X = *********, Y = *"),
        (r#"extra = { x = "hunter2", n = 7 }"#, "extra = { x = *********, n = 7"),
        (r#"api_token = "hunter2""#, "api_token = *********"),
        ("passwrd = 1234", "passwrd = ****"),
        (r#"ulr = "https://me:hunter2@h/?hunter2""#, r#"ulr = "https://**********@h/?*******""#),
        (r#"color = "hunter2hunter2hunter2""#, "color = ***********************"),
        (
            r#"auth = { type = "bearer", token = "hunter2", x = "hunter2" }"#,
            "token = *********, x = *********",
        ),
        (r#"env.X = "hunter2""#, "env.X = *********"),
    ] {
        let line = drawn(written);
        assert!(line.contains(shown), "{written}: {line}");
    }
}

#[test]
fn a_literal_secret_of_an_upstream_is_not_shown_beside_a_mistake() {
    for line in [
        r#"command = "x", args = ["--token", "hunter2", "-y", "hunter2"], lazzy = 1"#,
        r#"command = ["npx", "--key=hunter2"]"#,
        r#"command = "npx hunter2", lazzy = 1"#,
        r#"command = "x", args = "--token hunter2""#,
        r#"command = "x", args = [4, "hunter2"]"#,
        r#"command = "x", args = ["--header", "X-A: hunter2", "${GONE"]"#,
        r#"command = "x", env = { K = "hunter2" }, lazzy = 1"#,
        r#"command = "x", env = ["K=hunter2"]"#,
        r#"url = "https://h/mcp/ghp_hunter2x?key=hunter2", headers = { X = "hunter2" }, lazzy = 1"#,
        r#"url = "https://h/mcp", headers = "X: hunter2""#,
    ] {
        let rendered = mistakes(&format!("[upstreams]\na = {{ {line} }}\n"));
        assert!(!rendered.contains("hunt"), "{rendered}");
    }
    for line in [
        r#"command = "npx hunter2" x"#,
        r#"command = npx hunter2"#,
        r#"command = "x" args = ["hunter2"]"#,
        r#"    "url", "hunter2""#,
        r#"url = "https://h/ghp_hunter2x"#,
    ] {
        let rendered = mistakes(&format!("[upstreams.a]\n{line}\n"));
        assert!(rendered.contains("TOML") && !rendered.contains("hunt"), "{rendered}");
    }
    // The mistake itself is shown.
    let rendered =
        mistakes("[upstreams.a]\ncommand = \"x\"\nargs = [\"--key=${GONE\", \"hunter2\"]\n");
    assert!(rendered.contains(r#"args = ["--key=${GONE", "*******"]"#), "{rendered}");
}

#[test]
fn a_path_in_place_of_a_private_key_is_answered_with_the_form_that_is_meant() {
    let https = "[upstreams.a]\nurl = \"https://h/\"\n";
    for (text, key) in [
        ("[server.tls]\ncert = \"a.crt\"\nkey = \"tls.key\"\n".to_owned(), "server.tls.key"),
        (
            "[server.tls]\ncert = \"a.crt\"\nkey = \"/etc/weir/private\"\n".to_owned(),
            "server.tls.key",
        ),
        (format!("{https}tls = {{ cert = \"a\", key = \"c.pem\" }}\n"), "upstreams.a.tls.key"),
        (
            format!(
                "{https}auth = {{ type = \"oauth\", grant = \"client_credentials\", client_id = \"w\", client_key = \"s/k\" }}\n"
            ),
            "upstreams.a.auth.client_key",
        ),
    ] {
        let report = parse(&text).unwrap_err();
        let problem = report.problems().iter().find(|it| it.key == key).expect(key);
        assert_eq!(
            problem.what,
            "this is not a private key in PEM, but looks like the path of one"
        );
        let name = key.rsplit('.').next().expect("a name");
        assert_eq!(problem.remedy, format!("write {name} = {{ file = \"…\" }}"));
    }
}

#[test]
fn a_line_that_is_not_toml_is_shown_where_it_holds_no_secret() {
    for (written, is_shown) in [
        ("listen = \"127.0.0.1:80\" 7", true),
        ("max_reply = 5 MiB", true),
        ("pinning = locked", true),
        ("url = \"htp://x", true),
        ("url = \"htp://me:hunter2@x", false),
        ("url = \"htp://x?hunter2", false),
        ("token = hunter2", false),
        ("list hunter2", false),
        ("x = hunter2", false),
    ] {
        let rendered = mistakes(&format!("[upstreams.a]\n{written}\n"));
        assert_eq!(rendered.contains(written), is_shown, "{written}: {rendered}");
        assert!(!rendered.contains("hunter2"), "{written}: {rendered}");
    }
    let rendered = mistakes("[upstreams.a.headers]\nlevel = \"hunter2\n");
    assert!(!rendered.contains("hunter2"), "{rendered}");
}
