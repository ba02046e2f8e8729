//! `weir list`: lists the items that a client sees.

use crate::cli::exit::Failure;
use crate::cli::output;
use crate::cli::output::render::{counted, sanitize_line};
use crate::cli::output::wrapped_text::WrappedText;
use crate::cli::query::oneshot::{OneShotGateway, QueryArgs, kind_argument, plural_kind};
use crate::cli::query::required_upstreams::UpstreamSelection;
use weir_access::catalog::RoleView;
use weir_base::json::{self, Object};
use weir_gateway::Admission;
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::kind::Kind;

/// Arguments of `weir list`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kind of the listed items; without it, all kinds.
    #[arg(value_parser = plural_kind())]
    kind: Option<Kind>,
    /// Starts and lists this upstream only; may be given several times.
    #[arg(long, value_name = "NAME", value_hint = clap::ValueHint::Other)]
    upstream: Vec<String>,
    #[command(flatten)]
    query: QueryArgs,
}

/// Lists all pages of a kind, or of every kind.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let selection = UpstreamSelection::Named(&args.upstream);
    OneShotGateway::run(&args.query, selection, async |oneshot| {
        let kinds = args.kind.map_or(Kind::ALL.to_vec(), |kind| vec![kind]);
        let mut lists = Vec::new();
        for kind in &kinds {
            lists.push((*kind, list(oneshot, *kind).await?));
        }
        let json = oneshot.json.then(|| to_json(&lists));
        output::print_as(json.as_deref(), |out| {
            out.write_all(format_lists(&lists, output::stdout_text()).as_bytes())
        })?;
        let mut unlisted = Vec::new();
        for kind in kinds {
            for reason in oneshot.unlisted_reasons(&oneshot.client_context, kind) {
                if !unlisted.contains(&reason) {
                    unlisted.push(reason);
                }
            }
        }
        if !oneshot.json {
            let view = oneshot.client_context.view();
            let notes = notes(&view, args.kind, unlisted.is_empty());
            notes.iter().for_each(|note| output::print_message(&format!("weir: {note}")));
        }
        match unlisted.is_empty() {
            true => Ok(()),
            false => {
                let unlisted = unlisted.join("; ");
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

fn to_json(lists: &[(Kind, Vec<Object>)]) -> String {
    let member = |(kind, items): &(Kind, Vec<Object>)| {
        let items: Vec<_> = items.iter().map(Object::to_bytes).collect();
        let items = items.join(&b","[..]);
        format!("\"{}\":[{}]", kind.list_member(), String::from_utf8_lossy(&items))
    };
    format!("{{{}}}", lists.iter().map(member).collect::<Vec<_>>().join(","))
}

/// Formats lists, each under the name of its kind if there are several.
fn format_lists(lists: &[(Kind, Vec<Object>)], mut text: WrappedText) -> String {
    let margin = if lists.len() > 1 { 2 } else { 0 };
    for (kind, items) in lists.iter().filter(|(_, items)| !items.is_empty()) {
        if margin > 0 {
            text.add_indented(0, kind_argument(*kind));
        }
        let key = |item: &Object| {
            let key = item.get_string(kind.key_member()).unwrap_or_default();
            sanitize_line(&key)
        };
        let widest = items.iter().map(|item| key(item).chars().count()).max().unwrap_or(0);
        // A few long names do not move all descriptions to the edge of a terminal.
        let width = if text.is_wrapped() { widest.min(MAX_NAME_COLUMNS) } else { widest };
        let indent = margin + if text.is_wide() { width + 2 } else { 4 };
        for item in items {
            let head = format!("{:margin$}{:width$}  ", "", key(item));
            text.add(&head, head.chars().count(), &describe(item, &key(item)), indent);
        }
    }
    text.finish()
}

/// Returns the first line that describes an item, if it is not its key again.
fn describe(item: &Object, key: &str) -> String {
    let about = ["description", "title", "name"].iter().find_map(|member| item.get_string(member));
    let about = about.unwrap_or_default();
    let line = sanitize_line(about.lines().next().unwrap_or_default());
    if line == key { String::new() } else { line }
}

/// Returns notes about what is not in the output: where other kinds have items although this one
/// has none, and tools that the newest revision does not have.
fn notes(view: &RoleView, kind: Option<Kind>, is_complete: bool) -> Vec<String> {
    let listed = |kind: Kind| {
        view.items(kind).iter().filter(|item| item.is_for(DefinitionForm::Newest)).count()
    };
    let mut notes = Vec::new();
    let shown = kind.map_or(Kind::ALL.to_vec(), |kind| vec![kind]);
    if is_complete && shown.iter().all(|kind| listed(*kind) == 0) {
        let word = kind.map_or("items", kind_argument);
        let others = Kind::ALL.into_iter().filter(|other| !shown.contains(other));
        let others = others.filter(|other| listed(*other) > 0).map(|other| {
            let count = counted(listed(other) as u64, other);
            format!("{count}: `weir list {}`", kind_argument(other))
        });
        let none = [format!("no {word}")].into_iter();
        notes.push(none.chain(others).collect::<Vec<_>>().join("; "));
    }
    let hidden = shown.iter().flat_map(|kind| view.items(*kind)).filter(|item| item.needs_task);
    let hidden: Vec<_> = hidden.map(|item| sanitize_line(&item.key)).collect();
    if !hidden.is_empty() {
        let count = counted(hidden.len() as u64, "more tool");
        let names = hidden.join(", ");
        notes.push(format!("{count} for clients of 2025-11-25 only, as a task: {names}"));
    }
    notes
}

/// Columns of a terminal after which a name moves the description of its own item only.
const MAX_NAME_COLUMNS: usize = 32;

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn lists() -> Vec<(Kind, Vec<Object>)> {
        let items = |texts: &[&str]| {
            texts.iter().map(|text| Object::parse((*text).to_owned()).expect("an object")).collect()
        };
        vec![
            (
                Kind::Prompt,
                items(&[r#"{"name":"house__greeting","description":"Greets.\nMore."}"#]),
            ),
            (
                Kind::Tool,
                items(&[
                    r#"{"name":"notes__add","description":"Adds a note, and with it a resource that can be read by everybody."}"#,
                    r#"{"name":"notes__a-tool-with-quite-a-long-name","description":"Does something."}"#,
                ]),
            ),
            (Kind::Resource, Vec::new()),
        ]
    }

    #[test]
    fn lists_of_several_kinds_have_headings_and_break_between_words() {
        for columns in [80, 50] {
            let text = format_lists(&lists(), WrappedText::new(columns, false));
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
        }
        assert_snapshot!(format_lists(&lists(), WrappedText::new(80, false)), @r"
        prompts
          house__greeting  Greets.
        tools
          notes__add                        Adds a note, and with it a resource that can
                                            be read by everybody.
          notes__a-tool-with-quite-a-long-name  Does something.
        ");
        assert_snapshot!(format_lists(&lists(), WrappedText::new(50, false)), @r"
        prompts
          house__greeting  Greets.
        tools
          notes__add                        Adds a note,
              and with it a resource that can be read by
              everybody.
          notes__a-tool-with-quite-a-long-name  Does
              something.
        ");
        let one = format_lists(&lists()[..1], WrappedText::new(usize::MAX, false));
        assert_eq!(one, "house__greeting  Greets.\n");
        let members = to_json(&lists());
        assert!(members.starts_with("{\"prompts\":[{") && members.ends_with("],\"resources\":[]}"));
    }
}
