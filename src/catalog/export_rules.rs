//! What leaves one upstream, and under which public names.

use crate::mcp::kind::Kind;
use crate::mcp::name::{Altered, Naming, UpstreamName};
use crate::mcp::pattern::Rules;
use crate::mcp::uri::CanonicalUri;

/// How one upstream's items are shown.
#[derive(Debug, Clone)]
pub struct Outlet {
    /// The upstream's name in the file.
    pub name: UpstreamName,
    /// What its public names begin with; no two outlets have the same.
    pub prefix: UpstreamName,
    /// Which prompts leave the upstream at all, by their own names.
    pub prompts: Rules,
    /// Which tools leave the upstream at all, by their own names.
    pub tools: Rules,
    /// Which resources and templates leave the upstream at all.
    pub resources: Rules,
    /// (kind, own name, new name): changes the item's part of the public name.
    pub rename: Vec<(Kind, String, String)>,
}

impl Outlet {
    /// What leaves the upstream of this kind.
    pub fn rules(&self, kind: Kind) -> &Rules {
        match kind {
            Kind::Prompt => &self.prompts,
            Kind::Tool => &self.tools,
            Kind::Resource | Kind::Template => &self.resources,
        }
    }

    /// What clients call the upstream's item.
    pub fn public_key(&self, naming: &Naming, kind: Kind, own: &str) -> Box<str> {
        if !kind.has_name() {
            return own.into();
        }
        naming.join(&self.prefix, self.renamed(kind, own)).into()
    }

    /// The name that was altered to become public, the upstream's own or that of `rename`, and the reason.
    pub fn altered<'a>(
        &'a self,
        naming: &Naming,
        kind: Kind,
        own: &'a str,
    ) -> Option<(&'a str, Altered)> {
        let name = self.renamed(kind, own);
        let altered = naming.altered(&self.prefix, name).filter(|_| kind.has_name());
        altered.map(|reason| (name, reason))
    }

    pub(super) fn renamed<'a>(&'a self, kind: Kind, own: &'a str) -> &'a str {
        let renamed = self.rename.iter().find(|(of, from, _)| *of == kind && from == own);
        renamed.map_or(own, |(_, _, to)| to)
    }

    /// Whether the item leaves the upstream at all.
    pub(super) fn lets_out(&self, kind: Kind, own: &str) -> bool {
        self.rules(kind).allow(own)
    }

    /// Whether a resource that the upstream does not list may be asked of it.
    pub(super) fn lets_out_uri(&self, uri: &CanonicalUri<'_>) -> bool {
        self.resources.allow_everything() || self.resources.decide_uri("", uri).allows()
    }
}
