//! `weir read`: one resource, exactly as it is.

use crate::cli::exit::Failure;
use crate::cli::query::oneshot::{AskArgs, House};
use crate::cli::query::render;
use crate::cli::query::request::ask;
use crate::cli::query::required_upstreams::Wanted;
use crate::json::{self, Object};
use crate::mcp::call::Method;
use crate::mcp::kind::Kind;

/// What `weir read` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The resource's URI: one that `weir list resources` shows, or one that a template yields.
    #[arg(value_hint = clap::ValueHint::Other)]
    uri: String,
    #[command(flatten)]
    ask: AskArgs,
}

/// Reads the resource and writes its contents.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    House::visit(&args.ask, Wanted::Item(Kind::Resource, &args.uri), async |house| {
        read(house, &args).await
    })
    .await
}

async fn read(house: &House, args: &Args) -> Result<(), Failure> {
    house.find(Kind::Resource, &args.uri)?;
    let mut params = Object::new();
    params.set("uri", json::quote(&args.uri));
    let answer = ask(house, Method::ReadResource, params).await?;
    if !house.json() && !render::is_sound(&answer.result) {
        let text = format!("{}: a blob in the answer is not base64", args.uri);
        return Err(Failure::Answered(text));
    }
    answer.print(render::write_contents)
}
