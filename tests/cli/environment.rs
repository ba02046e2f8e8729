//! Environment of upstreams' processes: which variables they get, where their programs are found,
//! and what is said of variables if they fail.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::{folder, own_admin, script};
use crate::lab::wait_until;
use crate::lab::weir::Weir;

/// Search path of a desktop.
const DESKTOP: &str = "/usr/bin:/bin";

/// Command with nothing but a search path, a home and these variables.
fn command(folder: &Path, arguments: &[&str], path: &str, variables: &[(&str, &str)]) -> Command {
    fs::create_dir_all(folder.join("home")).expect("made");
    let mut command = super::program();
    command.args(arguments).current_dir(folder).env_clear();
    command.env("PATH", path).env("HOME", folder.join("home"));
    command.env("XDG_STATE_HOME", folder.join("state")).envs(variables.iter().copied());
    command
}

/// Runs a command and returns all that it prints.
fn printed(mut command: Command) -> String {
    let output = command.output().expect("it runs");
    String::from_utf8([output.stdout, output.stderr].concat()).expect("it writes text")
}

/// Folder with a configuration, and a home whose login shell finds a shell as `only-there`.
fn desktop(config: &str) -> TempDir {
    let folder = folder(config);
    let (home, tools) = (folder.path().join("home"), folder.path().join("home/tools"));
    fs::create_dir_all(home.join(".config/fish")).expect("made");
    fs::create_dir_all(&tools).expect("made");
    symlink("/bin/sh", tools.join("only-there")).expect("a link");
    let line = format!("echo hello\nexport PATH=\"{}:.:$PATH\"\n", tools.display());
    for name in [".profile", ".bash_profile", ".zprofile", ".config/fish/config.fish"] {
        fs::write(home.join(name), &line).expect("written");
    }
    script(folder.path(), "server", &[]);
    folder
}

/// Upstream whose program is only where the login shell looks.
const ONLY_THERE: &str = "[upstreams.hub]\ncommand = \"only-there\"\nargs = [\"-c\", \
                          \"echo $$PATH >path; exec sh server.sh\"]\n";

#[test]
fn a_crash_names_what_was_held_back_and_what_is_set_nowhere_and_no_value() {
    let script = "echo 'NOTION_TOKEN is not set' >&2; echo 'nor NOTION_SPACE_KEY' >&2; \
                  echo \"$$GIVEN\" >&2; exit 1";
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n{}\
         [upstreams.notion]\ncommand = \"sh\"\nargs = [\"-c\", \"{}\"]\nenv = {{ GIVEN = \
         \"canary-1\" }}\n",
        own_admin(),
        script.replace('"', "\\\"")
    );
    let folder = folder(&config);
    let variables = [("NOTION_TOKEN", "canary-2"), ("OTHER_TOKEN", "canary-3")];
    let reason = "last lines of standard error: \"NOTION_TOKEN is not set\", \"nor \
                  NOTION_SPACE_KEY\", \"***\"; it names what is held back: pass_env = \
                  [\"NOTION_TOKEN\"] passes that on; it names what is set nowhere: \
                  NOTION_SPACE_KEY: set that in `env` of the upstream";
    let checked = printed(command(folder.path(), &["check"], DESKTOP, &variables));
    let unwrapped = checked.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(unwrapped.contains(reason), "{checked}");

    let mut weir = Weir::serve(command(folder.path(), &["serve"], DESKTOP, &variables));
    let down = weir.wait_for_log("\"upstream disconnected\"");
    assert!(down.contains(&reason.replace('"', "\\\"")), "{down}");
    let mut status = String::new();
    // The log is written before the status changes.
    wait_until("the status says why", || {
        status = printed(command(folder.path(), &["status"], DESKTOP, &[]));
        status.split_whitespace().collect::<Vec<_>>().join(" ").contains(reason)
    });
    weir.end();
    for text in [checked, down, status] {
        assert!(!text.contains("canary"), "{text}");
    }
}

#[test]
fn variables_are_passed_on_to_all_upstreams_by_the_defaults() {
    let config = "[defaults]\npass_env = [\"HUB_*\"]\n[upstreams.hub]\ncommand = \"sh\"\nargs = \
                  [\"-c\", \"env >environment\"]\npass_env = [\"OWN\"]\n";
    let folder = folder(config);
    let own = [("HUB_A", "1"), ("HUB_B", "2"), ("OWN", "3"), ("HUBS", "4"), ("NO_PROXY", "5")];
    printed(command(folder.path(), &["check"], DESKTOP, &own));
    let environment = fs::read_to_string(folder.path().join("environment")).expect("it ran");
    let has = |line: &str| environment.lines().any(|it| it == line);
    assert!(["HUB_A=1", "HUB_B=2", "OWN=3", "NO_PROXY=5"].into_iter().all(has), "{environment}");
    assert!(!has("HUBS=4"), "{environment}");
}

