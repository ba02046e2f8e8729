//! Configuration reload of `weir serve` and `weir stdio`: saved files, new files, SIGHUP.

use std::io::Write;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use super::{folder, processes, record_processes, runs, script, scripted, serve, stdio, weir};
use crate::lab::http::{exchange, post};
use crate::lab::ports::free_port;
use crate::lab::weir::Weir;

const HEAD: &str = "include = [\"conf.d/*.toml\"]\n[server]\nlisten = \"127.0.0.1:0\"\n\
                    [log]\nformat = \"json\"\n";

/// Messages of the log.
const LISTED: &str = "\"upstream listed\"";
const RELOADED: &str = "the configuration was reloaded";

/// Starts `weir serve` and waits until this number of upstreams is listed.
fn serve_listed<const N: usize>(folder: &Path) -> Weir {
    let mut served = serve(folder);
    served.wait_for_logs([LISTED; N]);
    served
}

/// Waits for a reload and for the list of the upstream that it starts, in any order; returns the
/// line about the reload.
fn wait_for_reload_and_list(served: &mut Weir) -> String {
    let [reloaded, _] = served.wait_for_logs([RELOADED, LISTED]);
    reloaded
}

/// Script that records the id of each of its processes.
fn process_script(folder: &Path, name: &str) {
    script(folder, name, &[]);
    record_processes(folder, name);
}

/// Replaces a file by rename, as most editors do.
pub(crate) fn replace_file(folder: &Path, name: &str, text: &str) {
    let beside = folder.join("weir.toml.new");
    std::fs::write(&beside, text).expect("written");
    std::fs::rename(beside, folder.join(name)).expect("moved");
}

#[test]
fn f82_a_file_that_is_saved_is_taken_up_and_children_that_stay_keep_their_process() {
    let folder = folder("");
    let folder = folder.path();
    process_script(folder, "kept");
    process_script(folder, "other");
    std::fs::create_dir(folder.join("conf.d")).expect("made");
    replace_file(folder, "weir.toml", &format!("{HEAD}{}", scripted("kept")));
    let mut served = serve_listed::<1>(folder);
    let kept = processes(folder, "kept");
    assert_eq!(kept.len(), 1);

    // A new file in the included folder.
    replace_file(folder, "conf.d/other.toml", &scripted("other"));
    let line = wait_for_reload_and_list(&mut served);
    assert!(line.contains("upstream other added; upstreams kept: 1"), "{line}");
    // An included file that is written in place.
    let changed = format!("{}timeouts = {{ call = \"59s\" }}\n", scripted("other"));
    std::fs::write(folder.join("conf.d/other.toml"), changed).expect("written");
    let line = wait_for_reload_and_list(&mut served);
    assert!(line.contains("upstream other restarted; upstreams kept: 1"), "{line}");
    assert_eq!(processes(folder, "other").len(), 2);
    std::fs::remove_file(folder.join("conf.d/other.toml")).expect("removed");
    let line = served.wait_for_log(RELOADED);
    assert!(line.contains("upstream other removed; upstreams kept: 1"), "{line}");

    // The main file, replaced by rename; a key that needs a restart is named.
    let with_role = "[roles.guest]\nprompts.allow = [\"*\"]\n";
    let other_port = HEAD.replace("127.0.0.1:0", "127.0.0.1:1");
    replace_file(folder, "weir.toml", &format!("{other_port}{with_role}{}", scripted("kept")));
    let line = served.wait_for_log(RELOADED);
    assert!(line.contains("role guest added; upstreams kept: 1"), "{line}");
    let line = served.wait_for_log("after a restart");
    assert!(line.contains("\"key\":\"server.listen\""), "{line}");
    assert_eq!(processes(folder, "kept"), kept);
    assert!(runs(&kept[0]));
    served.end();
}

