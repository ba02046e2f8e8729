//! One server that misbehaves: its folder, its script, and what it has written down.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::example;

pub(crate) struct Evil {
    pub(crate) name: String,
    folder: PathBuf,
    place: Place,
    /// Members of its table in the configuration.
    pub(crate) extra: String,
}

enum Place {
    /// Weir starts it.
    Stdio { stubborn: bool },
    /// It runs, or has run, at this address.
    Http { address: String, child: Option<Box<Child>> },
}

impl Evil {
    pub(super) fn stdio(lab: &Path, name: &str, script: Value) -> Self {
        Self::new(lab, name, script, Place::Stdio { stubborn: false })
    }

    pub(super) fn stubborn(lab: &Path, name: &str, script: Value) -> Self {
        Self::new(lab, name, script, Place::Stdio { stubborn: true })
    }

    pub(super) async fn http(lab: &Path, name: &str, script: Value) -> Self {
        let place = Place::Http { address: "127.0.0.1:0".into(), child: None };
        let mut evil = Self::new(lab, name, script, place);
        evil.start().await;
        evil
    }

    fn new(lab: &Path, name: &str, script: Value, place: Place) -> Self {
        let folder = lab.join(name);
        std::fs::create_dir(&folder).expect("made");
        let evil = Self { name: name.to_owned(), folder, place, extra: String::new() };
        evil.script(script);
        evil
    }

    /// Says what it is to do from now on.
    pub(crate) fn script(&self, script: Value) {
        let new = self.folder.join("script.json.new");
        std::fs::write(&new, script.to_string()).expect("written");
        std::fs::rename(new, self.folder.join("script.json")).expect("renamed");
    }

    /// Starts it, or starts it again, at the same address.
    pub(crate) async fn start(&mut self) {
        let Place::Http { address, child } = &mut self.place else { panic!("Weir starts it") };
        let mut command = Command::new(example("evil_upstream"));
        command.arg(&self.folder).args(["http", address]);
        let stderr = OpenOptions::new().create(true).append(true).open(self.folder.join("stderr"));
        command.stderr(stderr.expect("its folder is there"));
        let spawned = command.stdout(Stdio::piped()).kill_on_drop(true).spawn();
        let mut spawned = spawned.expect("it starts");
        let mut lines = BufReader::new(spawned.stdout.take().expect("a pipe")).lines();
        let line = lines.next_line().await.expect("text").expect("a line");
        *address = line.strip_prefix("listening on ").expect("its address").to_owned();
        *child = Some(Box::new(spawned));
    }

    /// Kills it.
    pub(crate) async fn kill(&mut self) {
        let Place::Http { child, .. } = &mut self.place else { panic!("it is Weir's child") };
        let mut child = child.take().expect("it runs");
        child.kill().await.expect("killed");
    }

    /// Its table in the configuration.
    pub(super) fn table(&self) -> String {
        let place = match &self.place {
            Place::Stdio { stubborn } => {
                let program = example("evil_upstream");
                let folder = &self.folder;
                match stubborn {
                    false => format!("command = {program:?}\nargs = [{folder:?}, \"stdio\"]\n"),
                    // What ignores a signal goes on doing so when it becomes another program.
                    true => format!(
                        "command = \"sh\"\nargs = [\"-c\", \"trap '' TERM; exec \\\"$0\\\" \\\"$@\\\"\", {program:?}, {folder:?}, \"stdio\"]\n"
                    ),
                }
            }
            Place::Http { .. } => format!("url = \"http://{}/mcp\"\n", self.address()),
        };
        format!("[upstreams.{}]\n{place}{}\n", self.name, self.extra)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        let Place::Http { address, .. } = &self.place else { panic!("it listens nowhere") };
        address
    }

    fn lines(&self, file: &str) -> Vec<String> {
        let text = std::fs::read(self.folder.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// How often each nonce was executed.
    pub(crate) fn executions(&self) -> HashMap<String, usize> {
        let mut executions = HashMap::new();
        for nonce in self.lines("executed") {
            *executions.entry(nonce).or_default() += 1;
        }
        executions
    }

    /// What it has heard, but for calls.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.lines("heard")
    }

    /// How often it has heard something that begins so.
    pub(crate) fn times(&self, what: &str) -> usize {
        self.heard().iter().filter(|heard| heard.starts_with(what)).count()
    }

    /// The processes that it was and that it has begun, oldest first.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.lines("pids").iter().map(|pid| pid.parse().expect("a number")).collect()
    }
}
