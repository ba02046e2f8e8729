//! Explanation of a name: statements in order, as text and as JSON.
//!
//! Invariant: both forms contain the same statements in the same order.

use serde::{Serialize, Serializer};
use strum::{Display, IntoStaticStr};

use crate::cli::exit::Failure;
use crate::cli::output::render::{counted, sanitize_line};
use crate::cli::output::wrapped_text::WrappedText;
use weir_mcp::kind::Kind;

/// Complete explanation of a name.
#[derive(Serialize)]
pub(super) struct Explanation {
    name: String,
    /// Client or user of `--as`.
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// The viewer in a sentence, if it is only one.
    #[serde(skip)]
    viewer: Option<String>,
    visible: bool,
    /// Items and upstreams that the name may mean.
    findings: Vec<ExplainedItem>,
}

/// Item or upstream that a name may mean.
#[derive(Default, Serialize)]
pub(super) struct ExplainedItem {
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "serialize_kind")]
    pub(super) kind: Option<Kind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) upstream: Option<String>,
    /// Name or URI at its upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) own: Option<String>,
    /// Public name or URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    /// Any of the roles sees it; [`Explanation::new`] sets it.
    pub(super) visible: bool,
    /// Statements that apply to all clients.
    #[serde(rename = "facts")]
    pub(super) statements: Vec<Statement>,
    /// Statements per role.
    #[serde(rename = "roles")]
    pub(super) visibilities: Vec<Visibility>,
}

/// Visibility for one role, with the reasons.
#[derive(Serialize)]
pub(super) struct Visibility {
    pub(super) role: String,
    pub(super) visible: bool,
    #[serde(rename = "facts")]
    pub(super) statements: Vec<Statement>,
}

/// One statement of an explanation, for example a matching rule and its place.
#[derive(Clone, Serialize)]
pub(super) struct Statement {
    pub(super) about: StatementTopic,
    /// False if the statement is a reason why the item is not visible.
    pub(super) good: bool,
    pub(super) text: String,
    /// Pattern that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pattern: Option<String>,
    /// Place in the configuration; `None` for defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<String>,
    /// Index of the limit in the configuration.
    #[serde(skip)]
    pub(super) limit: Option<usize>,
}

/// Topic of a statement.
#[derive(Clone, Copy, PartialEq, Eq, Display, IntoStaticStr, Serialize)]
#[serde(into = "&'static str")]
#[strum(serialize_all = "lowercase")]
pub(super) enum StatementTopic {
    /// Connection of the upstream.
    Upstream,
    /// State of the upstream in the serving process.
    Running,
    /// Presence in the upstream's lists.
    Listed,
    /// The upstream's own export rules.
    #[strum(serialize = "exports")]
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
    #[strum(serialize = "seen")]
    VisibleItems,
    /// Whether clients receive the upstream's instructions.
    // The word is part of the JSON output.
    #[strum(serialize = "told")]
    Instructions,
}

impl StatementTopic {
    /// Statement that hides nothing.
    pub(super) fn good(self, text: impl Into<String>) -> Statement {
        let text = text.into();
        Statement { about: self, good: true, text, pattern: None, place: None, limit: None }
    }

    /// Reason why the item is not visible.
    pub(super) fn bad(self, text: impl Into<String>) -> Statement {
        Statement { good: false, ..self.good(text) }
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
    pub(super) fn new(
        name: &str,
        client: Option<&String>,
        viewer: Option<&String>,
        mut findings: Vec<ExplainedItem>,
    ) -> Self {
        for finding in &mut findings {
            finding.visible = finding.visibilities.iter().any(|visibility| visibility.visible);
        }
        let visible = findings.iter().any(|finding| finding.visible);
        let (client, viewer) = (client.cloned(), viewer.map(|text| sanitize_line(text)));
        Self { name: name.to_owned(), client, viewer, visible, findings }
    }

    /// Failure of the command if none of the roles sees anything.
    pub(super) fn end(&self) -> Result<(), Failure> {
        if self.visible {
            return Ok(());
        }
        let text = match &self.viewer {
            Some(client) => format!("`{}` is not visible to {client}", self.name),
            None => format!("`{}` is visible to no role", self.name),
        };
        let mut statements = self.findings.iter().flat_map(|finding| {
            let of_roles = finding.visibilities.iter().flat_map(|role| &role.statements);
            finding.statements.iter().chain(of_roles)
        });
        let first = statements.find(|statement| !statement.good).map(|statement| statement.about);
        Err(first.unwrap_or(StatementTopic::Listed).failure(text))
    }

    /// Formats the explanation.
    pub(super) fn to_text(&self, mut out: WrappedText) -> String {
        for (at, finding) in self.findings.iter().enumerate() {
            if at > 0 {
                out.add_gap();
            }
            let title = sanitize_line(&finding.title(&self.name));
            let verdict = describe_visible(finding.visible);
            let headline = match (&self.viewer, finding.visibilities.len()) {
                (Some(client), _) => format!("{verdict} to {client}: {title}"),
                (None, 0) => format!("{verdict}: {title}"),
                (None, _) if !finding.visible => format!("{verdict} to any role: {title}"),
                (None, all) => {
                    let seeing = finding.visibilities.iter().filter(|role| role.visible).count();
                    let all = counted(all as u64, "role");
                    format!("{verdict} to {seeing} of {all}: {title}")
                }
            };
            out.add("", 0, &headline, 4);
            add_statements(&mut out, &finding.statements);
            for visibility in &finding.visibilities {
                match &self.viewer {
                    Some(_) => add_statements(&mut out, &visibility.statements),
                    None => add_visibility(&mut out, visibility),
                }
            }
        }
        out.finish()
    }
}

fn serialize_kind<S: Serializer>(kind: &Option<Kind>, serializer: S) -> Result<S::Ok, S::Error> {
    kind.map(Kind::json_name).serialize(serializer)
}

fn describe_visible(visible: bool) -> &'static str {
    if visible { "visible" } else { "not visible" }
}

fn add_statements(out: &mut WrappedText, statements: &[Statement]) {
    for statement in statements {
        add_statement(out, <&'static str>::from(statement.about), &statement.text);
    }
}

/// Adds the statements about one role as one.
fn add_visibility(out: &mut WrappedText, visibility: &Visibility) {
    let verdict = describe_visible(visibility.visible);
    let statements = visibility.statements.iter().map(|statement| match statement.about {
        about @ (StatementTopic::Allowed | StatementTopic::Denied)
            if statement.pattern.is_some() =>
        {
            format!("{about} {}", statement.text)
        }
        _ => statement.text.clone(),
    });
    let statements = statements.collect::<Vec<_>>().join("; ");
    add_statement(out, "role", &format!("{}: {verdict}; {statements}", visibility.role));
}

/// Adds a line of text behind its topic.
fn add_statement(out: &mut WrappedText, topic: &str, text: &str) {
    let head = format!("  {topic:9} ");
    let indent = if out.is_wide() { head.len() } else { 4 };
    out.add(&head, head.len(), &sanitize_line(text), indent);
}
