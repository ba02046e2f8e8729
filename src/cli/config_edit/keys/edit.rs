//! Changes of one client's table in the text of a configuration file.

use toml_edit::{Array, Datetime, Item, Table, value};

use crate::cli::config_edit::named_table::{EditedFile, NamedTable, set_value};

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

/// Table of a client.
pub(super) fn table_of(name: &str) -> NamedTable<'_> {
    NamedTable { section: "clients", name }
}

/// Changes the table of a client in a text; `None` if that would also change other settings.
pub(super) fn edit(text: &str, name: &str, change: &ClientChange<'_>) -> Option<EditedFile> {
    let table = table_of(name);
    match change {
        ClientChange::Revoke => table.remove(text),
        ClientChange::Add { role, sha256, expires } => {
            let mut client = Table::new();
            client.insert("key_sha256", value(Array::from_iter([*sha256])));
            client.insert("role", value(*role));
            if let Some(expires) = expires {
                client.insert("expires", value(*expires));
            }
            table.add(text, &client)
        }
        ClientChange::Rotate { sha256, expires } => {
            table.change(text, |client| change_keys(client, *expires, |keys| keys.push(*sha256)))
        }
        ClientChange::Finish => {
            table.change(text, |client| change_keys(client, None, remove_first))
        }
    }
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

/// Changes the keys of a client, and their expiry if there is one. Returns what was written.
fn change_keys(
    client: &mut Item,
    expires: Option<Datetime>,
    change: impl FnOnce(&mut Array),
) -> Option<Table> {
    let keys = client.get_mut("key_sha256")?.as_array_mut()?;
    change(keys);
    let mut shown = Table::new();
    shown.insert("key_sha256", value(keys.clone()));
    if let Some(expires) = expires {
        set_value(client, "expires", expires)?;
        shown.insert("expires", value(expires));
    }
    Some(shown)
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
        assert_eq!(edited(inline, "ann", &ClientChange::Revoke), "cannot be done");
        assert_eq!(edited(dotted, "ann", &ClientChange::Revoke), "");
        let text = "[x]\ny = '''\n[clients.ann]\n'''\n";
        let odd = format!("{text}[clients.ann]\nrole = \"dev\"\n");
        assert_eq!(edited(&odd, "ann", &ClientChange::Revoke), text);
    }
}
