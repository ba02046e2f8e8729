//! What a file says of a client, changed, and nothing else.
//!
//! Promise: the new text differs from the old one in the meaning of `clients.<name>` only; where that cannot be had, there
//! is no new text. Comments stay, those inside of a removed table excepted.
//!
//! Knows nothing of: which file it is, and keys themselves.

use toml::Table as Meaning;
use toml_edit::{Array, Datetime, DocumentMut, Item, Table, TableLike, value};

/// What is to be done with a client.
pub(super) enum Change<'a> {
    /// It is new.
    Add { role: &'a str, sha256: &'a str, expires: Option<Datetime> },
    /// It gets a second key.
    Rotate { sha256: &'a str, expires: Option<Datetime> },
    /// It loses the older of its keys.
    Finish,
    /// It goes.
    Revoke,
}

/// A changed file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Edited {
    pub(super) text: String,
    /// The lines that were written, or removed.
    pub(super) lines: String,
}

/// Changes what a text says of a client; `None` if that cannot be done without touching something else.
pub(super) fn edit(text: &str, name: &str, change: &Change<'_>) -> Option<Edited> {
    let plain = text.replace("\r\n", "\n");
    let edited = match change {
        Change::Revoke => cut(&plain, name)?,
        Change::Add { role, sha256, expires } => add(&plain, name, role, sha256, *expires)?,
        Change::Rotate { .. } | Change::Finish => rekey(&plain, name, change)?,
    };
    if !says_the_same_otherwise(&plain, &edited.text, name, change) {
        return None;
    }
    let text = match text.contains("\r\n") {
        true => edited.text.replace('\n', "\r\n"),
        false => edited.text,
    };
    Some(Edited { text, ..edited })
}

/// Whether a text says something of a client, or this of it.
pub(super) fn has(text: &str, name: &str, key: Option<&str>) -> bool {
    let Ok(document) = text.parse::<DocumentMut>() else { return false };
    let client = document.get("clients").and_then(|clients| clients.get(name));
    client.is_some_and(|client| key.is_none_or(|key| client.get(key).is_some()))
}

/// What somebody has to do who does it without us.
pub(super) fn by_hand(name: &str, change: &Change<'_>) -> String {
    match change {
        Change::Add { .. } => format!("add [clients.{name}] there; --dry-run prints its lines"),
        Change::Rotate { .. } => "add the hash of another key to its key_sha256".to_owned(),
        Change::Finish => "remove the first hash from its key_sha256".to_owned(),
        Change::Revoke => format!("remove [clients.{name}]"),
    }
}

// === Writing ===

fn add(
    text: &str,
    name: &str,
    role: &str,
    sha256: &str,
    expires: Option<Datetime>,
) -> Option<Edited> {
    let mut document: DocumentMut = text.parse().ok()?;
    let is_first = document.is_empty();
    let mut client = Table::new();
    client.insert("key_sha256", value(Array::from_iter([sha256])));
    client.insert("role", value(role));
    if let Some(expires) = expires {
        client.insert("expires", value(expires));
    }
    let lines = alone(name, client.clone());
    let clients = document.entry("clients").or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    if !is_first {
        client.decor_mut().set_prefix("\n");
    }
    // Into an inline table it would not fit on a line.
    clients.as_table_mut()?.insert(name, Item::Table(client));
    Some(Edited { text: document.to_string(), lines })
}

fn rekey(text: &str, name: &str, change: &Change<'_>) -> Option<Edited> {
    let mut document: DocumentMut = text.parse().ok()?;
    let client = document.get_mut("clients")?.get_mut(name)?.as_table_like_mut()?;
    let mut shown = Table::new();
    let keys = client.get_mut("key_sha256")?.as_array_mut()?;
    match change {
        Change::Rotate { sha256, .. } => {
            keys.push(*sha256);
        }
        _ => {
            keys.remove(0);
            // What stood behind a comma now stands behind a bracket.
            if let Some(first) = keys.get_mut(0)
                && first.decor().prefix().and_then(|prefix| prefix.as_str()) == Some(" ")
            {
                first.decor_mut().set_prefix("");
            }
        }
    }
    shown.insert("key_sha256", value(keys.clone()));
    if let Change::Rotate { expires: Some(expires), .. } = change {
        set(client, "expires", *expires);
        shown.insert("expires", value(*expires));
    }
    Some(Edited { text: document.to_string(), lines: alone(name, shown) })
}

/// Sets a member, and leaves what stands around it.
fn set(table: &mut dyn TableLike, key: &str, moment: Datetime) {
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(old) => {
            let decor = old.decor().clone();
            *old = moment.into();
            *old.decor_mut() = decor;
        }
        None => {
            table.insert(key, value(moment));
        }
    }
}

/// A client's table by itself.
fn alone(name: &str, client: Table) -> String {
    let mut clients = Table::new();
    clients.set_implicit(true);
    clients.insert(name, Item::Table(client));
    let mut document = DocumentMut::new();
    document.insert("clients", Item::Table(clients));
    document.to_string()
}

