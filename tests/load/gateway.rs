//! The `weir serve` process of a load test, on a port of its own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use weir::json::Object;

/// A running `weir serve`; dropping it kills the process.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) address: SocketAddr,
    log: Receiver<String>,
    pub(crate) folder: Arc<TempDir>,
}

/// Generous, because it only limits how long a broken test takes.
const PATIENCE: Duration = Duration::from_secs(60);

impl Gateway {
    /// Starts Weir in front of this server.
    pub(crate) fn start(upstream: SocketAddr, server: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.stdin(Stdio::null());
        Self::start_by(command, upstream, server)
    }

    /// Starts Weir by another command in front of this server.
    pub(crate) fn start_by(command: Command, upstream: SocketAddr, server: &str) -> Self {
        let folder = Arc::new(TempDir::new().expect("a folder"));
        let config = format!(
            "[log]\nformat = \"json\"\n[auth]\nmode = \"anonymous\"\n[upstreams.hub]\nera = \"modern\"\n\
             url = \"http://{upstream}/mcp\"\nlimits.concurrency = 1024\n[server]\nlisten = \"127.0.0.1:0\"\n{server}\n"
        );
        std::fs::write(folder.path().join("weir.toml"), config).expect("written");
        Self::serve(command, folder)
    }

    /// Ends the process with a signal, and starts another on the same configuration, with an
    /// address of its own.
    pub(crate) fn restart(mut self, signal: Signal) -> Self {
        self.signal(signal);
        self.wait();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.stdin(Stdio::null());
        Self::serve(command, Arc::clone(&self.folder))
    }

    fn serve(mut command: Command, folder: Arc<TempDir>) -> Self {
        command.arg("serve").current_dir(folder.path()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let (sender, log) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if std::env::var_os("WEIR_SHOW_LOG").is_some() {
                    eprintln!("{line}");
                }
                let _ = sender.send(line);
            }
        });
        let address = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut gateway = Self { child, address, log, folder };
        let ready = gateway.wait_for_log("\"ready\"");
        let endpoint = Object::parse(ready).expect("a line of JSON");
        let endpoint = endpoint.get_string("endpoint").expect("an endpoint");
        let host = endpoint.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/mcp"));
        gateway.address = host.expect("a URL").parse().expect("an address");
        gateway
    }

    /// Waits for a log line with this text.
    pub(crate) fn wait_for_log(&self, text: &str) -> String {
        let begin = Instant::now();
        let mut lines = Vec::new();
        loop {
            let left = PATIENCE.saturating_sub(begin.elapsed());
            match self.log.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => lines.push(line),
                Err(_) => panic!("{text} is not logged: {lines:#?}"),
            }
        }
    }

    /// Waits until the log's pipe is closed: the process and its successors have ended.
    pub(crate) fn wait_for_all(&self) {
        let begin = Instant::now();
        while self.log.recv_timeout(PATIENCE.saturating_sub(begin.elapsed())).is_ok() {}
        assert!(begin.elapsed() < PATIENCE, "a process still runs");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits for the exit of the process.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "it has not ended");
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Figure of a process from `/proc/PID/status`, in KiB.
pub(crate) fn kib_of(process: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Processor time of a process.
pub(crate) fn cpu_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let fields = stat.rsplit_once(") ").expect("a name").1.split(' ').collect::<Vec<_>>();
    let ticks: u64 =
        fields[11].parse::<u64>().expect("user") + fields[12].parse::<u64>().expect("system");
    Duration::from_millis(ticks * 10)
}
