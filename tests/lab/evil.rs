//! One misbehaving server: its folder, its script, and its records.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::example;
use super::ledger::Executions;
use super::ports::free_port;

pub(crate) struct Evil {
    pub(crate) name: String,
    folder: PathBuf,
    transport: Transport,
    /// Additional members of the server's table in the configuration.
    pub(crate) extra: String,
}

enum Transport {
    /// Weir starts the process.
    Stdio { stubborn: bool },
    /// The server runs, or has run, at this address.
    Http { address: String, child: Option<Box<Child>> },
}

impl Evil {
    pub(super) fn stdio(lab: &Path, name: &str, script: Value) -> Self {
        Self::new(lab, name, script, Transport::Stdio { stubborn: false })
    }

    pub(super) fn stubborn(lab: &Path, name: &str, script: Value) -> Self {
        Self::new(lab, name, script, Transport::Stdio { stubborn: true })
    }

    pub(super) async fn http(lab: &Path, name: &str, script: Value) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let transport = Transport::Http { address, child: None };
        let mut evil = Self::new(lab, name, script, transport);
        evil.start().await;
        evil
    }

    fn new(lab: &Path, name: &str, script: Value, transport: Transport) -> Self {
        let folder = lab.join(name);
        std::fs::create_dir(&folder).expect("made");
        let evil = Self { name: name.to_owned(), folder, transport, extra: String::new() };
        evil.script(script);
        evil
    }

    /// Replaces the script of the server.
    pub(crate) fn script(&self, script: Value) {
        let new = self.folder.join("script.json.new");
        std::fs::write(&new, script.to_string()).expect("written");
        std::fs::rename(new, self.folder.join("script.json")).expect("renamed");
    }

    /// Creates a file in the folder of the server, whose faults may wait for it.
    pub(crate) fn create(&self, file: &str) {
        std::fs::write(self.folder.join(file), "").expect("written");
    }

    /// Starts or restarts the server at the same address.
    pub(crate) async fn start(&mut self) {
        let Transport::Http { address, child } = &mut self.transport else {
            panic!("Weir starts it")
        };
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

    /// Kills the server.
    pub(crate) async fn kill(&mut self) {
        let Transport::Http { child, .. } = &mut self.transport else {
            panic!("it is Weir's child")
        };
        let mut child = child.take().expect("it runs");
        child.kill().await.expect("killed");
    }

    /// Table of the server in the configuration.
    pub(super) fn table(&self) -> String {
        let transport = match &self.transport {
            Transport::Stdio { stubborn } => {
                let program = example("evil_upstream");
                let folder = &self.folder;
                match stubborn {
                    false => format!("command = {program:?}\nargs = [{folder:?}, \"stdio\"]\n"),
                    // A signal that is ignored stays ignored after exec.
                    true => format!(
                        "command = \"sh\"\nargs = [\"-c\", \"trap '' TERM; exec \\\"$0\\\" \\\"$@\\\"\", {program:?}, {folder:?}, \"stdio\"]\n"
                    ),
                }
            }
            Transport::Http { .. } => format!("url = \"http://{}/mcp\"\n", self.address()),
        };
        format!("[upstreams.{}]\n{transport}{}\n", self.name, self.extra)
    }

    /// Address of the server.
    pub(crate) fn address(&self) -> &str {
        let Transport::Http { address, .. } = &self.transport else { panic!("it listens nowhere") };
        address
    }

    fn lines(&self, file: &str) -> Vec<String> {
        let text = std::fs::read(self.folder.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// Number of executions of each nonce.
    pub(crate) fn executions(&self) -> Executions {
        let mut executions = Executions::new();
        for nonce in self.lines("executed") {
            *executions.entry(nonce).or_default() += 1;
        }
        executions
    }

    /// Received messages other than calls.
    pub(crate) fn received(&self) -> Vec<String> {
        self.lines("heard")
    }

    /// Number of received messages with this prefix.
    pub(crate) fn times(&self, what: &str) -> usize {
        self.received().iter().filter(|line| line.starts_with(what)).count()
    }

    /// Number of pages of each walk through the list of tools; a walk begins without a cursor.
    pub(crate) fn walks(&self) -> Vec<usize> {
        let mut walks = Vec::new();
        for line in self.received().iter().filter(|line| line.starts_with("tools/list")) {
            match walks.last_mut() {
                Some(pages) if line != "tools/list" => *pages += 1,
                _ => walks.push(1),
            }
        }
        walks
    }

    /// Processes of the server and their descendants, oldest first.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.lines("pids").iter().map(|pid| pid.parse().expect("a number")).collect()
    }
}
