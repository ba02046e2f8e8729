//! Waiting in tests without a runtime: for a condition, a process, and the other end of a pipe.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use super::PATIENCE;

/// Time between two looks at what a test waits for.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);

/// Pauses before the next look. Nothing wakes the thread earlier.
pub(crate) fn pause() {
    std::thread::park_timeout(PAUSE);
}

/// Blocks until a condition holds, and returns the time that it took.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "in vain: {what}");
        pause();
    }
    begin.elapsed()
}

/// Blocks until a process ends. One that does not end is killed, and fails the test.
pub(crate) fn wait_for_exit(process: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = process.try_wait().expect("it can be waited for") {
            return status;
        }
        if begin.elapsed() > PATIENCE {
            let _ = process.kill();
            panic!("process {} does not end", process.id());
        }
        pause();
    }
}

/// Creates a named pipe, by which a script tells a test how far it is, or waits for the test.
pub(crate) fn make_pipe(path: &Path) {
    let made = Command::new("mkfifo").args(["-m", "600"]).arg(path).status();
    assert!(made.expect("mkfifo runs").success());
}

/// Blocks until a script has written into a named pipe and closed it, and returns the text.
pub(crate) fn read_pipe(path: PathBuf) -> String {
    with_other_end(path, |path| std::fs::read_to_string(path).expect("text"))
}

/// Blocks until a script reads from a named pipe, and writes a line.
pub(crate) fn write_pipe(path: PathBuf) {
    with_other_end(path, |path| std::fs::write(path, "go\n").expect("written"));
}

/// Opens a named pipe, which waits for its other end, in a thread: a script that never comes fails
/// the test.
fn with_other_end<T: Send + 'static>(path: PathBuf, open: fn(&Path) -> T) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    let name = path.display().to_string();
    std::thread::spawn(move || sender.send(open(&path)));
    receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no other end of {name}"))
}
