//! What is said of a name: the facts one after the other, as text and as JSON.
//!
//! Promise: both say the same, in the same order.
//! Knows nothing of: how anything was found out.

use std::io::{self, Write};

use bytes::Bytes;

use crate::cli::exit::Failure;
use crate::cli::query::render::plain;
use crate::json::{self, Object};
use crate::mcp::kind::Kind;

/// All that is said of a name.
pub(super) struct Story {
    pub(super) name: String,
    /// Whose eyes it is seen with, if it is one client's.
    pub(super) client: Option<String>,
    /// What the name may mean.
    pub(super) findings: Vec<Finding>,
}

/// One thing that a name may mean.
#[derive(Default)]
pub(super) struct Finding {
    pub(super) kind: Option<Kind>,
    pub(super) upstream: Option<String>,
    /// What its upstream calls it.
    pub(super) own: Option<String>,
    /// What clients call it.
    pub(super) key: Option<String>,
    /// What holds for everybody.
    pub(super) facts: Vec<Fact>,
    /// What holds for one role each.
    pub(super) sights: Vec<Sight>,
}

/// What one role sees of it, and why.
pub(super) struct Sight {
    pub(super) role: String,
    pub(super) visible: bool,
    pub(super) facts: Vec<Fact>,
}

/// One thing that is so.
#[derive(Clone)]
pub(super) struct Fact {
    pub(super) about: About,
    /// Whether it keeps nothing from being seen.
    pub(super) good: bool,
    pub(super) text: String,
    /// The pattern that decides.
    pub(super) pattern: Option<String>,
    /// Where the configuration says so; none for what is so without being written.
    pub(super) place: Option<String>,
    /// The limit, by its number in the configuration.
    pub(super) limit: Option<usize>,
}

/// What a fact is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    /// Whether the upstream is used and connected.
    Upstream,
    /// How its upstream is doing in the Weir that runs.
    Running,
    /// Whether the upstream lists it.
    Listed,
    /// Whether the upstream's own rules let it out.
    Outlet,
    /// What else there is about it.
    List,
    /// To whom a URI that nobody lists leads.
    Route,
    /// Which role the client has.
    Client,
    /// Which rule of the role allows it.
    Allowed,
    /// Which rule of the role denies it.
    Denied,
    /// How often it may be used.
    Limit,
    /// What of a whole upstream is seen.
    Seen,
    /// Whether the upstream's instructions are told.
    Told,
}

impl Fact {
    pub(super) fn good(about: About, text: impl Into<String>) -> Self {
        Self { about, good: true, text: text.into(), pattern: None, place: None, limit: None }
    }

    pub(super) fn bad(about: About, text: impl Into<String>) -> Self {
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

impl About {
    fn word(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Running => "running",
            Self::Listed => "listed",
            Self::Outlet => "outlet",
            Self::List => "list",
            Self::Route => "route",
            Self::Client => "client",
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Limit => "limit",
            Self::Seen => "seen",
            Self::Told => "told",
        }
    }

    /// Whose move it is where this keeps something from being seen.
    fn failure(self, text: String) -> Failure {
        match self {
            Self::Upstream | Self::Running => Failure::Unreachable(text),
            Self::Outlet
            | Self::Client
            | Self::Allowed
            | Self::Denied
            | Self::Limit
            | Self::Seen
            | Self::Told => Failure::Denied(text),
            Self::Listed | Self::List | Self::Route => Failure::Usage(text),
        }
    }
}

impl Finding {
    /// Whether nothing that holds for everybody keeps it from being seen.
    pub(super) fn is_open(&self) -> bool {
        self.facts.iter().all(|fact| fact.good)
    }

    /// Whether anybody it is about sees it.
    pub(super) fn is_visible(&self) -> bool {
        self.sights.iter().any(|sight| sight.visible)
    }