#[test]
fn an_upstream_that_a_command_adds_or_removes_is_taken_up_within_seconds() {
    let folder = folder("");
    let folder = folder.path();
    script(folder, "kept", &[]);
    script(folder, "other", &[]);
    replace_file(folder, "weir.toml", &format!("{HEAD}{}", scripted("kept")));
    let mut served = serve_listed::<1>(folder);
    for (arguments, event, starts) in [
        (&["add", "other", "--no-check", "--", "sh", "other.sh"][..], "added", true),
        (&["disable", "other"], "removed", false),
        (&["enable", "other"], "added", true),
        (&["remove", "other"], "removed", false),
    ] {
        let (code, _, err) = weir(folder, arguments);
        assert_eq!(code, 0, "{err}");
        let line = match starts {
            true => wait_for_reload_and_list(&mut served),
            false => served.wait_for_log(RELOADED),
        };
        assert!(line.contains(&format!("upstream other {event}; upstreams kept: 1")), "{line}");
    }
    served.end();
}

#[test]
fn f81_a_bad_file_is_told_with_its_place_and_changes_nothing() {
    let folder = folder("");
    let folder = folder.path();
    process_script(folder, "kept");
    replace_file(folder, "weir.toml", &format!("{HEAD}{}", scripted("kept")));
    let mut served = serve_listed::<1>(folder);
    let kept = processes(folder, "kept");

    replace_file(folder, "weir.toml", &format!("{HEAD}nonsense = 1\n{}", scripted("kept")));
    let line = served.wait_for_log("the configuration is refused");
    assert!(line.contains("\"at\":\"weir.toml:6:1\"") && line.contains("log.nonsense"), "{line}");
    replace_file(folder, "weir.toml", "[server");
    let line = served.wait_for_log("the configuration is refused");
    assert!(line.contains("\"at\":\"weir.toml:1:"), "{line}");
    assert_eq!(processes(folder, "kept"), kept);
    assert!(runs(&kept[0]));
    replace_file(folder, "weir.toml", &format!("{HEAD}{}", scripted("kept")));
    served.wait_for_log("nothing changed");
    served.end();
}

#[test]
fn sighup_has_the_configuration_read_again_where_files_are_not_watched() {
    let folder = folder("");
    let folder = folder.path();
    script(folder, "kept", &[]);
    let head = HEAD.replace("[server]\n", "[server]\nwatch = false\n");
    replace_file(folder, "weir.toml", &format!("{head}{}", scripted("kept")));
    let mut served = serve(folder);
    served.signal(Signal::HUP);
    served.wait_for_log("nothing changed");
    replace_file(
        folder,
        "weir.toml",
        &format!("{head}[protocol]\npage_size = 7\n{}", scripted("kept")),
    );
    served.signal(Signal::HUP);
    let line = served.wait_for_log(RELOADED);
    assert!(line.contains("protocol changed; upstreams kept: 1"), "{line}");
    served.end();
}

