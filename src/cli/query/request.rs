//! One ask of the command line: it goes out as from a client, and what comes back is a result or a
//! failure with its exit code.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io::{self, Write};

use bytes::Bytes;

use crate::cli::exit::Failure;
use crate::cli::output;
use crate::cli::query::oneshot::House;
use crate::cli::query::progress;
use crate::cli::query::render::{plain, shown_json};
use crate::gateway::{Fault, Went};
use crate::json::Object;
use crate::mcp::call::{Ask, Caller, Method, Outcome};
use crate::mcp::call_notifications::{Note, NoteStream, Notes};
use crate::mcp::code;
use crate::mcp::input_request::{Abilities, INPUT_REQUESTS, Question, Subject};
use crate::mcp::revision::Revision;
use crate::memory_budget::Allowance;
use crate::policy::limits::Permit;
use crate::upstream;

/// The largest result that is read.
const MAX_RESULT_BYTES: usize = 64 << 20;

/// What came of an ask.
pub(crate) struct Answer {
    /// The result as it came, on one line.
    text: Bytes,
    pub(crate) result: Object,
    json: bool,
}

impl Answer {
    /// Prints the result: as it came where JSON is wanted, else as `write` does it, which is told
    /// whether somebody looks.
    pub(crate) fn print(
        &self,
        write: fn(&mut dyn Write, &Object, bool) -> io::Result<()>,
    ) -> Result<(), Failure> {
        output::print(|out| match self.json {
            true => {
                let text = String::from_utf8_lossy(&self.text);
                writeln!(out, "{}", shown_json(&text, output::is_terminal()))
            }
            false => write(out, &self.result, output::is_terminal()),
        })
    }
}

/// Sends an ask and collects its result. Progress is shown where somebody looks.
pub(crate) async fn ask(house: &House, method: Method, params: Object) -> Result<Answer, Failure> {
    let ask = Ask::parse(method, params).map_err(|bad| Failure::Usage(bad.to_string()))?;
    let key = ask.key.clone();
    let (notes, heard) = match progress::is_shown(house.json()) {
        true => {
            let (notes, heard) = Notes::channel();
            (notes, Some(heard))
        }
        false => (Notes::unheard(), None),
    };
    let progress = RefCell::new(String::new());
    let caller = Caller { notes, ..Caller::plain(Revision::NEWEST) };
    let collect = async {
        let went = house.guest().ask(&Permit::unlimited(), ask, caller).await;
        let reply = match went.map_err(|fault| failure(house, &key, fault))? {
            Went::Replied(reply) => reply,
            Went::Asks(asked) => return Err(question(&key, asked.questions().first())),
        };
        match reply.outcome {
            Outcome::Error(error) => Err(refused(&key, error)),
            Outcome::Result(body) => {
                let text = body.collect(&Allowance::alone(MAX_RESULT_BYTES)).await;
                text.map_err(|why| Failure::Unreachable(why.to_string()))
            }
        }
    };
    let work = async {
        tokio::select! {
            text = collect => text,
            never = listen(heard, &progress) => match never {},
        }
    };
    let about = || format!("{}{}", plain(&key), progress.borrow());
    let text = progress::watched(house.json(), about, work).await?;
    // What came through all the house's limits is not judged by its depth here.
    let result = Object::parse_within(text.clone(), usize::MAX).unwrap_or_default();
    match result.get_string("resultType").as_deref() {
        Some("input_required") => Err(question(&key, first_question(&result).as_ref())),
        _ => Ok(Answer { text, result, json: house.json() }),
    }
}

/// Keeps the last progress in words.
async fn listen(heard: Option<NoteStream>, progress: &RefCell<String>) -> Infallible {
    let Some(mut heard) = heard else { return std::future::pending().await };
    loop {
        let Note::Progress(note) = heard.next().await else { continue };
        let of = note.get("total").map(|total| format!("/{total}")).unwrap_or_default();
        let at = note.get("progress").unwrap_or_default();
        let message = note.get_string("message").unwrap_or_default();
        *progress.borrow_mut() = plain(&format!(": {at}{of} {message}"));
    }
}

fn failure(house: &House, key: &str, fault: Fault) -> Failure {
    match fault {
        // It was there a moment ago.
        Fault::NoSuchItem { kind, key } => match house.find(kind, &key) {
            Err(failure) => failure,
            Ok(_) => Failure::Unreachable(format!("the {kind} `{key}` comes and goes")),
        },
        Fault::Upstream { cause: upstream::Error::Undeclared(lacking), .. } => {
            unanswerable(key, wanted(lacking))
        }
        Fault::Upstream { upstream, cause } => {
            Failure::Unreachable(format!("upstream `{upstream}`: {}", plain(&cause.to_string())))
        }
        Fault::Refused { upstream, found } => Failure::Answered(format!(
            "{key}: the guard refuses the reply of `{upstream}`: {found}"
        )),
        Fault::Request(text) => Failure::Usage(text),
        fault @ Fault::TaskIdTooLong { .. } => Failure::Answered(format!("{key}: {fault}")),
        Fault::NoSuchTask => Failure::Usage("there is no such task".to_owned()),
        Fault::Unrecorded => Failure::Unreachable("the request cannot be recorded".to_owned()),
        Fault::TooBusy { .. } | Fault::TooManyWaiting => {
            Failure::Unreachable("too busy".to_owned())
        }
    }
}

/// An upstream's error object, in words.
fn refused(key: &str, error: Bytes) -> Failure {
    let error = Object::parse_within(error, usize::MAX).unwrap_or_default();
    let message = plain(&error.get_string("message").unwrap_or_default());
    let code = error.get("code").and_then(|code| code.parse::<i64>().ok());
    let hint = match code {
        Some(code::MISSING_CLIENT_CAPABILITY) => {
            "; it wants to ask its client something, which the command line cannot answer"
        }
        _ => "",
    };
    Failure::Answered(format!("{key}: {message}{hint}"))
}

/// The upstream asks something back.
fn question(key: &str, question: Option<&Question>) -> Failure {
    let words = question.and_then(|question| question.params.get_string("message"));
    let words = words.map(|text| format!(" (\"{}\")", plain(&text))).unwrap_or_default();
    let what = match question.map(|question| question.subject) {
        Some(Subject::Sampling) => "for a text from its model",
        Some(Subject::Roots) => "for its folders",
        Some(Subject::Elicitation) | None => "something",
    };
    unanswerable(key, &format!("{what}{words}"))
}

/// What a question takes, in words.
fn wanted(lacking: Abilities) -> &'static str {
    match lacking {
        Abilities { sampling: true, .. } => "for a text from its model",
        Abilities { roots: true, .. } => "for its folders",
        Abilities { url: true, .. } => "to send its user to a URL",
        _ => "something",
    }
}

/// What a result asks first.
fn first_question(result: &Object) -> Option<Question> {
    let requests = result.get_object(INPUT_REQUESTS)?;
    let key = requests.keys().next()?;
    let request = requests.get_object(key)?;
    let subject = Subject::of_method(&request.get_string("method")?)?;
    Some(Question { key: key.into(), subject, params: request.get_object("params")? })
}

fn unanswerable(key: &str, what: &str) -> Failure {
    Failure::Answered(format!(
        "{key}: it asks its client {what}, which the command line cannot answer"
    ))
}
