//! Obstacles outside of the configuration: missing programs, folders without permission, a broken
//! standard error. Each gives one line that says what to do.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use insta::assert_snapshot;
use tempfile::TempDir;

use super::{folder, shown};
use crate::lab::weir::Weir;

#[cfg(target_os = "linux")]
#[test]
fn the_soft_limit_of_descriptors_is_raised_to_two_for_each_connection() {
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nmax_connections = 300\n{}",
        super::LIBRARY_CONFIG
    );
    let folder = folder(&config);
    let weir = super::program();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -Sn 256; exec \"$0\" serve"]).arg(weir.get_program());
    shell.envs(weir.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(folder.path());
    let mut weir = Weir::serve(shell);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", weir.pid())).expect("it runs");
    weir.end();
    let files =
        limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a line");
    assert_eq!(files.split_whitespace().next(), Some("600"), "{files}");
}

#[test]
fn a_program_that_is_not_there_is_one_line_that_says_what_to_do() {
    let folder = folder("[upstreams.gone]\ncommand = \"no-such-program\"\n");
    let commands: [&[&str]; 7] = [
        &["check"],
        &["check", "--json"],
        &["list", "tools"],
        &["call", "gone__x"],
        &["get", "gone__x"],
        &["read", "gone:1", "--json"],
        &["complete", "prompt", "gone__x", "a="],
    ];
    let report = commands.map(|arguments| shown(folder.path(), arguments)).concat();
    assert_snapshot!(report);
}

#[test]
fn a_service_whose_upstream_has_no_program_says_so_and_serves_the_others() {
    let config = "[server]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n\
        [upstreams.house]\nprompts_dir = \"prompts\"\n\
        [upstreams.gone]\ncommand = \"no-such-program\"\n";
    let folder = folder(config);
    let mut weir = super::serve(folder.path());
    let down = weir.wait_for_log("\"upstream disconnected\"");
    weir.end();
    let reason =
        "no program `no-such-program` in PATH; install it, or write its whole path as `command`";
    assert!(down.contains("\"gone\"") && down.contains(reason), "{down}");
}

#[test]
fn s45_a_child_gets_its_own_environment_and_no_descriptor_of_ours() {
    // The environment that the process was started with, whatever the shell has changed since; `$$`
    // in the file means `$`.
    let script = "cat /proc/$$$$/environ >environment; ls /proc/$$$$/fd >descriptors";
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n\
        [upstreams.spy]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"{script}\"]\n\
        env = {{ GIVEN = \"by the file\", LANG = \"C\" }}\npass_env = [\"PASSED\", \"ABSENT\"]\n"
    );
    let folder = folder(&config);
    let path = std::env::var("PATH").expect("a path");
    let mut weir = crate::program();
    weir.arg("serve").current_dir(folder.path()).env_clear().envs([
        ("PATH", &*path),
        ("HOME", "/nowhere"),
        ("LANG", "xx"),
        ("PASSED", "on"),
        ("WEIR_KEY", "canary"),
        ("AWS_SECRET_ACCESS_KEY", "canary"),
        ("SSH_AUTH_SOCK", "/canary"),
        ("LD_LIBRARY_PATH", "/canary"),
    ]);
    let mut weir = Weir::serve(weir);
    weir.wait_for_log("\"upstream disconnected\"");
    weir.end();

    let report = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("it ran");
    let environment = report("environment");
    let mut environment: Vec<_> = environment.split_terminator('\0').collect();
    environment.sort_unstable();
    let path = format!("PATH={path}");
    let expected = ["GIVEN=by the file", "HOME=/nowhere", "LANG=C", "PASSED=on", &path];
    assert_eq!(environment, expected);
    // The child has neither Weir's descriptors nor those that this test inherited. A shell that
    // redirects keeps its own at 10.
    assert_eq!(report("descriptors").replace("10\n", ""), "0\n1\n2\n");
}

// === Folders without permission ===

/// World-accessible folder with a copy of Weir in it: tests may run as root, from a build that only
/// root can reach, and root passes all permission checks.
struct Public {
    folder: TempDir,
}

impl Public {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let public = Self { folder };
        public.allow(".", 0o777);
        let weir = public.path("weir-itself");
        // By a child: a process that another thread forks meanwhile would keep our own descriptor
        // open for writing, and the kernel starts no program that is written to.
        let mut copy = std::process::Command::new("cp");
        let copied = copy.arg(env!("CARGO_BIN_EXE_weir")).arg(weir).status();
        assert!(copied.expect("cp runs").success());
        public.allow("weir-itself", 0o755);
        public
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn allow(&self, name: &str, mode: u32) {
        std::fs::set_permissions(self.path(name), Permissions::from_mode(mode)).expect("ours");
    }

    /// Writes a file that all users may read, in a folder that no user may write to.
    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
        self.allow(name, 0o644);
    }

    /// Runs Weir and returns all its output with the folder's name taken out.
    fn shown(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it writes text");
        let (out, err) = (text(output.stdout), text(output.stderr));
        let code = output.status.code().expect("it exits");
        let report = format!("$ weir {}\n{out}{err}=> {code}\n", arguments.join(" "));
        report.replace(&self.folder.path().display().to_string(), "")
    }

    /// Command of Weir as a user other than root.
    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(self.path("weir-itself"));
        command.args(arguments).current_dir(self.folder.path());
        // A folder that may not be entered does not turn a missing program into a forbidden one.
        let path = format!("{}:/usr/bin:/bin", self.path("closed").display());
        command.env("PATH", path).env("HOME", self.path("home")).env_remove("XDG_CONFIG_HOME");
        if rustix::process::geteuid().is_root() {
            // User id of `nobody`; the groups are dropped with the user.
            command.uid(65_534).gid(65_534);
        }
        command
    }
}

