//! Login shell of the user, which knows the search path of their terminals.
//!
//! A client that is started from a desktop passes on the search path of that, which lacks the
//! folders in which `node` or `uv` are. The shell is asked as a terminal would start it, since
//! version managers change the path in the files of interactive shells.
//!
//! Invariants: the shell is that of the user database, and is asked once in a process, and never
//! below itself. It has no terminal and no input, gets no variable that other child processes do
//! not inherit, and has [`TIMEOUT`] and [`MAX_OUTPUT_BYTES`]; then it is killed with all that it
//! has started. Of its output only `PATH` is used. The thread that asks holds up nobody but those
//! who need the answer, and these only while there is none from an earlier process.
//!
//! Decision: docs/decisions/0049-environment-of-child-processes.md

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::unistd::{User, geteuid};
use tokio::io::{AsyncReadExt, copy, sink};
use tokio::runtime;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use zeroize::Zeroizing;

use crate::process::child::Child;
use crate::process::child_command::ChildCommand;
use crate::process::{environment, search_path};
use weir_base::files::{private_file, regular_file};
use weir_base::secrets::secret::{Secret, random_token};
use weir_base::tasks::sync::Mutex;
use weir_base::text::quote::quote;

/// Variable that tells a Weir which a login shell starts, from one of the user's own files, that
/// this shell is being asked.
pub(crate) const ASKED_VARIABLE: &str = "WEIR_ASKS_LOGIN_SHELL";

/// Login shell of the user.
pub(crate) struct LoginShell {
    answer: watch::Receiver<LoginAnswer>,
    /// Work of the thread that asks, until it is started.
    asker: Mutex<Option<LoginPathAsker>>,
}

/// Answer of the login shell.
#[derive(Debug, Clone, PartialEq)]
enum LoginAnswer {
    Awaited,
    /// Its search path; `None` if it gives none.
    Path(Option<String>),
}

impl LoginShell {
    /// Creates the handle. The last answer is kept in `folder`; `spawn` starts a process without a
    /// terminal.
    pub(crate) fn new(
        folder: Option<&Path>,
        spawn: impl Fn(&ChildCommand) -> io::Result<Child> + Send + 'static,
    ) -> Self {
        let (sender, answer) = watch::channel(LoginAnswer::Awaited);
        let asker = LoginPathAsker {
            file: folder.map(|folder| folder.join(FILE_NAME)),
            answer: sender,
            find_shell: Box::new(find_shell),
            spawn: Box::new(spawn),
            timeout: TIMEOUT,
        };
        Self { answer, asker: Mutex::new(Some(asker)) }
    }

    /// Returns the search path of the shell; `None` if the shell does not give one. Waits for the
    /// shell if it has never been asked before.
    pub(crate) async fn path(&self) -> Option<String> {
        if let Some(asker) = self.asker.lock().take() {
            // If the thread cannot be started, its sender is dropped, and no caller waits for it.
            let _ = thread::Builder::new().name("login-shell".into()).spawn(move || asker.run());
        }
        let mut answer = self.answer.clone();
        let answer = answer.wait_for(|answer| *answer != LoginAnswer::Awaited).await;
        match answer.map(|answer| answer.clone()) {
            Ok(LoginAnswer::Path(path)) => path,
            Ok(LoginAnswer::Awaited) | Err(_) => None,
        }
    }
}

/// Asks the shell, on a thread of its own: the user database may be on another machine.
struct LoginPathAsker {
    file: Option<PathBuf>,
    answer: watch::Sender<LoginAnswer>,
    find_shell: Box<FindShellFn>,
    spawn: Box<SpawnShellFn>,
    timeout: Duration,
}

type FindShellFn = dyn Fn() -> Result<LoginAccount, String> + Send;
type SpawnShellFn = dyn Fn(&ChildCommand) -> io::Result<Child> + Send;

