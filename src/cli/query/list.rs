//! `weir list`: lists the items that a client sees.

use std::io::Write;

use crate::cli::exit::Failure;
use crate::cli::output;
use crate::cli::output::render::sanitize_line;
use crate::cli::query::oneshot::{OneShotGateway, QueryArgs, plural_kind};
use crate::cli::query::required_upstreams::UpstreamSelection;
use weir_base::json::{self, Object};
use weir_gateway::Admission;
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::kind::Kind;

/// Arguments of `weir list`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kind of the listed items.
    #[arg(value_parser = plural_kind(), default_value = "prompts")]
    kind: Kind,
    /// Starts and lists this upstream only; may be given several times.
    #[arg(long, value_name = "NAME", value_hint = clap::ValueHint::Other)]
    upstream: Vec<String>,
    #[command(flatten)]
    query: QueryArgs,
}

/// Lists all pages of a kind.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let (kind, selection) = (args.kind, UpstreamSelection::Named(&args.upstream));
    OneShotGateway::run(&args.query, selection, async |oneshot| {
        let items = list(oneshot, kind).await?;
        let json = oneshot.json.then(|| to_json(kind, &items));
        output::print_as(json.as_deref(), |out| write_table(out, kind, &items))?;
        match oneshot.describe_unlisted(&oneshot.client_context, kind) {
            None => Ok(()),
            Some(unlisted) => {
                Err(Failure::Unreachable(format!("the list is incomplete: {unlisted}")))
            }
        }
    })
    .await
}

async fn list(oneshot: &OneShotGateway, kind: Kind) -> Result<Vec<Object>, Failure> {
    let mut items = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let (admission, client) = (Admission::unlimited(), &oneshot.client_context);
        let page = admission.list(client, kind, cursor.as_deref(), DefinitionForm::Newest).await;
        let page = page.map_err(|fault| Failure::ErrorResponse(fault.to_string()))?;
        let elements = json::elements(&page.items).unwrap_or_default();
        items.extend(elements.filter_map(|element| Object::parse(element).ok()));
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(items);
        }
    }
}

fn to_json(kind: Kind, items: &[Object]) -> String {
    let items: Vec<_> = items.iter().map(Object::to_bytes).collect();
    let items = items.join(&b","[..]);
    format!("{{\"{}\":[{}]}}", kind.list_member(), String::from_utf8_lossy(&items))
}

fn write_table(out: &mut dyn Write, kind: Kind, items: &[Object]) -> std::io::Result<()> {
    let key = |item: &Object| item.get_string(kind.key_member()).unwrap_or_default().into_owned();
    let width = items.iter().map(|item| key(item).chars().count()).max().unwrap_or(0);
    for item in items {
        let about =
            ["description", "title", "name"].iter().find_map(|member| item.get_string(member));
        let about = about.unwrap_or_default();
        let about = about.lines().next().unwrap_or_default();
        writeln!(out, "{:width$}  {}", sanitize_line(&key(item)), sanitize_line(about))?;
    }
    Ok(())
}
