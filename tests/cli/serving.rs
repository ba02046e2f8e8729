//! `weir serve` and `weir stdio`: their addresses, and their end by a signal.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{LIBRARY_CONFIG, folder, runs, script, scripted, serve, stdio, weir};
use crate::lab::blocking::{make_pipe, read_pipe, write_pipe};
use crate::lab::http::exchange;
use crate::lab::ports::free_port;
use crate::lab::{PATIENCE, wait_until};

#[test]
fn serve_refuses_a_network_address_without_keys_unless_told() {
    let config = "
[server]
listen = \"0.0.0.0:0\"
allowed_hosts = [\"mcp.example.com\"]
[auth]
mode = \"anonymous\"
[upstreams.house]
prompts_dir = \"prompts\"
";
    let folder = folder(config);
    let (code, _, err) = weir(folder.path(), &["serve"]);
    assert_eq!(code, 78);
    assert!(err.contains("--allow-anonymous-network"), "{err}");
    let (code, _, err) = weir(folder.path(), &["check", "--offline", "--allow-anonymous-network"]);
    assert_eq!((code, err.as_str()), (0, "the configuration is valid\n"));
}

#[test]
fn a_port_in_use_is_one_line_that_says_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it is bound");
    let config =
        format!("[server]\nlisten = \"{address}\"\n[upstreams.house]\nprompts_dir = \"prompts\"\n");
    let folder = folder(&config);
    let (code, _, err) = weir(folder.path(), &["serve"]);
    assert_eq!(code, 4);
    let err = err.replace(&address.to_string(), "ADDRESS");
    assert_snapshot!(err, @"weir: cannot listen on ADDRESS: Address already in use (os error 98); stop the process that listens there, or set another `listen` under [server]");
}

#[test]
fn serve_tells_where_http_sse_is_if_it_is_on_and_ends_its_streams() {
    for on in [false, true] {
        let folder = folder(&format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[protocol]\nlegacy_sse = {on}\n\
             [log]\nformat = \"json\"\n[upstreams.house]\nprompts_dir = \"prompts\"\n"
        ));
        let mut weir = serve(folder.path());
        let ready = weir.logged("ready").expect("it is ready");
        let sse = ready["sse"].as_str().map(str::to_owned);
        let expected = format!("http://{}/sse", weir.address);
        assert_eq!(sse, on.then_some(expected), "{ready}");
        if on {
            let host = &weir.address;
            let mut stream = std::net::TcpStream::connect(host).expect("it listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a time");
            write!(stream, "GET /sse HTTP/1.1\r\nHost: {host}\r\n\r\n").expect("written");
            let mut received = Vec::new();
            while !received.ends_with(b"\n\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).expect("an event");
                received.extend(byte);
            }
            weir.signal(Signal::TERM);
            let mut rest = String::new();
            stream.read_to_string(&mut rest).expect("the stream ends");
            assert_eq!(rest, "0\r\n\r\n", "after {}", String::from_utf8_lossy(&received));
        } else {
            weir.signal(Signal::TERM);
        }
        assert!(weir.wait().success());
    }
}

#[test]
fn warnings_of_the_configuration_are_lines_of_a_log_that_programs_read() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let config = format!(
        "[server]\nlisten = \"{address}\"\n[log]\nformat = \"json\"\n\
         [upstreams.a]\nprompts_dir = \"elsewhere\"\n"
    );
    let folder = folder(&config);
    let (code, out, err) = weir(folder.path(), &["serve"]);
    assert_eq!((code, &*out), (4, ""));
    let (first, rest) = err.split_once('\n').expect("two lines");
    let line = weir_base::json::Object::parse(first.to_owned()).expect("a line of JSON");
    let report = ["level", "at", "key"].map(|key| line.get_string(key).map(|it| it.to_string()));
    let expected = ["WARN", "weir.toml:6:15", "upstreams.a.prompts_dir"];
    assert_eq!(report, expected.map(|it| Some(it.to_owned())));
    assert!(rest.starts_with("weir: cannot listen on 127.0.0.1:"), "{rest}");
}