impl Drop for Public {
    fn drop(&mut self) {
        // A user other than root can remove only what may be entered.
        for name in ["closed", "fixed", "home"] {
            let _ = std::fs::set_permissions(self.path(name), Permissions::from_mode(0o755));
        }
    }
}

#[test]
fn a_folder_without_permission_is_one_line_that_says_what_to_do() {
    let public = Public::new();
    public.write("weir.toml", "[upstreams.house]\nprompts_dir = \"closed\"\n");
    public.write("cwd.toml", "[upstreams.hub]\ncommand = \"cat\"\ncwd = \"closed\"\n");
    public.write("gone.toml", "[upstreams.gone]\ncommand = \"no-such-program\"\n");
    public.write("plain.json", r#"{"mcpServers": {"a": {"command": "cat"}}}"#);
    let secret = r#"{"mcpServers": {"a": {"command": "cat", "env": {"API_TOKEN": "sk-1"}}}}"#;
    public.write("secret.json", secret);
    public.write("closed/mcp.json", "{}");
    public.write("fixed/.keep", "");
    public.write("home/.keep", "");
    for (name, mode) in [("closed", 0o000), ("fixed", 0o555), ("home", 0o555)] {
        public.allow(name, mode);
    }
    let commands: [&[&str]; 12] = [
        &["init", "--dir", "fixed"],
        &["init", "--dir", "fixed/new"],
        &["init", "--dir", "closed"],
        &["init", "--from", "plain.json", "--dir", "fixed"],
        &["init", "--from", "secret.json", "--dir", "fixed"],
        &["init", "--from", "closed/mcp.json", "--dir", "new"],
        &["connect", "cursor", "--stdio", "--write"],
        &["check", "--offline"],
        &["check"],
        &["list", "--json"],
        &["list", "tools", "--config", "cwd.toml"],
        &["list", "tools", "--config", "gone.toml"],
    ];
    let report = commands.map(|arguments| public.shown(arguments)).concat();
    assert_snapshot!(report);
}

// === Broken outputs ===

#[test]
fn init_and_connect_need_no_standard_error_and_miss_what_they_cannot_print() {
    let folder = folder("[upstreams.house]\nprompts_dir = \"prompts\"\n");
    std::fs::write(folder.path().join("mcp.json"), r#"{"mcpServers":{"a":{"command":"cat"}}}"#)
        .expect("written");
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("it is there");
    let weir = |arguments: &[&str]| {
        let mut command = crate::program();
        command.args(arguments).current_dir(folder.path()).env("HOME", folder.path());
        command
    };
    let cases: [&[&str]; 4] = [
        &["init", "--dir", "new"],
        &["init", "--from", "mcp.json", "--output", "other.toml"],
        &["connect", "cursor"],
        &["connect", "cursor", "--write"],
    ];
    for arguments in cases {
        let output = weir(arguments).stderr(full()).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    }
    assert!(Path::new(&folder.path().join("new/weir.toml")).exists());
    for arguments in [&["init", "--from", "mcp.json", "--print"][..], &["connect", "cursor"]] {
        let output = weir(arguments).stdout(full()).output().expect("it runs");
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(74), "{arguments:?}: {err}");
        assert!(err.contains("standard output cannot be written to"), "{err}");
    }
}

#[test]
fn s35_a_service_and_its_children_leave_no_core_and_nobody_looks_into_its_memory() {
    let public = Public::new();
    public.write(
        "weir.toml",
        "[server]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n\
        [upstreams.spy]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"cat /proc/$$$$/limits >limits\"]\n",
    );
    for command in ["serve", "stdio"] {
        let mut weir = public.command(&[command]);
        weir.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
        let mut weir = Weir::spawn(weir);
        if command == "stdio" {
            let hello = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n";
            let mut input = weir.child.stdin.as_ref().expect("a pipe");
            std::io::Write::write_all(&mut input, hello).expect("it reads");
        }
        weir.wait_for_log("\"upstream disconnected\"");
        let limits = |path: &Path| {
            let limits = std::fs::read_to_string(path).expect("it can be read");
            let core = limits.lines().find(|line| line.starts_with("Max core file size"));
            core.expect("a line").split_whitespace().skip(4).map(str::to_owned).collect::<Vec<_>>()
        };
        let process = PathBuf::from(format!("/proc/{}", weir.pid()));
        assert_eq!(limits(&process.join("limits")), ["0", "0", "bytes"], "{command}");
        assert_eq!(limits(&public.path("limits")), ["0", "0", "bytes"], "a child of {command}");
        // The kernel gives /proc files of a process that is not dumpable to root.
        let owner = |name: &str| {
            let file = std::fs::metadata(process.join(name)).expect("it is there");
            std::os::unix::fs::MetadataExt::uid(&file)
        };
        assert_eq!([owner("environ"), owner("mem")], [0, 0], "{command}");
        let status = std::fs::read_to_string(process.join("status")).expect("it can be read");
        let user = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("a user");
        assert!(!user.trim_start().starts_with("0\t"), "as root it would show nothing: {user}");
        drop(weir.child.stdin.take());
        weir.end();
        std::fs::remove_file(public.path("limits")).expect("it was written");
    }
}
