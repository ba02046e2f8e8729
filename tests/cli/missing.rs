//! Reasons why an item is missing from a list, as `weir status`, `weir explain` and
//! `_meta["weir/partial"]` report each, in the same words.

use std::path::Path;

use super::operating::Served;
use super::telling::respond_to_list;
use super::{folder, program, script, scripted};
use crate::lab::PATIENCE;
use crate::lab::blocking::pause;

const LIST: &str = r#""result":{"prompts":[{"name":"x"},{"name":"y"}]}"#;

/// Server with two prompts that can be ended for good.
fn ending_server(folder: &Path, name: &str) {
    script(folder, name, &[("prompts/list", LIST), ("prompts/get", "'$(touch NAME.dead)'")]);
    let path = folder.join(format!("{name}.sh"));
    let text = std::fs::read_to_string(&path).expect("written").replace("NAME", name);
    let ends = format!("[ -e {name}.dead ] && exit 3\n");
    let text = text.replace("    case $line in", &format!("    {ends}    case $line in"));
    std::fs::write(&path, format!("{ends}{text}")).expect("written");
}

fn config() -> String {
    let quick = "retry = { backoff = \"10ms\", max_backoff = \"20ms\", jitter = false }\n";
    let hide = "on_down = \"hide\"\non_down_grace = \"10ms\"\ntimeouts = { call = \"1s\" }\n";
    [
        "[auth]\nmode = \"anonymous\"\nanonymous_role = \"guest\"\n\
         [roles.guest]\nprompts.allow = [\"*\"]\nprompts.deny = [\"many/y\"]\n\
         [upstreams.house]\nprompts_dir = \"prompts\"\n\
         [upstreams.gone]\nurl = \"http://127.0.0.1:1/mcp\"\n\
         [upstreams.office]\nurl = \"http://127.0.0.1:1/mcp\"\nauth.type = \"oauth\"\n\
         [upstreams.silent]\ncommand = \"sh\"\nargs = [\"-c\", \"cat > /dev/null\"]\ntimeouts = { startup = \"60s\" }\n",
        &scripted("odd"),
        &format!("[upstreams.looping]\ncommand = \"sh\"\nargs = [\"-c\", \"exit 3\"]\n{quick}"),
        &format!("{}{quick}{hide}", scripted("hiding")),
        &format!("{}rename = {{ \"prompts/x\" = \"y\" }}\n", scripted("clash")),
        &format!("{}limits = {{ max_items = 1 }}\n", scripted("cut")),
        &format!("{}guard.pinning = \"locked\"\n", scripted("held")),
        &scripted("many"),
    ]
    .concat()
}

fn prepare(folder: &Path) {
    for name in ["clash", "cut", "held", "many"] {
        script(folder, name, &[("prompts/list", LIST)]);
    }
    ending_server(folder, "hiding");
    // The script rejects every method.
    let refuses = r#"while read -r line; do
    id=${line#*\"id\":}; id=${id%%,*}
    printf '%s\n' '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"no such method"}}'
done
"#;
    std::fs::write(folder.join("odd.sh"), refuses).expect("written");
}

/// Lines of the status about one upstream.
fn status_of<'a>(status: &'a str, name: &str) -> &'a str {
    let start = status.find(&format!("{{\"name\":\"{name}\",\"state\"")).expect(name);
    let rest = &status[start..];
    rest[1..].find("{\"name\"").map_or(rest, |end| &rest[..=end])
}

#[test]
fn each_reason_for_a_missing_prompt_is_told_by_status_explain_and_the_list_in_the_same_words() {
    let served = Served::start_in(&config(), prepare);
    served.wait_for("/readyz", |status, _| status == 200);
    // The first call ends with a response that cannot be read, and the process with the next one.
    served.post_about("prompts/get", Some("hiding__x"));
    served.post_about("prompts/get", Some("hiding__x"));
    let begin = std::time::Instant::now();
    let status = loop {
        let status = served.with_token("/status").1;
        let is_so = |name: &str, text: &str| status_of(&status, name).contains(text);
        if is_so("hiding", "\"hidden\":true")
            && is_so("looping", "crash-loop")
            && is_so("held", "left_out\":[\"p")
            && is_so("odd", "\"down\"")
        {
            break status;
        }
        assert!(begin.elapsed() < PATIENCE, "{status}");
        pause();
    };
    let list = served.post("prompts/list");
    let (_, partial) = list.split_once("\"weir/partial\":[").expect("it is not whole");
    let partial = partial.split(']').next().expect("it ends");
    assert!(list.contains("cut__x") && list.contains("many__x") && !list.contains("many__y"));

    let (_, page, _) = served.weir(&["status"]);
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for (item, upstream, words, is_partial) in [
        ("gone__x", "gone", "Connection refused", true),
        ("gone/x", "gone", "down", true),
        ("office/x", "office", "needs-sign-in", true),
        ("office__x", "office", "sign in with `weir login office`", true),
        ("silent/x", "silent", "starting", true),
        ("odd/x", "odd", "no such method", true),
        ("looping/x", "looping", "crash-loop", true),
        ("hiding/x", "hiding", "hidden: away for longer than `on_down_grace`", true),
        ("clash/x", "clash", "would be \"clash__y\" like another", false),
        ("cut/y", "cut", "lists more than is read: 1 items", true),
        ("held/x", "held", "is held back until it is approved", false),
    ] {
        assert!(page.contains(words), "{item}: {page}");
        let output = status_of(&status, upstream).replace("\\\"", "\"");
        let in_json = words.strip_prefix("lists more than is read: ").unwrap_or(words);
        let in_json = in_json.split(':').next().expect("a word");
        assert!(output.contains(in_json), "{item}: {output}");
        let (code, out, err) = served.weir(&["explain", item]);
        assert!(code != 0 && out.contains(words), "{item}: {code} {out}{err}");
        assert_eq!(partial.contains(&format!("\"{upstream}\"")), is_partial, "{item}: {partial}");
    }
    let metrics = served.with_token("/metrics").1;
    let state = r#"weir_upstream_state{upstream="office",state="needs-sign-in"} 1"#;
    assert!(metrics.contains(state), "{metrics}");
    // Denied items are reported to operators, not to clients.
    let (_, out, _) = served.weir(&["explain", "many/y"]);
    assert!(out.contains("guest: not visible; ") && out.contains("denied by `many/y`"), "{out}");
    assert!(!partial.contains("many") && !partial.contains("house"), "{partial}");
}

#[test]
fn stdio_says_that_a_user_has_to_sign_in_and_its_lists_that_something_is_missing() {
    let folder = folder(
        "[sign_in]\ninsecure_loopback = true\n[state]\ndir = \"state\"\n[upstreams.office]\n\
         url = \"http://127.0.0.1:1/mcp\"\nauth.type = \"oauth\"\n",
    );
    let mut stdio = program();
    stdio.arg("stdio").current_dir(folder.path());
    let (stdio, reply) = respond_to_list(stdio);
    assert!(reply.contains("\"prompts\":[]"), "{reply}");
    assert!(reply.contains("\"weir/partial\":[\"office\"]"), "{reply}");
    let log = stdio.wait_for_whole_log().join("\n");
    assert!(log.contains("sign in with `weir login office`"), "{log}");
}