#[test]
fn weir_stdio_as_a_client_lists_what_that_client_may_see_and_no_more() {
    let folder = folder(LIBRARY_CONFIG);
    let secret = "house__secret-plan";
    for (arguments, sees_all) in [(&["--as", "visitor"][..], false), (&[], true)] {
        let (mut weir, mut output) = stdio(folder.path(), arguments);
        let mut input = weir.child.stdin.take().expect("piped");
        let mut send_request = |id: u32, method: &str, name: &str| {
            let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
            writeln!(
                input,
                r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{name}{meta}}}}}"#
            )
            .expect("it reads");
            output.wait_for(&format!("\"id\":{id}"))
        };
        let list = send_request(1, "prompts/list", "");
        assert!(list.contains("\"house__greeting\""), "{list}");
        assert_eq!(list.contains(secret), sees_all, "{arguments:?}: {list}");
        let plan = send_request(2, "prompts/get", &format!(r#""name":"{secret}","#));
        assert_eq!(plan.contains("Psst"), sees_all, "{arguments:?}: {plan}");
        assert_eq!(plan.contains("-32602"), !sees_all, "{arguments:?}: {plan}");
        drop(input);
        assert!(weir.wait().success());
    }
}

pub(super) fn terminate(child: &Child) {
    let id = Pid::from_child(child);
    kill_process(id, Signal::TERM).expect("it runs");
}

