//! Edits of one client's table in the text of a configuration file.
//!
//! Invariant: the new text differs from the old one only in the meaning of `clients.<name>`; if
//! that is impossible, there is no new text. Comments are preserved, except inside a removed table.

use toml::Table as Meaning;
use toml_edit::{Array, Datetime, DocumentMut, Item, Table, TableLike, value};

use crate::cli::clients::document::implicit_table;

/// Change of a client.
pub(super) enum ClientChange<'a> {
    /// Adds the client.
    Add { role: &'a str, sha256: &'a str, expires: Option<Datetime> },
    /// Adds a second key.
    Rotate { sha256: &'a str, expires: Option<Datetime> },
    /// Removes the older of two keys.
    Finish,
    /// Removes the client.
    Revoke,
}

/// Text of a changed file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EditedFile {
    pub(super) text: String,
    /// Lines that were written or removed.
    pub(super) lines: String,
}

/// Changes the table of a client in a text; `None` if that would also change other settings.
pub(super) fn edit(text: &str, name: &str, change: &ClientChange<'_>) -> Option<EditedFile> {
    let plain = text.replace("\r\n", "\n");
    let edited = match change {
        ClientChange::Revoke => remove(&plain, name)?,
        ClientChange::Add { role, sha256, expires } => add(&plain, name, role, sha256, *expires)?,
        ClientChange::Rotate { sha256, expires } => {
            change_keys(&plain, name, *expires, |keys| keys.push(*sha256))?
        }
        ClientChange::Finish => change_keys(&plain, name, None, remove_first)?,
    };
    if !changes_only_client(&plain, &edited, name, change) {
        return None;
    }
    let text = match text.contains("\r\n") {
        true => edited.text.replace('\n', "\r\n"),
        false => edited.text,
    };
    Some(EditedFile { text, ..edited })
}

/// Returns whether a text contains a client, or this key of it.
pub(super) fn contains(text: &str, name: &str, key: Option<&str>) -> bool {
    let Ok(document) = text.parse::<DocumentMut>() else { return false };
    let client = document.get("clients").and_then(|clients| clients.get(name));
    client.is_some_and(|client| key.is_none_or(|key| client.get(key).is_some()))
}

/// Describes how to make the change by hand.
pub(super) fn manual_steps(name: &str, change: &ClientChange<'_>) -> String {
    match change {
        ClientChange::Add { .. } => {
            format!("add [clients.{name}] there; --dry-run prints its lines")
        }
        ClientChange::Rotate { .. } => "add the hash of another key to its key_sha256".to_owned(),
        ClientChange::Finish => "remove the first hash from its key_sha256".to_owned(),
        ClientChange::Revoke => format!("remove [clients.{name}]"),
    }
}

// === Writing ===

fn add(
    text: &str,
    name: &str,
    role: &str,
    sha256: &str,
    expires: Option<Datetime>,
) -> Option<EditedFile> {
    let mut document: DocumentMut = text.parse().ok()?;
    let is_first = document.is_empty();
    let mut client = Table::new();
    client.insert("key_sha256", value(Array::from_iter([sha256])));
    client.insert("role", value(role));
    if let Some(expires) = expires {
        client.insert("expires", value(expires));
    }
    let lines = table_text(name, client.clone());
    let clients = document.entry("clients").or_insert_with(|| Item::Table(implicit_table()));
    if !is_first {
        client.decor_mut().set_prefix("\n");
    }
    // An inline table `clients = { … }` cannot take another table.
    clients.as_table_mut()?.insert(name, Item::Table(client));
    Some(EditedFile { text: document.to_string(), lines })
}

fn change_keys(
    text: &str,
    name: &str,
    expires: Option<Datetime>,
    change: impl FnOnce(&mut Array),
) -> Option<EditedFile> {
    let mut document: DocumentMut = text.parse().ok()?;
    let client = document.get_mut("clients")?.get_mut(name)?.as_table_like_mut()?;
    let keys = client.get_mut("key_sha256")?.as_array_mut()?;
    change(keys);
    let mut shown = Table::new();
    shown.insert("key_sha256", value(keys.clone()));
    if let Some(expires) = expires {
        set(client, "expires", expires);
        shown.insert("expires", value(expires));
    }
    Some(EditedFile { text: document.to_string(), lines: table_text(name, shown) })
}

