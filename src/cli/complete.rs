//! `weir complete`: how an argument of a prompt or of a resource template may go on.

use clap::ValueEnum;

use super::arguments::{Takes, pair};
use super::ask::ask;
use super::content::plain;
use super::failure::Failure;
use super::house::{AskArgs, House};
use super::needed::Wanted;
use super::{log, output};
use crate::json::{self, Object};
use crate::mcp::call::Method;
use crate::mcp::kind::Kind;

/// What `weir complete` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What the argument belongs to.
    #[arg(value_enum)]
    kind: Completed,
    /// The prompt's name, or the URI template, as `weir list` shows it.
    name: String,
    /// The argument to complete, and how it begins; nothing behind the = is a beginning, too.
    #[arg(value_name = "ARGUMENT=PREFIX", value_parser = pair)]
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
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    log::start_quietly();
    let kind = match args.kind {
        Completed::Prompt => Kind::Prompt,
        Completed::Template => Kind::Template,
    };
    let house = House::open(&args.ask, Wanted::Item(kind, &args.name)).await?;
    let done = complete(&house, &args, kind).await;
    house.close().await;
    done
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
    if args.ask.json {
        return output::print(|out| writeln!(out, "{}", String::from_utf8_lossy(&answer.text)));
    }
    let completion = answer.result.get_object("completion").unwrap_or_default();
    let values = completion.get_bytes("values").and_then(|values| json::elements(&values));
    let values = values.unwrap_or_default();
    output::print(|out| {
        values.iter().try_for_each(|value| {
            let value = String::from_utf8_lossy(value);
            writeln!(out, "{}", plain(&json::decode_string(&value).unwrap_or_default()))
        })
    })?;
    if completion.get("hasMore") == Some("true") {
        let of = completion.get("total").map(|total| format!(" of {total}")).unwrap_or_default();
        output::tell(&format!("weir: the first {}{of}; type more of it for others", values.len()));
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
        args.given.iter().for_each(|(name, value)| settled.set(name, json::quote(value)));
        let mut context = Object::new();
        context.set("arguments", settled.to_bytes());
        params.set("context", context.to_bytes());
    }
    params
}
