//! Partners that break the protocol during a conversation, row by row (F-37, N-55 to N-65): the one
//! call ends with a clear error or continues unaffected, and every other call gets its own
//! response, in every cell.
//!
//! A test's name begins with its row. Rows that other files show in their cells are not repeated
//! here:
//!
//! | row | what | where |
//! |---|---|---|
//! | F-37a to f, i | bad or duplicate responses | `answers.rs`, `garbage.rs`, `translation.rs` |
//! | F-37g | late responses | `answers.rs`, `cancelling.rs` |
//! | F-37h | requests on modern streams | `speech.rs` |
//! | F-37j | invalid progress; the cost of a flood of it | `speech.rs`, `crowd/torrent.rs` |
//! | F-37k | a client that does not read | `crowd/torrent.rs`, `progress.rs`, `logging.rs` |
//! | F-37l | invalid lists and items | `speech.rs`, `garbage.rs`, `listing.rs` |
//! | F-37 | endless input requests | `questions/endless.rs` |
//! | N-55 | invalid and foreign `requestState` | `questions/parking.rs`, `clients.rs` |
//! | N-56, N-59 | unchanged states, input requests, URLs | `translation.rs`, `questions.rs` |
//! | N-57 | no input request without the capability | `questions.rs` |
//! | N-58 | unsolicited input responses | `questions.rs`, `questions/strangers.rs`, `clients.rs` |
//! | N-60 | acknowledged listens | `changes.rs`, `subscriptions.rs`, each `Client::listen_for` |
//! | N-61 | end of a listen | `closing.rs` |
//! | N-62 | no log message without a request | `logging.rs` |
//! | N-63 | progress increases, is limited, ends with its call | `progress.rs` |
//! | N-64 | every call has a time limit | `cancelling.rs` |
//! | N-65 | invalid handles of tasks | `tasks.rs` |
//! | N-110 | cancellations of foreign, finished or unknown calls | `clients.rs`, `cancelling.rs` |

mod answers;
mod clients;
mod speech;

use weir_mcp::jsonrpc::Id;

use crate::cell::Cell;
use crate::client::{Client, Exchange, Reply, object};
use crate::upstream::{Call, InterceptedCalls, Replies, Script, Upstream};
use crate::world::{Scripts, World, everywhere, hub, settle};

const METHOD: &str = "tools/call";
const SHORT: &str = "[defaults]\ntimeouts = { call = \"5s\", call_max = \"20s\" }\n";

/// Two clients of a gateway, its upstream, and the intercepted calls.
struct RuleFixture<'a> {
    cell: Cell,
    upstream: &'a Upstream,
    ann: Client,
    bob: Client,
    intercepted: InterceptedCalls,
}

/// The call on which a rule is broken, and two calls in flight: of the same client and of another
/// one.
struct ConcurrentCalls<'a> {
    exchange: Exchange<'a>,
    call: Call,
    others: [(Exchange<'a>, Call, &'static str); 2],
}

/// Runs a test in every cell, with an upstream that answers with JSON and one that answers with
/// events.
async fn run_in_each_cell(test: impl AsyncFn(&mut RuleFixture<'_>)) {
    let with_events =
        |side| -> Scripts { vec![("hub", Script::full(side).replies(Replies::Events))] };
    let run = async |world: &World, cell: Cell| {
        let (ann, bob) = (world.client(cell.client).await, world.client(cell.client).await);
        let upstream = world.upstream("hub");
        let intercepted = upstream.intercept(METHOD);
        test(&mut RuleFixture { cell, upstream, ann, bob, intercepted }).await;
    };
    everywhere(SHORT, hub, run).await;
    everywhere(SHORT, with_events, run).await;
}

impl RuleFixture<'_> {
    /// Whether all messages of the upstream share one stream.
    fn is_shared(&self) -> bool {
        !self.cell.upstream.is_http()
    }
}

/// Starts a call; returns the client's and the upstream's end.
async fn start<'a>(
    client: &'a Client,
    id: u64,
    intercepted: &mut InterceptedCalls,
) -> (Exchange<'a>, Call) {
    let params = format!(r#"{{"name":"hub__a","_meta":{{"progressToken":{id}}}}}"#);
    let exchange = client.start_as(Id::from(id), METHOD, &params);
    (exchange, intercepted.next().await)
}

impl<'a> ConcurrentCalls<'a> {
    /// Both clients use the same ids and tokens.
    async fn start(ann: &'a Client, bob: &'a Client, intercepted: &mut InterceptedCalls) -> Self {
        let (other, others_call) = start(bob, 70, intercepted).await;
        let (exchange, call) = start(ann, 70, intercepted).await;
        let (beside, besides_call) = start(ann, 71, intercepted).await;
        let others = [(other, others_call, "bob's"), (beside, besides_call, "ann's")];
        Self { exchange, call, others }
    }

    /// Answers the other calls, and checks that each client gets its own response and nothing else.
    async fn others_go_on(self, fixture: &str, upstream: &Upstream) -> (Exchange<'a>, Call) {
        settle().await;
        for (exchange, call, own) in self.others {
            assert!(call.is_wanted(), "{fixture}: {own}");
            call.result(&right(upstream, own));
            is_own(&exchange.reply().await, own, fixture);
        }
        (self.exchange, self.call)
    }
}

/// A result that names its call.
fn right(upstream: &Upstream, own: &str) -> String {
    let kind = if upstream.side().is_modern() { r#""resultType":"complete","# } else { "" };
    format!(r#"{{{kind}"content":[],"own":"{own}"}}"#)
}

fn is_own(reply: &Reply, own: &str, fixture: &str) {
    let found = object(reply.result()).get_string("own").map(std::borrow::Cow::into_owned);
    assert_eq!(found.as_deref(), Some(own), "{fixture}: {reply:?}");
    assert_eq!(reply.notifications, Vec::<String>::new(), "{fixture}");
}

/// Code and message of the error.
fn error_of(reply: &Reply) -> (i64, String) {
    let message = object(reply.error()).get_string("message").map(std::borrow::Cow::into_owned);
    (reply.code(), message.expect("a message"))
}
