//! `weir get`: one prompt, filled in.

use super::arguments::{Takes, pair};
use super::ask::ask;
use super::failure::Failure;
use super::house::{AskArgs, House};
use super::needed::Wanted;
use super::{content, log, output};
use crate::json::{self, Object};
use crate::mcp::call::Method;
use crate::mcp::kind::Kind;

/// What `weir get` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The prompt's name, as `weir list` shows it.
    name: String,
    /// The prompt's arguments, which are texts.
    #[arg(value_name = "ARGUMENT=VALUE", value_parser = pair)]
    arguments: Vec<(String, String)>,
    #[command(flatten)]
    ask: AskArgs,
}

/// Gets the prompt and prints its messages.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    log::start_quietly();
    let house = House::open(&args.ask, Wanted::Item(Kind::Prompt, &args.name)).await?;
    let done = get(&house, &args).await;
    house.close().await;
    done
}

async fn get(house: &House, args: &Args) -> Result<(), Failure> {
    let target = house.find(Kind::Prompt, &args.name)?;
    let takes = Takes::of_prompt(&Object::parse(target.json.clone()).unwrap_or_default());
    takes.check(&args.name, args.arguments.iter().map(|(name, _)| name.as_str()))?;
    let mut arguments = Object::new();
    for (name, value) in &args.arguments {
        arguments.set(name, json::quote(value));
    }
    let mut params = Object::new();
    params.set("name", json::quote(&args.name));
    params.set("arguments", arguments.to_bytes());
    let answer = ask(house, Method::GetPrompt, params).await?;
    output::print(|out| match args.ask.json {
        true => writeln!(out, "{}", String::from_utf8_lossy(&answer.text)),
        false => content::write_messages(out, &answer.result, output::is_terminal()),
    })
}
