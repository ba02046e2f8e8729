//! One command of a run: its log, its time, and the results of the tests that it prints.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time after which a step is ended: a test hangs.
const LIMIT: Duration = Duration::from_secs(40 * 60);

/// Time between two looks at a running command.
const PAUSE: Duration = Duration::from_millis(50);

/// Result of a step.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    /// Numbers of tests. A step that fails without a failed test counts as one failure, so that the
    /// sums and the exit status always agree.
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) time: Duration,
    /// Processor time of the command and its children, where the system tells it.
    pub(crate) processor: Option<Duration>,
    /// Time of each test.
    pub(crate) tests: Vec<(String, f64)>,
    /// Remark that the summary has instead of the numbers.
    pub(crate) remark: String,
}

impl Outcome {
    /// Result of a step that ran nothing.
    pub(crate) fn skipped(name: &str, remark: &str) -> Self {
        let (time, remark) = (Duration::ZERO, remark.to_owned());
        let (name, tests) = (name.to_owned(), Vec::new());
        Self { name, passed: 0, failed: 0, time, processor: None, tests, remark }
    }

    /// Adds the result of another command of the same step.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.time += other.time;
        self.processor = match (self.processor, other.processor) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        self.tests.extend(other.tests);
    }
}

/// Runs a command with its output in a log, prints one line, and on failure the part of the log
/// that says why.
pub(crate) fn run(name: &str, mut command: Command) -> Outcome {
    let begin = Instant::now();
    let mut outcome = Outcome::skipped(name, "");
    let path = log_path(name);
    let started = open_log(&path).and_then(|(out, err)| {
        if command.get_current_dir().is_none() {
            command.current_dir(crate::root());
        }
        command.stdin(Stdio::null()).stdout(out).stderr(err).spawn()
    });
    let succeeded = match started {
        Ok(child) => {
            let (succeeded, processor) = wait(child, begin);
            outcome.processor = processor;
            succeeded
        }
        Err(error) => {
            let _ = fs::write(&path, format!("{command:?}: {error}\n"));
            false
        }
    };
    let log = log(name);
    (outcome.passed, outcome.failed) = sums(&log);
    outcome.tests = times(&log);
    outcome.failed = outcome.failed.max(usize::from(!succeeded));
    outcome.time = begin.elapsed();
    eprintln!("dev: {}", crate::report::line(&outcome));
    if outcome.failed > 0 {
        eprintln!("{}\ndev: all of it is in {}", reason(&log), path.display());
    }
    outcome
}

/// Output of a step that has run.
pub(crate) fn log(name: &str) -> String {
    String::from_utf8_lossy(&fs::read(log_path(name)).unwrap_or_default()).into_owned()
}

/// Command of cargo; `CARGO` is set where cargo runs this program.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// Runs a command later than others if processors are few.
pub(crate) fn nice(command: &Command, niceness: &str) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", niceness]).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    nice
}

/// Removes the variables for proxies: tests talk to this machine only, and Weir would go through a
/// proxy for that.
pub(crate) fn without_proxies(command: &mut Command) -> &mut Command {
    for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]
    {
        command.env_remove(name);
    }
    command
}

/// Variable with the seed of the property tests, and its value by day. Cargo sets the same one for
/// what it runs: `.cargo/config.toml`.
pub(crate) const SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "1");

fn log_path(name: &str) -> PathBuf {
    crate::target().join("tests").join(format!("{}.log", name.replace([' ', '/'], "-")))
}

fn open_log(path: &PathBuf) -> std::io::Result<(File, File)> {
    fs::create_dir_all(path.parent().expect("it is in a folder"))?;
    let file = File::create(path)?;
    Ok((file.try_clone()?, file))
}

/// Waits for the end of a command; returns whether it succeeded, and its processor time. Ends it
/// after the limit.
fn wait(mut child: Child, begin: Instant) -> (bool, Option<Duration>) {
    let mut processor = None;
    loop {
        // Read before each look, because the last look removes the process.
        processor = processor_time(child.id()).or(processor);
        match child.try_wait() {
            Ok(Some(status)) => return (status.success(), processor),
            Ok(None) if begin.elapsed() < LIMIT => std::thread::sleep(PAUSE),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                eprintln!("dev: ended after {} minutes", LIMIT.as_secs() / 60);
                return (false, processor);
            }
        }
    }
}

