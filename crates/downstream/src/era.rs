//! Protocol versions served, and the era of each message, decided once per message.

use weir_base::json::Object;
use weir_mcp::meta;
use weir_mcp::methods::METHODS;
use weir_mcp::revision::{Era, Revision};

/// Supported revisions, newest first unless an era was put first; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions(Vec<Revision>);

impl Versions {
    /// Builds the list from revisions in any order; `None` if there are none.
    pub fn new(revisions: impl IntoIterator<Item = Revision>) -> Option<Self> {
        let mut revisions: Vec<_> = revisions.into_iter().collect();
        revisions.sort_unstable();
        revisions.dedup();
        revisions.reverse();
        (!revisions.is_empty()).then_some(Self(revisions))
    }

    /// Supported revisions, newest first.
    pub fn iter(&self) -> impl Iterator<Item = Revision> {
        self.0.iter().copied()
    }

    /// True if the revision is supported.
    pub fn has(&self, revision: Revision) -> bool {
        self.0.contains(&revision)
    }

    /// Newest supported revision with a handshake.
    pub fn newest_legacy(&self) -> Option<Revision> {
        self.0.iter().copied().find(|revision| revision.era() == Era::Legacy)
    }

    /// True if a stateless revision is supported.
    pub fn has_modern(&self) -> bool {
        self.0.iter().any(|revision| revision.era() == Era::Modern)
    }

    /// Supported revisions as a JSON array, newest first.
    ///
    /// All of them, legacy ones included (spec 2026-07-28, versioning: "listing the versions it
    /// does support", with 2025-11-25 in its example): a client that supports no modern revision of
    /// Weir's learns here which `initialize` will work.
    pub(super) fn to_json(&self) -> String {
        let quoted: Vec<_> = self.0.iter().map(|revision| format!("\"{revision}\"")).collect();
        format!("[{}]", quoted.join(","))
    }

    /// Returns the same revisions, those of an era first.
    pub(super) fn with_first(&self, era: Era) -> Self {
        let mut revisions = self.0.clone();
        revisions.sort_by_key(|revision| revision.era() != era);
        Self(revisions)
    }

    /// Supported revisions as a comma-separated list.
    pub(super) fn to_text(&self) -> String {
        self.0.iter().map(|revision| revision.as_str()).collect::<Vec<_>>().join(", ")
    }
}

impl Default for Versions {
    fn default() -> Self {
        Self(Revision::ALL.into_iter().rev().collect())
    }
}

/// Returns the era of a request, from its method, its parameters and its HTTP version header.
pub(super) fn of_request(
    versions: &Versions,
    method: &str,
    params: &Object,
    header: Option<&str>,
) -> Era {
    // If one era is disabled there is nothing to decide: requests of that era fail as they would on
    // a server that does not implement it.
    if !versions.has_modern() {
        return Era::Legacy;
    }
    if versions.newest_legacy().is_none() {
        return Era::Modern;
    }
    let by_method = METHODS.iter().any(|known| known.is_modern && known.name == method);
    let by_header = method != "initialize" && is_modern_header(header);
    // `_meta` is checked last because it has to be parsed.
    let by_meta = || {
        params.get_object("_meta").is_some_and(|meta| {
            meta.has(meta::PROTOCOL_VERSION) || meta.has(meta::CLIENT_CAPABILITIES)
        })
    };
    if by_method || by_header || by_meta() { Era::Modern } else { Era::Legacy }
}

/// Returns the era of a notification or a response, which carry no version of their own.
pub(super) fn of_unversioned(versions: &Versions, header: Option<&str>) -> Era {
    if versions.newest_legacy().is_none() || versions.has_modern() && is_modern_header(header) {
        Era::Modern
    } else {
        Era::Legacy
    }
}

fn is_modern_header(header: Option<&str>) -> bool {
    let revision = header.and_then(|text| text.parse::<Revision>().ok());
    revision.is_some_and(|revision| revision.era() == Era::Modern)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: &str = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"x"}}"#;
    const CAPABILITIES: &str = r#"{"_meta":{"io.modelcontextprotocol/clientCapabilities":{}}}"#;
    const INFO: &str = r#"{"_meta":{"io.modelcontextprotocol/clientInfo":{}}}"#;

    #[test]
    fn the_revisions_of_either_era_come_first() {
        let versions = Versions::default();
        assert_eq!(versions.with_first(Era::Modern), versions);
        let legacy_first = versions.with_first(Era::Legacy);
        assert!(legacy_first.to_json().starts_with("[\"2025-11-25\",\"2025-06-18\""));
        assert!(legacy_first.to_json().ends_with("\"2026-07-28\"]"));
    }

    #[test]
    fn the_era_is_read_from_meta_method_and_header() {
        for (method, params, header, expected) in [
            ("prompts/list", "{}", None, Era::Legacy),
            ("prompts/list", "{}", Some("2025-11-25"), Era::Legacy),
            ("prompts/list", "{}", Some("nonsense"), Era::Legacy),
            ("prompts/list", "{}", Some("2026-07-28"), Era::Modern),
            ("prompts/list", VERSION, None, Era::Modern),
            ("prompts/list", CAPABILITIES, None, Era::Modern),
            ("prompts/list", INFO, None, Era::Legacy),
            ("prompts/list", r#"{"_meta":7}"#, None, Era::Legacy),
            ("server/discover", "{}", None, Era::Modern),
            ("subscriptions/listen", "{}", None, Era::Modern),
            ("initialize", "{}", None, Era::Legacy),
            ("initialize", "{}", Some("2026-07-28"), Era::Legacy),
            ("initialize", VERSION, None, Era::Modern),
            ("ping", VERSION, Some("2025-11-25"), Era::Modern),
        ] {
            let params = Object::parse(params).expect("an object");
            let era = of_request(&Versions::default(), method, &params, header);
            assert_eq!(era, expected, "{method} {params:?} {header:?}");
        }
    }

    #[test]
    fn with_one_era_turned_off_nothing_is_of_it() {
        let modern = Versions::new([Revision::NEWEST]).expect("one");
        let legacy = Versions::new([Revision::NEWEST_LEGACY]).expect("one");
        let params = Object::parse(VERSION).expect("an object");
        assert_eq!(of_request(&legacy, "tools/list", &params, Some("2026-07-28")), Era::Legacy);
        assert_eq!(of_request(&modern, "initialize", &Object::new(), None), Era::Modern);
        assert_eq!(of_unversioned(&modern, None), Era::Modern);
        assert_eq!(of_unversioned(&legacy, Some("2026-07-28")), Era::Legacy);
        assert_eq!(Versions::new([]), None);
    }

    #[test]
    fn versions_are_told_newest_first() {
        let versions = Versions::new([Revision::V2024_11_05, Revision::NEWEST]).expect("two");
        assert_eq!(versions.to_json(), r#"["2026-07-28","2024-11-05"]"#);
        assert_eq!(versions.newest_legacy(), Some(Revision::V2024_11_05));
    }
}
