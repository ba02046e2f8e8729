//! Cache of rendered pages of a table.
//!
//! Invariants: a page is cached in its table, and so for as long as it is valid; only pages are
//! cached that begin at the start of the list or at the end of another cached page, so that forged
//! cursors use no memory; all cached pages of the process have at most [`MAX_BYTES`] together.
//! Other pages are rendered again.
//!
//! Decision: docs/decisions/0004-list-refresh.md

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::cursor::Cursor;
use weir_base::tasks::sync::RwLock;
use weir_mcp::definition::downgrade::DefinitionForm;

/// Maximum size of all cached pages of the process, in bytes.
const MAX_BYTES: usize = 16 << 20;

static CACHED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Cache key of a page of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PageKey {
    pub(super) form: DefinitionForm,
    /// Index of the first row.
    pub(super) start: usize,
    /// Maximum number of items.
    pub(super) max_items: usize,
    /// Maximum number of bytes.
    pub(super) max_bytes: usize,
}

/// A rendered page.
#[derive(Debug)]
pub(super) struct RenderedPage {
    /// A JSON array, on one line.
    pub(super) items: Bytes,
    /// Start of the next page: its cursor, and the index of its first row. `None` on the last.
    pub(super) next: Option<(Cursor, usize)>,
}

/// The cached pages of a table.
#[derive(Default)]
pub(super) struct Pages {
    /// `None` for a page whose cursor was handed out, but that has not been requested yet.
    cached: RwLock<HashMap<PageKey, Option<CachedPage>>>,
}

struct CachedPage {
    page: Arc<RenderedPage>,
    _reservation: CacheReservation,
}

impl Pages {
    /// The page; `render` is called if it is not cached.
    pub(super) fn get(
        &self,
        key: PageKey,
        render: impl FnOnce() -> RenderedPage,
    ) -> Arc<RenderedPage> {
        let is_regular = {
            let cached = self.cached.read();
            match cached.get(&key) {
                Some(Some(found)) => return Arc::clone(&found.page),
                Some(None) => true,
                None => key.start == 0,
            }
        };
        let page = Arc::new(render());
        if is_regular && let Some(reservation) = CacheReservation::take(page.items.len()) {
            let mut cached = self.cached.write();
            if let Some((_, start)) = page.next {
                cached.entry(PageKey { start, ..key }).or_default();
            }
            cached.insert(
                key,
                Some(CachedPage { page: Arc::clone(&page), _reservation: reservation }),
            );
        }
        page
    }
}

/// Reservation of this many bytes of the cache, until it is dropped.
struct CacheReservation(usize);

impl CacheReservation {
    fn take(bytes: usize) -> Option<Self> {
        let with =
            |cached: usize| Some(cached.saturating_add(bytes)).filter(|all| *all <= MAX_BYTES);
        let taken = CACHED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
        taken.is_ok().then(|| Self(bytes))
    }
}

impl Drop for CacheReservation {
    fn drop(&mut self) {
        CACHED_BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(bytes: usize, next: Option<usize>) -> RenderedPage {
        let cursor = Cursor { upstream: "a".parse().expect("a name"), key: "k".into() };
        let next = next.map(|row| (cursor, row));
        RenderedPage { items: vec![b' '; bytes].into(), next }
    }

    #[test]
    fn what_a_list_is_cut_into_is_rendered_once_and_nothing_else_is_kept() {
        let pages = Pages::default();
        let key =
            |start| PageKey { form: DefinitionForm::Newest, start, max_items: 2, max_bytes: 100 };
        let renders = |key, next| {
            let mut has_rendered = false;
            pages.get(key, || {
                has_rendered = true;
                rendered(10, next)
            });
            has_rendered
        };
        assert!(renders(key(2), Some(4)) && renders(key(2), Some(4)), "no cursor leads there");
        assert!(renders(key(0), Some(2)) && !renders(key(0), Some(2)));
        assert!(renders(key(2), Some(4)) && !renders(key(2), Some(4)));
        assert!(renders(key(3), Some(5)) && renders(key(3), Some(5)));
        let other = PageKey { form: DefinitionForm::Older, ..key(0) };
        assert!(renders(other, None) && !renders(other, None), "each form by itself");
        let wider = PageKey { max_items: 3, ..key(0) };
        assert!(renders(wider, Some(3)), "and each page size");
    }

    #[test]
    fn what_finds_no_room_is_rendered_again() {
        let pages = Pages::default();
        let key = PageKey { form: DefinitionForm::Newest, start: 0, max_items: 1, max_bytes: 1 };
        assert_eq!(pages.get(key, || rendered(MAX_BYTES + 1, None)).items.len(), MAX_BYTES + 1);
        assert_eq!(pages.get(key, || rendered(10, None)).items.len(), 10);
    }
}
