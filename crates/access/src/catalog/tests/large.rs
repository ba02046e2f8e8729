//! Tests of long lists: other tasks of the worker run while they are processed.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tokio_util::task::TaskTracker;

use super::*;

/// Number of items that is just large enough for `cpu_bound`.
const ITEMS: usize = 1_500;

fn long(version: u8) -> ListSnapshot {
    let items = (0..ITEMS).map(|at| item(Kind::Tool, &format!("t{at}"), version)).collect();
    ListSnapshot { items, fresh_until: None, is_private: false, cut: None }
}

/// A role that may use everything, and waits at each item until another task of the worker has had
/// a turn.
#[derive(Default)]
struct Waits {
    turns: AtomicUsize,
    /// Whether it has waited in vain.
    is_in_vain: AtomicBool,
    calls: AtomicUsize,
    is_over: AtomicBool,
}

impl Filter for Waits {
    fn allows(&self, _: Kind, _: &UpstreamName, _: &str) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let (before, begin) = (self.turns.load(Ordering::Acquire), Instant::now());
        while !self.is_in_vain.load(Ordering::Relaxed)
            && self.turns.load(Ordering::Acquire) == before
        {
            std::thread::yield_now();
            // A blocked task never has a turn.
            self.is_in_vain.store(begin.elapsed().as_secs() >= 60, Ordering::Relaxed);
        }
        true
    }

    fn allows_uri(&self, _: &UpstreamName, _: &CanonicalUri<'_>) -> bool {
        true
    }

    fn resources(&self) -> &AllowDeny {
        static EVERYTHING: LazyLock<AllowDeny> = LazyLock::new(AllowDeny::everything);
        &EVERYTHING
    }

    fn reaches(&self, _: &UpstreamName) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_long_list_is_built_beside_the_other_tasks_of_its_worker() {
    let (catalog, waits, tasks) =
        (Arc::new(catalog(&["hub"])), Arc::new(Waits::default()), TaskTracker::new());
    let other = Arc::clone(&waits);
    tasks.spawn(async move {
        while !other.is_over.load(Ordering::Acquire) {
            other.turns.fetch_add(1, Ordering::Release);
            tokio::task::yield_now().await;
        }
    });
    type Step = (&'static str, fn(&Catalog, Arc<dyn Filter>));
    let steps: [Step; 5] = [
        ("the first list", |catalog, _| catalog.publish(&name("hub"), Kind::Tool, long(0))),
        ("the first use of a role", |catalog, waits| drop(catalog.view("waits", &waits))),
        ("another list", |catalog, _| catalog.publish(&name("hub"), Kind::Tool, long(1))),
        ("it is left out", |catalog, _| catalog.hide(&name("hub"), true)),
        ("it is back", |catalog, _| catalog.hide(&name("hub"), false)),
    ];
    for (what, step) in steps {
        let (catalog, waits) = (Arc::clone(&catalog), Arc::clone(&waits));
        let judge = Arc::clone(&waits);
        tasks.spawn(async move { step(&catalog, waits) }).await.expect("it does not panic");
        assert!(!judge.is_in_vain.load(Ordering::Relaxed), "{what} blocked the other task");
    }
    assert_eq!(waits.calls.load(Ordering::Relaxed), 3 * ITEMS);
    waits.is_over.store(true, Ordering::Release);
    let view = catalog.seen(&["*"], &[]);
    assert_eq!(view.count(Kind::Tool, &name("hub")), ITEMS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_changes_beside_a_long_one_are_not_lost() {
    let catalog = Arc::new(catalog(&["hub", "other"]));
    let mut watch = catalog.view("all", &sees(&["*"], &[]));
    let (tasks, long_one) = (TaskTracker::new(), Arc::clone(&catalog));
    let building = tasks.spawn(async move { long_one.publish(&name("hub"), Kind::Tool, long(0)) });
    for version in 0..20 {
        let items = vec![item(Kind::Tool, "x", version)];
        let snapshot = ListSnapshot { items, fresh_until: None, is_private: false, cut: None };
        catalog.publish(&name("other"), Kind::Tool, snapshot);
    }
    building.await.expect("it does not panic");
    let view = Arc::clone(&watch.borrow_and_update());
    assert_eq!(view.count(Kind::Tool, &name("hub")), ITEMS);
    let other = view.resolve(Kind::Tool, "other__x").expect("it is listed");
    assert!(other.json.ends_with(b"\"v\":19}"), "{:?}", other.json);
}
