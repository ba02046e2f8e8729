//! `weir call`: calls a tool.

use std::io::Read;

use crate::cli::exit::Failure;
use crate::cli::output::render;
use crate::cli::query::arguments::{AcceptedArguments, TypedArgument, parse_argument};
use crate::cli::query::oneshot::{OneShotGateway, QueryArgs};
use crate::cli::query::request::{object, send_request};
use crate::cli::query::required_upstreams::UpstreamSelection;
use weir_base::json::{self, Object};
use weir_mcp::call::{Method, has_content};
use weir_mcp::kind::Kind;

/// Arguments of `weir call`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tool's name, as `weir list tools` shows it, or UPSTREAM/NAME as in rules.
    #[arg(value_hint = clap::ValueHint::Other)]
    name: String,
    /// The tool's arguments: text of the type in the tool's schema, or ARGUMENT:=JSON.
    ///
    /// If the schema has no type, the value is JSON if it is a number, true, false, an object or an
    /// array, and otherwise a string; if it has several, the value is JSON if it is of one of them,
    /// else a string if that is one of them, else an error. `null` is a string wherever a string is
    /// allowed.
    #[arg(value_name = "ARGUMENT=VALUE", value_parser = parse_argument)]
    #[arg(value_hint = clap::ValueHint::Other)]
    arguments: Vec<TypedArgument>,
    /// All arguments as a JSON object, unchanged: written here, in a file (@FILE) or on standard
    /// input (-). Arguments that are given one by one are added to it.
    #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    args: Option<String>,
    #[command(flatten)]
    query: QueryArgs,
}

/// Largest object of arguments that is read, in bytes.
const MAX_ARGS_BYTES: u64 = 16 << 20;

/// Calls the tool and prints its result.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    // Read before anything is started: typing it may take a while, and it may be invalid.
    let given = match &args.args {
        Some(source) => Some(read_object(source).await?),
        None => None,
    };
    let selection = UpstreamSelection::OwnersOf(Kind::Tool, &args.name);
    OneShotGateway::run(&args.query, selection, async |oneshot| call(oneshot, &args, given).await)
        .await
}

async fn call(oneshot: &OneShotGateway, args: &Args, given: Option<Object>) -> Result<(), Failure> {
    let (name, tool) = oneshot.find_definition(Kind::Tool, &args.name)?;
    let takes = AcceptedArguments::of_tool(&tool);
    if given.is_none() {
        takes.check(&name, args.arguments.iter().map(|given| &*given.name), true)?;
    }
    let mut arguments = given.unwrap_or_default();
    for given in &args.arguments {
        arguments.set(given.name.to_string(), takes.value(&name, given)?);
    }
    let params = object([("name", json::quote(&name)), ("arguments", arguments.to_bytes())]);
    let answer = send_request(oneshot, Method::CallTool, params).await?;
    // Structured content alone can be printed.
    if !has_content(&answer.result) && !answer.result.has("structuredContent") {
        answer.print_unchanged()?;
        return Err(Failure::ErrorResponse(format!(
            "{name}: the result has no `content`, which each result of a tool must have: it is \
             printed as the server sent it"
        )));
    }
    answer.print(render::write_tool_result)?;
    match answer.result.get("isError") {
        Some("true") => Err(Failure::ErrorResponse(format!("{name}: the tool failed"))),
        _ => Ok(()),
    }
}

/// Reads the object of `--args`.
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

/// Reads on a blocking thread: a pipe may block for any time, and Ctrl-C must still work.
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
