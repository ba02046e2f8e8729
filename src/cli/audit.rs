//! `weir audit`: shows and verifies the audit log.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::exit::Failure;
use super::output;
use crate::app::App;
use crate::cli::instance::status::connect;
use crate::cli::loading::{ConfigArgs, ReportArgs, options};
use crate::cli::output::render::{counted, sanitize_line};
use crate::cli::reference::help;
use weir_base::files::regular_file;
use weir_base::json::{self, Object};
use weir_record::audit::log_files;
use weir_record::audit::verify::{self, VerifyError, VerifyReport};

/// Subcommands of `weir audit`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum AuditCommand {
    /// Verifies that no line was changed, removed, inserted or moved.
    #[command(after_help = help::AUDIT_VERIFY)]
    Verify(VerifyArgs),
    /// Shows the last lines.
    #[command(after_help = help::AUDIT_TAIL)]
    Tail(TailArgs),
}

/// Arguments of `weir audit verify`.
#[derive(Debug, clap::Args)]
pub(super) struct VerifyArgs {
    /// Files that follow each other, in any order; default: those of the configuration.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    report: ReportArgs,
}

/// Arguments of `weir audit tail`.
#[derive(Debug, clap::Args)]
pub(super) struct TailArgs {
    /// Continues with lines that are written from now on.
    #[arg(long, short)]
    follow: bool,
    /// Number of lines to show first.
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 20)]
    lines: usize,
    /// Shows only requests of this client.
    #[arg(long, value_name = "CLIENT", value_hint = clap::ValueHint::Other)]
    client: Option<String>,
    /// Prints the lines unchanged.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) async fn run(command: AuditCommand) -> Result<(), Failure> {
    match command {
        AuditCommand::Verify(args) => check(args).await,
        AuditCommand::Tail(args) => tail(args).await,
    }
}

// === Verify ===

async fn check(args: VerifyArgs) -> Result<(), Failure> {
    let chains = match args.files.is_empty() {
        true => logs(&args.report.config).await?,
        false => vec![verify::in_order(&args.files).map_err(verify_failure)?],
    };
    for files in chains {
        let report = verify::verify(&files).map_err(verify_failure)?;
        let file = files.last().map(|newest| newest.display().to_string()).unwrap_or_default();
        let log = VerifiedLog { file, files: files.len() as u64, report };
        output::print_report(args.report.json, &log, |out| writeln!(out, "{}", log.describe()))?;
    }
    Ok(())
}

fn verify_failure(error: VerifyError) -> Failure {
    match error {
        VerifyError::Broken { .. } => {
            Failure::ErrorResponse(format!("the audit log is not intact: {error}"))
        }
        VerifyError::Unreadable { .. } => Failure::Usage(error.to_string()),
    }
}

/// Audit log that is intact.
#[derive(Serialize)]
struct VerifiedLog {
    /// Newest file.
    file: String,
    /// Number of files.
    files: u64,
    #[serde(flatten)]
    report: VerifyReport,
}

impl VerifiedLog {
    fn describe(&self) -> String {
        let Self { file, files, report } = self;
        let (files, lines) = (counted(*files, "file"), counted(report.lines, "line"));
        let mut text = format!("{file}: intact; {files}, {lines}");
        if report.lines > 0 {
            text += &format!(" ({} to {})", report.first, report.last);
        }
        if report.first > 1 {
            text += "; older lines are missing";
        }
        for (count, one, many) in [
            (report.torn, "line was torn by a crash", "lines were torn by a crash"),
            (report.lost, "record could not be written", "records could not be written"),
            (report.unchained, "line carries no hash", "lines carry no hash"),
        ] {
            if count > 0 {
                text += &format!("; {count} {}", if count == 1 { one } else { many });
            }
        }
        text + "\nits last hash: " + &report.last_hash
    }
}

/// Audit logs of a configuration, each with its oldest file first.
async fn logs(args: &ConfigArgs) -> Result<Vec<Vec<PathBuf>>, Failure> {
    let path = find_log_path(args).await?;
    let logs = log_files(&path);
    match logs.is_empty() {
        true => Err(Failure::Usage(format!("there is no audit log at {}", path.display()))),
        false => Ok(logs),
    }
}

async fn find_log_path(args: &ConfigArgs) -> Result<PathBuf, Failure> {
    let mut options = options(true);
    // No upstream is needed to find the log.
    options.only = Some(Vec::new());
    let path = match args.load(&options).await {
        Ok(loaded) => App::audit_log_path(&loaded.config).map_err(Failure::NoConfig)?,
        Err(mistakes @ Failure::Config(_)) => find_log_of_instance(args, &mistakes).await?,
        Err(failure) => return Err(failure),
    };
    path.ok_or_else(|| {
        Failure::NoConfig("the audit log of this configuration goes to standard output".to_owned())
    })
}

