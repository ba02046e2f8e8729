//! `weir read`: one resource, exactly as it is.

use super::ask::ask;
use super::failure::Failure;
use super::house::{AskArgs, House};
use super::needed::Wanted;
use super::{content, log, output};
use crate::json::{self, Object};
use crate::mcp::call::Method;
use crate::mcp::kind::Kind;

/// What `weir read` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The resource's URI: one that `weir list resources` shows, or one that a template yields.
    uri: String,
    #[command(flatten)]
    ask: AskArgs,
}

/// Reads the resource and writes its contents.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    log::start_quietly();
    let house = House::open(&args.ask, Wanted::Item(Kind::Resource, &args.uri)).await?;
    let done = read(&house, &args).await;
    house.close().await;
    done
}

async fn read(house: &House, args: &Args) -> Result<(), Failure> {
    house.find(Kind::Resource, &args.uri)?;
    let mut params = Object::new();
    params.set("uri", json::quote(&args.uri));
    let answer = ask(house, Method::ReadResource, params).await?;
    if args.ask.json {
        return output::print(|out| writeln!(out, "{}", String::from_utf8_lossy(&answer.text)));
    }
    if !content::is_sound(&answer.result) {
        let text = format!("{}: a blob in the answer is not base64", args.uri);
        return Err(Failure::Answered(text));
    }
    output::print(|out| content::write_contents(out, &answer.result, output::is_terminal()))
}
