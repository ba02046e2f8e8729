//! The properties D-P1 to D-P32: a table of the tests that show them, which is checked, and tests
//! for the properties that no single module has.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use weir_mcp::jsonrpc::pending::PendingRequests;
use weir_mcp::jsonrpc::{self, Id, Message, ResponsePayload};
use weir_mcp::kind::Kind;

use crate::cell::{LEGACY_HTTP, LEGACY_STDIO, MODERN_HTTP, MODERN_STDIO};
use crate::upstream::Script;
use crate::world::{World, pass};

/// A property, its sentence, and the files and names of the tests that show it.
type Row = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const HERE: &str = "tests/it/properties.rs";
const SIM: (&str, &str) = ("tests/it/sim.rs", "what_is_promised_holds_in_every_history");

const ROWS: [Row; 32] = [
    (
        "D-P1",
        "no id twice on a connection",
        &[(HERE, "d_p1_no_two_open_requests_share_an_id_and_none_comes_again"), SIM],
    ),
    (
        "D-P2",
        "the id that was sent comes back",
        &[
            (HERE, "d_p2_the_id_that_was_sent_is_the_id_that_comes_back"),
            ("tests/it/forwarding.rs", "a_client_gets_its_own_id_back"),
        ],
    ),
    (
        "D-P3",
        "callable is listed",
        &[
            (
                "tests/it/sight.rs",
                "s02_s03_d_p3_what_is_listed_is_reached_and_what_is_not_is_neither",
            ),
            SIM,
        ],
    ),
    (
        "D-P4",
        "the upstream gets what was judged",
        &[
            (
                "tests/it/security.rs",
                "s13_a_member_that_stands_twice_or_is_written_otherwise_decides_nothing",
            ),
            ("tests/it/forwarding.rs", "a_call_goes_to_its_owner_under_the_owners_own_name"),
        ],
    ),
    (
        "D-P5",
        "arguments and results byte for byte",
        &[
            ("tests/it/forwarding.rs", "parameters_pass_byte_for_byte"),
            ("tests/it/forwarding.rs", "a_result_comes_back_byte_for_byte"),
            ("crates/base/src/json.rs", "any_object_comes_out_as_it_went_in"),
        ],
    ),
    (
        "D-P6",
        "framing does not depend on the cuts",
        &[
            ("crates/base/src/text/line_codec.rs", "the_cuts_do_not_matter"),
            ("crates/base/src/text/sse.rs", "what_is_written_is_read"),
            ("crates/base/src/json/extract.rs", "the_cuts_do_not_matter"),
            (
                "tests/it/fuzz.rs",
                "what_reads_and_writes_text_keeps_its_word_for_every_committed_input",
            ),
        ],
    ),
    (
        "D-P7",
        "less is never more",
        &[(
            "crates/access/src/policy/role.rs",
            "s05_d_p7_one_rule_less_or_one_denial_more_grants_nothing",
        )],
    ),
    (
        "D-P8",
        "nothing but the role decides",
        &[
            (
                "tests/it/security.rs",
                "s10_headers_that_route_elsewhere_change_nothing_and_go_nowhere",
            ),
            ("tests/it/translation.rs", "what_a_client_says_of_itself_decides_nothing"),
            // The connection and the revision make no difference either.
            (HERE, "d_p15_who_may_the_same_gets_the_same_bytes"),
        ],
    ),
    (
        "D-P9",
        "one end in every order",
        &[
            (
                "crates/mcp/src/jsonrpc/pending.rs",
                "in_every_order_each_request_is_settled_once_and_leaves",
            ),
            ("tests/it/orderings.rs", "whatever_ends_a_legacy_call_over_http_ends_it_once"),
            ("tests/it/cancelling.rs", "f37g_a_late_answer_to_a_cancelled_call_reaches_nobody"),
        ],
    ),
    (
        "D-P10",
        "names join in one way",
        &[
            ("crates/mcp/src/name.rs", "s28_joining_is_injective"),
            ("crates/mcp/src/name.rs", "a_name_that_fits_comes_back"),
        ],
    ),
    // Names that look alike are not treated specially: other bytes are other names.
    ("D-P11", "merged names are unique", &[("crates/mcp/src/name.rs", "s28_joining_is_injective")]),
    (
        "D-P12",
        "headers say what the body says",
        &[
            (
                "crates/mcp/src/definition/param_headers.rs",
                "a_header_says_the_argument_that_it_was_written_for",
            ),
            ("crates/mcp/src/definition/param_headers.rs", "a_header_says_no_other_argument"),
            ("tests/it/security.rs", "s14_n15_a_header_opens_nothing_that_its_body_may_not"),
        ],
    ),
    (
        "D-P13",
        "capabilities are what can be served",
        &[(
            "tests/it/introductions.rs",
            "capabilities_are_the_union_of_what_the_visible_upstreams_have",
        )],
    ),
    (
        "D-P14",
        "the order is total",
        &[
            ("tests/it/listing.rs", "the_lists_of_all_upstreams_are_one_in_order"),
            (HERE, "d_p14_the_order_does_not_depend_on_who_answers_first"),
        ],
    ),
    (
        "D-P15",
        "who may the same sees the same bytes",
        &[(HERE, "d_p15_who_may_the_same_gets_the_same_bytes")],
    ),
    // A cursor carries no authority, so it is not sealed: Weir accepts only cursors that it would
    // write.
    (
        "D-P16",
        "what is no cursor is refused",
        &[
            (
                "crates/access/src/catalog/cursor.rs",
                "no_text_makes_the_reader_panic_and_what_it_reads_is_written_the_same",
            ),
            (
                "tests/it/security.rs",
                "s20_a_cursor_of_somebody_else_or_of_nobody_shows_nothing_more",
            ),
        ],
    ),
    (
        "D-P17",
        "a walk meets all that stays, once",
        &[
            (
                "crates/access/src/catalog/tests/properties.rs",
                "a_walk_returns_every_item_that_stays_visible_exactly_once",
            ),
            ("tests/it/walk.rs", "a_walk_returns_what_stays_visible_exactly_once"),
            SIM,
        ],
    ),
    (
        "D-P18",
        "a walk has as many pages as it needs",
        &[(HERE, "d_p18_a_walk_has_as_many_pages_as_its_items_fill")],
    ),
    (
        "D-P19",
        "a state is good once, for its owner",
        &[
            (
                "tests/it/questions/parking.rs",
                "n55_a_state_is_good_once_for_its_principal_and_its_request",
            ),
            (
                "tests/it/questions/parking.rs",
                "a_call_that_nobody_comes_back_for_is_cancelled_in_time",
            ),
            ("tests/it/tasks.rs", "s_53_the_handle_of_another_principal_role_or_era_is_unknown"),
            (
                "tests/it/tasks/related.rs",
                "a_handle_is_good_for_nothing_but_its_task_and_for_no_longer_than_the_process",
            ),
            ("tests/it/sessions.rs", "s18_a_session_of_another_principal_is_not_found"),
            SIM,
        ],
    ),
    (
        "D-P20",
        "an upstream's state comes back as it was",
        &[(
            "tests/it/translation.rs",
            "n56_a_question_passes_through_between_two_of_the_modern_era",
        )],
    ),
    (
        "D-P21",
        "executed once at the most",
        &[("tests/it/retrying.rs", "a_call_whose_connection_breaks_is_not_sent_again"), SIM],
    ),
    (
        "D-P22",
        "a listen is acknowledged and kept to",
        &[("tests/it/changes.rs", "n60_a_modern_client_hears_of_the_topics_that_it_asked_for")],
    ),
    (
        "D-P23",
        "progress increases",
        &[
            ("crates/mcp/src/call_notifications.rs", "progress_that_goes_back_is_dropped"),
            ("tests/it/progress.rs", "n63_progress_that_does_not_increase_is_dropped"),
            // Progress ends with its call.
            ("tests/it/progress.rs", "n63_progress_for_nobody_reaches_nobody"),
        ],
    ),
    (
        "D-P24",
        "who sees a change hears of it",
        &[
            (
                "tests/it/sight.rs",
                "s49_d_p24_who_sees_a_change_hears_of_it_and_who_does_not_hears_nothing",
            ),
            SIM,
        ],
    ),
    (
        "D-P25",
        "what is not approved is not served",
        &[
            ("crates/access/src/pins/tests.rs", "what_is_not_approved_is_never_served"),
            ("tests/it/pins.rs", "no_sequence_of_edits_shows_what_was_not_approved"),
        ],
    ),
    (
        "D-P26",
        "a window admits its rate and a burst",
        &[
            ("crates/base/src/time/rate_limit.rs", "d_p26_it_agrees_with_a_bucket_of_tokens"),
            (
                "crates/base/src/time/rate_limit.rs",
                "d_p26_no_window_admits_more_than_its_time_and_a_burst_even_if_the_clock_goes_back",
            ),
        ],
    ),
    (
        "D-P27",
        "one probe, on schedule",
        &[(
            "crates/upstream/src/health/breaker.rs",
            "there_is_never_more_than_one_probe_and_it_opens_for_as_long_as_the_schedule_says",
        )],
    ),
    (
        "D-P28",
        "one configuration decides a request",
        &[
            (
                "tests/it/reload.rs",
                "f81_f82_g19_no_request_fails_over_many_reloads_and_each_that_begins_after_one_is_decided_by_it",
            ),
            SIM,
        ],
    ),
    (
        "D-P29",
        "no secret is told",
        &[
            (
                "crates/config/src/reader/variables.rs",
                "no_complaint_holds_what_a_variable_stands_for",
            ),
            ("tests/cli/secrets.rs", "none_of_sixty_secrets_is_in_anything_that_weir_says"),
        ],
    ),
    (
        "D-P30",
        "translated is as direct",
        &[
            (
                "tests/interop/differential.rs",
                "clients_exchange_the_same_frames_with_a_typescript_server_through_weir",
            ),
            (
                "tests/interop/differential.rs",
                "clients_exchange_the_same_frames_with_a_python_2_server_through_weir",
            ),
            (
                "tests/interop/differential.rs",
                "clients_exchange_the_same_frames_over_stdio_through_weir",
            ),
        ],
    ),
    (
        "D-P31",
        "a list is as private as its parts",
        &[
            (
                "crates/access/src/catalog/tests/introductions.rs",
                "a_list_is_private_where_one_of_its_upstreams_says_so",
            ),
            ("tests/it/policy.rs", "a_filtered_list_is_private"),
            ("tests/it/listing.rs", "a_modern_list_says_how_long_it_may_be_kept"),
        ],
    ),
    (
        "D-P32",
        "the log is whole",
        &[
            (
                "crates/record/src/audit/verify.rs",
                "what_was_changed_removed_put_in_or_swapped_is_found",
            ),
            ("tests/it/audit.rs", "each_request_has_one_line_that_says_what_became_of_it"),
        ],
    ),
];