/// Finds the log of the running Weir, which the files describe no longer because of their mistakes.
async fn find_log_of_instance(
    args: &ConfigArgs,
    mistakes: &Failure,
) -> Result<Option<PathBuf>, Failure> {
    let status = connect(args).await?.status;
    let what = match &status.refused {
        Some(refused) => refused.describe(),
        None => format!("the file has a mistake, and the former one is active: {mistakes}"),
    };
    output::print_stderr(&format!("weir: {}", sanitize_line(&what)));
    let log = status.audit.ok_or_else(|| {
        Failure::Usage("the running Weir of this configuration has no audit log".to_owned())
    })?;
    Ok(log.path)
}

// === Tail ===

async fn tail(args: TailArgs) -> Result<(), Failure> {
    let path = find_log_path(&args.config).await?;
    let shows = |line: &str| {
        args.client.as_ref().is_none_or(|client| {
            let object = Object::parse(line.to_owned()).unwrap_or_default();
            object.get_string("client").is_some_and(|it| *it == **client)
        })
    };
    let print = |line: &str| {
        let text = if args.json { line.to_owned() } else { format_entry(line) };
        output::print(|out| writeln!(out, "{text}"))
    };
    if log_files(&path).is_empty() && !path.exists() && !args.follow {
        return Err(Failure::Usage(format!("there is no audit log at {}", path.display())));
    }
    let mut readers: Vec<LogTail> = Vec::new();
    open_new_logs(&path, &mut readers);
    let mut all = Vec::new();
    for reader in &mut readers {
        let mut last = VecDeque::new();
        reader.read(|line| {
            if shows(line) {
                last.push_back(line.to_owned());
                if last.len() > args.lines {
                    last.pop_front();
                }
            }
            Ok(())
        })?;
        all.extend(last);
    }
    if readers.len() > 1 {
        all.sort_by_cached_key(|line| {
            let object = Object::parse(line.clone()).unwrap_or_default();
            object.get_string("time").map(|time| time.into_owned())
        });
    }
    let first = all.len().saturating_sub(args.lines);
    all[first..].iter().try_for_each(|line| print(line))?;
    if !args.follow {
        return Ok(());
    }
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        open_new_logs(&path, &mut readers);
        for reader in &mut readers {
            reader.read(|line| if shows(line) { print(line) } else { Ok(()) })?;
        }
    }
}

/// Adds readers of the logs that other processes have begun: each process has one of its own.
fn open_new_logs(path: &Path, readers: &mut Vec<LogTail>) {
    let newest = log_files(path).into_iter().filter_map(|files| files.last().cloned());
    let current = newest.map(|file| {
        let is_rotated =
            file.extension().is_some_and(|it| it.as_encoded_bytes().iter().all(u8::is_ascii_digit));
        if is_rotated { file.with_extension("") } else { file }
    });
    for path in std::iter::once(path.to_owned()).chain(current) {
        if !readers.iter().any(|reader| reader.path == path) {
            readers.push(LogTail { path, file: None, rest: String::new() });
        }
    }
}

/// Reader of a log file that grows and is rotated.
struct LogTail {
    path: PathBuf,
    file: Option<(u64, BufReader<File>)>,
    /// Text after the last line break.
    rest: String,
}

impl LogTail {
    /// Passes each new complete line to `take`.
    fn read(&mut self, mut take: impl FnMut(&str) -> Result<(), Failure>) -> Result<(), Failure> {
        loop {
            let there = std::fs::metadata(&self.path).ok().map(|about| about.ino());
            if let Some((_, file)) = &mut self.file {
                while file.read_line(&mut self.rest).is_ok_and(|read| read > 0) {
                    if self.rest.ends_with('\n') {
                        take(self.rest.trim_end_matches('\n'))?;
                        self.rest.clear();
                    }
                }
            }
            let (Some(there), true) = (there, self.file.as_ref().map(|(ino, _)| *ino) != there)
            else {
                return Ok(());
            };
            // The file was rotated, and a new one has this path.
            let file = regular_file::open(&self.path).map_err(|error| {
                Failure::Usage(format!("{} cannot be read: {error}", self.path.display()))
            })?;
            self.rest.clear();
            self.file = Some((there, BufReader::new(file)));
        }
    }
}

