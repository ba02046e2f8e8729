//! `weir complete`: completes an argument of a prompt or of a resource template.

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::cli::exit::Failure;
use crate::cli::output;
use crate::cli::output::render;
use crate::cli::query::arguments::{AcceptedArguments, parse_pair};
use crate::cli::query::oneshot::{OneShotGateway, QueryArgs};
use crate::cli::query::request::{object, send_request, texts};
use crate::cli::query::required_upstreams::UpstreamSelection;
use weir_base::json::{self, Object};
use weir_mcp::call::Method;
use weir_mcp::kind::Kind;

/// Arguments of `weir complete`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kind of the item that the argument belongs to.
    #[arg(value_parser = kind_parser())]
    kind: Kind,
    /// The prompt's name, or the URI template, as `weir list` shows it; or UPSTREAM/NAME of a
    /// prompt.
    #[arg(value_hint = clap::ValueHint::Other)]
    name: String,
    /// The argument to complete, with the beginning of its value, which may be empty.
    #[arg(value_name = "ARGUMENT=PREFIX", value_parser = parse_pair)]
    #[arg(value_hint = clap::ValueHint::Other)]
    argument: (String, String),
    /// Another argument with its final value; may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    given: Vec<(String, String)>,
    #[command(flatten)]
    query: QueryArgs,
}

/// Parser of the kinds whose arguments can be completed.
fn kind_parser() -> impl TypedValueParser<Value = Kind> {
    let kinds = [Kind::Prompt, Kind::Template];
    PossibleValuesParser::new(kinds.map(Kind::json_name))
        .map(|name| if name == "prompt" { Kind::Prompt } else { Kind::Template })
}

/// Requests completions and prints them, one per line.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let selection = UpstreamSelection::OwnersOf(args.kind, &args.name);
    OneShotGateway::run(&args.query, selection, async |oneshot| complete(oneshot, &args).await)
        .await
}

async fn complete(oneshot: &OneShotGateway, args: &Args) -> Result<(), Failure> {
    let (key, definition) = oneshot.find_definition(args.kind, &args.name)?;
    let (name, value) = &args.argument;
    if args.kind == Kind::Prompt {
        let takes = AcceptedArguments::of_prompt(&definition);
        let given = args.given.iter().map(|(name, _)| name).chain([name]);
        takes.check(&key, given.map(String::as_str), false)?;
    }
    let answer = send_request(oneshot, Method::Complete, params(args, &key, name, value)).await?;
    answer.print(render::write_values)?;
    let completion = answer.result.get_object("completion").unwrap_or_default();
    if completion.get("hasMore") == Some("true") && !oneshot.json {
        let of =
            completion.get("total").map(|total| format!(", {total} in all")).unwrap_or_default();
        output::print_stderr(&format!("weir: there are more{of}: type more of the argument"));
    }
    Ok(())
}

fn params(args: &Args, key: &str, name: &str, value: &str) -> Object {
    let (kind, member) = match args.kind.has_name() {
        true => ("ref/prompt", "name"),
        false => ("ref/resource", "uri"),
    };
    let reference = object([("type", json::quote(kind)), (member, json::quote(key))]);
    let argument = object([("name", json::quote(name)), ("value", json::quote(value))]);
    let mut params = object([("ref", reference.to_bytes()), ("argument", argument.to_bytes())]);
    if !args.given.is_empty() {
        let context = object([("arguments", texts(&args.given).to_bytes())]);
        params.set("context", context.to_bytes());
    }
    params
}
