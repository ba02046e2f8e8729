//! Lines that a program writes into a pipe, read by a thread.
//!
//! The thread reads whatever the test does, so that the pipe never fills. A line that does not come
//! fails the test when its patience is over; it does not block the test for ever.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::Value;

use super::PATIENCE;
use super::blocking::{PAUSE, pause};

/// Lines of a pipe. Each line that a test waits for comes after the one that it waited for before.
pub(crate) struct Lines {
    kept: Arc<Mutex<Kept>>,
    /// Number of lines up to the last one that was waited for.
    passed: usize,
}

#[derive(Default)]
struct Kept {
    lines: Vec<String>,
    /// Whether the pipe is closed on its other side.
    is_over: bool,
}

impl Lines {
    /// Starts to read. With `WEIR_SHOW_LOG` set, each line is printed as well.
    pub(crate) fn of(pipe: impl Read + Send + 'static) -> Self {
        let kept = Arc::new(Mutex::new(Kept::default()));
        let reading = Arc::clone(&kept);
        std::thread::spawn(move || {
            let is_shown = std::env::var_os("WEIR_SHOW_LOG").is_some();
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                if is_shown {
                    eprintln!("{line}");
                }
                reading.lock().expect("the lock is not poisoned").lines.push(line);
            }
            reading.lock().expect("the lock is not poisoned").is_over = true;
        });
        Self { kept, passed: 0 }
    }

    /// All lines so far.
    pub(crate) fn all(&self) -> Vec<String> {
        self.kept.lock().expect("the lock is not poisoned").lines.clone()
    }

    /// Result of the first line so far that has one.
    pub(crate) fn find_map<T>(&self, of_line: impl FnMut(&String) -> Option<T>) -> Option<T> {
        self.kept.lock().expect("the lock is not poisoned").lines.iter().find_map(of_line)
    }

    /// Blocks until the next line with this text.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let [line] = self.wait_for_each([text]);
        line
    }

    /// Blocks until there is a further line for each of these texts, in any order: tasks of Weir
    /// log at the same time. No line counts for two texts.
    pub(crate) fn wait_for_each<const N: usize>(&mut self, texts: [&str; N]) -> [String; N] {
        let begin = Instant::now();
        loop {
            if let Some(found) = self.next(texts, begin) {
                return found;
            }
            pause();
        }
    }

    /// Waits for the next line with this text.
    pub(crate) async fn line(&mut self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            if let Some([found]) = self.next([text], begin) {
                return found;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits for a log line with this message about this upstream; earlier lines count.
    pub(crate) async fn logged(&mut self, message: &str, upstream: &str) -> Value {
        self.about(0, message, upstream).await
    }

    /// Waits for a further log line with this message about this upstream.
    pub(crate) async fn logs(&mut self, message: &str, upstream: &str) -> Value {
        self.about(self.passed, message, upstream).await
    }

    async fn about(&mut self, from: usize, message: &str, upstream: &str) -> Value {
        let begin = Instant::now();
        // Lines of other programs are null.
        let is_so = |line: &Value| line["message"] == message && line["upstream"] == upstream;
        let mut looked_at = from;
        loop {
            let lines = self.all();
            for (number, line) in lines.iter().enumerate().skip(looked_at) {
                let line = serde_json::from_str(line).unwrap_or_default();
                if is_so(&line) {
                    self.passed = self.passed.max(number + 1);
                    return line;
                }
            }
            looked_at = lines.len();
            let in_vain = || format!("no '{message}' about {upstream}:\n{}", lines.join("\n"));
            assert!(begin.elapsed() < PATIENCE, "{}", in_vain());
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Blocks until the pipe is closed by all processes that have it, and returns all lines.
    pub(crate) fn wait_for_end(&self) -> Vec<String> {
        super::wait_until("the pipe is closed", || {
            self.kept.lock().expect("the lock is not poisoned").is_over
        });
        self.all()
    }

    /// Waits until the pipe is closed by all processes that have it, and returns all lines.
    pub(crate) async fn end(&self) -> Vec<String> {
        let begin = Instant::now();
        while !self.kept.lock().expect("the lock is not poisoned").is_over {
            assert!(begin.elapsed() < PATIENCE, "it goes on:\n{}", self.all().join("\n"));
            tokio::time::sleep(PAUSE).await;
        }
        self.all()
    }

    /// Returns a further line for each of these texts if all are there. Fails if they cannot come
    /// any more, or have not come since `begin`.
    fn next<const N: usize>(&mut self, texts: [&str; N], begin: Instant) -> Option<[String; N]> {
        let kept = self.kept.lock().expect("the lock is not poisoned");
        let mut found = texts.map(|_| None);
        for (number, line) in kept.lines.iter().enumerate().skip(self.passed) {
            let is_for = |at: &usize| found[*at].is_none() && line.contains(texts[*at]);
            if let Some(at) = (0..N).find(is_for) {
                found[at] = Some(line.clone());
            }
            if found.iter().all(Option::is_some) {
                self.passed = number + 1;
                return Some(found.map(|line| line.expect("each is found")));
            }
        }
        let is_in_vain = kept.is_over || begin.elapsed() > PATIENCE;
        let lines = || kept.lines[self.passed..].join("\n");
        assert!(!is_in_vain, "{texts:?} are not written, but {found:?} of:\n{}", lines());
        None
    }
}
