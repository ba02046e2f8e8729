//! The configurations of a simulation: access rules and servers.

use std::fmt::Write;

use super::dice::Dice;

/// Number of names of each sort that servers list; the sorts are `open` and `secret`.
const NUMBERS: u32 = 5;

/// Decisions of one configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rules {
    guest: Guest,
    /// For each server: whether it is configured, and how often its own settings have changed.
    servers: Vec<(&'static str, bool, u32)>,
}

/// Access of the configuration's narrower role; the role `staff` may use everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guest {
    /// All items of the sort `open`.
    Wide,
    /// Two `open` items of each kind.
    Narrow,
    /// Everything.
    All,
}

/// Edit of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edit {
    /// Another access of the narrower role.
    Guest,
    /// A server is added or removed.
    Presence,
    /// A server gets other settings, so that its connection is opened anew.
    Settings,
    /// No change.
    Same,
    /// A mistake.
    Bad,
}

const HEAD: &str = r#"
[protocol]
legacy_sse = true
page_size = 5
[defaults]
timeouts = { startup = "5s", list = "5s", call = "5s" }
retry = { max_backoff = "4s" }
[roles.staff]
prompts.allow = ["*"]
tools.allow = ["*"]
resources.allow = ["*"]
"#;

impl Rules {
    pub(super) fn new(servers: &[&'static str]) -> Self {
        let servers = servers.iter().map(|name| (*name, true, 0)).collect();
        Self { guest: Guest::Wide, servers }
    }

    /// Whether a role may use the item of this name (without the server's prefix).
    pub(super) fn may(&self, role: &str, name: &str) -> bool {
        let is_open = name.contains("open");
        role == "staff"
            || match self.guest {
                Guest::Wide => is_open,
                Guest::Narrow => is_open && name.ends_with(['0', '1']),
                Guest::All => true,
            }
    }

    pub(super) fn has(&self, server: &str) -> bool {
        self.servers.iter().any(|(name, is_there, _)| *name == server && *is_there)
    }

    /// The configured servers.
    pub(super) fn names(&self) -> Vec<&'static str> {
        let there = self.servers.iter().filter(|(_, is_there, _)| *is_there);
        there.map(|(name, ..)| *name).collect()
    }

    /// The edited configuration; an edit that is not possible is replaced by another one.
    pub(super) fn edited(&self, edit: Edit, dice: &mut Dice) -> Self {
        let mut next = self.clone();
        let at = dice.below(next.servers.len() as u64) as usize;
        match edit {
            Edit::Same | Edit::Bad => {}
            // The first server stays.
            Edit::Presence if at > 0 => next.servers[at].1 = !next.servers[at].1,
            Edit::Settings if next.servers[at].1 => next.servers[at].2 += 1,
            Edit::Guest | Edit::Presence | Edit::Settings => {
                let others = [Guest::Wide, Guest::Narrow, Guest::All];
                let others: Vec<_> = others.into_iter().filter(|it| *it != self.guest).collect();
                next.guest = others[dice.below(2) as usize];
            }
        }
        next
    }

    /// Whether lists may differ from before for this role.
    pub(super) fn concerns(&self, next: &Self, role: &str) -> bool {
        let names = (0..NUMBERS).flat_map(|at| [format!("open_{at}"), format!("secret_{at}")]);
        let mut names = names.filter(|name| self.may(role, name) != next.may(role, name));
        self.names() != next.names() || names.next().is_some()
    }

    /// Text of the configuration, without the addresses of the servers.
    pub(super) fn text(&self) -> String {
        let (names, uris): (&[&str], &[&str]) = match self.guest {
            Guest::Wide => (&["*/open_*"], &["*/*open*"]),
            Guest::Narrow => (&["*/open_0", "*/open_1"], &["*/*open*0*", "*/*open*1*"]),
            Guest::All => (&["*"], &["*"]),
        };
        let mut text = HEAD.to_owned();
        let _ = writeln!(
            text,
            "[roles.guest]\nprompts.allow = {names:?}\ntools.allow = {names:?}\nresources.allow = {uris:?}"
        );
        for (name, _, times) in self.servers.iter().filter(|(_, is_there, _)| *is_there) {
            let items = 9_000 + times;
            let _ = writeln!(text, "[upstreams.{name}]\nlimits = {{ max_items = {items} }}");
        }
        text
    }

    /// Text of the configuration with a mistake in it.
    pub(super) fn with_mistake(&self) -> String {
        format!("{}\n[roles.nobody]\nprompts.alow = [\"*\"]\n", self.text())
    }
}

/// Name of an item without its server's prefix, from a key as clients see it.
pub(super) fn base_of(key: &str) -> String {
    for sort in ["open", "secret"] {
        if let Some((_, rest)) = key.split_once(sort) {
            let number: String = rest.chars().skip(1).take_while(char::is_ascii_digit).collect();
            return format!("{sort}_{number}");
        }
    }
    key.to_owned()
}

impl Edit {
    pub(super) fn random(dice: &mut Dice) -> Self {
        match dice.below(8) {
            0 => Self::Bad,
            1 => Self::Same,
            2 | 3 => Self::Presence,
            4 => Self::Settings,
            _ => Self::Guest,
        }
    }
}
