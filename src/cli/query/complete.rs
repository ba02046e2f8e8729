//! `weir complete`: how an argument of a prompt or of a resource template may go on.

use clap::ValueEnum;

use crate::cli::exit::Failure;
use crate::cli::output;
use crate::cli::query::arguments::{Takes, pair};
use crate::cli::query::oneshot::{AskArgs, House};
use crate::cli::query::render;
use crate::cli::query::request::ask;
use crate::cli::query::required_upstreams::Wanted;
use crate::json::{self, Object};
use crate::mcp::call::Method;
use crate::mcp::kind::Kind;

/// What `weir complete` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What the argument belongs to.
    #[arg(value_enum)]
    kind: Completed,
    /// The prompt's name, or the URI template, as `weir list` shows it.
    #[arg(value_hint = clap::ValueHint::Other)]
    name: String,
    /// The argument to complete, and how it begins; nothing behind the = is a beginning, too.
    #[arg(value_name = "ARGUMENT=PREFIX", value_parser = pair, value_hint = clap::ValueHint::Other)]
    argument: (String, String),
    /// Another argument that is settled already; may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    given: Vec<(String, String)>,
    #[command(flatten)]
    ask: AskArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Completed {
    Prompt,
    Template,
}

/// Asks for completions and prints them, a line each.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let kind = match args.kind {
        Completed::Prompt => Kind::Prompt,
        Completed::Template => Kind::Template,
    };
    House::visit(&args.ask, Wanted::Item(kind, &args.name), async |house| {
        complete(house, &args, kind).await
    })
    .await
}

async fn complete(house: &House, args: &Args, kind: Kind) -> Result<(), Failure> {
    let target = house.find(kind, &args.name)?;
    let (name, value) = &args.argument;
    if kind == Kind::Prompt {
        let takes = Takes::of_prompt(&Object::parse(target.json.clone()).unwrap_or_default());
        let given = args.given.iter().map(|(name, _)| name);
        takes.check_known(&args.name, given.chain([name]).map(String::as_str))?;
    }
    let answer = ask(house, Method::Complete, params(args, name, value)).await?;
    answer.print(render::write_values)?;
    let completion = answer.result.get_object("completion").unwrap_or_default();
    if completion.get("hasMore") == Some("true") && !house.json() {
        let of =
            completion.get("total").map(|total| format!(", {total} in all")).unwrap_or_default();
        output::tell(&format!("weir: there are more{of}: type more of the argument"));
    }
    Ok(())
}

fn params(args: &Args, name: &str, value: &str) -> Object {
    let mut reference = Object::new();
    let (kind, member) = match args.kind {
        Completed::Prompt => ("ref/prompt", "name"),
        Completed::Template => ("ref/resource", "uri"),
    };
    reference.set("type", json::quote(kind));
    reference.set(member, json::quote(&args.name));
    let mut argument = Object::new();
    argument.set("name", json::quote(name));
    argument.set("value", json::quote(value));
    let mut params = Object::new();
    params.set("ref", reference.to_bytes());
    params.set("argument", argument.to_bytes());
    if !args.given.is_empty() {
        let mut settled = Object::new();
        args.given.iter().for_each(|(name, value)| settled.set(name.clone(), json::quote(value)));
        let mut context = Object::new();
        context.set("arguments", settled.to_bytes());
        params.set("context", context.to_bytes());
    }
    params
}