/// Removes the first of several keys.
fn remove_first(keys: &mut Array) {
    keys.remove(0);
    // The element followed a comma and now follows the bracket, so its space goes.
    if let Some(first) = keys.get_mut(0)
        && first.decor().prefix().and_then(|prefix| prefix.as_str()) == Some(" ")
    {
        first.decor_mut().set_prefix("");
    }
}

/// Sets a member and preserves the text around it.
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

/// Formats the table of a client alone.
fn table_text(name: &str, client: Table) -> String {
    let mut clients = implicit_table();
    clients.insert(name, Item::Table(client));
    let mut document = DocumentMut::new();
    document.insert("clients", Item::Table(clients));
    document.to_string()
}

// === Removing ===

/// Removes a client's tables line by line; the lines above and below are unchanged.
fn remove(text: &str, name: &str) -> Option<EditedFile> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let mut remaining = String::new();
    let mut removed = String::new();
    let mut at = 0;
    while at < lines.len() {
        if !is_header_of(lines[at], name) {
            remaining.push_str(lines[at]);
            at += 1;
            continue;
        }
        let end = lines[at + 1..].iter().position(|line| is_header(line));
        let end = end.map_or(lines.len(), |end| at + 1 + end);
        // Comments before the next table belong to that table.
        let is_blank = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
        let own =
            lines[at..end].iter().rposition(|line| !is_blank(line)).map_or(at, |last| at + last);
        lines[at..=own].iter().for_each(|line| removed.push_str(line));
        at = own + 1;
        // One of the empty lines around the table is removed as well.
        let is_apart = remaining.is_empty() || remaining.ends_with("\n\n");
        if is_apart && lines.get(at).is_some_and(|line| line.trim().is_empty()) {
            at += 1;
        }
    }
    // The file must not end with an empty line that it did not have.
    if text.ends_with('\n') && !text.ends_with("\n\n") {
        while remaining.ends_with("\n\n") {
            remaining.pop();
        }
    }
    (!removed.is_empty()).then_some(EditedFile { text: remaining, lines: removed })
}

fn is_header(line: &str) -> bool {
    line.trim_start().starts_with('[') && line.parse::<DocumentMut>().is_ok()
}

/// Returns whether a line is the header of a client's table, or of one within it.
fn is_header_of(line: &str, name: &str) -> bool {
    is_header(line) && contains(line, name, None)
}

// === Making sure ===

/// Returns whether nothing but the client has changed, and the client as the shown lines say.
fn changes_only_client(
    old: &str,
    edited: &EditedFile,
    name: &str,
    change: &ClientChange<'_>,
) -> bool {
    let parsed = [old, &edited.text, &edited.lines].map(|text| text.parse::<Meaning>());
    let [Ok(mut old), Ok(mut new), Ok(mut lines)] = parsed else { return false };
    let (was, is) = (take_client(&mut old, name), take_client(&mut new, name));
    let expected = match (change, was) {
        (ClientChange::Revoke, _) => None,
        (ClientChange::Add { .. }, Some(_)) => return false,
        (_, was) => {
            let mut client = was.unwrap_or_default();
            client.extend(take_client(&mut lines, name).unwrap_or_default());
            Some(client)
        }
    };
    old == new && is == expected
}