/// Processor time of a process and of its children that have ended: fields 14 to 17 of
/// `/proc/PID/stat`, in hundredths of a second.
fn processor_time(process: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields = stat.rsplit_once(") ")?.1.split_whitespace().skip(11).take(4);
    let ticks = fields.map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Duration::from_millis(10 * ticks))
}

/// Numbers of passed and failed tests: of the test harness's lines, or of a closing line of this
/// program's own.
fn sums(log: &str) -> (usize, usize) {
    let number = |line: &str, word: &str| {
        let before = line.split_once(word)?.0;
        before.rsplit(' ').next()?.parse::<usize>().ok()
    };
    let results = log.lines().filter_map(|line| {
        let harness = line.strip_prefix("test result: ").map(|it| it.replace(';', ","));
        let line = harness.unwrap_or_else(|| format!("{line},"));
        Some((number(&line, " passed,")?, number(&line, " failed,")?))
    });
    results.fold((0, 0), |sums, result| (sums.0 + result.0, sums.1 + result.1))
}

/// Time of each test that passed, as the test harness reports it.
fn times(log: &str) -> Vec<(String, f64)> {
    let time = |line: &str| {
        let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let seconds = rest.rsplit_once('<')?.1.strip_suffix("s>")?.parse().ok()?;
        Some((name.to_owned(), seconds))
    };
    log.lines().filter_map(time).collect()
}

/// Part of a log that says why it failed: the outputs of failed tests, otherwise its end.
fn reason(log: &str) -> &str {
    if let Some(at) = log.find("\nfailures:\n") {
        return log[at..].trim();
    }
    let start = log.trim_end().rmatch_indices('\n').nth(60).map_or(0, |(at, _)| at);
    log[start..].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "running 2 tests\n\
        test a::b ... ok <0.125s>\n\
        test a::c ... FAILED <1.500s>\n\
        \n\
        failures:\n\
        \n\
        ---- a::c stdout ----\n\
        because\n\
        \n\
        test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 3 filtered out; finished in 1.5s\n";

    #[test]
    fn cargo_sets_the_same_seed() {
        let config = fs::read_to_string(crate::root().join(".cargo/config.toml")).expect("there");
        assert!(config.contains(&format!("{} = \"{}\"\n", SEED.0, SEED.1)), "{config}");
    }

    #[test]
    fn results_of_several_binaries_are_summed() {
        assert_eq!(sums(LOG), (1, 1));
        assert_eq!(sums(&format!("{LOG}{LOG}")), (2, 2));
        assert_eq!(sums("error: could not compile"), (0, 0));
        assert_eq!(sums("dev: all is in /tmp/log\n2209 passed, 3 failed\n"), (2209, 3));
    }

    #[test]
    fn times_are_read_with_the_names() {
        assert_eq!(times(LOG), [("a::b".to_owned(), 0.125), ("a::c".to_owned(), 1.5)]);
    }

    #[test]
    fn reason_is_what_failed_tests_print_and_otherwise_the_end() {
        assert!(reason(LOG).starts_with("failures:\n\n---- a::c stdout ----\nbecause"));
        assert_eq!(reason("error: could not compile\n"), "error: could not compile");
        let long: String = (0..100).map(|number| format!("line {number}\n")).collect();
        assert!(reason(&long).starts_with("line 39\n"), "{}", reason(&long));
    }

    #[test]
    fn a_command_that_fails_without_a_test_is_one_failure() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo broken >&2; exit 3"]);
        let outcome = run("xtask failing command", command);
        assert_eq!((outcome.passed, outcome.failed), (0, 1));
        let missing = run("xtask missing command", Command::new("/nonexistent/program"));
        assert_eq!((missing.passed, missing.failed), (0, 1));
    }
}