    /// What it is, in words.
    fn title(&self, name: &str) -> String {
        let key = self.key.as_deref().unwrap_or(name);
        match (self.kind, &self.upstream, &self.own) {
            (Some(kind), ..) => format!("{kind} {key}"),
            (None, Some(upstream), None) => format!("upstream {upstream}"),
            (None, ..) => key.to_owned(),
        }
    }
}

impl Story {
    /// The failure that it ends with, if nobody it is about sees anything.
    pub(super) fn end(&self) -> Result<(), Failure> {
        if self.findings.iter().any(Finding::is_visible) {
            return Ok(());
        }
        let text = match &self.client {
            Some(client) => format!("`{}` is not visible to {client}", self.name),
            None => format!("`{}` is visible to no role", self.name),
        };
        let all = self.findings.iter().flat_map(|finding| {
            finding.facts.iter().chain(finding.sights.iter().flat_map(|sight| &sight.facts))
        });
        let first = all.into_iter().find(|fact| !fact.good).map(|fact| fact.about);
        Err(first.unwrap_or(About::Listed).failure(text))
    }

    /// Writes it for people.
    pub(super) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for (at, finding) in self.findings.iter().enumerate() {
            if at > 0 {
                writeln!(out)?;
            }
            let title = plain(&finding.title(&self.name));
            let verdict = if finding.is_visible() { "visible" } else { "not visible" };
            match (&self.client, finding.sights.len()) {
                (Some(client), _) => writeln!(out, "{verdict} to {client}: {title}")?,
                (None, 0) => writeln!(out, "{verdict}: {title}")?,
                (None, _) if !finding.is_visible() => {
                    writeln!(out, "{verdict} to any role: {title}")?;
                }
                (None, all) => {
                    let seeing = finding.sights.iter().filter(|sight| sight.visible).count();
                    let plural = if all == 1 { "" } else { "s" };
                    writeln!(out, "{verdict} to {seeing} of {all} role{plural}: {title}")?;
                }
            }
            finding.facts.iter().try_for_each(|fact| write_fact(out, fact))?;
            for sight in &finding.sights {
                match &self.client {
                    Some(_) => sight.facts.iter().try_for_each(|fact| write_fact(out, fact))?,
                    None => write_sight(out, sight)?,
                }
            }
        }
        Ok(())
    }

    /// Writes it for programs, on one line.
    pub(super) fn to_json(&self) -> Bytes {
        let mut story = Object::new();
        story.set("name", json::quote(&self.name));
        set_if_any(&mut story, "client", self.client.as_deref());
        story.set("visible", self.findings.iter().any(Finding::is_visible).to_string());
        let findings = self.findings.iter().map(|finding| {
            let mut object = Object::new();
            set_if_any(&mut object, "kind", finding.kind.map(Kind::word));
            set_if_any(&mut object, "upstream", finding.upstream.as_deref());
            set_if_any(&mut object, "own", finding.own.as_deref());
            set_if_any(&mut object, "key", finding.key.as_deref());
            object.set("visible", finding.is_visible().to_string());
            object.set("facts", array(finding.facts.iter().map(Fact::write_json)));
            let sights = finding.sights.iter().map(|sight| {
                let mut object = Object::new();
                object.set("role", json::quote(&sight.role));
                object.set("visible", sight.visible.to_string());
                object.set("facts", array(sight.facts.iter().map(Fact::write_json)));
                object.to_bytes().to_vec()
            });
            object.set("roles", array(sights));
            object.to_bytes().to_vec()
        });
        story.set("findings", array(findings));
        story.to_bytes()
    }
}

fn write_fact(out: &mut dyn Write, fact: &Fact) -> io::Result<()> {
    writeln!(out, "  {:9} {}", fact.about.word(), plain(&fact.text))
}

/// All that is said of one role, on one line.
fn write_sight(out: &mut dyn Write, sight: &Sight) -> io::Result<()> {
    let verdict = if sight.visible { "visible" } else { "not visible" };
    let facts = sight.facts.iter().map(|fact| match fact.about {
        about @ (About::Allowed | About::Denied) if fact.pattern.is_some() => {
            format!("{} {}", about.word(), fact.text)
        }
        _ => fact.text.clone(),
    });
    let facts = facts.collect::<Vec<_>>().join("; ");
    writeln!(out, "  {:9} {}: {verdict}; {}", "role", sight.role, plain(&facts))
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
