//! The audit log seen from outside the program: its location, its state after a crash, and the
//! commands that read it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};

use insta::assert_snapshot;
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};

use super::serving::{line_with, terminate};
use super::{folder, weir};

/// Configuration that records into `state/audit.jsonl`.
fn config(audit: &str) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n[upstreams.house]\n\
         prompts_dir = \"prompts\"\n[state]\ndir = \"state\"\n[audit]\nenabled = true\n{audit}\n"
    )
}

/// Starts `weir serve` and returns its address.
fn serve(folder: &Path) -> (Child, String) {
    let mut command = crate::program();
    command.arg("serve").current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut weir = command.spawn().expect("it starts");
    let mut log = BufReader::new(weir.stderr.take().expect("a pipe"));
    let ready = line_with(&mut log, "\"ready\"");
    let (_, rest) = ready.split_once("\"endpoint\":\"http://").expect("it says where");
    let address = rest.split('/').next().expect("an address").to_owned();
    // The log has to be drained.
    std::thread::spawn(move || log.lines().for_each(drop));
    (weir, address)
}

/// Response to a modern request.
fn request(address: &str, method: &str, params: &str) -> String {
    request_with_key(address, None, method, params)
}

/// Response to a modern request with this key.
fn request_with_key(address: &str, key: Option<&str>, method: &str, params: &str) -> String {
    let shown = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    let body =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params}{meta}}}}}"#);
    let name = params.split('"').nth(3).unwrap_or_default();
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nConnection: close\r\n\
         MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\nMcp-Name: {name}\r\n{shown}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

const GREET: &str = r#""name":"house__greeting","arguments":{"who":"Ada"},"#;

fn stop(mut weir: Child) {
    terminate(&weir);
    assert!(weir.wait().expect("it ends").success());
}

