//! Export rules of one upstream: which items are exported, and their public names.

use weir_mcp::kind::Kind;
use weir_mcp::name::{Altered, Naming, UpstreamName};
use weir_mcp::pattern::AllowDeny;
use weir_mcp::uri::CanonicalUri;

/// Export rules of one upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportRules {
    /// The upstream's name in the configuration file.
    pub name: UpstreamName,
    /// Prefix of its public names; unique among upstreams.
    pub prefix: UpstreamName,
    /// Rules for prompts, over their own names.
    pub prompts: AllowDeny,
    /// Rules for tools, over their own names.
    pub tools: AllowDeny,
    /// Rules for resources and templates, over their URIs.
    pub resources: AllowDeny,
    /// (kind, own name, new name): replaces the own name in the public name.
    pub rename: Vec<(Kind, String, String)>,
}

impl ExportRules {
    /// The rules for items of this kind.
    pub fn rules(&self, kind: Kind) -> &AllowDeny {
        match kind {
            Kind::Prompt => &self.prompts,
            Kind::Tool => &self.tools,
            Kind::Resource | Kind::Template => &self.resources,
        }
    }

    /// The public name or URI of the upstream's item.
    pub fn public_key(&self, naming: &Naming, kind: Kind, own: &str) -> Box<str> {
        if !kind.has_name() {
            return own.into();
        }
        naming.join(&self.prefix, self.renamed(kind, own)).into()
    }

    /// The name that was altered to become public (the upstream's own or that of `rename`), and the
    /// reason.
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

    /// Whether the item is exported.
    pub(super) fn allows(&self, kind: Kind, own: &str) -> bool {
        self.rules(kind).allow(own)
    }

    /// Whether a resource that the upstream does not list may be requested from it.
    pub(super) fn allows_uri(&self, uri: &CanonicalUri<'_>) -> bool {
        self.resources.allow_everything() || self.resources.decide_uri("", uri).allows()
    }
}
