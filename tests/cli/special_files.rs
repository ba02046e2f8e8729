//! Named pipes, sockets and devices where a file is expected: every command reports the file and
//! exits, and none waits.
//!
//! Opening a named pipe without a writer in the usual way blocks for good, even against SIGTERM.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::serving::terminate;
use super::{folder, serve};
use crate::lab::blocking::{make_pipe, wait_for_exit};
use crate::lab::lines::Lines;
use crate::lab::wait_until;
use crate::lab::weir::Weir;

const CONFIG: &str = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nenabled = false\n\
    [log]\nformat = \"json\"\n[state]\ndir = \"state\"\n[audit]\nenabled = true\n\
    [upstreams.house]\nprompts_dir = \"prompts\"\n";

/// Creates a named pipe that only its owner may open.
fn pipe(path: &Path) {
    let _ = std::fs::remove_file(path);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    make_pipe(path);
}

/// Command of the program in a folder, which is its home as well.
fn program(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = crate::program();
    command.args(arguments).current_dir(folder).env("HOME", folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Waits for the exit of a command, and returns its status and its output.
fn wait(mut weir: Child, about: &str) -> (ExitStatus, String) {
    eprintln!("{about}");
    let log = Lines::of(weir.stderr.take().expect("a pipe"));
    let status = wait_for_exit(&mut weir);
    let lines = log.wait_for_end().iter().map(|line| format!("{line}\n")).collect();
    (status, lines)
}

/// Runs a command and returns its exit code and its output.
fn run(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let weir = program(folder, arguments).spawn().expect("it starts");
    let (status, received) = wait(weir, &arguments.join(" "));
    (status.code().expect("it exits"), received)
}

#[test]
fn f99_a_pipe_in_the_place_of_a_configured_file_is_refused_with_its_file_and_key() {
    let tls =
        "[server.tls]\ncert = \"tls.crt\"\nkey = { file = \"tls.key\" }\nclient_ca = \"ca.crt\"\n";
    let secret =
        "[upstreams.far]\nurl = \"http://127.0.0.1:9/\"\nheaders = { A = { file = \"a.key\" } }\n";
    let pinned = "[upstreams.held]\ncommand = \"cat\"\nguard.pinning = \"enforce\"\n";
    let offline: &[&str] = &["check", "--offline"];
    let certificate = rcgen::generate_simple_self_signed(["weir.test".to_owned()]).expect("signed");
    for (config, file, commands, words) in [
        (CONFIG.to_owned(), "weir.toml", [&["serve"][..], &["check"], offline], "weir.toml"),
        (
            format!("include = [\"b.toml\"]\n{CONFIG}"),
            "b.toml",
            [&["serve"], &["check"], offline],
            "include",
        ),
        (format!("{CONFIG}{tls}"), "tls.crt", [&["serve"], &["check"], offline], "server.tls.cert"),
        (format!("{CONFIG}{tls}"), "tls.key", [&["serve"], &["check"], offline], "server.tls.key"),
        (
            format!("{CONFIG}{tls}"),
            "ca.crt",
            [&["serve"], &["check"], offline],
            "server.tls.client_ca",
        ),
        (
            format!("{CONFIG}{pinned}"),
            "weir.lock",
            [&["serve"], &["check"], offline],
            "guard.lock_file",
        ),
        (
            format!("{CONFIG}{secret}"),
            "a.key",
            [&["serve"], &["check"], offline],
            "upstreams.far.headers.A.file",
        ),
        (
            CONFIG.to_owned(),
            "state/audit.jsonl",
            [&["serve"], &["stdio", "--strict"], &["audit", "verify"]],
            "audit.jsonl",
        ),
        (
            CONFIG.to_owned(),
            "weir.toml",
            [&["stdio", "--strict"], &["reload"], &["keys", "list"]],
            "weir.toml",
        ),
        (
            CONFIG.to_owned(),
            "weir.toml",
            [&["keys", "add", "ann", "--role", "local"], &["status"], &["list"]],
            "weir.toml",
        ),
    ] {
        let folder = folder(&config);
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("written");
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(folder.path().join(name), private).expect("set");
        };
        write("tls.crt", &certificate.cert.pem());
        write("tls.key", &certificate.signing_key.serialize_pem());
        write("ca.crt", &certificate.cert.pem());
        pipe(&folder.path().join(file));
        for arguments in commands {
            let (code, received) = run(folder.path(), arguments);
            let about = format!("{file}, {arguments:?}: {code}: {received}");
            assert!([1, 2, 78].contains(&code), "{about}");
            assert!(received.contains(words), "{about}");
            let is_plain = received.contains("a named pipe, not a regular file");
            assert!(is_plain || received.contains("is not a file"), "{about}");
        }
    }
}

#[test]
fn f99_pipes_in_the_folder_of_the_state_and_of_prompts_hold_up_neither_start_nor_end() {
    let admin = CONFIG.replace("enabled = false", "listen = \"127.0.0.1:0\"");
    let script = "[upstreams.near]\ncommand = \"sh\"\nargs = [\"near.sh\"]\n";
    let folder = folder(&format!("{admin}{script}"));
    super::script(folder.path(), "near", &[]);
    let state = folder.path().join("state");
    let all = |folder: &Path| -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| !path.is_dir()).collect()
    };
    // Files that a killed Weir leaves behind: the token, the admin address, and the cached lists.
    let weir = serve(folder.path());
    wait_until("the lists are kept", || !all(&state.join("catalog")).is_empty());
    drop(weir);
    let left = [all(&state), all(&state.join("catalog"))].concat();
    let named = |text: &str| left.iter().any(|path| path.display().to_string().contains(text));
    assert!(named("admin-token") && named("running-") && named("/catalog/"), "{left:?}");
    for path in left.iter().filter(|path| !path.ends_with("audit.jsonl")) {
        pipe(path);
    }
    // A rotated log, and prompts that are not files.
    std::fs::write(state.join("audit.jsonl"), "").expect("written");
    pipe(&state.join("audit.jsonl.1"));
    pipe(&folder.path().join("prompts/pipe.md"));
    let text = "---\n---\n<!-- embed: pipe.md -->\n";
    std::fs::write(folder.path().join("prompts/embeds.md"), text).expect("written");

    for arguments in [&["status"][..], &["audit", "tail"], &["list", "prompts"]] {
        let (code, received) = run(folder.path(), arguments);
        // The token cannot be read, so the running process is not queried.
        let expected = if arguments == ["status"] { 3 } else { 0 };
        assert_eq!(code, expected, "{arguments:?}: {received}");
    }
    let mut weir = Weir::serve(program(folder.path(), &["serve"]));
    let log = || weir.log().join("\n");
    for text in ["pipe.md:1: `pipe.md` is not a file", "embeds.md:3: `pipe.md` is not a file"] {
        wait_until(text, || log().contains(text));
    }
    weir.end();
}