// === Removing ===

/// Cuts a client's tables out, line by line: what stands above and below them stays where it is.
fn cut(text: &str, name: &str) -> Option<Edited> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let mut kept = String::new();
    let mut cut = String::new();
    let mut at = 0;
    while at < lines.len() {
        if !is_header_of(lines[at], name) {
            kept.push_str(lines[at]);
            at += 1;
            continue;
        }
        let end = lines[at + 1..].iter().position(|line| is_header(line));
        let end = end.map_or(lines.len(), |end| at + 1 + end);
        // Comments in front of what comes next belong to that.
        let is_blank = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
        let own =
            lines[at..end].iter().rposition(|line| !is_blank(line)).map_or(at, |last| at + last);
        lines[at..=own].iter().for_each(|line| cut.push_str(line));
        at = own + 1;
        // One of the empty lines around it goes with it.
        let is_apart = kept.is_empty() || kept.ends_with("\n\n");
        if is_apart && lines.get(at).is_some_and(|line| line.trim().is_empty()) {
            at += 1;
        }
    }
    // At the end of a file no empty line is left over.
    if text.ends_with('\n') && !text.ends_with("\n\n") {
        while kept.ends_with("\n\n") {
            kept.pop();
        }
    }
    (!cut.is_empty()).then_some(Edited { text: kept, lines: cut })
}

fn is_header(line: &str) -> bool {
    line.trim_start().starts_with('[') && line.parse::<DocumentMut>().is_ok()
}

/// Whether a line begins a client's table, or one within it.
fn is_header_of(line: &str, name: &str) -> bool {
    is_header(line) && has(line, name, None)
}

// === Making sure ===

fn says_the_same_otherwise(old: &str, new: &str, name: &str, change: &Change<'_>) -> bool {
    let (Ok(mut old), Ok(mut new)) = (old.parse::<Meaning>(), new.parse::<Meaning>()) else {
        return false;
    };
    let (mut was, is) = (take(&mut old, name), take(&mut new, name));
    match change {
        Change::Add { role, sha256, expires } => {
            if was.is_some() {
                return false;
            }
            let mut client = Meaning::new();
            client.insert("key_sha256".to_owned(), vec![(*sha256).to_owned()].into());
            client.insert("role".to_owned(), (*role).into());
            insert_moment(&mut client, *expires);
            was = Some(client.into());
        }
        Change::Rotate { .. } | Change::Finish => {
            let Some(client) = was.as_mut().and_then(toml::Value::as_table_mut) else {
                return false;
            };
            let keys = client.get_mut("key_sha256").and_then(toml::Value::as_array_mut);
            let Some(keys) = keys else { return false };
            match change {
                Change::Rotate { sha256, expires } => {
                    keys.push((*sha256).into());
                    insert_moment(client, *expires);
                }
                _ => drop(keys.remove(0)),
            }
        }
        Change::Revoke => was = None,
    }
    old == new && was == is
}

fn insert_moment(client: &mut Meaning, expires: Option<Datetime>) {
    if let Some(expires) = expires {
        client.insert("expires".to_owned(), expires.into());
    }
}

