//! `weir read` and `weir complete`.

use insta::assert_snapshot;

use super::{example, folder, script, scripted, shown, weir};

fn notes() -> tempfile::TempDir {
    folder(&format!(
        r#"
[upstreams.notes]
command = "{}"
resources.deny = ["note:///3"]
[upstreams.house]
prompts_dir = "prompts"
[roles.guest]
prompts.allow = ["*"]
resources.allow = ["notes/*"]
resources.deny = ["notes/note:///2", "notes/*{{*"]
[clients.visitor]
key_sha256 = ["1111111111111111111111111111111111111111111111111111111111111111"]
role = "guest"
"#,
        example("legacy_stdio")
    ))
}

#[test]
fn read_writes_exactly_what_is_there() {
    let folder = notes();
    let (code, out, err) = weir(folder.path(), &["read", "note:///1"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "Buy oat milk", ""));
    let all = [
        shown(folder.path(), &["read", "note:///1", "--json"]),
        shown(folder.path(), &["read", "note:///2", "--as", "visitor"]),
        shown(folder.path(), &["read", "note:///3"]),
        // A template matches the URI; only its server knows whether the resource exists.
        shown(folder.path(), &["read", "note:///99"]),
        shown(folder.path(), &["read", "notes:///1"]),
        shown(folder.path(), &["read", "elsewhere:///1", "--json"]),
    ];
    assert_snapshot!(all.concat(), @r#"
    $ weir read note:///1 --json
    {"contents":[{"uri":"note:///1","mimeType":"text/plain","text":"Buy oat milk"}]}
    => 0
    $ weir read note:///2 --as visitor
    ! weir: the policy hides the resource `note:///2` from this client
    => 6
    $ weir read note:///3
    ! weir: no resource `note:///3`: no upstream exports it under its `resources` rules; upstreams: notes, house
    => 2
    $ weir read note:///99
    ! weir: note:///99: Resource not found
    => 5
    $ weir read notes:///1
    ! weir: no resource `notes:///1`; did you mean `note:///1`?
    => 2
    $ weir read elsewhere:///1 --json
    ! {"error":"no resource `elsewhere:///1`; `weir list resources` shows what there is","exit_code":2}
    => 2
    "#);
}

#[test]
fn bytes_and_several_contents_go_out_one_after_the_other() {
    let folder = folder(&scripted("hub"));
    let list = r#""result":{"resources":[{"uri":"file:///a","name":"a"}]}"#;
    let read = r#""result":{"contents":[{"uri":"file:///a","text":"one\r\n"},{"uri":"file:///b","blob":"AP8K"}]}"#;
    script(folder.path(), "hub", &[("resources/list", list), ("resources/read", read)]);
    let mut weir = assert_cmd::Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = weir.args(["read", "file:///a"]).current_dir(folder.path()).output();
    assert_eq!(output.expect("it runs").stdout, b"one\r\n\x00\xff\n");

    let read = r#""result":{"contents":[{"uri":"file:///a","blob":"no base64!"}]}"#;
    script(folder.path(), "hub", &[("resources/list", list), ("resources/read", read)]);
    assert_snapshot!(shown(folder.path(), &["read", "file:///a"]), @r"
    $ weir read file:///a
    ! weir: file:///a: a blob in the response is not base64
    => 5
    ");
}

#[test]
fn complete_prints_what_may_follow() {
    let folder = notes();
    let complete = |arguments: &[&str]| shown(folder.path(), &[&["complete"], arguments].concat());
    let all = [
        complete(&["prompt", "notes__summarize-notes", "style=b"]),
        complete(&["prompt", "notes/summarize-notes", "style=br"]),
        complete(&["prompt", "notes__summarize-notes", "style=b", "--json"]),
        complete(&["template", "note:///{id}", "id="]),
        complete(&["prompt", "notes__summarize-notes", "stile=b"]),
        complete(&["prompt", "notes__summarise-notes", "style=b"]),
        complete(&["template", "note:///{idd}", "id="]),
        complete(&["template", "note:///{id}", "id=", "--as", "visitor"]),
        complete(&["template", "note:///{id}", "number="]),
        complete(&["prompt", "house__greeting", "who=A"]),
    ];
    assert_snapshot!(all.concat(), @r#"
    $ weir complete prompt notes__summarize-notes style=b
    brief
    bullets
    => 0
    $ weir complete prompt notes/summarize-notes style=br
    brief
    => 0
    $ weir complete prompt notes__summarize-notes style=b --json
    {"completion":{"hasMore":false,"total":2,"values":["brief","bullets"]}}
    => 0
    $ weir complete template note:///{id} id=
    1
    2
    4
    => 0
    $ weir complete prompt notes__summarize-notes stile=b
    ! weir: `notes__summarize-notes` does not take `stile`; it takes `topic` (required), `style`
    => 2
    $ weir complete prompt notes__summarise-notes style=b
    ! weir: no prompt `notes__summarise-notes`; did you mean `notes__summarize-notes`?
    => 2
    $ weir complete template note:///{idd} id=
    ! weir: no resource template `note:///{idd}`; did you mean `note:///{id}`?
    => 2
    $ weir complete template note:///{id} id= --as visitor
    ! weir: the policy hides the resource template `note:///{id}` from this client
    => 6
    $ weir complete template note:///{id} number=
    ! weir: rules for URIs allow no completion of this argument of `note:///{id}`
    => 6
    $ weir complete prompt house__greeting who=A
    => 0
    "#);
}

#[test]
fn complete_tells_what_is_settled_and_that_there_is_more() {
    let folder = folder(&scripted("hub"));
    let list =
        r#""result":{"prompts":[{"name":"trip","arguments":[{"name":"from"},{"name":"to"}]}]}"#;
    let values =
        r#""result":{"completion":{"values":["Rome","Ro\nuen"],"total":70,"hasMore":true}}"#;
    // Responds only to a request with the context as the specification defines it.
    let requested = r#"context":{"arguments":{"from":"Pisa"#;
    script(folder.path(), "hub", &[("prompts/list", list), (requested, values)]);
    let arguments = ["complete", "prompt", "hub__trip", "to=Ro", "--given", "from=Pisa"];
    assert_snapshot!(shown(folder.path(), &arguments), @r"
    $ weir complete prompt hub__trip to=Ro --given from=Pisa
    Rome
    Ro�uen
    ! weir: there are more, 70 in all: type more of the argument
    => 0
    ");
}