#[test]
fn f99_a_pipe_in_the_place_of_a_clients_file_is_refused() {
    let folder = folder(CONFIG);
    pipe(&folder.path().join("mcp.json"));
    pipe(&folder.path().join(".cursor/mcp.json"));
    for arguments in [
        &["init", "--from", "mcp.json", "--print"][..],
        &["connect", "cursor", "--stdio", "--write"],
    ] {
        let (code, received) = run(folder.path(), arguments);
        let about = format!("{arguments:?}: {code}: {received}");
        assert!(code == 2 && received.contains("mcp.json"), "{about}");
        assert!(received.contains("it is a named pipe, not a regular file"), "{about}");
    }
}

#[test]
fn f99_a_pipe_as_the_file_of_root_certificates_is_refused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let folder = folder(&format!("[upstreams.far]\nurl = \"https://{address}/mcp\"\n"));
    pipe(&folder.path().join("roots.pem"));
    let mut command = program(folder.path(), &["check"]);
    command.env("SSL_CERT_FILE", folder.path().join("roots.pem")).stdout(Stdio::piped());
    let mut weir = command.spawn().expect("it starts");
    let mut out = weir.stdout.take().expect("a pipe");
    let (status, received) = wait(weir, "check");
    let mut shown = String::new();
    out.read_to_string(&mut shown).expect("text");
    assert_eq!(status.code(), Some(4), "{shown}{received}");
    assert!(shown.contains("SSL_CERT_FILE names cannot be read: it is a named pipe"), "{shown}");
}