impl LoginPathAsker {
    /// Publishes the last answer, if there is one, asks the shell, and publishes its answer.
    fn run(self) {
        let last = self.file.as_deref().and_then(read_answer);
        if last.is_some() {
            self.answer.send_replace(LoginAnswer::Path(last.clone()));
        }
        match self.ask() {
            Ok(path) if last.as_ref() == Some(&path) => {}
            Ok(path) => {
                let written = self.file.as_deref().map(|file| private_file::replace(file, &path));
                if let Some(Err(error)) = written {
                    tracing::debug!(%error, "search path of the login shell cannot be kept");
                }
                self.answer.send_replace(LoginAnswer::Path(Some(path)));
            }
            Err(reason) => {
                tracing::info!(reason, "login shell gives no search path");
                self.answer.send_replace(LoginAnswer::Path(last));
            }
        }
    }

    fn ask(&self) -> Result<String, String> {
        let LoginAccount { shell, home } = (self.find_shell)()?;
        let mark = random_token();
        let (begin, end) = (format!("weir-begin-{mark}"), format!("weir-end-{mark}"));
        let script = format!("echo {begin}; /usr/bin/env -0; echo {end}");
        let mut command = ChildCommand {
            program: shell.display().to_string(),
            display_name: quote(&shell.display().to_string(), MAX_QUOTED_CHARS),
            args: ["-l", "-i", "-c", &script].map(Secret::from).into(),
            ..ChildCommand::default()
        };
        environment::inherit(&mut command, &[], std::env::vars_os());
        // Prompts and plug-ins do without colors and questions there.
        let own = [("TERM", "dumb"), (ASKED_VARIABLE, "1")];
        command.env = own.map(|(name, value)| (name.to_owned(), value.into())).into();
        let set_home = home.to_str().map(|home| ("HOME".to_owned(), Secret::from(home)));
        command.env.extend(set_home);
        command.cwd = Some(home);
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("it cannot be asked: {error}"))?;
        let shown = command.display_name.clone();
        let output = runtime.block_on(async {
            let child = (self.spawn)(&command).map_err(|error| error.to_string())?;
            read_output(child, self.timeout).await
        });
        let output = output.map_err(|reason| format!("{shown}: {reason}"))?;
        let path = find_path(&output, &begin, &end);
        path.ok_or_else(|| format!("{shown}: it printed no PATH"))
    }
}

/// Shell and home of a user.
struct LoginAccount {
    shell: PathBuf,
    home: PathBuf,
}

/// Finds the shell of the user: that of the user database, or if the user is not there, `SHELL` if
/// the administrator has listed that.
fn find_shell() -> Result<LoginAccount, String> {
    let user = User::from_uid(geteuid()).ok().flatten();
    let listed = regular_file::read(Path::new(SHELLS), MAX_OUTPUT_BYTES as u64);
    let variable = |name: &str| std::env::var_os(name);
    find_shell_of(user, variable, &String::from_utf8_lossy(&listed.unwrap_or_default()))
}

fn find_shell_of(
    user: Option<User>,
    variable: impl Fn(&str) -> Option<OsString>,
    listed: &str,
) -> Result<LoginAccount, String> {
    let (shell, own_home) = match user {
        Some(user) => (user.shell, Some(user.dir)),
        None => {
            let shell = PathBuf::from(variable("SHELL").unwrap_or_default());
            if !listed.lines().any(|line| Path::new(line.trim()) == shell) {
                return Err(format!("the user database has no shell, and {SHELLS} not SHELL"));
            }
            (shell, None)
        }
    };
    let mut homes = [variable("HOME").map(PathBuf::from), own_home].into_iter().flatten();
    let home = homes.find(|home| is_own_folder(home)).unwrap_or("/".into());
    match shell.is_absolute() {
        true => Ok(LoginAccount { shell, home }),
        false => Err("the user has no login shell".to_owned()),
    }
}

/// Returns whether a path names a folder of this user, whose files the shell may execute: `HOME` of
/// another user may be left over from before `sudo`.
fn is_own_folder(path: &Path) -> bool {
    let about = fs::metadata(path);
    path.is_absolute() && about.is_ok_and(|it| it.is_dir() && it.uid() == geteuid().as_raw())
}

