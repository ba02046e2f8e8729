//! `weir get`: gets a prompt with its arguments filled in.

use crate::cli::exit::Failure;
use crate::cli::output::render;
use crate::cli::query::arguments::{AcceptedArguments, parse_pair};
use crate::cli::query::oneshot::{OneShotGateway, QueryArgs};
use crate::cli::query::request::send_request;
use crate::cli::query::required_upstreams::UpstreamSelection;
use crate::json::{self, Object};
use crate::mcp::call::Method;
use crate::mcp::kind::Kind;

/// Arguments of `weir get`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The prompt's name, as `weir list` shows it.
    #[arg(value_hint = clap::ValueHint::Other)]
    name: String,
    /// The prompt's arguments, which are texts.
    #[arg(value_name = "ARGUMENT=VALUE", value_parser = parse_pair)]
    #[arg(value_hint = clap::ValueHint::Other)]
    arguments: Vec<(String, String)>,
    #[command(flatten)]
    query: QueryArgs,
}

/// Gets the prompt and prints its messages.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    OneShotGateway::run(
        &args.query,
        UpstreamSelection::OwnersOf(Kind::Prompt, &args.name),
        async |oneshot| get(oneshot, &args).await,
    )
    .await
}

async fn get(oneshot: &OneShotGateway, args: &Args) -> Result<(), Failure> {
    let target = oneshot.find_item(Kind::Prompt, &args.name)?;
    let takes =
        AcceptedArguments::of_prompt(&Object::parse(target.json.clone()).unwrap_or_default());
    takes.check(&args.name, args.arguments.iter().map(|(name, _)| name.as_str()))?;
    let mut arguments = Object::new();
    for (name, value) in &args.arguments {
        arguments.set(name.clone(), json::quote(value));
    }
    let mut params = Object::new();
    params.set("name", json::quote(&args.name));
    params.set("arguments", arguments.to_bytes());
    send_request(oneshot, Method::GetPrompt, params).await?.print(render::write_messages)
}
