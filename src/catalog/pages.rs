//! Pages of a table as they are sent, rendered once.
//!
//! Promises: a page is kept with its table, and so for as long as it is true; only pages are kept that begin where the list
//! does or where another kept one ends, so that cursors which nobody was given take no room; and all that are kept in
//! the process have [`MAX_BYTES`] together. What is not kept is rendered again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;

use super::cursor::Cursor;
use crate::mcp::definition::downgrade::Form;

/// What the kept pages of the process may take together, in bytes.
const MAX_BYTES: usize = 16 << 20;

static KEPT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Which page of a table is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Cut {
    pub(super) form: Form,
    /// The row that it begins with.
    pub(super) start: usize,
    /// How many items it has at the most.
    pub(super) most: usize,
    /// How many bytes of them.
    pub(super) most_bytes: usize,
}

/// A page as it is sent.
#[derive(Debug)]
pub(super) struct Rendered {
    /// A JSON array, on one line.
    pub(super) items: Bytes,
    pub(super) count: usize,
    /// Where the next page begins: the place, and the row. `None` on the last.
    pub(super) next: Option<(Cursor, usize)>,
}

/// The kept pages of a table.
#[derive(Default)]
pub(super) struct Pages {
    /// `None` where a page would begin that nobody has asked for yet.
    kept: RwLock<HashMap<Cut, Option<Kept>>>,
}

struct Kept {
    page: Arc<Rendered>,
    _room: Room,
}

impl Pages {
    /// The page, which `render` makes if it is not kept.
    pub(super) fn get(&self, cut: Cut, render: impl FnOnce() -> Rendered) -> Arc<Rendered> {
        let is_regular = {
            let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
            match kept.get(&cut) {
                Some(Some(found)) => return Arc::clone(&found.page),
                Some(None) => true,
                None => cut.start == 0,
            }
        };
        let page = Arc::new(render());
        if is_regular && let Some(room) = Room::take(page.items.len()) {
            let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, start)) = page.next {
                kept.entry(Cut { start, ..cut }).or_default();
            }
            kept.insert(cut, Some(Kept { page: Arc::clone(&page), _room: room }));
        }
        page
    }
}

/// Room for so many bytes, until it is dropped.
struct Room(usize);

impl Room {
    fn take(bytes: usize) -> Option<Self> {
        let with = |kept: usize| Some(kept.saturating_add(bytes)).filter(|all| *all <= MAX_BYTES);
        let taken = KEPT_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
        taken.is_ok().then(|| Self(bytes))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        KEPT_BYTES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(bytes: usize, next: Option<usize>) -> Rendered {
        let cursor = Cursor { upstream: "a".parse().expect("a name"), key: "k".into() };
        let next = next.map(|row| (cursor, row));
        Rendered { items: vec![b' '; bytes].into(), count: 1, next }
    }

    #[test]
    fn what_a_list_is_cut_into_is_rendered_once_and_nothing_else_is_kept() {
        let pages = Pages::default();
        let cut = |start| Cut { form: Form::Newest, start, most: 2, most_bytes: 100 };
        let renders = |cut, next| {
            let mut has_rendered = false;
            pages.get(cut, || {
                has_rendered = true;
                rendered(10, next)
            });
            has_rendered
        };
        assert!(renders(cut(2), Some(4)) && renders(cut(2), Some(4)), "nobody was led there");
        assert!(renders(cut(0), Some(2)) && !renders(cut(0), Some(2)));
        assert!(renders(cut(2), Some(4)) && !renders(cut(2), Some(4)));
        assert!(renders(cut(3), Some(5)) && renders(cut(3), Some(5)));
        let other = Cut { form: Form::Older, ..cut(0) };
        assert!(renders(other, None) && !renders(other, None), "each form by itself");
        let wider = Cut { most: 3, ..cut(0) };
        assert!(renders(wider, Some(3)), "and each way to cut");
    }

    #[test]
    fn what_finds_no_room_is_rendered_again() {
        let pages = Pages::default();
        let cut = Cut { form: Form::Newest, start: 0, most: 1, most_bytes: 1 };
        assert_eq!(pages.get(cut, || rendered(MAX_BYTES + 1, None)).items.len(), MAX_BYTES + 1);
        assert_eq!(pages.get(cut, || rendered(10, None)).items.len(), 10);
    }
}