/// Takes a client out, and the table of clients if it was the only one.
fn take(meaning: &mut Meaning, name: &str) -> Option<toml::Value> {
    let clients = meaning.get_mut("clients")?.as_table_mut()?;
    let client = clients.remove(name);
    if clients.is_empty() {
        meaning.remove("clients");
    }
    client
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "\
# Ours.
include = []   # none

[server]
path = \"/x\"

# Who may come in.
[clients.ann]   # a person
key_sha256 = [\"aa\"]   # until spring
role = \"dev\"
expires = 2027-01-01T00:00:00Z # then no more

[clients.\"b.c\"]
key_sha256 = [
    \"bb\",  # the old one
    \"cc\",
]
# Its own rules.
prompts.allow = [\"*\"]
[clients.\"b.c\".tools]
allow = [\"x/*\"]

# ── the log ──
[log]
level = \"info\"
";

    fn edited(text: &str, name: &str, change: &Change<'_>) -> String {
        edit(text, name, change).map_or_else(|| "cannot be done".to_owned(), |edited| edited.text)
    }

    fn moment() -> Option<Datetime> {
        Some("2028-01-01T00:00:00Z".parse().expect("a moment"))
    }

    /// The lines of a change, as `diff` tells them.
    fn difference(name: &str, change: &Change<'_>) -> String {
        let new = edited(OLD, name, change);
        let (old, new): (Vec<_>, Vec<_>) = (OLD.lines().collect(), new.lines().collect());
        let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
        let (old, new) = (&old[head..], &new[head..]);
        let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
        let mark = |mark: &str, lines: &[&str]| {
            lines[..lines.len() - tail].iter().map(|line| format!("{mark}{line}\n")).collect()
        };
        let (gone, come): (String, String) = (mark("-", old), mark("+", new));
        gone + &come
    }

    #[test]
    fn a_client_is_added_behind_the_others() {
        let change = Change::Add { role: "dev", sha256: "dd", expires: moment() };
        insta::assert_snapshot!(difference("d.e", &change), @r#"
        +[clients."d.e"]
        +key_sha256 = ["dd"]
        +role = "dev"
        +expires = 2028-01-01T00:00:00Z
        +
        "#);
        let lines = edit("", "x", &change).expect("it can be done");
        assert_eq!(lines.text, lines.lines);
        insta::assert_snapshot!(lines.lines, @r#"
        [clients.x]
        key_sha256 = ["dd"]
        role = "dev"
        expires = 2028-01-01T00:00:00Z
        "#);
        insta::assert_snapshot!(edited("[log]\nlevel = \"info\"", "x", &change), @r#"
        [log]
        level = "info"

        [clients.x]
        key_sha256 = ["dd"]
        role = "dev"
        expires = 2028-01-01T00:00:00Z
        "#);
        assert_eq!(edited(OLD, "ann", &change), "cannot be done", "there is one already");
    }

    #[test]
    fn a_second_key_is_added_and_the_first_dropped() {
        let change = Change::Rotate { sha256: "dd", expires: moment() };
        insta::assert_snapshot!(difference("ann", &change), @r#"
        -key_sha256 = ["aa"]   # until spring
        -role = "dev"
        -expires = 2027-01-01T00:00:00Z # then no more
        +key_sha256 = ["aa", "dd"]   # until spring
        +role = "dev"
        +expires = 2028-01-01T00:00:00Z # then no more
        "#);
        insta::assert_snapshot!(difference("b.c", &Change::Finish), @r#"
        -key_sha256 = [
        -    "bb",  # the old one
        +key_sha256 = [  # the old one
        "#);
        let two = edited(OLD, "ann", &Change::Rotate { sha256: "dd", expires: None });
        assert!(two.contains("key_sha256 = [\"aa\", \"dd\"]   # until spring\n"), "{two}");
        let new = edited(&two, "ann", &Change::Finish);
        assert_eq!(new, OLD.replace("\"aa\"", "\"dd\""));
        assert_eq!(edited(OLD, "nobody", &change), "cannot be done");
    }

    #[test]
    fn a_client_goes_and_leaves_the_comments_around_it() {
        insta::assert_snapshot!(difference("ann", &Change::Revoke), @r#"
        -[clients.ann]   # a person
        -key_sha256 = ["aa"]   # until spring
        -role = "dev"
        -expires = 2027-01-01T00:00:00Z # then no more
        "#);
        insta::assert_snapshot!(difference("b.c", &Change::Revoke), @r#"
        -[clients."b.c"]
        -key_sha256 = [
        -    "bb",  # the old one
        -    "cc",
        -]
        -# Its own rules.
        -prompts.allow = ["*"]
        -[clients."b.c".tools]
        -allow = ["x/*"]
        -
        "#);
        let change = Change::Add { role: "dev", sha256: "dd", expires: None };
        assert_eq!(edited(&edited(OLD, "new", &change), "new", &Change::Revoke), OLD);
        let only = "[log]\nlevel = \"info\"\n\n[clients.a]\nrole = \"x\"\n";
        assert_eq!(edited(only, "a", &Change::Revoke), "[log]\nlevel = \"info\"\n");
    }

    #[test]
    fn line_ends_stay_as_they_are() {
        let old = OLD.replace('\n', "\r\n");
        let change = Change::Rotate { sha256: "dd", expires: None };
        let new = edited(&old, "ann", &change);
        assert_eq!(new, edited(OLD, "ann", &change).replace('\n', "\r\n"));
    }

    #[test]
    fn what_is_written_in_another_way_is_changed_if_nothing_else_is() {
        let change = Change::Rotate { sha256: "dd", expires: moment() };
        let inline = "clients = { ann = { key_sha256 = [\"aa\"], role = \"dev\" } }\n";
        assert!(edited(inline, "ann", &change).contains("[\"aa\", \"dd\"]"));
        let dotted = "clients.ann.key_sha256 = [\"aa\"]\nclients.ann.role = \"dev\"\n";
        assert!(edited(dotted, "ann", &change).contains("[\"aa\", \"dd\"]"));
        let add = Change::Add { role: "dev", sha256: "dd", expires: None };
        assert_eq!(edited(inline, "bob", &add), "cannot be done");
        for text in [inline, dotted] {
            assert_eq!(edited(text, "ann", &Change::Revoke), "cannot be done", "{text}");
        }
        let odd = "[x]\ny = '''\n[clients.ann]\n'''\n[clients.ann]\nrole = \"dev\"\n";
        assert_eq!(edited(odd, "ann", &Change::Revoke), "cannot be done");
    }
}