/// Reads the standard output of a process until its end or a limit, and leaves nothing of it.
async fn read_output(child: Child, limit: Duration) -> Result<Zeroizing<Vec<u8>>, String> {
    let Child { stdin, mut stdout, stderr, mut process } = child;
    drop(stdin);
    // It has variables in it, and must not grow: that would leave a copy behind.
    let mut output = Zeroizing::new(Vec::with_capacity(MAX_OUTPUT_BYTES + SPARE_BYTES));
    let read = async {
        while output.len() <= MAX_OUTPUT_BYTES {
            if let Ok(0) | Err(_) = stdout.read_buf(&mut *output).await {
                break;
            }
        }
    };
    let ended = async {
        // A shell whose messages are not read would wait, or end.
        let discard = async {
            if let Some(mut stderr) = stderr {
                let _ = copy(&mut stderr, &mut sink()).await;
            }
            std::future::pending::<()>().await
        };
        tokio::select! {
            _ = process.wait() => {}
            () = discard => {}
        }
        // What the shell has left behind may keep its output open.
        process.kill();
        sleep(LAST_OUTPUT).await;
    };
    let limited = timeout(limit, async {
        tokio::select! {
            biased;
            () = read => {}
            () = ended => {}
        }
    });
    let in_time = limited.await.is_ok();
    process.kill();
    let _ = timeout(LAST_OUTPUT, process.wait()).await;
    if output.len() > MAX_OUTPUT_BYTES {
        return Err(format!("it printed more than {} KiB", MAX_OUTPUT_BYTES >> 10));
    }
    if in_time { Ok(output) } else { Err(format!("it did not end within {limit:?}")) }
}

/// Finds `PATH` between the last marks. Before them stands what the user's own files print.
fn find_path(output: &[u8], begin: &str, end: &str) -> Option<String> {
    let find_last = |text: &[u8], mark: &str| {
        text.windows(mark.len()).rposition(|window| window == mark.as_bytes())
    };
    let before = &output[..find_last(output, end)?];
    let variables = &before[find_last(before, begin)? + begin.len()..];
    let mut variables = variables.strip_prefix(b"\n")?.split(|byte| *byte == 0);
    let path = variables.find_map(|variable| variable.strip_prefix(b"PATH="))?;
    to_answer(std::str::from_utf8(path).ok()?)
}

/// Reads the answer that an earlier process got.
fn read_answer(file: &Path) -> Option<String> {
    match private_file::read(file, MAX_OUTPUT_BYTES as u64) {
        Ok(text) => to_answer(text.trim_end_matches('\n')),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::debug!(%error, "kept search path of the login shell cannot be read");
            None
        }
    }
}

/// Returns what may be used of a search path, if anything.
fn to_answer(path: &str) -> Option<String> {
    Some(search_path::absolute_entries(path)).filter(|path| !path.is_empty())
}

/// File of the last answer in the state folder.
const FILE_NAME: &str = "login-path";

/// File with the shells that the administrator allows.
const SHELLS: &str = "/etc/shells";

/// Time limit: a shell that starts slowly needs a second or two.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of the output: all variables, and a greeting.
const MAX_OUTPUT_BYTES: usize = 64 * 1024;

/// Spare capacity, because reading to the end tries to read past the last byte, and reads no less
/// at once.
const SPARE_BYTES: usize = 64;

/// Time for the last output of a shell that has ended, and for the end of a killed one.
const LAST_OUTPUT: Duration = Duration::from_millis(500);

/// Characters of the shell's path in a message.
const MAX_QUOTED_CHARS: usize = 200;

#[cfg(test)]
mod tests {
    //! With real processes and a real clock.

    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc;

    use tempfile::TempDir;

    use super::*;
    use crate::process::start::{ControllingTerminal, start};

    const LONG: Duration = Duration::from_secs(60);

    /// Shell that does this before it reads its arguments, and evaluates what is to be executed
    /// with `eval "$4"`.
    fn shell(script: &str) -> Box<SpawnShellFn> {
        let script = script.to_owned();
        Box::new(move |command| {
            assert_eq!(command.args[..3], ["-l", "-i", "-c"].map(Secret::from));
            let mut command = command.clone();
            let own = ["-c", &script, "shell"].map(Secret::from);
            command.program = "/bin/sh".to_owned();
            command.args.splice(0..0, own);
            start(&command, false, ControllingTerminal::Without, None)
        })
    }

