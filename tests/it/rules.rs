//! Partners that break the rules in mid-conversation, row by row (F-37, N-55 to N-65): the one call ends with a
//! clear error or goes on untouched, and every other one gets its own answer, in every cell.
//!
//! A test's name begins with its row. What other files show in their cells is not shown here again:
//!
//! | row | what | where |
//! |---|---|---|
//! | F-37a to g, i | answers that are none, twice, late, or nobody's | `answers.rs`; `cancelling.rs`, `garbage.rs`, `translation.rs` |
//! | F-37h, l | requests on modern streams; lists and items that are none | `speech.rs`; `garbage.rs`, `listing.rs` |
//! | F-37j | progress that breaks the rules; what a torrent of it costs | `speech.rs`, `crowd/torrent.rs` |
//! | F-37k | a client that does not read | `crowd/torrent.rs`; `progress.rs`, `logging.rs` |
//! | F-37 | input that is wanted for ever | `questions/endless.rs` |
//! | N-55 | a state replayed, cut, changed, too long, somebody else's, of another request | `questions/parking.rs`, `clients.rs` |
//! | N-56, N-59 | a state, a question and its URL pass byte for byte | `translation.rs`, `questions.rs` |
//! | N-57 | nobody is asked for what was not declared | `questions.rs` |
//! | N-58 | answers nobody was asked for, late, twice, somebody else's | `questions.rs`, `questions/strangers.rs`, `clients.rs` |
//! | N-60 | a listen is acknowledged first, for what is honored | `changes.rs`, `subscriptions.rs`; each `Client::listen_for` |
//! | N-61 | how a listen ends | `closing.rs` |
//! | N-62 | no log message that was not asked for | `logging.rs` |
//! | N-63 | progress increases, is thinned, and ends with its call | `progress.rs` |
//! | N-64 | every call has a longest time | `cancelling.rs` |
//! | N-65 | a task's handle that is not good | `tasks.rs` |
//! | N-110 | a cancel of what is not one's own, is over, or never was | `clients.rs`, `cancelling.rs` |

mod answers;
mod clients;
mod speech;

use weir::jsonrpc::Id;

use crate::cell::Cell;
use crate::client::{Client, Exchange, Reply, object};
use crate::upstream::{Call, Held, Replies, Script, Upstream};
use crate::world::{Scripts, World, everywhere, hub, settle};

const METHOD: &str = "tools/call";
const SHORT: &str = "[defaults]\ntimeouts = { call = \"5s\", call_max = \"20s\" }\n";

/// A client of each house, another one beside it, and the upstream's calls in the test's hands.
struct Scene<'a> {
    cell: Cell,
    upstream: &'a Upstream,
    ann: Client,
    bob: Client,
    held: Held,
}

/// The call on which a rule is broken, and two that are under way meanwhile: of its own client and of another.
struct Trio<'a> {
    exchange: Exchange<'a>,
    call: Call,
    others: [(Exchange<'a>, Call, &'static str); 2],
}

/// Sets the scene in every cell, before an upstream that answers with JSON and one that answers with events.
async fn each_scene(test: impl AsyncFn(&mut Scene<'_>)) {
    let with_events =
        |side| -> Scripts { vec![("hub", Script::full(side).replies(Replies::Events))] };
    let run = async |world: &World, cell: Cell| {
        let (ann, bob) = (world.client(cell.client).await, world.client(cell.client).await);
        let upstream = world.upstream("hub");
        let held = upstream.hold(METHOD);
        test(&mut Scene { cell, upstream, ann, bob, held }).await;
    };
    everywhere(SHORT, hub, run).await;
    everywhere(SHORT, with_events, run).await;
}

impl Scene<'_> {
    /// Whether all that the upstream says comes on one stream.
    fn is_shared(&self) -> bool {
        !self.cell.upstream.is_http()
    }
}

/// Starts a call, which the upstream gets.
async fn start<'a>(client: &'a Client, id: u64, held: &mut Held) -> (Exchange<'a>, Call) {
    let params = format!(r#"{{"name":"hub__a","_meta":{{"progressToken":{id}}}}}"#);
    let exchange = client.start_as(Id::from(id), METHOD, &params);
    (exchange, held.next().await)
}

impl<'a> Trio<'a> {
    /// Both clients use the same ids and tokens.
    async fn start(ann: &'a Client, bob: &'a Client, held: &mut Held) -> Self {
        let (other, others_call) = start(bob, 70, held).await;
        let (exchange, call) = start(ann, 70, held).await;
        let (beside, besides_call) = start(ann, 71, held).await;
        let others = [(other, others_call, "bob's"), (beside, besides_call, "ann's")];
        Self { exchange, call, others }
    }

    /// Lets the others be answered, and checks that each has its own answer and hears nothing else.
    async fn others_go_on(self, scene: &str, upstream: &Upstream) -> (Exchange<'a>, Call) {
        settle().await;
        for (exchange, call, own) in self.others {
            assert!(call.is_wanted(), "{scene}: {own}");
            call.result(&right(upstream, own));
            is_own(&exchange.reply().await, own, scene);
        }
        (self.exchange, self.call)
    }
}

/// An answer that says whose it is.
fn right(upstream: &Upstream, own: &str) -> String {
    let kind = if upstream.side().is_modern() { r#""resultType":"complete","# } else { "" };
    format!(r#"{{{kind}"content":[],"own":"{own}"}}"#)
}

fn is_own(reply: &Reply, own: &str, scene: &str) {
    let found = object(reply.result()).get_string("own").map(std::borrow::Cow::into_owned);
    assert_eq!(found.as_deref(), Some(own), "{scene}: {reply:?}");
    assert_eq!(reply.notes, Vec::<String>::new(), "{scene}");
}

/// The error's code and what it says.
fn told(reply: &Reply) -> (i64, String) {
    let message = object(reply.error()).get_string("message").map(std::borrow::Cow::into_owned);
    (reply.code(), message.expect("a message"))
}
