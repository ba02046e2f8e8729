//! `weir call`: one tool, called.

use std::io::Read;

use crate::cli::exit::Failure;
use crate::cli::query::arguments::{Given, Takes, given};
use crate::cli::query::oneshot::{AskArgs, House};
use crate::cli::query::render;
use crate::cli::query::request::ask;
use crate::cli::query::required_upstreams::Wanted;
use crate::json::{self, Object};
use crate::mcp::call::Method;
use crate::mcp::kind::Kind;

/// What `weir call` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tool's name, as `weir list tools` shows it.
    #[arg(value_hint = clap::ValueHint::Other)]
    name: String,
    /// The tool's arguments: a text of the type that the tool's schema names, or ARGUMENT:=JSON.
    ///
    /// Where it names no type, the value is JSON if it is a number, true, false, an object or an array, and
    /// else a text; where it names several, it is JSON if it is of one of them, else a text if that is one
    /// of them, else an error. `null` is a text wherever a text may stand.
    #[arg(value_name = "ARGUMENT=VALUE", value_parser = given, value_hint = clap::ValueHint::Other)]
    arguments: Vec<Given>,
    /// All arguments as a JSON object, as it is: written here, in a file (@FILE) or on standard input
    /// (-). Arguments that are given one by one are put into it.
    #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    args: Option<String>,
    #[command(flatten)]
    ask: AskArgs,
}

/// The largest object of arguments that is read, in bytes.
const MAX_ARGS_BYTES: u64 = 16 << 20;

/// Calls the tool and prints what it answers.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    // Before anything is started: it may take whoever types it a while, and it may be wrong.
    let object = match &args.args {
        Some(source) => Some(read_object(source).await?),
        None => None,
    };
    House::visit(&args.ask, Wanted::Item(Kind::Tool, &args.name), async |house| {
        call(house, &args, object).await
    })
    .await
}

async fn call(house: &House, args: &Args, object: Option<Object>) -> Result<(), Failure> {
    let target = house.find(Kind::Tool, &args.name)?;
    let takes = Takes::of_tool(&Object::parse(target.json.clone()).unwrap_or_default());
    if object.is_none() {
        takes.check(&args.name, args.arguments.iter().map(|given| given.name.as_str()))?;
    }
    let mut arguments = object.unwrap_or_default();
    for given in &args.arguments {
        arguments.set(given.name.to_string(), takes.value(&args.name, given)?);
    }
    let mut params = Object::new();
    params.set("name", json::quote(&args.name));
    params.set("arguments", arguments.to_bytes());
    let answer = ask(house, Method::CallTool, params).await?;
    answer.print(render::write_answer)?;
    match answer.result.get("isError") {
        Some("true") => Err(Failure::Answered(format!("{}: the tool failed", args.name))),
        _ => Ok(()),
    }
}

/// Reads the object that `--args` names.
async fn read_object(source: &str) -> Result<Object, Failure> {
    let wrong = |what: String| Failure::Usage(format!("--args: {what}"));
    let text = match (source, source.strip_prefix('@')) {
        ("-", _) => {
            let text = blocking(|| read(std::io::stdin())).await;
            text.map_err(|error| wrong(format!("standard input: {error}")))?
        }
        (_, Some(path)) => {
            let file = path.to_owned();
            let text = blocking(move || read(std::fs::File::open(file)?)).await;
            text.map_err(|error| wrong(format!("{path}: {error}")))?
        }
        _ => source.as_bytes().to_vec(),
    };
    if text.len() as u64 > MAX_ARGS_BYTES {
        return Err(wrong("more than 16 MiB".to_owned()));
    }
    Object::parse(json::on_one_line(text.into())).map_err(|bad| wrong(bad.to_string()))
}

/// Reads on a thread of its own: a pipe may take as long as it likes, and Ctrl-C still counts.
async fn blocking(
    read: impl FnOnce() -> std::io::Result<Vec<u8>> + Send + 'static,
) -> std::io::Result<Vec<u8>> {
    tokio::task::spawn_blocking(read)
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

fn read(source: impl Read) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    source.take(MAX_ARGS_BYTES + 1).read_to_end(&mut text)?;
    Ok(text)
}