    fn asker(file: Option<PathBuf>, spawn: Box<SpawnShellFn>) -> (LoginShell, TempDir) {
        let home = tempfile::tempdir().expect("a folder");
        let own = home.path().to_owned();
        let find_shell = move || Ok(LoginAccount { shell: "/bin/sh".into(), home: own.clone() });
        let (sender, answer) = watch::channel(LoginAnswer::Awaited);
        let asker = LoginPathAsker {
            file,
            answer: sender,
            find_shell: Box::new(find_shell),
            spawn,
            timeout: LONG,
        };
        (LoginShell { answer, asker: Mutex::new(Some(asker)) }, home)
    }

    /// Asks a shell that does this, and returns its answer.
    fn ask(script: &str, limit: Duration) -> Result<String, String> {
        let (shell, _home) = asker(None, shell(script));
        let mut asker = shell.asker.lock().take().expect("not asked yet");
        asker.timeout = limit;
        asker.ask()
    }

    #[test]
    fn the_path_is_that_between_the_last_marks_and_without_relative_entries() {
        for (script, path) in [
            ("PATH=/opt/a:.::bin:/opt/b; export PATH; eval \"$4\"", "/opt/a:/opt/b"),
            ("PATH=/evil; eval \"$4\"; echo hello; PATH=/opt/a; eval \"$4\"; echo bye", "/opt/a"),
            ("PATH=\"/a:$(printf '/b\\033[31m'):/c\"; eval \"$4\"", "/a:/c"),
            ("echo \"$4\"; set -x; PATH=/opt/a; eval \"$4\"", "/opt/a"),
        ] {
            assert_eq!(ask(script, LONG), Ok(path.to_owned()), "{script}");
        }
    }

    #[test]
    fn a_shell_that_prints_no_path_or_too_much_is_no_help() {
        for (script, reason) in [
            ("exit 1", "/bin/sh: it printed no PATH"),
            ("echo \"$4\"", "/bin/sh: it printed no PATH"),
            ("PATH=.:bin; eval \"$4\"", "/bin/sh: it printed no PATH"),
            ("exec >&-; echo x", "/bin/sh: it printed no PATH"),
            ("trap '' PIPE; while :; do echo canary; done", "/bin/sh: it printed more than 64 KiB"),
        ] {
            assert_eq!(ask(script, LONG), Err(reason.to_owned()), "{script}");
        }
        let begin = std::time::Instant::now();
        let reason = ask("sleep 1000", Duration::from_millis(100));
        assert_eq!(reason, Err("/bin/sh: it did not end within 100ms".to_owned()));
        assert!(begin.elapsed() < LONG);
    }