#[test]
fn a_configuration_may_come_through_a_pipe_and_a_signal_ends_the_wait_for_it() {
    let folder = folder(CONFIG);
    let text = std::fs::read(folder.path().join("weir.toml")).expect("written");
    for path in ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"] {
        let mut command = program(folder.path(), &["check", "--offline", "--config", path]);
        let mut weir = command.stdin(Stdio::piped()).spawn().expect("it starts");
        let mut input = weir.stdin.take().expect("a pipe");
        std::io::Write::write_all(&mut input, &text).expect("it reads");
        drop(input);
        let (status, received) = wait(weir, path);
        // The folder of the descriptor has no `prompts`, which is a warning.
        assert_eq!(status.code(), Some(0), "{path}: {received}");
    }
    for command in ["serve", "check", "stdio"] {
        let mut command = program(folder.path(), &[command, "--config", "/dev/stdin"]);
        let mut weir = command.stdin(Stdio::piped()).spawn().expect("it starts");
        let input = weir.stdin.take();
        kill_process(Pid::from_child(&weir), Signal::TERM).expect("it runs");
        let (status, received) = wait(weir, "/dev/stdin");
        // Before the handler is installed, the signal ends the process directly.
        let is_stopped = status.code() == Some(143) || status.signal() == Some(15);
        assert!(is_stopped, "{status:?}: {received}");
        drop(input);
    }
}

#[test]
fn the_audit_log_takes_a_device_and_standard_error() {
    for path in ["/dev/null", "/dev/stderr"] {
        let audit = format!("enabled = true\npath = \"{path}\"");
        let folder = folder(&CONFIG.replace("enabled = true", &audit));
        let mut weir = serve(folder.path());
        weir.end();
        let log = weir.wait_for_whole_log();
        let output = log.iter().filter(|line| line.contains("\"event\":\"stopped\""));
        assert_eq!(output.count(), usize::from(path == "/dev/stderr"), "{path}");
    }
}

// === The log in a watched folder ===

#[test]
fn f99_a_log_of_everything_in_a_watched_folder_does_not_feed_itself() {
    let config = CONFIG.replace("dir = \"state\"", "dir = \".\"");
    let folder = folder(&config.replace("\"prompts\"", "\".\""));
    let path = folder.path().join("weir.log");
    let log = std::fs::File::options().create(true).append(true).open(&path).expect("made");
    let mut command = program(folder.path(), &["serve"]);
    command.env("WEIR_LOG", "trace,notify::inotify=trace").stderr(log);
    let mut weir = command.spawn().expect("it starts");
    let read = || std::fs::read_to_string(&path).expect("a log");
    let wait_for = |text: &str, times: usize| {
        // Only the end matters: a log that feeds itself grows faster than it is read.
        wait_until(text, || {
            assert!(std::fs::metadata(&path).expect("a log").len() < MAX_LOG, "it feeds itself");
            read().matches(text).count() >= times
        });
    };
    wait_for("\"ready\"", 1);
    // Each of these is noticed, debounced, read and logged: some tenths of a second, and the poll
    // of every two seconds.
    for time in 1..=10 {
        let beside = folder.path().join("weir.toml.new");
        std::fs::write(&beside, format!("{config}[roles.r{time}]\n")).expect("written");
        std::fs::rename(beside, folder.path().join("weir.toml")).expect("moved");
        wait_for("the configuration was reloaded", time);
    }
    terminate(&weir);
    assert!(wait_for_exit(&mut weir).success());
    let output = read();
    assert!((output.len() as u64) < MAX_LOG && !output.contains("inotify"), "{}", output.len());
}

/// Far more than ten reloads log, and far less than a log that feeds itself writes in a second.
const MAX_LOG: u64 = 1 << 20;