#[test]
fn a_signal_lets_the_call_of_a_client_on_stdio_end_first() {
    let server = Path::new(env!("CARGO_BIN_EXE_weir")).with_file_name("examples/legacy_stdio");
    let folder = folder(&format!("[upstreams.notes]\ncommand = \"{}\"\n", server.display()));
    let (mut weir, mut output) = stdio(folder.path(), &[]);
    let meta = r#""_meta":{"progressToken":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let count = r#""name":"notes__slow_count","arguments":{"to":5,"delay_ms":100}"#;
    let call = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{{{count},{meta}}}}}\n"
    );
    // Stays open, because the end of the input would cancel the call.
    let mut input = weir.child.stdin.take().expect("piped");
    input.write_all(call.as_bytes()).expect("it reads");
    output.wait_for("notifications/progress");
    weir.signal(Signal::TERM);
    assert!(output.wait_for(r#""id":7"#).contains("counted to 5"));
    assert!(weir.wait().success());
}

#[test]
fn a_list_that_waits_for_its_server_is_answered_after_the_end_of_the_input() {
    let folder = folder(&scripted("hub"));
    let hesitant =
        r#"'$(echo asked > asked; read -r _ < go)'"result":{"prompts":[{"name":"slow"}]}"#;
    script(folder.path(), "hub", &[("prompts/list", hesitant)]);
    ["asked", "go"].iter().for_each(|name| make_pipe(&folder.path().join(name)));
    let (mut weir, mut output) = stdio(folder.path(), &[]);
    let mut input = weir.child.stdin.take().expect("a pipe");
    let list = r#"{"jsonrpc":"2.0","id":7,"method":"prompts/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    writeln!(input, "{list}").expect("written");
    drop(input);
    read_pipe(folder.path().join("asked"));
    write_pipe(folder.path().join("go"));
    let answer = output.wait_for("");
    assert!(answer.contains(r#""id":7"#) && answer.contains("hub__slow"), "{answer}");
    assert!(weir.wait().success());
}

#[test]
fn a_signal_while_it_ends_kills_a_child_that_will_not() {
    // `$$` in the file means `$`.
    let script = "trap 'echo asked >&2' TERM; echo begun $$$$ >&2; while :; do sleep 1; done";
    let folder = folder(&format!(
        "[log]\nlevel = \"debug\"\n[upstreams.deaf]\ncommand = \"sh\"\nargs = [\"-c\", \"{script}\"]\n\
         timeouts.terminate = \"60s\"\n"
    ));
    let (mut weir, _output) = stdio(folder.path(), &[]);
    // Upstreams are started after the client's first message.
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    writeln!(weir.child.stdin.as_mut().expect("a pipe"), "{ping}").expect("written");
    let begun = weir.wait_for_log("begun ");
    let child = begun.split("begun ").nth(1).expect("a number");
    let child: String = child.chars().take_while(char::is_ascii_digit).collect();
    // Clients close the input first, then send SIGTERM, then SIGKILL.
    drop(weir.child.stdin.take());
    weir.wait_for_log("asked");
    let start = Instant::now();
    weir.signal(Signal::TERM);
    assert!(weir.wait().success());
    // Without the signal the child would be killed after a minute.
    assert!(start.elapsed() < Duration::from_secs(30), "it did not wait for the child");
    // The signal is sent before Weir ends; the kernel takes a moment to deliver it.
    wait_until("the child ends", || !runs(&child));
}

#[test]
fn a_signal_lets_the_calls_of_a_stdio_client_end() {
    let folder = folder(&format!("[log]\nlevel = \"info\"\n{}", scripted("hub")));
    // Reports the request through one named pipe, and responds after a line from another.
    let hesitant = r#"'$(echo asked > asked; read -r _ < go)'"result":{"messages":[]}"#;
    let slow = r#""result":{"prompts":[{"name":"slow"}]}"#;
    script(folder.path(), "hub", &[("prompts/list", slow), ("prompts/get", hesitant)]);
    ["asked", "go"].iter().for_each(|name| make_pipe(&folder.path().join(name)));
    let (mut weir, mut output) = stdio(folder.path(), &[]);
    let mut input = weir.child.stdin.take().expect("a pipe");
    let get = r#"{"jsonrpc":"2.0","id":7,"method":"prompts/get","params":{"name":"hub__slow","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    writeln!(input, "{get}").expect("written");
    // The call has reached the server.
    read_pipe(folder.path().join("asked"));
    weir.signal(Signal::TERM);
    weir.wait_for_log("shutting down");
    write_pipe(folder.path().join("go"));
    let answer = output.wait_for("");
    assert!(answer.starts_with(r#"{"jsonrpc":"2.0","id":7,"result":{"messages":[]"#), "{answer}");
    assert!(weir.wait().success());
}

#[test]
fn a_child_is_told_what_the_client_on_stdio_declares_and_may_ask_it() {
    let folder = folder(&scripted("curious"));
    let server = r#"
reply() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
while read -r line; do
    id=${line#*\"id\":}; id=${id%%,*}
    case $line in
        *'"notifications/'*) ;;
        *'"initialize"'*) printf '%s\n' "$line" > declared; reply '"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
        *'"tools/list"'*) reply '"result":{"tools":[{"name":"ask","inputSchema":{"type":"object"}}]}' ;;
        *'"tools/call"'*)
            printf '%s\n' '{"jsonrpc":"2.0","id":"why","method":"elicitation/create","params":{"message":"Who?","requestedSchema":{"type":"object","properties":{}}}}'
            read -r answer; printf '%s\n' "$answer" > answer
            reply '"result":{"content":[{"type":"text","text":"thanks"}]}' ;;
        *) reply '"error":{"code":-32601,"message":"no"}' ;;
    esac
done
"#;
    std::fs::write(folder.path().join("curious.sh"), server).expect("written");
    let (mut weir, mut output) = stdio(folder.path(), &[]);
    let mut input = weir.child.stdin.take().expect("piped");
    let capabilities = r#"{"elicitation":{"form":{}},"roots":{}}"#;
    writeln!(input, r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"clientInfo":{{"name":"c","version":"1"}}}}}}"#).expect("written");
    output.wait_for(r#""id":1"#);
    writeln!(input, r#"{{"jsonrpc":"2.0","method":"notifications/initialized"}}"#)
        .expect("written");
    writeln!(
        input,
        r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"curious__ask"}}}}"#
    )
    .expect("written");
    let question = output.wait_for("elicitation/create");
    assert!(question.contains(r#""message":"Who?""#), "{question}");
    let question = weir_base::json::Object::parse(question).expect("an object");
    let id = question.get("id").expect("an id").to_owned();
    let answer = r#"{"action":"accept","content":{ "n" : 1.0 }}"#;
    writeln!(input, r#"{{"jsonrpc":"2.0","id":{id},"result":{answer}}}"#).expect("written");
    assert!(output.wait_for(r#""id":2"#).contains("thanks"));
    drop(input);
    assert!(weir.wait().success());
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect(name);
    let declared = weir_base::json::Object::parse(read("declared")).expect("an object");
    let declared = declared.get_object("params").expect("params");
    assert_eq!(declared.get("capabilities"), Some(capabilities));
    let expected = format!("{{\"jsonrpc\":\"2.0\",\"id\":\"why\",\"result\":{answer}}}\n");
    assert_eq!(read("answer"), expected);
}

#[test]
fn a_refused_host_is_warned_about_once_in_the_process_and_a_flood_of_hosts_is_not() {
    let admin = free_port();
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n\
         [log]\nformat = \"json\"\n{LIBRARY_CONFIG}"
    );
    let folder = folder(&config);
    let served = serve(folder.path());
    let ask = |address: &str, lines: &str| {
        let reply = exchange(address, "GET /mcp", lines, "");
        assert!(reply.starts_with("HTTP/1.1 403 "), "{reply}");
    };
    let address = served.address.clone();
    for host in ["Weir.lan", "weir.lan:8642", "weir.lan.", "weir.lan", "\u{202e}x"] {
        ask(&address, &format!("Host: {host}\r\n"));
    }
    ask(&address, "Host: localhost\r\nOrigin: https://app.example.com\r\n");
    ask(&address, "Host: localhost\r\nOrigin: https://app.example.com\r\n");
    // The other listener takes the same hosts, and no origins.
    ask(&format!("127.0.0.1:{admin}"), "Host: weir.lan\r\n");
    ask(&format!("127.0.0.1:{admin}"), "Host: admin.lan\r\n");
    ask(&format!("127.0.0.1:{admin}"), "Host: localhost\r\nOrigin: https://other.example.com\r\n");
    for n in 0..100 {
        ask(&address, &format!("Host: flood-{n}.test\r\n"));
    }
    terminate(&served.child);
    let log = served.wait_for_whole_log();
    let warned = log.iter().map(|line| serde_json::from_str(line).expect("a line of JSON"));
    let warned = warned.filter(|line: &Value| line["level"] == "WARN");
    let warned: Vec<_> = warned
        .map(|line| {
            let text = |member: &str| line[member].as_str().unwrap_or("-").to_owned();
            format!("{} {} {}", text("name"), text("value"), text("message"))
        })
        .collect();
    let line = |name: &str, value: &str, key: &str| {
        format!("{name} {value:?} request refused: to accept this value, add it to {key}")
    };
    let host = |value: &str| line("host", value, "server.allowed_hosts");
    let origin = line("origin", "https://app.example.com", "server.allowed_origins");
    let first = [host("weir.lan"), host("weir.lan.")];
    assert_eq!(warned[..2], first, "{warned:#?}");
    assert_eq!(warned[3..5], [origin, host("admin.lan")], "{warned:#?}");
    assert!(!warned[2].contains('\u{202e}'), "{warned:#?}");
    let flood = warned[5..].iter().filter(|line| line.contains("flood-")).count();
    assert_eq!(flood, 28, "{warned:#?}");
    let last = "host - further refused values are logged at the level debug only";
    assert_eq!(warned[5 + flood..], [last], "{warned:#?}");
}

#[test]
fn the_origins_of_pages_are_reloaded_and_their_preflights_pass_over_a_socket() {
    let key = "a-key-that-a-page-sends-and-no-other-client-has";
    let hash = weir_base::text::hex::hex(&weir_base::secrets::sha256::sha256(key));
    let config = |origins: &str| {
        format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nallowed_origins = [{origins}]\nwatch = false\n\
             [log]\nformat = \"json\"\n[clients.page]\nkey_sha256 = [\"{hash}\"]\n\
             prompts.allow = [\"*\"]\n{LIBRARY_CONFIG}"
        )
    };
    let folder = folder(&config(""));
    let mut served = serve(folder.path());
    let address = served.address.clone();
    let ask = |origin: &str, target: &str, lines: &str| {
        let reply = exchange(&address, target, &format!("Origin: {origin}\r\n{lines}"), "");
        let (head, _) = reply.split_once("\r\n\r\n").expect("a head");
        let status: u16 = head.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status");
        let names = ["access-control-allow-origin: ", "vary: "];
        let found = names.map(|name| {
            let mut lines = head.lines().filter_map(|line| line.strip_prefix(name));
            lines.next().unwrap_or("-").to_owned()
        });
        let [allowed, vary] = found;
        (status, allowed, vary)
    };
    let preflight = "Access-Control-Request-Method: POST\r\n";
    let (page, local) = ("https://app.example.com", "http://localhost:3000");
    let expected =
        |status: u16, allowed: &str, vary: &str| (status, allowed.to_owned(), vary.to_owned());
    assert_eq!(ask(page, "OPTIONS /mcp", preflight), expected(403, "-", "-"));
    assert_eq!(ask(local, "OPTIONS /mcp", preflight), expected(401, "-", "-"));
    let path = folder.path().join("weir.toml");
    for origin in [page, local] {
        std::fs::write(&path, config(&format!("{origin:?}"))).expect("written");
        served.signal(Signal::HUP);
        served.wait_for_log("the configuration was reloaded");
        assert_eq!(ask(origin, "OPTIONS /mcp", preflight), expected(204, origin, "Origin"));
        assert_eq!(ask(origin, "POST /mcp", ""), expected(401, origin, "Origin"));
        assert_eq!(ask(origin, "GET /elsewhere", ""), expected(404, "-", "-"));
    }
    assert_eq!(ask(page, "OPTIONS /mcp", preflight), expected(403, "-", "Origin"));
}

/// Server with the tool `slow`, whose call waits for a line in the pipe `go`.
const SLOW_SERVER: &str = r#"
while read -r line; do
    id=${line#*\"id\":}; id=${id%%,*}
    case $line in
        *'"notifications/'*) ;;
        *'"initialize"'*) printf '%s\n' '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}}' ;;
        *'"tools/list"'*) printf '%s\n' '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"slow","inputSchema":{"type":"object"}}]}}' ;;
        *'"tools/call"'*) read -r _ < go; printf '%s\n' '{"jsonrpc":"2.0","id":'$id',"result":{"content":[]}}' ;;
        *) printf '%s\n' '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"no"}}' ;;
    esac