    #[test]
    fn a_process_that_the_shell_leaves_behind_ends_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("left");
        let script = format!("sleep 1000 & echo $! >{}; PATH=/opt/a; eval \"$4\"", file.display());
        assert_eq!(ask(&script, LONG), Ok("/opt/a".to_owned()));
        let process = fs::read_to_string(file).expect("a number");
        let status = format!("/proc/{}/status", process.trim());
        let runs = || {
            let status = fs::read_to_string(&status).unwrap_or_default();
            let state = status.lines().find_map(|line| line.strip_prefix("State:"));
            state.is_some_and(|state| !state.trim_start().starts_with(['Z', 'X']))
        };
        while runs() {
            thread::yield_now();
        }
    }

    #[test]
    fn the_shell_gets_no_input_and_what_other_processes_inherit() {
        let script =
            "read x || echo none >input; /usr/bin/env >environment; pwd >folder; eval \"$4\"";
        let (shell, home) = asker(None, shell(script));
        let asker = shell.asker.lock().take().expect("not asked yet");
        asker.ask().expect("an answer");
        let text = |name: &str| fs::read_to_string(home.path().join(name)).expect("written");
        assert_eq!(text("input"), "none\n");
        assert_eq!(text("folder").trim_end(), home.path().display().to_string());
        let environment = text("environment");
        for line in
            ["TERM=dumb", "WEIR_ASKS_LOGIN_SHELL=1", &format!("HOME={}", home.path().display())]
        {
            assert!(environment.lines().any(|it| it == line), "{line}: {environment}");
        }
        assert!(!environment.contains("CARGO_PKG"), "{environment}");
    }

    #[tokio::test]
    async fn the_last_answer_serves_until_the_shell_has_answered() {
        let state = tempfile::tempdir().expect("a folder");
        let file = state.path().join(FILE_NAME);
        private_file::replace(&file, "/opt/old:.").expect("written");
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let answers = shell("PATH=/opt/new; eval \"$4\"");
        let spawn: Box<SpawnShellFn> = Box::new(move |command| {
            wait.lock().recv().expect("the test goes on");
            answers(command)
        });
        let (shell, _home) = asker(Some(file.clone()), spawn);
        assert_eq!(shell.path().await.as_deref(), Some("/opt/old"));
        go.send(()).expect("it waits");
        let mut answer = shell.answer.clone();
        let new = LoginAnswer::Path(Some("/opt/new".to_owned()));
        answer.wait_for(|answer| *answer == new).await.expect("an answer");
        assert_eq!(shell.path().await.as_deref(), Some("/opt/new"));
        assert_eq!(fs::read_to_string(&file).expect("kept"), "/opt/new\n");
        assert_eq!(fs::metadata(&file).expect("kept").permissions().mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn a_shell_that_gives_no_path_is_asked_once_and_the_last_answer_stays() {
        let state = tempfile::tempdir().expect("a folder");
        let count = state.path().join("count");
        let script = format!("echo x >>{}", count.display());
        let (one, _home) = asker(None, shell(&script));
        assert_eq!((one.path().await, one.path().await), (None, None));
        assert_eq!(fs::read_to_string(&count).expect("asked"), "x\n");

        let file = state.path().join(FILE_NAME);
        private_file::replace(&file, "/opt/old").expect("written");
        let (one, _home) = asker(Some(file), shell("exit 1"));
        assert_eq!(one.path().await.as_deref(), Some("/opt/old"));
        let mut answer = one.answer.clone();
        // The sender is dropped once the shell has been asked.
        while answer.changed().await.is_ok() {}
        assert_eq!(one.path().await.as_deref(), Some("/opt/old"));
    }

    #[test]
    fn an_answer_that_others_may_read_or_that_is_none_is_not_used() {
        let state = tempfile::tempdir().expect("a folder");
        let file = state.path().join(FILE_NAME);
        assert_eq!(read_answer(&file), None);
        for text in ["", ".:bin", "/opt/\u{1b}[31m"] {
            private_file::replace(&file, text).expect("written");
            assert_eq!(read_answer(&file), None, "{text:?}");
        }
        private_file::replace(&file, "/opt/a").expect("written");
        assert_eq!(read_answer(&file).as_deref(), Some("/opt/a"));
        fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("ours");
        assert_eq!(read_answer(&file), None);
        assert_eq!(read_answer(state.path()), None);
        assert_eq!(read_answer(Path::new("/dev/zero")), None);
    }

    #[test]
    fn the_shell_is_that_of_the_user_database_and_another_one_has_to_be_listed() {
        let variables = |shell: &'static str| {
            move |name: &str| match name {
                "SHELL" => Some(shell.into()),
                _ => None,
            }
        };
        let listed = "# valid login shells\n/bin/sh\n/bin/zsh \n";
        let found = |user: Option<User>, shell: &'static str| {
            let found = find_shell_of(user, variables(shell), listed);
            found.map(|it| it.shell.display().to_string()).ok()
        };
        let user = User::from_uid(geteuid())
            .expect("a database")
            .map(|user| User { shell: "/usr/bin/fish".into(), ..user });
        assert_eq!(found(user.clone(), "/tmp/evil").as_deref(), Some("/usr/bin/fish"));
        assert_eq!(found(user.map(|user| User { shell: "".into(), ..user }), "/bin/sh"), None);
        assert_eq!(found(None, "/bin/zsh").as_deref(), Some("/bin/zsh"));
        for shell in ["/tmp/evil", "", "sh", "# valid login shells", "/bin/../tmp/evil"] {
            assert_eq!(found(None, shell), None, "{shell}");
        }
    }
}
