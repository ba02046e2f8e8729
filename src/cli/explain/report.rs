//! Explanation of a name: statements in order, as text and as JSON.
//!
//! Invariant: both forms contain the same statements in the same order.

use std::io::{self, Write};

use bytes::Bytes;

use crate::cli::exit::Failure;
use crate::cli::output::render::sanitize_line;
use crate::json::{self, Object};
use crate::mcp::kind::Kind;

/// Complete explanation of a name.
pub(super) struct Explanation {
    pub(super) name: String,
    /// Client of `--as`.
    pub(super) client: Option<String>,
    /// Items and upstreams that the name may mean.
    pub(super) items: Vec<ExplainedItem>,
}

/// Item or upstream that a name may mean.
#[derive(Default)]
pub(super) struct ExplainedItem {
    pub(super) kind: Option<Kind>,
    pub(super) upstream: Option<String>,
    /// Name or URI at its upstream.
    pub(super) own: Option<String>,
    /// Public name or URI.
    pub(super) key: Option<String>,
    /// Statements that apply to all clients.
    pub(super) statements: Vec<Statement>,
    /// Statements per role.
    pub(super) visibilities: Vec<Visibility>,
}

/// Visibility for one role, with the reasons.
pub(super) struct Visibility {
    pub(super) role: String,
    pub(super) visible: bool,
    pub(super) statements: Vec<Statement>,
}

/// One statement of an explanation, for example a matching rule and its place.
#[derive(Clone)]
pub(super) struct Statement {
    pub(super) about: StatementTopic,
    /// False if the statement is a reason why the item is not visible.
    pub(super) good: bool,
    pub(super) text: String,
    /// Pattern that decides.
    pub(super) pattern: Option<String>,
    /// Place in the configuration; `None` for defaults.
    pub(super) place: Option<String>,
    /// Index of the limit in the configuration.
    pub(super) limit: Option<usize>,
}

/// Topic of a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StatementTopic {
    /// Connection of the upstream.
    Upstream,
    /// State of the upstream in the serving process.
    Running,
    /// Presence in the upstream's lists.
    Listed,
    /// The upstream's own export rules.
    ExportRules,
    /// Other properties of the item in the merged list.
    List,
    /// Upstream that receives requests for an unlisted URI.
    Route,
    /// Role of the client.
    Client,
    /// Rule of the role that allows it.
    Allowed,
    /// Rule of the role that denies it.
    Denied,
    /// Limit that applies to it.
    Limit,
    /// Visible items of an upstream.
    VisibleItems,
    /// Whether clients receive the upstream's instructions.
    Instructions,
}

impl Statement {
    pub(super) fn good(about: StatementTopic, text: impl Into<String>) -> Self {
        Self { about, good: true, text: text.into(), pattern: None, place: None, limit: None }
    }

    pub(super) fn bad(about: StatementTopic, text: impl Into<String>) -> Self {
        Self { good: false, ..Self::good(about, text) }
    }

    fn write_json(&self) -> Vec<u8> {
        let mut object = Object::new();
        object.set("about", json::quote(self.about.word()));
        object.set("good", self.good.to_string());
        object.set("text", json::quote(&self.text));
        set_if_any(&mut object, "pattern", self.pattern.as_deref());
        set_if_any(&mut object, "place", self.place.as_deref());
        object.to_bytes().to_vec()
    }
}

impl StatementTopic {
    fn word(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Running => "running",
            Self::Listed => "listed",
            Self::ExportRules => "outlet",
            Self::List => "list",
            Self::Route => "route",
            Self::Client => "client",
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Limit => "limit",
            Self::VisibleItems => "seen",
            Self::Instructions => "told",
        }
    }

    /// Failure that names who has to act if this topic is the reason.
    fn failure(self, text: String) -> Failure {
        match self {
            Self::Upstream | Self::Running => Failure::Unreachable(text),
            Self::ExportRules
            | Self::Client
            | Self::Allowed
            | Self::Denied
            | Self::Limit
            | Self::VisibleItems
            | Self::Instructions => Failure::Denied(text),
            Self::Listed | Self::List | Self::Route => Failure::Usage(text),
        }
    }
}

impl ExplainedItem {
    /// Returns whether no statement that applies to all clients hides it.
    pub(super) fn is_open(&self) -> bool {
        self.statements.iter().all(|statement| statement.good)
    }

    /// Returns whether any of the roles sees it.
    pub(super) fn is_visible(&self) -> bool {
        self.visibilities.iter().any(|visibility| visibility.visible)
    }

    /// Title of the finding.
    fn title(&self, name: &str) -> String {
        let key = self.key.as_deref().unwrap_or(name);
        match (self.kind, &self.upstream, &self.own) {
            (Some(kind), ..) => format!("{kind} {key}"),
            (None, Some(upstream), None) => format!("upstream {upstream}"),
            (None, ..) => key.to_owned(),
        }
    }
}

