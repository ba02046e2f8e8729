//! `weir list`: what clients see.

use std::io::Write;

use clap::ValueEnum;

use crate::cli::exit::Failure;
use crate::cli::output;
use crate::cli::query::oneshot::{AskArgs, House};
use crate::cli::query::render::{plain, shown_json};
use crate::cli::query::required_upstreams::Wanted;
use crate::json::{self, Object};
use crate::mcp::definition::downgrade::Form;
use crate::mcp::kind::Kind;
use crate::policy::limits::Permit;

/// What `weir list` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to list.
    #[arg(value_enum, default_value = "prompts")]
    kind: Listed,
    /// Starts and lists this upstream only; may be given several times.
    #[arg(long, value_name = "NAME", value_hint = clap::ValueHint::Other)]
    upstream: Vec<String>,
    #[command(flatten)]
    ask: AskArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Listed {
    Prompts,
    Tools,
    Resources,
    Templates,
}

impl From<Listed> for Kind {
    fn from(listed: Listed) -> Self {
        match listed {
            Listed::Prompts => Self::Prompt,
            Listed::Tools => Self::Tool,
            Listed::Resources => Self::Resource,
            Listed::Templates => Self::Template,
        }
    }
}

/// Lists a kind through all pages.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    House::visit(&args.ask, Wanted::Of(&args.upstream), async |house| print(house, &args).await)
        .await
}

async fn print(house: &House, args: &Args) -> Result<(), Failure> {
    let kind = Kind::from(args.kind);
    let items = list(house, kind).await?;
    output::print(|out| match args.ask.json {
        true => write_json(out, kind, &items),
        false => write_table(out, kind, &items),
    })?;
    match house.unlisted(house.guest(), kind) {
        None => Ok(()),
        Some(unlisted) => Err(Failure::Unreachable(format!("the list is not whole: {unlisted}"))),
    }
}

async fn list(house: &House, kind: Kind) -> Result<Vec<Object>, Failure> {
    let mut items = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page =
            house.guest().list(&Permit::unlimited(), kind, cursor.as_deref(), Form::Newest).await;
        let page = page.map_err(|fault| Failure::Answered(fault.to_string()))?;
        let elements = json::elements(&page.items).unwrap_or_default();
        items.extend(elements.filter_map(|element| Object::parse(element).ok()));
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(items);
        }
    }
}

fn write_json(out: &mut dyn Write, kind: Kind, items: &[Object]) -> std::io::Result<()> {
    let items: Vec<_> = items.iter().map(Object::to_bytes).collect();
    let items = items.join(&b","[..]);
    let items = String::from_utf8_lossy(&items);
    let items = shown_json(&items, output::is_terminal());
    writeln!(out, "{{\"{}\":[{items}]}}", kind.list_member())
}

fn write_table(out: &mut dyn Write, kind: Kind, items: &[Object]) -> std::io::Result<()> {
    let key = |item: &Object| item.get_string(kind.key_member()).unwrap_or_default().into_owned();
    let width = items.iter().map(|item| key(item).chars().count()).max().unwrap_or(0);
    for item in items {
        let about =
            ["description", "title", "name"].iter().find_map(|member| item.get_string(member));
        let about = about.unwrap_or_default();
        let about = about.lines().next().unwrap_or_default();
        writeln!(out, "{:width$}  {}", plain(&key(item)), plain(about))?;
    }
    Ok(())
}

/// What a kind is called here.
pub(crate) fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Prompt => "prompts",
        Kind::Tool => "tools",
        Kind::Resource => "resources",
        Kind::Template => "templates",
    }
}
