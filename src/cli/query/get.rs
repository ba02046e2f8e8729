//! `weir get`: one prompt, filled in.

use crate::cli::exit::Failure;
use crate::cli::query::arguments::{Takes, pair};
use crate::cli::query::oneshot::{AskArgs, House};
use crate::cli::query::render;
use crate::cli::query::request::ask;
use crate::cli::query::required_upstreams::Wanted;
use crate::json::{self, Object};
use crate::mcp::call::Method;
use crate::mcp::kind::Kind;

/// What `weir get` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The prompt's name, as `weir list` shows it.
    #[arg(value_hint = clap::ValueHint::Other)]
    name: String,
    /// The prompt's arguments, which are texts.
    #[arg(value_name = "ARGUMENT=VALUE", value_parser = pair, value_hint = clap::ValueHint::Other)]
    arguments: Vec<(String, String)>,
    #[command(flatten)]
    ask: AskArgs,
}

/// Gets the prompt and prints its messages.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    House::visit(&args.ask, Wanted::Item(Kind::Prompt, &args.name), async |house| {
        get(house, &args).await
    })
    .await
}

async fn get(house: &House, args: &Args) -> Result<(), Failure> {
    let target = house.find(Kind::Prompt, &args.name)?;
    let takes = Takes::of_prompt(&Object::parse(target.json.clone()).unwrap_or_default());
    takes.check(&args.name, args.arguments.iter().map(|(name, _)| name.as_str()))?;
    let mut arguments = Object::new();
    for (name, value) in &args.arguments {
        arguments.set(name.clone(), json::quote(value));
    }
    let mut params = Object::new();
    params.set("name", json::quote(&args.name));
    params.set("arguments", arguments.to_bytes());
    ask(house, Method::GetPrompt, params).await?.print(render::write_messages)
}
