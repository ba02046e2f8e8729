//! `weir get`: one prompt, filled in.

use std::io::Write;

use bytes::Bytes;

use super::failure::Failure;
use super::house::{ConfigArgs, House};
use super::list::plain;
use crate::gateway::Fault;
use crate::json::{self, Object};
use crate::mcp::call::{Ask, Caller, Method, Outcome};
use crate::mcp::kind::Kind;
use crate::mcp::revision::Revision;

/// What `weir get` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The prompt's name, as `weir list` shows it.
    name: String,
    /// The prompt's arguments; quote a value with spaces: diff="a change".
    #[arg(value_name = "ARGUMENT=VALUE", value_parser = argument)]
    arguments: Vec<(String, String)>,
    /// Asks as this client, instead of as the operator, from whom nothing is hidden.
    #[arg(long = "as", value_name = "CLIENT")]
    client: Option<String>,
    /// Prints the result as JSON.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// The largest result that is read.
const MAX_RESULT_BYTES: usize = 64 << 20;

fn argument(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected ARGUMENT=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Gets the prompt and prints its messages.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    super::log::start_quietly();
    let house =
        House::open(&args.config, args.client.as_deref(), Some((Kind::Prompt, &args.name))).await?;
    let result = get(&house, &args).await;
    house.close().await;
    let result = result?;
    let mut out = anstream::stdout().lock();
    // A reader that has seen enough closes the pipe; that is no failure.
    let _ = if args.json {
        writeln!(out, "{}", String::from_utf8_lossy(&result))
    } else {
        write_messages(&mut out, &result)
    };
    Ok(())
}

async fn get(house: &House, args: &Args) -> Result<Bytes, Failure> {
    let mut arguments = Object::new();
    for (name, value) in &args.arguments {
        arguments.set(name, json::quote(value));
    }
    let mut params = Object::new();
    params.set("name", json::quote(&args.name));
    params.set("arguments", arguments.to_bytes());
    let ask =
        Ask::parse(Method::GetPrompt, params).map_err(|bad| Failure::Usage(bad.to_string()))?;
    let caller = Caller::plain(Revision::NEWEST);
    let reply = house.guest().ask(ask, caller).await.map_err(|fault| failure(house, fault))?;
    match reply.outcome {
        Outcome::Result(body) => {
            let broken =
                |broken: crate::mcp::call::Broken| Failure::Unreachable(broken.to_string());
            body.collect(MAX_RESULT_BYTES).await.map_err(broken)
        }
        Outcome::Error(error) => {
            let error = Object::parse(error).unwrap_or_default();
            let message = error.get_string("message").unwrap_or_default();
            Err(Failure::Answered(format!("{}: {}", args.name, plain(&message))))
        }
    }
}

fn failure(house: &House, fault: Fault) -> Failure {
    match fault {
        Fault::NoSuchItem { key, .. }
            if house.everything().view().resolve(Kind::Prompt, &key).is_some() =>
        {
            Failure::Denied(format!("the policy hides the prompt `{key}` from this client"))
        }
        Fault::NoSuchItem { key, .. } if !house.guest().view().missing(Kind::Prompt).is_empty() => {
            let view = house.guest().view();
            let names: Vec<_> =
                view.missing(Kind::Prompt).iter().map(ToString::to_string).collect();
            Failure::Unreachable(format!(
                "no prompt `{key}`, and the list misses {}: run `weir check` to see why",
                names.join(", ")
            ))
        }
        Fault::NoSuchItem { key, .. } => {
            let near = house.nearest(Kind::Prompt, &key);
            let hint = near.map_or_else(
                || "`weir list` shows what there is".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            Failure::Usage(format!("no prompt `{key}`; {hint}"))
        }
        Fault::Upstream { upstream, cause } => {
            Failure::Unreachable(format!("upstream `{upstream}`: {cause}"))
        }
        Fault::Request(text) => Failure::Usage(text),
        Fault::TooBusy { .. } => Failure::Unreachable("too busy".to_owned()),
    }
}

fn write_messages(out: &mut impl Write, result: &Bytes) -> std::io::Result<()> {
    let result = Object::parse_within(result.clone(), usize::MAX).unwrap_or_default();
    let messages = result.get_bytes("messages").and_then(|messages| json::elements(&messages));
    for (at, message) in messages.unwrap_or_default().into_iter().enumerate() {
        let message = Object::parse_within(message, usize::MAX).unwrap_or_default();
        let content = message.get_object("content").unwrap_or_default();
        let text = content.get_string("text").map_or_else(
            || format!("({})", plain(&content.get_string("type").unwrap_or_default())),
            |text| text.lines().map(plain).collect::<Vec<_>>().join("\n"),
        );
        if at > 0 {
            writeln!(out)?;
        }
        writeln!(out, "[{}]\n{text}", plain(&message.get_string("role").unwrap_or_default()))?;
    }
    Ok(())
}