#[test]
fn a_client_on_stdio_hears_of_what_somebody_writes_into_the_file() {
    let folder = folder("[upstreams.house]\nprompts_dir = \"prompts\"\n");
    let (mut weir, mut output) = stdio(folder.path(), &[]);
    let mut input = weir.child.stdin.take().expect("piped");
    let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#;
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    writeln!(input, "{initialize}\n{initialized}").expect("it reads");
    output.wait_for("protocolVersion");
    // Of the first list.
    output.wait_for("notifications/prompts/list_changed");

    let denied = "[upstreams.house]\nprompts_dir = \"prompts\"\nprompts.deny = [\"secret-*\"]\n";
    replace_file(folder.path(), "weir.toml", denied);
    output.wait_for("notifications/prompts/list_changed");
    writeln!(input, r#"{{"jsonrpc":"2.0","id":2,"method":"prompts/list"}}"#).expect("it reads");
    let list = output.wait_for("\"id\":2");
    assert!(list.contains("house__greeting") && !list.contains("secret"), "{list}");
    drop(input);
    assert!(weir.wait().success());
}

#[test]
fn an_operator_has_it_reloaded_and_hears_what_became_of_that() {
    let folder = folder("");
    let folder = folder.path();
    script(folder, "kept", &[]);
    let admin = format!("127.0.0.1:{}", free_port());
    let head = format!(
        "[log]\nformat = \"json\"\n[state]\ndir = \"state\"\n[admin]\nlisten = \"{admin}\"\n\
         [server]\nwatch = false\nlisten = \"127.0.0.1:0\"\n"
    );
    let write = |more: &str| {
        replace_file(folder, "weir.toml", &format!("{head}{more}{}", scripted("kept")))
    };
    let reload = |arguments: &[&str]| {
        let mut command = crate::program();
        // The variable is set for the client of the reload only.
        command.arg("reload").args(arguments).current_dir(folder).env("PAGE", "9");
        let output = command.output().expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code().expect("it ends"), text(output.stdout), text(output.stderr))
    };
    write("");
    let (code, _, err) = reload(&[]);
    assert_eq!(code, 4, "{err}");
    let mut served = serve(folder);
    assert_eq!(reload(&[]).1, "the configuration is unchanged\n");

    write("max_body = \"1MiB\"\nmax_buffered = \"64MiB\"\n");
    let (code, out, _) = reload(&[]);
    let expected = "the configuration was reloaded\n  server changed\n  upstreams kept: 1\n  \
                    server.max_buffered takes effect after a restart\n";
    assert_eq!((code, &*out), (0, expected));
    // A mistake in this environment, and a mistake only in the process's environment.
    write("nonsense = 1\n");
    let (code, _, err) = reload(&[]);
    assert!(
        code == 1 && err.contains("weir.toml:10:1") && err.contains("previous one"),
        "{code} {err}"
    );
    let post = |shown: &str| exchange(&admin, "POST /reload", shown, "");
    // The same page for a client with the token.
    let token = std::fs::read_to_string(folder.join("state/admin-token")).expect("a token");
    let shown = format!("Authorization: Bearer {}\r\n", token.trim());
    let answer = post(&shown);
    assert!(answer.starts_with("HTTP/1.1 422 ") && answer.contains("weir.toml:10:1"), "{answer}");
    write("max_body = \"2MiB\"\n");
    let answer = post(&shown);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("server changed"), "{answer}");
    write("[protocol]\npage_size = \"${PAGE}\"\n");
    let (code, _, err) = reload(&[]);
    assert!(code == 1 && err.contains("weir.toml:11:"), "{code} {err}");
    let (code, out, err) = reload(&["--json"]);
    assert!(code == 1 && out.contains("\"at\":\"weir.toml:11:"), "{code} {out} {err}");

    // The page needs the token, and a GET, as by following a link, is not allowed.
    for (method, status) in [("POST", " 401 "), ("GET", " 405 ")] {
        let answer = exchange(&admin, &format!("{method} /reload"), "", "");
        assert!(answer.lines().next().is_some_and(|line| line.contains(status)), "{answer}");
    }
    served.end();
}

/// Writes a file in place that only its owner may read.
fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("set");
}

/// Script that records the token that each of its processes received.
fn token_script(folder: &Path, name: &str) {
    script(folder, name, &[]);
    let path = folder.join(format!("{name}.sh"));
    let text = std::fs::read_to_string(&path).expect("written");
    std::fs::write(&path, format!("echo $TOKEN >> {name}.pids\n{text}")).expect("written");
}

#[test]
fn a_secret_that_is_written_anew_is_taken_up_and_restarts_whom_it_is_for_alone() {
    let folder = folder("");
    let folder = folder.path();
    token_script(folder, "kept");
    token_script(folder, "other");
    std::fs::create_dir(folder.join("secrets")).expect("made");
    let token = folder.join("secrets/token");
    write_private(&token, "one\n");
    let secret = "env = { TOKEN = { file = \"secrets/token\" } }\n";
    replace_file(
        folder,
        "weir.toml",
        &format!("{HEAD}{}{}{secret}", scripted("kept"), scripted("other")),
    );
    let mut served = serve_listed::<2>(folder);

    // In place, by rename, and by a changed permission: each is a different file to the watcher.
    write_private(&token, "two\n");
    let line = wait_for_reload_and_list(&mut served);
    assert!(line.contains("upstream other restarted; upstreams kept: 1"), "{line}");
    write_private(&folder.join("secrets/new"), "three\n");
    std::fs::rename(folder.join("secrets/new"), &token).expect("moved");
    wait_for_reload_and_list(&mut served);
    std::fs::remove_file(&token).expect("removed");
    let line = served.wait_for_log("the configuration is refused");
    assert!(line.contains("upstreams.other.env.TOKEN") && !line.contains("three"), "{line}");
    write_private(&token, "four\n");
    wait_for_reload_and_list(&mut served);
    assert_eq!(processes(folder, "kept"), [""]);
    let last = processes(folder, "other").pop();
    assert_eq!(last.as_deref(), Some("four"));
    served.end();
}