/// Formats a line for people.
fn format_entry(line: &str) -> String {
    let Ok(object) = Object::parse(line.to_owned()) else { return sanitize_line(line) };
    let text = |member: &str| object.get_string(member).map(|text| sanitize_line(&text));
    let number = |member: &str| object.get(member).map(sanitize_line);
    let mut words = vec![text("time").unwrap_or_default()];
    match text("event").as_deref() {
        Some("request" | "admitted" | "begun") | None => {}
        Some(event @ ("sign_in" | "login" | "logout")) => {
            let upstream = text("upstream").unwrap_or_default();
            words.push(match event {
                "sign_in" => format!("sign-in to {upstream}"),
                event => format!("weir {event} {upstream}"),
            });
            words.extend([text("outcome"), text("reason")].into_iter().flatten());
            return words.join("  ");
        }
        Some(event @ ("config" | "keys" | "pins" | "upgrade")) => {
            let subject = text("client").or_else(|| text("upstream"));
            let subject = [text("action"), subject].into_iter().flatten();
            let subject = std::iter::once(event.to_owned()).chain(subject);
            words.push(subject.collect::<Vec<_>>().join(" "));
            let by = text("by").map(|by| format!("by {by}"));
            words.extend([by, text("outcome"), text("reason")].into_iter().flatten());
            let list = |member| object.get_elements(member).unwrap_or_default();
            let changes = list("changes").chain(list("after_restart"));
            let changes = changes.filter_map(|change| {
                let change = String::from_utf8_lossy(&change).into_owned();
                json::decode_string(&change).map(|text| sanitize_line(&text))
            });
            words.extend(changes);
            return words.join("  ");
        }
        Some(event) => {
            let detail = text("version").or_else(|| number("count")).or_else(|| text("reason"));
            words.push(format!("{event} {}", detail.unwrap_or_default()));
            return words.join("  ").trim_end().to_owned();
        }
    }
    words.push(text("client").or_else(|| text("from")).unwrap_or_else(|| "-".to_owned()));
    words.push(text("method").or_else(|| text("http")).unwrap_or_else(|| "-".to_owned()));
    words.extend(text("name"));
    let event = text("event").filter(|event| event != "request");
    let outcome = event.or_else(|| text("outcome")).unwrap_or_default();
    let decision = text("decision").filter(|decision| decision != "allowed");
    let code = number("code").or_else(|| number("status").filter(|status| status != "200"));
    let ended = [Some(outcome), decision, text("reason"), code].into_iter().flatten();
    words.push(ended.collect::<Vec<_>>().join(" "));
    words.extend(text("unverified_user").map(|user| format!("user {user} (not verified)")));
    words.extend(number("duration_ms").map(|time| format!("{time} ms")));
    words.join("  ")
}

/// Interval at which a followed file is read.
const LOOK_EVERY: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_shown_in_words() {
        for (line, expected) in [
            (
                r#"{"seq":2,"time":"T","event":"request","client":"ann","method":"tools/call","name":"hub__x","decision":"allowed","outcome":"ok","status":200,"duration_ms":1.250}"#,
                "T  ann  tools/call  hub__x  ok  1.250 ms",
            ),
            (
                r#"{"seq":3,"time":"T","event":"request","client":"ann","method":"tools/call","name":"y","decision":"denied","outcome":"refused","code":-32602,"status":200,"duration_ms":0.100}"#,
                "T  ann  tools/call  y  refused denied -32602  0.100 ms",
            ),
            (
                r#"{"seq":4,"time":"T","event":"request","from":"10.0.0.1","http":"POST","outcome":"refused","status":401,"duration_ms":0.100}"#,
                "T  10.0.0.1  POST  refused 401  0.100 ms",
            ),
            (
                r#"{"seq":4,"time":"T","event":"request","from":"10.0.0.1","http":"POST","reason":"exp","unverified_user":"bob","outcome":"refused","status":401,"duration_ms":0.100}"#,
                "T  10.0.0.1  POST  refused exp 401  user bob (not verified)  0.100 ms",
            ),
            (
                r#"{"seq":5,"time":"T","event":"begun","client":"ann","http":"GET"}"#,
                "T  ann  GET  begun",
            ),
            (r#"{"seq":6,"time":"T","event":"lost","count":3}"#, "T  lost 3"),
            (
                r#"{"seq":7,"time":"T","event":"sign_in","upstream":"hub","outcome":"error","reason":"no"}"#,
                "T  sign-in to hub  error  no",
            ),
            ("torn", "torn"),
        ] {
            assert_eq!(format_entry(line), expected);
        }
    }
}
