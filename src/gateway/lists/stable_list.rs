//! A list whose pages fit together.
//!
//! Pages are asked for one after the other, and what a cursor means is its server's to say: where it is a place in a
//! list that changes meanwhile, what stood behind what was removed moves over to a page that was read already. So
//! what is missing from a list of several pages is looked for once more before it is gone.

use std::collections::HashSet;

use crate::catalog::Snapshot;
use crate::cpu_bound;
use crate::gateway::lists::list_cache::digest;
use crate::mcp::kind::Kind;
use crate::upstream::{Error, Listing, Upstream};

/// How often a list is read at the most, before it is believed.
const READS: usize = 3;

/// Lists a kind, of which `before` was listed last: again if anything of that is missing from its pages, until two say
/// the same.
pub(crate) async fn list(
    upstream: &Upstream,
    kind: Kind,
    before: Option<&Snapshot>,
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

/// Whether something of before is missing.
fn is_less(listing: &Listing, before: &Snapshot) -> bool {
    cpu_bound::run(before.items.len(), || {
        let keys: HashSet<&str> = listing.items.iter().map(|item| &*item.key).collect();
        before.items.iter().any(|item| !keys.contains(&*item.key))
    })
}
