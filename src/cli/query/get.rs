//! `weir get`: gets a prompt with its arguments filled in.

use crate::cli::exit::Failure;
use crate::cli::output::render;
use crate::cli::query::arguments::{AcceptedArguments, parse_pair};
use crate::cli::query::oneshot::{OneShotGateway, QueryArgs};
use crate::cli::query::request::{object, send_request, texts};
use crate::cli::query::required_upstreams::UpstreamSelection;
use weir_base::json;
use weir_mcp::call::Method;
use weir_mcp::kind::Kind;

/// Arguments of `weir get`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The prompt's name, as `weir list prompts` shows it, or UPSTREAM/NAME as in rules.
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
    let selection = UpstreamSelection::OwnersOf(Kind::Prompt, &args.name);
    OneShotGateway::run(&args.query, selection, async |oneshot| {
        let (name, prompt) = oneshot.find_definition(Kind::Prompt, &args.name)?;
        let takes = AcceptedArguments::of_prompt(&prompt);
        takes.check(&name, args.arguments.iter().map(|(name, _)| &**name), true)?;
        let arguments = texts(&args.arguments).to_bytes();
        let params = object([("name", json::quote(&name)), ("arguments", arguments)]);
        send_request(oneshot, Method::GetPrompt, params).await?.print(render::write_messages)
    })
    .await
}
