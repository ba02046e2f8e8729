//! Log lines about definitions that differ from the approved ones.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Change, Mode};
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;

/// Returns a fingerprint of the differences; 0 if there are none.
pub(super) fn fingerprint(found: &[(String, Change)]) -> u64 {
    let mut digest = DefaultHasher::new();
    found.hash(&mut digest);
    if found.is_empty() { 0 } else { digest.finish().max(1) }
}

/// Logs the differences. Names come from an upstream, therefore they are quoted.
pub(super) fn log_differences(
    upstream: &UpstreamName,
    kind: Kind,
    found: &[(String, Change)],
    mode: Mode,
) {
    let first = found.iter().take(MAX_LOGGED_ITEMS).map(|(key, change)| match change {
        Change::Changed(members) if !members.is_empty() => {
            format!(
                "{key:?} changed: {}",
                members.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>().join(", ")
            )
        }
        Change::Renamed(was) => format!("{key:?} renamed from {was:?}"),
        change => format!("{key:?} {change}"),
    });
    let first = first.collect::<Vec<_>>().join("; ");
    let (items, served) = (found.len(), mode == Mode::Alert);
    let is_harmless =
        |(_, change): &(String, Change)| matches!(change, Change::New | Change::Missing);
    match served && found.iter().all(is_harmless) {
        true => {
            tracing::info!(
                %upstream, %kind, items, served, first,
                "definitions added or removed"
            )
        }
        false => {
            tracing::warn!(
                %upstream, %kind, items, served, first,
                "definitions differ from the approved ones"
            );
        }
    }
}

/// Most items that a log line names.
const MAX_LOGGED_ITEMS: usize = 10;