// === Search path ===

#[test]
fn a_program_that_only_the_login_shell_finds_is_started_and_the_answer_is_kept() {
    let folder = desktop(ONLY_THERE);
    let at = |name: &str| folder.path().join(name);
    let checked = printed(command(folder.path(), &["check"], DESKTOP, &[]));
    let path = fs::read_to_string(at("path")).unwrap_or_else(|_| panic!("{checked}"));
    let tools = at("home/tools").display().to_string();
    assert!(path.starts_with(&format!("{tools}:/")), "{path}");
    let entries: Vec<_> = path.trim_end().split(':').collect();
    assert!(
        entries.contains(&"/usr/bin") && entries.iter().all(|it| it.starts_with('/')),
        "{path}"
    );
    let kept = at("state/weir/login-path");
    assert!(fs::read_to_string(&kept).expect("kept").starts_with(&tools));
    assert_eq!(fs::metadata(&kept).expect("kept").permissions().mode() & 0o777, 0o600);
    // The search path of a terminal has all programs: then the shell is not asked.
    fs::remove_file(&kept).expect("removed");
    let terminal = format!("{tools}:{DESKTOP}");
    printed(command(folder.path(), &["check"], &terminal, &[]));
    assert_eq!(fs::read_to_string(at("path")).expect("it ran").trim_end(), terminal);
    assert!(!kept.exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_login_shell_is_not_stopped_by_the_terminal_that_weir_is_started_from() {
    use super::watching::Terminal;

    let folder = desktop(ONLY_THERE);
    let check = command(folder.path(), &["check"], DESKTOP, &[]);
    let _terminal = Terminal::start(&check, 24, 80);
    wait_until("the server has been started", || folder.path().join("path").exists());
}

#[test]
fn a_service_asks_no_login_shell_unless_it_always_should() {
    let serve = |defaults: &str| {
        let config = "[server]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n";
        let folder = desktop(&format!("{config}{defaults}{ONLY_THERE}"));
        let mut weir = Weir::serve(command(folder.path(), &["serve"], DESKTOP, &[]));
        let line = weir.wait_for_log("\"upstream ");
        weir.end();
        line
    };
    assert!(serve("").contains("no program `only-there` in PATH"));
    let line = serve("[defaults]\nlogin_path = \"always\"\n");
    assert!(line.contains("upstream connected"), "{line}");
    let folder = desktop(&format!("[defaults]\nlogin_path = \"never\"\n{ONLY_THERE}"));
    let checked = printed(command(folder.path(), &["check"], DESKTOP, &[]));
    assert!(checked.contains("no program `only-there` in PATH"), "{checked}");
    assert!(!folder.path().join("state/weir/login-path").exists());
}

#[test]
fn a_weir_that_the_login_shell_itself_starts_does_not_ask_it_again() {
    let folder = desktop(ONLY_THERE);
    let asked = [("WEIR_ASKS_LOGIN_SHELL", "1")];
    let checked = printed(command(folder.path(), &["check"], DESKTOP, &asked));
    assert!(checked.contains("no program `only-there` in PATH"), "{checked}");
}

#[test]
fn a_program_in_the_working_folder_is_neither_a_server_nor_a_source_of_secrets() {
    let config = "[upstreams.web]\nurl = \"http://127.0.0.1:1/\"\n\
                  headers = { X = { command = [\"op-of-a-project\"] } }\n";
    let folder = folder(config);
    let hub = "[upstreams.hub]\ncommand = \"npx-of-a-project\"\n";
    fs::write(folder.path().join("hub.toml"), hub).expect("written");
    for program in ["npx-of-a-project", "op-of-a-project"] {
        symlink("/usr/bin/touch", folder.path().join(program)).expect("a link");
    }
    for path in [".", "", ":/usr/bin", &format!(".:{DESKTOP}"), "./:../:/bin"] {
        let checked = printed(command(folder.path(), &["check"], path, &[]));
        assert!(checked.contains("op-of-a-project is not there"), "{path:?}: {checked}");
        let arguments = ["list", "tools", "--config", "hub.toml"];
        let listed = printed(command(folder.path(), &arguments, path, &[]));
        assert!(listed.contains("no program `npx-of-a-project` in PATH"), "{path:?}: {listed}");
    }
}
