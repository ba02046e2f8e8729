//! `weir list`: what clients see.

use std::io::Write;

use clap::ValueEnum;

use super::failure::Failure;
use super::house::{ConfigArgs, House};
use crate::json::{self, Object};
use crate::mcp::kind::Kind;

/// What `weir list` takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to list.
    #[arg(value_enum, default_value = "prompts")]
    kind: Listed,
    /// Lists what this client sees, instead of all that its operator sees.
    #[arg(long = "as", value_name = "CLIENT")]
    client: Option<String>,
    /// Prints the definitions as JSON.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    config: ConfigArgs,
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
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    super::log::start_quietly();
    let house = House::open(&args.config, args.client.as_deref(), None).await?;
    let kind = Kind::from(args.kind);
    let listed = list(&house, kind).await;
    let missing = house.guest().view().missing(kind).to_vec();
    house.close().await;
    let items = listed?;
    let mut out = anstream::stdout().lock();
    // A reader that has seen enough closes the pipe; that is no failure.
    let _ = if args.json {
        write_json(&mut out, kind, &items)
    } else {
        write_table(&mut out, kind, &items)
    };
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(ToString::to_string).collect();
    Err(Failure::Unreachable(format!(
        "the list misses {}: run `weir check` to see why",
        names.join(", ")
    )))
}

async fn list(house: &House, kind: Kind) -> Result<Vec<Object>, Failure> {
    let mut items = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = house.guest().list(kind, cursor.as_deref()).await;
        let page = page.map_err(|fault| Failure::Answered(fault.to_string()))?;
        let array = [b"[", page.items.as_ref(), b"]"].concat().into();
        let elements = json::elements(&array).unwrap_or_default();
        items.extend(elements.into_iter().filter_map(|element| Object::parse(element).ok()));
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(items);
        }
    }
}

fn write_json(out: &mut impl Write, kind: Kind, items: &[Object]) -> std::io::Result<()> {
    let items: Vec<_> = items.iter().map(Object::to_bytes).collect();
    writeln!(
        out,
        "{{\"{}\":[{}]}}",
        kind.list_member(),
        String::from_utf8_lossy(&items.join(&b","[..]))
    )
}

fn write_table(out: &mut impl Write, kind: Kind, items: &[Object]) -> std::io::Result<()> {
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

/// Text of an upstream's, safe to be shown on a terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
