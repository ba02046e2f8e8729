//! `weir call`: its output, the conversion of arguments to JSON, and its failures.

use std::io::Write;
use std::process::Stdio;

use insta::assert_snapshot;

use super::{example, folder, script, scripted, shown, weir};

/// The example server, under a policy that hides one tool from the visitor.
fn notes() -> tempfile::TempDir {
    folder(&format!(
        r#"
[upstreams.notes]
command = "{}"
[upstreams.gone]
command = "/nonexistent/server"
[roles.guest]
tools.allow = ["notes/*"]
tools.deny = ["notes/add_*"]
[clients.visitor]
key_sha256 = ["1111111111111111111111111111111111111111111111111111111111111111"]
role = "guest"
"#,
        example("legacy_stdio")
    ))
}

#[test]
fn call_prints_the_answer_or_the_result_as_it_came() {
    let folder = notes();
    let call = |arguments: &[&str]| shown(folder.path(), arguments);
    let all = [
        call(&["call", "notes__add_note", "text=7"]),
        call(&["call", "notes__slow_count", "to=2", "delay_ms=1"]),
        call(&["call", "notes__slow_count", "to=2", "delay_ms:=1", "--json"]),
        call(&["call", "notes/add_note", "text=8"]),
        call(&["call", "notes__echo", "a=1.10", "b=x=y", "c:={\"z\": null}", "--as", "visitor"]),
    ];
    assert_snapshot!(all.concat(), @r#"
    $ weir call notes__add_note text=7
    note:///5
    => 0
    $ weir call notes__slow_count to=2 delay_ms=1
    counted to 2
    => 0
    $ weir call notes__slow_count to=2 delay_ms:=1 --json
    {"content":[{"type":"text","text":"counted to 2"}]}
    => 0
    $ weir call notes/add_note text=8
    note:///5
    => 0
    $ weir call notes__echo a=1.10 b=x=y c:={"z": null} --as visitor
    {"a":1.10,"b":"x=y","c":{"z": null}}
    => 0
    "#);
}

#[test]
fn all_arguments_come_as_one_object_from_anywhere() {
    let folder = notes();
    std::fs::write(folder.path().join("a.json"), "{\n  \"n\": 1.10\n}\n").expect("written");
    let call = |arguments: &[&str]| shown(folder.path(), arguments);
    let all = [
        call(&["call", "notes__echo", "--args", "{\"n\": 1e400}"]),
        call(&["call", "notes__echo", "--args", "@a.json", "m=2"]),
        // No local check: the server validates.
        call(&["call", "notes__slow_count", "--args", "{\"too\":1}"]),
        call(&["call", "notes__echo", "--args", "[]"]),
        call(&["call", "notes__echo", "--args", "@b.json"]),
    ];
    assert_snapshot!(all.concat(), @r#"
    $ weir call notes__echo --args {"n": 1e400}
    {"n": 1e400}
    => 0
    $ weir call notes__echo --args @a.json m=2
    {"n":1.10,"m":2}
    => 0
    $ weir call notes__slow_count --args {"too":1}
    ! weir: notes__slow_count: `to` must be a whole number
    => 5
    $ weir call notes__echo --args []
    ! weir: --args: not a JSON object
    => 2
    $ weir call notes__echo --args @b.json
    ! weir: --args: b.json: No such file or directory (os error 2)
    => 2
    "#);

    let mut weir = crate::program()
        .args(["call", "notes__echo", "--args", "-"])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    weir.stdin.take().expect("piped").write_all(b"{\"in\":true}").expect("written");
    let output = weir.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "{\"in\":true}\n");
}

#[test]
fn what_goes_wrong_with_a_call_has_a_code_and_a_line() {
    let folder = notes();
    let call = |arguments: &[&str]| shown(folder.path(), arguments);
    let all = [
        call(&["call", "notes__slow_count", "to=many"]),
        call(&["call", "notes__slow_count", "two=2"]),
        call(&["call", "notes__slow_count", "to=2", "two=2"]),
        call(&["call", "notes__slow_count", "to"]),
        call(&["call", "notes__slow_count", "{\"to\":2}"]),
        call(&["call", "notes__slow_cuont", "to=2"]),
        call(&["call", "notes__unheard-of-by-anybody"]),
        call(&["call", "notes/unheard-of-by-anybody"]),
        call(&["call", "notes/add_note", "text=x", "--as", "visitor"]),
        call(&["call", "notes__add_note", "text=x", "--as", "visitor"]),
        call(&["call", "notes__echo", "--as", "nobody"]),
        call(&["call", "gone__echo"]),
        call(&["call", "gone__echo", "--as", "visitor"]),
        call(&["call", "gone__echo", "--json"]),
        call(&["call", "notes__slow_count", "to:=-1"]),
    ];
    assert_snapshot!(all.concat(), @r#"
    $ weir call notes__slow_count to=many
    ! weir: the argument `to` of `notes__slow_count` must be of type integer, and `many` is not
    => 2
    $ weir call notes__slow_count two=2
    ! weir: `notes__slow_count` needs `to` and does not take `two`; it takes `to` (integer, required), `delay_ms` (integer)
    => 2
    $ weir call notes__slow_count to=2 two=2
    ! weir: `notes__slow_count` does not take `two`; it takes `to` (integer, required), `delay_ms` (integer)
    => 2
    $ weir call notes__slow_count to
    ! error: invalid value 'to' for '[ARGUMENT=VALUE]...': expected ARGUMENT=VALUE or ARGUMENT:=JSON

    For more information, try '--help'.
    => 2
    $ weir call notes__slow_count {"to":2}
    ! error: invalid value '{"to":2}' for '[ARGUMENT=VALUE]...': a JSON object of all arguments follows --args

    For more information, try '--help'.
    => 2
    $ weir call notes__slow_cuont to=2
    ! weir: no tool `notes__slow_cuont`; did you mean `notes__slow_count`?
    => 2
    $ weir call notes__unheard-of-by-anybody
    ! weir: no tool `notes__unheard-of-by-anybody`; `weir list tools` shows what there is
    => 2
    $ weir call notes/unheard-of-by-anybody
    ! weir: no tool `notes/unheard-of-by-anybody`; `weir list tools` shows what there is
    => 2
    $ weir call notes/add_note text=x --as visitor
    ! weir: the policy hides the tool `notes/add_note` from this client
    => 6
    $ weir call notes__add_note text=x --as visitor
    ! weir: the policy hides the tool `notes__add_note` from this client
    => 6
    $ weir call notes__echo --as nobody
    ! weir: no client `nobody` in the configuration, which has visitor
    => 3
    $ weir call gone__echo
    ! weir: no tool `gone__echo`, but upstream `gone` could not be listed: it cannot be started: no such program: /nonexistent/server; install it, or correct `command`
    => 4
    $ weir call gone__echo --as visitor
    ! weir: no tool `gone__echo`, but upstream `gone` could not be listed: it cannot be started: no such program: /nonexistent/server; install it, or correct `command`
    => 4
    $ weir call gone__echo --json
    ! {"error":"no tool `gone__echo`, but upstream `gone` could not be listed: it cannot be started: no such program: /nonexistent/server; install it, or correct `command`","exit_code":4}
    => 4
    $ weir call notes__slow_count to:=-1
    ! weir: notes__slow_count: `to` must be a whole number
    => 5
    "#);
}

#[test]
fn a_tool_that_fails_is_an_answer_with_exit_code_5() {
    let folder = folder(&scripted("hub"));
    let call =
        r#""result":{"content":[{"type":"text","text":"no disk\u001b[31m"}],"isError":true}"#;
    let list = r#""result":{"tools":[{"name":"save","inputSchema":{"type":"object"}}]}"#;
    script(folder.path(), "hub", &[("tools/list", list), ("tools/call", call)]);
    let call = |arguments: &[&str]| shown(folder.path(), arguments);
    // Written to a pipe, the text is unchanged.
    let all = call(&["call", "hub__save"]) + &call(&["call", "hub__save", "--json"]);
    assert_snapshot!(all.replace('\u{1b}', "ESC"), @r#"
    $ weir call hub__save
    no diskESC[31m
    ! weir: hub__save: the tool failed
    => 5
    $ weir call hub__save --json
    {"content":[{"type":"text","text":"no disk\u001b[31m"}],"isError":true}
    ! {"error":"hub__save: the tool failed","exit_code":5}
    => 5
    "#);
}

#[test]
fn a_question_of_the_tool_is_named() {
    let folder = folder(&scripted("hub"));
    let question = r#""result":{"resultType":"input_required","inputRequests":{"name":{"method":"elicitation/create","params":{"message":"What is your name?"}}},"requestState":"s"}"#;
    let list = r#""result":{"tools":[{"name":"greet","inputSchema":{"type":"object"}}]}"#;
    script(folder.path(), "hub", &[("tools/list", list), ("tools/call", question)]);
    assert_snapshot!(shown(folder.path(), &["call", "hub__greet"]), @r#"
    $ weir call hub__greet
    ! weir: hub__greet: the server requests input ("What is your name?"), which the command line cannot provide
    => 5
    "#);
    // The example rejects clients that support no elicitation.
    assert_snapshot!(shown(folder.path(), &["call", "shop__ask_name", "--demo"]), @r"
    $ weir call shop__ask_name --demo
    ! weir: shop__ask_name: this tool asks its user for a name; the server needs input from its client, which the command line cannot provide
    => 5
    ");
}

#[test]
fn a_modern_upstream_over_http_is_called_alike() {
    let folder = folder("");
    let (code, out, err) =
        weir(folder.path(), &["call", "--demo", "shop__search_products", "query=gau"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "{\"products\":[\"gauge\"]}\n", ""));
}

#[test]
fn a_prompt_that_answers_with_an_error_is_told_in_its_words() {
    let folder = folder(&scripted("hub"));
    let list = r#""result":{"prompts":[{"name":"plan","arguments":[]}]}"#;
    let error = r#""error":{"code":-32000,"message":"the\nmoon is down"}"#;
    script(folder.path(), "hub", &[("prompts/list", list), ("prompts/get", error)]);
    let all = shown(folder.path(), &["get", "hub__plan"])
        + &shown(folder.path(), &["get", "hub__plan", "--json"]);
    assert_snapshot!(all, @r#"
    $ weir get hub__plan
    ! weir: hub__plan: the�moon is down
    => 5
    $ weir get hub__plan --json
    ! {"error":"hub__plan: the�moon is down","exit_code":5}
    => 5
    "#);
}

#[test]
fn a_name_of_an_upstreams_cannot_command_the_terminal_that_a_hint_is_shown_on() {
    let folder = folder(&format!("[naming]\ncharacters = \"any\"\n{}", scripted("hub")));
    let tools = r#""result":{"tools":[{"name":"near\u001b","inputSchema":{}},{"name":"far\u202e","inputSchema":{}}]}"#;
    script(folder.path(), "hub", &[("tools/list", tools)]);
    let (code, _, err) = weir(folder.path(), &["call", "hub__near"]);
    assert_eq!(
        (code, err.as_str()),
        (2, "weir: no tool `hub__near`; did you mean `hub__near\u{fffd}`?\n")
    );
    let (code, _, err) = weir(folder.path(), &["call", "hub__far", "--json"]);
    assert_eq!(code, 2);
    assert!(err.contains(r"`hub__far\u202e`"), "{err}");
}
