//! Consistent reading of paginated lists.
//!
//! Pages are requested one after the other, and the meaning of a cursor is up to the server: if it
//! is a position and an item is removed meanwhile, a following item moves to a page that was read
//! already. So if an item is missing from a list of several pages, the list is read again before
//! the item counts as removed.
//!
//! Decision: docs/decisions/0004-list-refresh.md

use std::collections::HashSet;

use crate::lists::list_cache::digest;
use weir_access::catalog::ListSnapshot;
use weir_base::tasks::cpu_bound;
use weir_mcp::kind::Kind;
use weir_upstream::{Error, Listing, Upstream};

/// Maximum number of reads before a list is accepted.
const READS: usize = 3;

/// Lists a kind. If an item of the last list `before` is missing from the pages, it lists again
/// until two lists are equal, at most [`READS`] times.
pub(crate) async fn list(
    upstream: &Upstream,
    kind: Kind,
    before: Option<&ListSnapshot>,
) -> Result<Listing, Error> {
    let mut listing = upstream.list(kind).await?;
    for _ in 1..READS {
        if listing.pages < 2 || !before.is_some_and(|before| is_less(&listing, before)) {
            break;
        }
        let again = upstream.list(kind).await?;
        let is_same = digest(&again.items) == digest(&listing.items);
        let old = std::mem::replace(&mut listing, again);
        cpu_bound::discard(old.items.len(), old);
        if is_same {
            break;
        }
    }
    Ok(listing)
}

/// Whether an item of the last list is missing.
fn is_less(listing: &Listing, before: &ListSnapshot) -> bool {
    cpu_bound::run(before.items.len(), || {
        let keys: HashSet<&str> = listing.items.iter().map(|item| &*item.key).collect();
        before.items.iter().any(|item| !keys.contains(&*item.key))
    })
}
