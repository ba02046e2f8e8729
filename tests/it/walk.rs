//! Paging through a list during changes: an item that stays visible is returned exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use weir_mcp::kind::Kind;

use crate::by_night;
use crate::cell::{SIDES, Side};
use crate::client::keys_of;
use crate::upstream::{Script, definition};
use crate::world::{World, pass};

const UPSTREAMS: [&str; 3] = ["alpha", "hub", "zeta"];

/// Event between two pages.
#[derive(Debug, Clone)]
enum ListEvent {
    Added(usize, u8),
    Removed(usize, u8),
    WentDown(usize),
    CameUp(usize),
}

fn list_event() -> impl Strategy<Value = ListEvent> {
    let upstream = 0..UPSTREAMS.len();
    prop_oneof![
        3 => (upstream.clone(), 0..20_u8).prop_map(|(at, n)| ListEvent::Added(at, n)),
        3 => (upstream.clone(), 0..20_u8).prop_map(|(at, n)| ListEvent::Removed(at, n)),
        1 => upstream.clone().prop_map(ListEvent::WentDown),
        1 => upstream.prop_map(ListEvent::CameUp),
    ]
}

/// The returned items, and the items that were visible from the beginning to the end.
struct WalkResult {
    returned: Vec<String>,
    visible_throughout: BTreeSet<String>,
}

/// Lists with pages of three; the next events happen before each further page.
async fn walk(side: Side, lists: &[BTreeSet<u8>], events: &[Vec<ListEvent>]) -> WalkResult {
    let scripts = UPSTREAMS.iter().zip(lists).enumerate().map(|(at, (name, list))| {
        let names: Vec<_> = list.iter().map(|n| format!("p{n}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        (*name, Script::new(SIDES[at]).prompts(&names))
    });
    let world = World::start(scripts.collect(), "[protocol]\npage_size = 3").await;
    let client = world.client(side).await;
    let public = |at: usize, n: u8| format!("{}__p{n}", UPSTREAMS[at]);
    let now: BTreeMap<_, _> = lists.iter().cloned().enumerate().collect();
    let mut visible_throughout: BTreeSet<_> =
        now.iter().flat_map(|(at, list)| list.iter().map(|n| public(*at, *n))).collect();

    let (mut returned, mut cursor) = (Vec::new(), None::<String>);
    let mut events = events.iter();
    loop {
        let page = client.page(Kind::Prompt, cursor.as_deref()).await;
        returned.extend(keys_of(Kind::Prompt, &page));
        cursor = page.get_string("nextCursor").map(Into::into);
        if cursor.is_none() {
            break;
        }
        for list_event in events.next().into_iter().flatten() {
            if let ListEvent::Removed(at, n) = list_event {
                visible_throughout.remove(&public(*at, *n));
            }
            happen(&world, list_event);
        }
        pass(Duration::from_secs(40)).await;
    }
    drop(client);
    world.close().await;
    WalkResult { returned, visible_throughout }
}

fn happen(world: &World, list_event: &ListEvent) {
    let change = |at: usize, n: u8, add: bool| {
        let upstream = world.upstream(UPSTREAMS[at]);
        let item = definition(Kind::Prompt, &format!("p{n}"));
        upstream.change_quietly(Kind::Prompt, |list| {
            list.retain(|other| *other != item);
            if add {
                list.push(item);
            }
        });
        upstream.announce(Kind::Prompt.topic());
    };
    match *list_event {
        ListEvent::Added(at, n) => change(at, n, true),
        ListEvent::Removed(at, n) => change(at, n, false),
        ListEvent::WentDown(at) => world.upstream(UPSTREAMS[at]).go_down(),
        ListEvent::CameUp(at) => world.upstream(UPSTREAMS[at]).come_up(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if by_night() { 1_000 } else { 48 }))]

    #[test]
    fn a_walk_returns_what_stays_visible_exactly_once(
        side in 0..SIDES.len(),
        lists in prop::collection::vec(
            prop::collection::btree_set(0..20_u8, 0..10),
            UPSTREAMS.len(),
        ),
        events in prop::collection::vec(prop::collection::vec(list_event(), 0..4), 0..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let walked = runtime.block_on(walk(SIDES[side], &lists, &events));
        let returned: BTreeSet<_> = walked.returned.iter().cloned().collect();
        prop_assert_eq!(returned.len(), walked.returned.len(), "twice: {:?}", walked.returned);
        let missed: Vec<_> = walked.visible_throughout.difference(&returned).collect();
        prop_assert!(missed.is_empty(), "missed: {:?}", missed);
        prop_assert!(walked.returned.is_sorted());
    }
}