#[test]
fn a_log_is_read_in_words_and_checked() {
    let folder = folder(&config(""));
    let (weir_itself, address) = serve(folder.path());
    assert!(request(&address, "prompts/get", GREET).contains("Hello, Ada!"));
    assert!(request(&address, "prompts/get", r#""name":"house__x","#).contains("Unknown prompt"));
    stop(weir_itself);

    let (code, out, err) = weir(folder.path(), &["audit", "tail"]);
    assert_eq!((code, &*err), (0, ""));
    // Drops the timestamps.
    let words: Vec<_> =
        out.lines().map(|line| line.split("  ").skip(1).collect::<Vec<_>>()).collect();
    let words = words.iter().map(|line| line.iter().filter(|it| !it.ends_with(" ms")).copied());
    let words: Vec<String> = words.map(|line| line.collect::<Vec<_>>().join("  ")).collect();
    assert_snapshot!(words.join("\n"), @r"
    started 0.1.0
    anonymous  prompts/get  house__greeting  ok
    anonymous  prompts/get  house__x  refused unknown -32602
    stopped
    ");
    let (_, out, _) = weir(folder.path(), &["audit", "tail", "--client", "nobody"]);
    assert_eq!(out, "");
    let (_, out, _) = weir(folder.path(), &["audit", "tail", "--json", "-n", "1"]);
    let path = folder.path().join("state/audit.jsonl");
    let text = std::fs::read_to_string(&path).expect("a log");
    assert!(text.ends_with(&out) && out.starts_with("{\"seq\":4,"), "{out}");
    assert!(!text.contains("Ada"));

    let (code, out, _) = weir(folder.path(), &["audit", "verify"]);
    let whole = format!("{}: intact; 1 file, 4 lines (1 to 4)", "state/audit.jsonl");
    assert!(code == 0 && out.contains(&whole), "{out}");
    std::fs::write(&path, text.replace("house__x", "house__y")).expect("written");
    let (code, out, err) = weir(folder.path(), &["audit", "verify"]);
    assert_eq!((code, &*out), (5, ""));
    assert!(err.contains("state/audit.jsonl:4: hash mismatch"), "{err}");
    let (code, _, err) = weir(folder.path(), &["audit", "verify", "gone", "--json"]);
    assert_eq!(code, 2);
    assert!(err.starts_with("{\"error\":\"gone cannot be read: "), "{err}");
}

#[test]
fn the_log_is_followed_for_one_client() {
    let more = "[auth]\nmode = \"anonymous\"\n[roles.guest]\nprompts.allow = [\"*\"]\n[clients.ann]\n\
                role = \"guest\"\nkey_sha256 = [\"";
    let key = "a long and random text that is somebody's key";
    let hash = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let folder = folder(&config(&format!("{more}{hash}\"]")));
    let (weir_itself, address) = serve(folder.path());
    let prompt = |name: &str| format!(r#""name":"house__{name}","#);
    request(&address, "prompts/get", &prompt("first"));
    let mut command = crate::program();
    command.args(["audit", "tail", "-f", "--client", "anonymous"]).current_dir(folder.path());
    let mut tail = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(tail.stdout.take().expect("a pipe")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    // After this line, all other lines are written while the log is followed.
    let line = next();
    assert!(line.contains("anonymous  prompts/get  house__first"), "{line}");
    for number in 0..3 {
        request_with_key(&address, Some(key), "prompts/get", &prompt("hers"));
        request(&address, "prompts/get", &prompt(&number.to_string()));
        let line = next();
        let expected = format!("anonymous  prompts/get  house__{number}  refused");
        assert!(line.contains(&expected), "{line}");
    }
    terminate(&tail);
    tail.wait().expect("it ends");
    stop(weir_itself);
    let (_, out, _) = weir(folder.path(), &["audit", "tail", "--client", "ann"]);
    assert_eq!(out.matches("  ann  prompts/get  house__hers  refused").count(), 3, "{out}");
    assert_eq!(out.lines().count(), 3, "{out}");
}

#[test]
fn what_is_killed_leaves_a_log_that_goes_on() {
    let folder = folder(&config("on_error = \"refuse\""));
    let path = folder.path().join("state/audit.jsonl");
    for torn in ["", "{\"seq\":9,\"ti"] {
        let (mut weir_itself, address) = serve(folder.path());
        assert!(request(&address, "prompts/get", GREET).contains("Hello, Ada!"));
        kill_process(Pid::from_child(&weir_itself), Signal::KILL).expect("it runs");
        weir_itself.wait().expect("it ends");
        let text = std::fs::read_to_string(&path).expect("a log");
        assert!(text.lines().any(|line| line.contains("\"admitted\"")), "{text}");
        std::fs::write(&path, text + torn).expect("written");
        let (code, out, err) = weir(folder.path(), &["audit", "verify"]);
        assert_eq!((code, &*err), (0, ""), "{out}");
        assert_eq!(out.contains("1 line was torn by a crash"), !torn.is_empty(), "{out}");
    }
    let (weir_itself, _) = serve(folder.path());
    stop(weir_itself);
    let (code, out, err) = weir(folder.path(), &["audit", "verify"]);
    assert!(code == 0 && out.contains("1 line was torn by a crash"), "{out}{err}");
}

#[test]
fn a_log_that_cannot_be_written_is_a_mistake_of_the_configuration() {
    let remedy = "set `path` under [audit] or `dir` under [state] to a place that can be written";
    for (path, why) in [
        ("/dev/full", "/dev/full cannot be written: No space left on device"),
        ("/proc/none/audit.jsonl", "/proc/none/audit.jsonl cannot be written: "),
    ] {
        let folder = folder(&config(&format!("path = \"{path}\"")));
        let (code, _, err) = weir(folder.path(), &["serve"]);
        assert_eq!(code, 78);
        assert!(err.contains(why) && err.contains(remedy), "{err}");
    }
    let folder = folder(&config("path = \"-\""));
    let (code, _, err) = weir(folder.path(), &["stdio"]);
    assert_eq!(code, 78);
    assert!(err.contains("standard output belongs to the protocol"), "{err}");
}

#[test]
fn two_processes_write_beside_each_other_and_standard_output_is_good_too() {
    let folder = folder(&config(""));
    let served = [serve(folder.path()), serve(folder.path())];
    for (weir_itself, address) in served {
        assert!(request(&address, "prompts/get", GREET).contains("Hello, Ada!"));
        stop(weir_itself);
    }
    let (code, out, _) = weir(folder.path(), &["audit", "verify"]);
    let whole = out.lines().filter(|line| line.contains("intact; 1 file, 3 lines")).count();
    assert_eq!((code, whole), (0, 2), "{out}");

    std::fs::write(folder.path().join("weir.toml"), config("path = \"-\"")).expect("written");
    let (mut weir_itself, address) = serve(folder.path());
    assert!(request(&address, "prompts/get", GREET).contains("Hello, Ada!"));
    terminate(&weir_itself);
    let mut out = String::new();
    weir_itself.stdout.take().expect("a pipe").read_to_string(&mut out).expect("text");
    assert!(out.lines().count() == 3 && out.contains("\"prompts/get\""), "{out}");
    assert!(weir_itself.wait().expect("it ends").success());
}

#[test]
fn nothing_is_recorded_of_one_person_alone() {
    let folder = folder(&config("").replace("enabled = true\n", ""));
    let (weir_itself, address) = serve(folder.path());
    assert!(request(&address, "prompts/get", GREET).contains("Hello, Ada!"));
    stop(weir_itself);
    assert!(!folder.path().join("state/audit.jsonl").exists());
    let (code, _, err) = weir(folder.path(), &["audit", "tail"]);
    assert_eq!(code, 2);
    assert!(err.contains("there is no audit log at "), "{err}");
}