#[test]
fn sighup_has_the_secrets_of_commands_fetched_anew() {
    let folder = folder("");
    let folder = folder.path();
    token_script(folder, "kept");
    token_script(folder, "other");
    let secret = "env = { TOKEN = { command = [\"cat\", \"counter\"] } }\n";
    replace_file(folder, "counter", "one\n");
    let head = HEAD.replace("[server]\n", "[server]\nwatch = false\n");
    replace_file(
        folder,
        "weir.toml",
        &format!("{head}{}{}{secret}", scripted("kept"), scripted("other")),
    );
    let mut served = serve_listed::<2>(folder);
    replace_file(folder, "counter", "two\n");
    served.signal(Signal::HUP);
    let line = wait_for_reload_and_list(&mut served);
    assert!(line.contains("upstream other restarted; upstreams kept: 1"), "{line}");
    assert_eq!(processes(folder, "kept"), [""]);
    assert_eq!(processes(folder, "other"), ["one", "two"]);
    served.end();
}

#[test]
fn a_mounted_folder_that_a_cluster_swaps_by_its_link_is_taken_up() {
    use std::os::unix::fs::symlink;
    let folder = folder("");
    let folder = folder.path();
    token_script(folder, "hub");
    // As kubelet mounts a ConfigMap and a Secret: a symbolic link for each file, all through one
    // that is replaced.
    let mount = |name: &str, at: &str, file: &str, text: &str| {
        let mount = folder.join(name);
        std::fs::create_dir_all(mount.join(at)).expect("made");
        write_private(&mount.join(at).join(file), text);
        symlink(at, mount.join("..data_tmp")).expect("linked");
        std::fs::rename(mount.join("..data_tmp"), mount.join("..data")).expect("moved");
        if !mount.join(file).is_symlink() {
            symlink(format!("..data/{file}"), mount.join(file)).expect("linked");
        }
    };
    let config = |size: usize| {
        let head = HEAD.replace("include = [\"conf.d/*.toml\"]\n", "");
        let path = folder.display();
        format!(
            "{head}[protocol]\npage_size = {size}\n[upstreams.hub]\ncommand = \"sh\"\nargs = [\"hub.sh\"]\n\
             cwd = \"{path}\"\nenv = {{ TOKEN = {{ file = \"../secrets/token\" }} }}\n"
        )
    };
    mount("secrets", "..1", "token", "one\n");
    mount("config", "..1", "weir.toml", &config(7));
    let mut command = crate::program();
    command.args(["serve", "--config", "config/weir.toml"]).current_dir(folder);
    let mut served = Weir::serve(command);
    served.wait_for_log(LISTED);
    mount("secrets", "..2", "token", "two\n");
    let line = wait_for_reload_and_list(&mut served);
    assert!(line.contains("upstream hub restarted"), "{line}");
    mount("config", "..2", "weir.toml", &config(8));
    let line = served.wait_for_log(RELOADED);
    assert!(line.contains("protocol changed; upstreams kept: 1"), "{line}");
    std::fs::remove_dir_all(folder.join("secrets/..1")).expect("removed");
    mount("secrets", "..3", "token", "three\n");
    wait_for_reload_and_list(&mut served);
    assert_eq!(processes(folder, "hub"), ["one", "two", "three"]);
    served.end();
}