done
"#;

#[test]
fn slow_call_over_a_socket_is_kept_alive_by_comments() {
    let folder = folder(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[protocol]\nsse_keepalive = \"100ms\"\n\
         [log]\nformat = \"json\"\n{}",
        scripted("hub")
    ));
    std::fs::write(folder.path().join("hub.sh"), SLOW_SERVER).expect("written");
    make_pipe(&folder.path().join("go"));
    let mut weir = serve(folder.path());
    let body = concat!(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub__slow","_meta":{"#,
        r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
        r#""io.modelcontextprotocol/clientCapabilities":{}}}}"#
    );
    for accept in ["application/json, text/event-stream", "application/json"] {
        let mut stream = std::net::TcpStream::connect(&weir.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        write!(
            stream,
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: {accept}\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n\
             Mcp-Name: hub__slow\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            weir.address,
            body.len()
        )
        .expect("written");
        let (mut received, is_stream) = (String::new(), accept.contains("event-stream"));
        while is_stream && received.matches(": keep-alive").count() < 3 {
            let mut bytes = [0; 1_024];
            let count = stream.read(&mut bytes).expect("bytes in time");
            assert!(count > 0, "{received}");
            received.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        write_pipe(folder.path().join("go"));
        let mut rest = String::new();
        stream.read_to_string(&mut rest).expect("the rest");
        received.push_str(&rest);
        let kind = if is_stream { "text/event-stream" } else { "application/json" };
        assert!(received.starts_with("HTTP/1.1 200 OK\r\n"), "{received}");
        assert!(received.contains(&format!("content-type: {kind}\r\n")), "{received}");
        assert_eq!(received.contains(": keep-alive"), is_stream, "{received}");
        assert!(received.contains(r#""id":1,"result":{"#), "{received}");
    }
    weir.signal(Signal::TERM);
    assert!(weir.wait().success());
}