impl Explanation {
    /// Failure of the command if none of the roles sees anything.
    pub(super) fn end(&self) -> Result<(), Failure> {
        if self.items.iter().any(ExplainedItem::is_visible) {
            return Ok(());
        }
        let text = match &self.client {
            Some(client) => format!("`{}` is not visible to {client}", self.name),
            None => format!("`{}` is visible to no role", self.name),
        };
        let all = self.items.iter().flat_map(|finding| {
            finding
                .statements
                .iter()
                .chain(finding.visibilities.iter().flat_map(|visibility| &visibility.statements))
        });
        let first =
            all.into_iter().find(|statement| !statement.good).map(|statement| statement.about);
        Err(first.unwrap_or(StatementTopic::Listed).failure(text))
    }

    /// Writes the explanation as text.
    pub(super) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for (at, finding) in self.items.iter().enumerate() {
            if at > 0 {
                writeln!(out)?;
            }
            let title = sanitize_line(&finding.title(&self.name));
            let verdict = if finding.is_visible() { "visible" } else { "not visible" };
            match (&self.client, finding.visibilities.len()) {
                (Some(client), _) => writeln!(out, "{verdict} to {client}: {title}")?,
                (None, 0) => writeln!(out, "{verdict}: {title}")?,
                (None, _) if !finding.is_visible() => {
                    writeln!(out, "{verdict} to any role: {title}")?;
                }
                (None, all) => {
                    let seeing =
                        finding.visibilities.iter().filter(|visibility| visibility.visible).count();
                    let plural = if all == 1 { "" } else { "s" };
                    writeln!(out, "{verdict} to {seeing} of {all} role{plural}: {title}")?;
                }
            }
            finding.statements.iter().try_for_each(|statement| write_statement(out, statement))?;
            for visibility in &finding.visibilities {
                match &self.client {
                    Some(_) => visibility
                        .statements
                        .iter()
                        .try_for_each(|statement| write_statement(out, statement))?,
                    None => write_visibility(out, visibility)?,
                }
            }
        }
        Ok(())
    }

    /// Formats the explanation as JSON on one line.
    pub(super) fn to_json(&self) -> Bytes {
        let mut explanation = Object::new();
        explanation.set("name", json::quote(&self.name));
        set_if_any(&mut explanation, "client", self.client.as_deref());
        explanation.set("visible", self.items.iter().any(ExplainedItem::is_visible).to_string());
        let findings = self.items.iter().map(|finding| {
            let mut object = Object::new();
            set_if_any(&mut object, "kind", finding.kind.map(Kind::json_name));
            set_if_any(&mut object, "upstream", finding.upstream.as_deref());
            set_if_any(&mut object, "own", finding.own.as_deref());
            set_if_any(&mut object, "key", finding.key.as_deref());
            object.set("visible", finding.is_visible().to_string());
            object.set("facts", array(finding.statements.iter().map(Statement::write_json)));
            let visibilities = finding.visibilities.iter().map(|visibility| {
                let mut object = Object::new();
                object.set("role", json::quote(&visibility.role));
                object.set("visible", visibility.visible.to_string());
                object.set("facts", array(visibility.statements.iter().map(Statement::write_json)));
                object.to_bytes().to_vec()
            });
            object.set("roles", array(visibilities));
            object.to_bytes().to_vec()
        });
        explanation.set("findings", array(findings));
        explanation.to_bytes()
    }
}

fn write_statement(out: &mut dyn Write, statement: &Statement) -> io::Result<()> {
    writeln!(out, "  {:9} {}", statement.about.word(), sanitize_line(&statement.text))
}

/// Writes the statements about one role on one line.
fn write_visibility(out: &mut dyn Write, visibility: &Visibility) -> io::Result<()> {
    let verdict = if visibility.visible { "visible" } else { "not visible" };
    let statements = visibility.statements.iter().map(|statement| match statement.about {
        about @ (StatementTopic::Allowed | StatementTopic::Denied)
            if statement.pattern.is_some() =>
        {
            format!("{} {}", about.word(), statement.text)
        }
        _ => statement.text.clone(),
    });
    let statements = statements.collect::<Vec<_>>().join("; ");
    writeln!(out, "  {:9} {}: {verdict}; {}", "role", visibility.role, sanitize_line(&statements))
}

fn array(elements: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let elements: Vec<_> = elements.collect();
    [b"[", elements.join(&b","[..]).as_slice(), b"]"].concat()
}

fn set_if_any(object: &mut Object, member: &'static str, text: Option<&str>) {
    if let Some(text) = text {
        object.set(member, json::quote(text));
    }
}