/// Removes a client, and the table of clients if it was the only one.
fn take_client(meaning: &mut Meaning, name: &str) -> Option<Meaning> {
    let clients = meaning.get_mut("clients")?.as_table_mut()?;
    let client = clients.remove(name);
    if clients.is_empty() {
        meaning.remove("clients");
    }
    client?.try_into().ok()
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

    fn edited(text: &str, name: &str, change: &ClientChange<'_>) -> String {
        edit(text, name, change).map_or_else(|| "cannot be done".to_owned(), |edited| edited.text)
    }

    fn moment() -> Option<Datetime> {
        Some("2028-01-01T00:00:00Z".parse().expect("a moment"))
    }

    /// Lines of a change, as `diff` prints them.
    fn difference(name: &str, change: &ClientChange<'_>) -> String {
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
        let change = ClientChange::Add { role: "dev", sha256: "dd", expires: moment() };
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
        let change = ClientChange::Rotate { sha256: "dd", expires: moment() };
        insta::assert_snapshot!(difference("ann", &change), @r#"
        -key_sha256 = ["aa"]   # until spring
        -role = "dev"
        -expires = 2027-01-01T00:00:00Z # then no more
        +key_sha256 = ["aa", "dd"]   # until spring
        +role = "dev"
        +expires = 2028-01-01T00:00:00Z # then no more
        "#);
        insta::assert_snapshot!(difference("b.c", &ClientChange::Finish), @r#"
        -key_sha256 = [
        -    "bb",  # the old one
        +key_sha256 = [  # the old one
        "#);
        let two = edited(OLD, "ann", &ClientChange::Rotate { sha256: "dd", expires: None });
        assert!(two.contains("key_sha256 = [\"aa\", \"dd\"]   # until spring\n"), "{two}");
        let new = edited(&two, "ann", &ClientChange::Finish);
        assert_eq!(new, OLD.replace("\"aa\"", "\"dd\""));
        assert_eq!(edited(OLD, "nobody", &change), "cannot be done");
    }

    #[test]
    fn a_client_goes_and_leaves_the_comments_around_it() {
        insta::assert_snapshot!(difference("ann", &ClientChange::Revoke), @r#"
        -[clients.ann]   # a person
        -key_sha256 = ["aa"]   # until spring
        -role = "dev"
        -expires = 2027-01-01T00:00:00Z # then no more
        "#);
        insta::assert_snapshot!(difference("b.c", &ClientChange::Revoke), @r#"
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
        let change = ClientChange::Add { role: "dev", sha256: "dd", expires: None };
        assert_eq!(edited(&edited(OLD, "new", &change), "new", &ClientChange::Revoke), OLD);
        let only = "[log]\nlevel = \"info\"\n\n[clients.a]\nrole = \"x\"\n";
        assert_eq!(edited(only, "a", &ClientChange::Revoke), "[log]\nlevel = \"info\"\n");
    }

    #[test]
    fn line_ends_stay_as_they_are() {
        let old = OLD.replace('\n', "\r\n");
        let change = ClientChange::Rotate { sha256: "dd", expires: None };
        let new = edited(&old, "ann", &change);
        assert_eq!(new, edited(OLD, "ann", &change).replace('\n', "\r\n"));
    }

    #[test]
    fn what_is_written_in_another_way_is_changed_if_nothing_else_is() {
        let change = ClientChange::Rotate { sha256: "dd", expires: moment() };
        let inline = "clients = { ann = { key_sha256 = [\"aa\"], role = \"dev\" } }\n";
        assert!(edited(inline, "ann", &change).contains("[\"aa\", \"dd\"]"));
        let dotted = "clients.ann.key_sha256 = [\"aa\"]\nclients.ann.role = \"dev\"\n";
        assert!(edited(dotted, "ann", &change).contains("[\"aa\", \"dd\"]"));
        let add = ClientChange::Add { role: "dev", sha256: "dd", expires: None };
        assert_eq!(edited(inline, "bob", &add), "cannot be done");
        for text in [inline, dotted] {
            assert_eq!(edited(text, "ann", &ClientChange::Revoke), "cannot be done", "{text}");
        }
        let odd = "[x]\ny = '''\n[clients.ann]\n'''\n[clients.ann]\nrole = \"dev\"\n";
        assert_eq!(edited(odd, "ann", &ClientChange::Revoke), "cannot be done");
    }
}