#[test]
fn each_property_has_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut ids = HashSet::new();
    for (id, what, tests) in ROWS {
        assert!(ids.insert(id) && !what.is_empty() && !tests.is_empty(), "{id}");
        for (file, test) in tests {
            let text = std::fs::read_to_string(root.join(file));
            let text = text.unwrap_or_else(|error| panic!("{id}: {file}: {error}"));
            let stands = text.contains(&format!("fn {test}("));
            // A macro writes some of the tests.
            let is_made = text.contains(&format!("    {test}, "));
            assert!(stands || is_made, "{id}: {file} has no {test}");
        }
    }
}

/// Event in the life of a connection's requests.
#[derive(Debug, Clone)]
enum Step {
    Open,
    /// One of the open requests is answered, or given up.
    Settle(prop::sample::Index),
    GiveUp(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any_of = any::<prop::sample::Index>;
    let step = prop_oneof![
        3 => Just(Step::Open),
        1 => any_of().prop_map(Step::Settle),
        1 => any_of().prop_map(Step::GiveUp),
    ];
    prop::collection::vec(step, 0..60)
}

/// An id as a client may write it.
fn ids() -> impl Strategy<Value = String> {
    let strings = prop::collection::vec(
        prop_oneof!["[ !#-\\[\\]-~ä]", Just(r"\n".to_owned()), Just(r"\ud83d\ude00".to_owned())],
        0..12,
    );
    prop_oneof!["-?(0|[1-9][0-9]{0,30})", strings.prop_map(|it| format!("\"{}\"", it.concat()))]
}

proptest! {
    #[test]
    fn d_p1_no_two_open_requests_share_an_id_and_none_comes_again(steps in steps()) {
        let pending: PendingRequests<(), ()> = PendingRequests::default();
        let (mut tickets, mut seen) = (Vec::new(), HashSet::new());
        for step in steps {
            match step {
                Step::Open => {
                    let ticket = pending.open(()).expect("it is never closed");
                    prop_assert!(seen.insert(ticket.id()), "{} came twice", ticket.id());
                    tickets.push(ticket);
                }
                Step::Settle(which) if !tickets.is_empty() => {
                    let ticket = tickets.swap_remove(which.index(tickets.len()));
                    prop_assert!(pending.complete(ticket.id(), ()));
                }
                Step::GiveUp(which) if !tickets.is_empty() => {
                    tickets.swap_remove(which.index(tickets.len()));
                }
                Step::Settle(_) | Step::GiveUp(_) => {}
            }
            prop_assert_eq!(pending.len(), tickets.len());
        }
    }

    #[test]
    fn d_p2_the_id_that_was_sent_is_the_id_that_comes_back(id in ids()) {
        let text = format!(r#"{{"id":{id},"method":"m","jsonrpc":"2.0"}}"#);
        let Ok(Message::Request(request)) = Message::parse(text.into()) else {
            panic!("{id} is an id");
        };
        prop_assert_eq!(request.id.as_bytes(), id.as_bytes());
        for (answer, expected) in [
            (jsonrpc::write_result(&request.id, b"{}"), ResponsePayload::Result(Bytes::from_static(b"{}"))),
            (jsonrpc::write_error(Some(&request.id), b"{}"), ResponsePayload::Error(Bytes::from_static(b"{}"))),
        ] {
            let Ok(Message::Response(answer)) = Message::parse(answer) else { panic!("an answer") };
            prop_assert_eq!(answer.id, Id::parse(id.clone().into()));
            prop_assert_eq!(answer.outcome, expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn d_p15_who_may_the_same_gets_the_same_bytes() {
    let rules = "[roles.one]\nprompts.allow = [\"*\"]\n[roles.other]\nprompts.allow = [\"*\"]\n";
    let scripts =
        || vec![("ash", Script::full(LEGACY_STDIO)), ("bay", Script::full(MODERN_HTTP).paged(1))];
    let mut lists: [HashSet<String>; 2] = Default::default();
    // Two gateways, as two replicas would be.
    for _ in 0..2 {
        let world = World::start(scripts(), rules).await;
        for side in [MODERN_HTTP, MODERN_STDIO, LEGACY_HTTP, LEGACY_STDIO] {
            for role in ["one", "other"] {
                let client = world.client_as(role, side).await;
                let reply = client.request("prompts/list", "{}").await;
                lists[usize::from(side.is_modern())].insert(reply.result().to_owned());
            }
        }
        world.close().await;
    }
    assert_eq!(lists.each_ref().map(HashSet::len), [1, 1], "{lists:?}");
}

#[tokio::test(start_paused = true)]
async fn d_p14_the_order_does_not_depend_on_who_answers_first() {
    let scripts = || {
        let ash = Script::full(LEGACY_STDIO).down();
        vec![("ash", ash), ("bay", Script::full(MODERN_HTTP).down().paged(1))]
    };
    let mut orders = HashSet::new();
    for order in [["ash", "bay"], ["bay", "ash"]] {
        let world = World::start(scripts(), "").await;
        for name in order {
            world.upstream(name).come_up();
            // Longer than any pause between two attempts.
            pass(Duration::from_secs(120)).await;
        }
        let client = world.client(MODERN_HTTP).await;
        let mut lists = Vec::new();
        for kind in Kind::ALL {
            lists.push(client.list_all(kind).await);
        }
        assert_eq!(lists[0].len(), 4, "{lists:?}");
        orders.insert(lists);
        drop(client);
        world.close().await;
    }
    assert_eq!(orders.len(), 1, "{orders:?}");
}

#[tokio::test(start_paused = true)]
async fn d_p18_a_walk_has_as_many_pages_as_its_items_fill() {
    for (items, page) in [(0_usize, 3_usize), (1, 1), (5, 5), (6, 5), (7, 1), (7, 3), (20, 7)] {
        let names: Vec<_> = (0..items).map(|number| format!("p{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let script = Script::new(MODERN_HTTP).prompts(&names);
        let rules = format!("[protocol]\npage_size = {page}\n");
        let world = World::start(vec![("hub", script)], &rules).await;
        let client = world.client(MODERN_HTTP).await;
        let (mut pages, mut cursor) = (0, None::<String>);
        loop {
            let found = client.page(Kind::Prompt, cursor.as_deref()).await;
            pages += 1;
            cursor = found.get_string("nextCursor").map(Into::into);
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(pages, items.div_ceil(page).max(1), "{items} items, {page} on a page");
        drop(client);
        world.close().await;
    }
}