#[test]
fn what_waits_for_a_restart_is_named_and_who_runs_is_found_where_it_listens() {
    let folder = folder("");
    let folder = folder.path();
    let admin = free_port();
    let config = |admin: u16, server: &str, log: &str, more: &str| {
        format!(
            "[log]\nformat = \"json\"\n{log}[state]\ndir = \"state\"\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n\
             [server]\nwatch = false\n{server}{more}[upstreams.house]\nprompts_dir = \"prompts\"\n"
        )
    };
    let listen = "listen = \"127.0.0.1:0\"\n";
    let first = config(admin, listen, "", "");
    replace_file(folder, "weir.toml", &first);
    let mut served = serve(folder);
    let reload = || {
        let (code, out, err) = super::weir(folder, &["reload"]);
        assert_eq!(code, 0, "{err}");
        out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("signed");
    write_private(&folder.join("tls.crt"), &certificate.cert.pem());
    write_private(&folder.join("tls.key"), &certificate.signing_key.serialize_pem());
    let tls = "[server.tls]\ncert = \"tls.crt\"\nkey = { file = \"tls.key\" }\n";
    for (key, text) in [
        ("server.listen", config(admin, "listen = \"127.0.0.1:1\"\n", "", "")),
        ("server.tls", config(admin, listen, "", tls)),
        ("server.max_connections", config(admin, listen, "", "max_connections = 77\n")),
        ("server.max_buffered", config(admin, listen, "", "max_buffered = \"64MiB\"\n")),
        ("log.format", first.replace("format = \"json\"\n", "")),
        ("audit", config(admin, listen, "", "[audit]\nenabled = true\n")),
        // The command uses the address where the process listens, not the address now in the file.
        ("admin", config(free_port(), listen, "", "")),
        ("admin", first.replace("[admin]\n", "[admin]\nenabled = false\n")),
        ("admin", first.replace("[admin]\n", "[admin]\ntoken = \"0123456789abcdef\"\n")),
    ] {
        replace_file(folder, "weir.toml", &text);
        let report = format!("  {key} takes effect after a restart");
        let out = reload();
        assert_eq!(out, ["the configuration was reloaded", &*report], "{key}");
        let line = served.wait_for_log("after a restart");
        assert!(line.contains(&format!("\"key\":\"{key}\"")), "{line}");
        let (code, _, err) = super::weir(folder, &["status"]);
        assert_eq!(code, 0, "{key}: {err}");
    }
    // The token of the process is in the other folder.
    replace_file(folder, "weir.toml", &first.replace("\"state\"", "\"elsewhere\""));
    let (code, _, err) = super::weir(folder, &["reload"]);
    assert!(code == 4 && err.contains("`dir` under [state]"), "{code} {err}");
    served.signal(Signal::HUP);
    let line = served.wait_for_log("after a restart");
    assert!(line.contains("\"key\":\"state\""), "{line}");
    replace_file(folder, "weir.toml", &first);
    assert_eq!(reload(), ["the configuration is unchanged"]);
    let kept = || std::fs::read_dir(folder.join("state")).expect("a folder").count();
    assert_eq!(kept(), 4, "the token, the sealing keys, first definitions, where it listens");
    served.end();
    assert_eq!(kept(), 3);
}

#[test]
fn the_level_of_the_log_changes_by_reload() {
    let folder = folder("");
    let folder = folder.path();
    let admin = free_port();
    let write = |level: &str| {
        let text = format!(
            "[log]\nformat = \"json\"\nlevel = \"{level}\"\n\
             [admin]\nlisten = \"127.0.0.1:{admin}\"\n\
             [server]\nwatch = false\nlisten = \"127.0.0.1:0\"\n[state]\ndir = \"state\"\n\
             [upstreams.house]\nprompts_dir = \"prompts\"\n"
        );
        replace_file(folder, "weir.toml", &text);
    };
    write("info");
    let mut served = serve(folder);
    // A request with a key that belongs to no client has a line at `debug`.
    let ask = |served: &Weir| post(&served.address, Some("no-key"), "ping", json!({}));
    ask(&served);
    for level in ["debug", "error", "trace", "info"] {
        write(level);
        let (code, out, err) = super::weir(folder, &["reload"]);
        assert!(code == 0 && out.contains("log changed"), "{level}: {code} {out} {err}");
        ask(&served);
    }
    served.end();
    let log = served.wait_for_whole_log();
    let refused = log.iter().filter(|line| line.contains("client not authenticated"));
    assert_eq!(refused.count(), 2, "{log:?}");
}
