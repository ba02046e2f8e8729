//! `weir read`: reads a resource, byte for byte.

use crate::cli::exit::Failure;
use crate::cli::output::render;
use crate::cli::query::oneshot::{OneShotGateway, QueryArgs};
use crate::cli::query::request::{object, send_request};
use crate::cli::query::required_upstreams::UpstreamSelection;
use weir_base::json;
use weir_mcp::call::Method;
use weir_mcp::kind::Kind;

/// Arguments of `weir read`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The resource's URI: one that `weir list resources` shows, or one that matches a template.
    #[arg(value_hint = clap::ValueHint::Other)]
    uri: String,
    #[command(flatten)]
    query: QueryArgs,
}

/// Reads the resource and writes its contents.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let selection = UpstreamSelection::OwnersOf(Kind::Resource, &args.uri);
    OneShotGateway::run(&args.query, selection, async |oneshot| {
        oneshot.find_item(Kind::Resource, &args.uri)?;
        let params = object([("uri", json::quote(&args.uri))]);
        let answer = send_request(oneshot, Method::ReadResource, params).await?;
        if !oneshot.json && !render::has_valid_blobs(&answer.result) {
            let text = format!("{}: a blob in the response is not base64", args.uri);
            return Err(Failure::ErrorResponse(text));
        }
        answer.print(render::write_contents)
    })
    .await
}
