//! Events that may end a call, in every order: each order has the outcome of a small model, the
//! upstream is notified exactly when the model says so, and nothing is left over.

use std::time::Duration;

use weir::app::ReloadOutcome;
use weir_mcp::jsonrpc;

use crate::cell::{CLIENTS, LEGACY_HTTP, LEGACY_SSE, MODERN_HTTP, Side, Transport, UPSTREAMS};
use crate::client::{Client, Exchange, named};
use crate::upstream::Call;
use crate::world::{World, hub, pass, settle, with_pair};

const CONFIG: &str = "[defaults]\ntimeouts.call = \"5s\"\n";
const RESULT: &str = r#"{"resultType":"complete","content":[{"type":"text","text":"mine"}]}"#;

/// Longer than any time limit here.
const LONG: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The client cancels the request.
    Cancel,
    /// The client disconnects, in the way of its transport.
    Leave,
    /// The upstream answers.
    Answer,
    /// The time limit passes.
    TimeOut,
    /// The upstream restarts.
    Restart,
    /// The gateway stops accepting requests.
    Stop,
    /// A reload replaces the upstream's connection, on which the call runs.
    Swap,
    /// A reload removes the upstream from the configuration; its connection ends after the call.
    Drain,
}

const EVENTS: [Event; 8] = [
    Event::Cancel,
    Event::Leave,
    Event::Answer,
    Event::TimeOut,
    Event::Restart,
    Event::Stop,
    Event::Swap,
    Event::Drain,
];

/// Pause between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gap {
    /// All ready tasks run.
    Settled,
    /// This many turns of the scheduler.
    Turns(usize),
}

/// Outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    /// Response to the client; `None` if it had disconnected or cancelled.
    got: Option<Result<(), i64>>,
    /// Whether an upstream that had not answered was notified; `None` if it broke off itself.
    notified: Option<bool>,
}

// === The model ===

/// Expected outcome of a call. A client that disconnects gets no response, even if one has come.
fn model(client: Side, events: &[Event]) -> End {
    let end = ended(client, events);
    let leaves = |event: &Event| match event {
        Event::Cancel => client == MODERN_HTTP,
        event => *event == Event::Leave,
    };
    End { got: end.got.filter(|_| !events.iter().any(leaves)), ..end }
}

/// Expected outcome, computed event by event.
fn ended(client: Side, events: &[Event]) -> End {
    let (mut is_there, mut has_stopped) = (true, false);
    let end = |is_there: bool, got, notified| End { got: Some(got).filter(|_| is_there), notified };
    for event in events {
        match event {
            Event::Answer => return end(is_there, Ok(()), Some(false)),
            Event::TimeOut => return end(is_there, Err(5040), Some(true)),
            Event::Restart => return end(is_there, Err(5030), None),
            // A modern client cancels over HTTP by closing the stream.
            Event::Cancel if client == MODERN_HTTP => {
                return End { got: None, notified: Some(true) };
            }
            // A stopped gateway takes no cancellation, and requests in flight continue.
            Event::Cancel if has_stopped => {}
            Event::Cancel => return End { got: None, notified: Some(true) },
            // A legacy client that disconnects over HTTP only detaches its stream, as long as it
            // may come back.
            Event::Leave if client == LEGACY_HTTP && !has_stopped => is_there = false,
            Event::Leave => return End { got: None, notified: Some(true) },
            Event::Stop if !is_there => return End { got: None, notified: Some(true) },
            Event::Stop => has_stopped = true,
            // A request in flight ends on its old connection.
            Event::Swap | Event::Drain => {}
        }
    }
    // The time limit is the last event of a call.
    end(is_there, Err(5040), Some(true))
}

#[test]
fn the_model_knows_the_difference_between_leaving_and_detaching() {
    let left = |client| model(client, &[Event::Leave, Event::Answer]);
    assert_eq!(left(MODERN_HTTP), End { got: None, notified: Some(true) });
    assert_eq!(left(LEGACY_HTTP), End { got: None, notified: Some(false) });
    // After the stop no client can come back for the response.
    let end = model(LEGACY_HTTP, &[Event::Leave, Event::Stop, Event::Answer]);
    assert_eq!(end, End { got: None, notified: Some(true) });
}

// === The gateway ===

/// One call, with the handles of its client and its upstream.
struct OngoingCall<'a> {
    world: &'a World,
    call: Option<Call>,
    exchange: Option<Exchange<'a>>,
    was_notified: bool,
    has_stopped: bool,
}

impl OngoingCall<'_> {
    async fn happen(&mut self, event: Event, client: &Client) {
        match event {
            Event::Cancel if client.side == MODERN_HTTP => self.exchange = None,
            // The gateway takes no cancellation any more, and the HTTP+SSE pair would not report
            // that.
            Event::Cancel if client.side == LEGACY_SSE && self.has_stopped => {}
            Event::Cancel => {
                let message = br#"{"requestId":1000}"#;
                let message = jsonrpc::write_notification("notifications/cancelled", message);
                if client.side.transport == Transport::Http {
                    let headers = client.http().headers("", "{}");
                    // The stopped gateway does not take the message.
                    let mut posted = client.http().post(message, &headers);
                    let _ = tokio::time::timeout(Duration::from_millis(1), posted.opened()).await;
                } else {
                    client.stdio().send(&message);
                }
            }
            Event::Leave => self.exchange = None,
            Event::Answer => {
                if let Some(call) = self.call.take() {
                    self.was_notified = !call.is_wanted();
                    call.result(RESULT);
                }
            }
            Event::TimeOut => pass(Duration::from_secs(6)).await,
            Event::Restart => self.world.upstream("hub").restart(),
            Event::Stop => {
                self.has_stopped = true;
                self.world.stop_downstream();
            }
            Event::Swap | Event::Drain => reload(self.world, client.side, event).await,
        }
    }
}

/// Reloads the configuration, which a stopped gateway refuses.
async fn reload(world: &World, client: Side, event: Event) {
    let config = match event {
        Event::Swap => format!("{CONFIG}[upstreams.hub]\nlimits = {{ max_items = 99 }}\n"),
        // A configuration needs at least one upstream.
        _ => format!("{CONFIG}[upstreams.away]\nurl = \"http://away.test/mcp\"\n"),
    };
    let config = if client == LEGACY_SSE { with_pair(&config) } else { config };
    let names: &[&str] = if event == Event::Swap { &["hub"] } else { &[] };
    let outcome = world.reload_with(names, &config).await;
    let is_good = matches!(outcome, ReloadOutcome::Applied { .. } | ReloadOutcome::Failed(_));
    assert!(is_good, "{event:?}: {outcome:?}");
}

/// Applies the events to a call and returns its outcome.
async fn play(client: Side, upstream: Side, events: &[Event], gap: Gap) -> End {
    let config = if client == LEGACY_SSE { with_pair(CONFIG) } else { CONFIG.into() };
    let world = World::start(hub(upstream), &config).await;
    let end = {
        let mut caller = Some(world.client(client).await);
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = caller.as_ref().expect("it has come").start_as(
            1_000.into(),
            "tools/call",
            &named("hub__a"),
        );
        let call = intercepted.next().await;
        // The upstream may still answer when the test is over.
        let (call, exchange, was_notified) = (Some(call), Some(exchange), false);
        let mut play =
            OngoingCall { world: &world, call, exchange, was_notified, has_stopped: false };
        let mut leaves = false;
        for event in events {
            if let Some(client) = &caller {
                play.happen(*event, client).await;
            }
            leaves |= *event == Event::Leave;
            match gap {
                Gap::Settled => settle().await,
                Gap::Turns(turns) => {
                    for _ in 0..turns {
                        tokio::task::yield_now().await;
                    }
                }
            }
            if leaves && client.transport != Transport::Http {
                break;
            }
        }
        let OngoingCall { call, exchange, mut was_notified, .. } = play;
        let got = match exchange {
            Some(mut exchange) => {
                let answer = tokio::time::timeout(LONG, exchange.answer()).await;
                let reply = answer.ok().and_then(Result::ok);
                reply.map(|reply| match &reply.outcome {
                    Ok(result) => {
                        assert!(result.contains("mine"), "{result}");
                        Ok(())
                    }
                    Err(_) => Err(reply.code()),
                })
            }
            None => None,
        };
        if leaves && client.transport != Transport::Http {
            // The conversation ends with its stream; the remaining events have no client.
            caller = None;
            let rest = events.iter().skip_while(|event| **event != Event::Leave).skip(1);
            for event in rest {
                match event {
                    Event::Restart => world.upstream("hub").restart(),
                    Event::Stop => world.stop_downstream(),
                    Event::TimeOut => pass(Duration::from_secs(6)).await,
                    Event::Swap | Event::Drain => reload(&world, client, *event).await,
                    _ => settle().await,
                }
            }
        }
        pass(LONG).await;
        if let Some(call) = &call {
            assert!(!call.is_wanted(), "the upstream still works at it");
            was_notified = true;
        }
        drop(caller);
        End { got, notified: Some(was_notified) }
    };
    world.close().await;
    end
}

/// Whether an outcome is one of the expected ones. If two events are simultaneous, the client and
/// the upstream may each see a different one first.
fn agrees(is: End, sent: &[End]) -> bool {
    let notified = |sent: &End| sent.notified.is_none() || is.notified == sent.notified;
    sent.iter().any(|sent| is.got == sent.got) && sent.iter().any(notified)
}

/// Checks orders with these upstreams. A gap that does not let all tasks run may swap neighbours.
async fn try_orders(client: Side, upstreams: &[Side], orders: &[Vec<Event>], gaps: &[Gap]) {
    let (mut wrong, begin) = (Vec::new(), std::time::Instant::now());
    for upstream in upstreams.iter().copied() {
        for order in orders {
            for gap in gaps {
                let is = play(client, upstream, order, *gap).await;
                let mut sent = vec![model(client, order)];
                if *gap != Gap::Settled {
                    for at in 1..order.len() {
                        let mut other = order.clone();
                        other.swap(at - 1, at);
                        sent.push(model(client, &other));
                    }
                }
                if !agrees(is, &sent) {
                    let what = format!("{client} → {upstream}: {order:?}, {gap:?}");
                    wrong.push(format!("{what}: {is:?}, not {sent:?}"));
                }
            }
        }
    }
    let plays = upstreams.len() * orders.len() * gaps.len();
    eprintln!("{client}: {plays} plays in {:.1?}", begin.elapsed());
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// All orders of two events, and nightly of three.
fn orders() -> Vec<Vec<Event>> {
    let pairs = EVENTS.iter().flat_map(|first| {
        EVENTS.iter().filter(move |second| *second != first).map(|second| vec![*first, *second])
    });
    let mut pairs: Vec<_> = pairs.collect();
    if std::env::var_os("WEIR_NIGHTLY").is_none() {
        // The second of two reloads replaces the first, and a restart ends the leftovers of either.
        let is_reload = |event: &Event| matches!(event, Event::Swap | Event::Drain);
        let rest = [Event::Restart, Event::Swap, Event::Drain];
        pairs.retain(|pair| {
            !(pair.iter().any(is_reload) && pair.iter().all(|event| rest.contains(event)))
        });
        return pairs;
    }
    let longer = pairs.iter().flat_map(|pair| {
        let rest = EVENTS.iter().filter(|event| !pair.contains(event));
        rest.map(|third| [pair.clone(), vec![*third]].concat())
    });
    pairs.iter().cloned().chain(longer).collect()
}

async fn every_order(client: Side) {
    try_orders(client, &UPSTREAMS, &orders(), &[Gap::Settled]).await;
}

async fn every_race(client: Side) {
    let (gaps, upstreams) = match std::env::var_os("WEIR_NIGHTLY") {
        Some(_) => ((0..12).map(Gap::Turns).collect(), &UPSTREAMS[..]),
        None => (vec![Gap::Turns(2)], &UPSTREAMS[..3]),
    };
    let pairs: Vec<_> = orders().into_iter().filter(|order| order.len() == 2).collect();
    try_orders(client, upstreams, &pairs, &gaps).await;
}

macro_rules! for_each_client {
    ($($name:ident, $race:ident: $client:expr;)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            every_order(CLIENTS[$client]).await;
        }

        #[tokio::test(start_paused = true)]
        async fn $race() {
            every_race(CLIENTS[$client]).await;
        }
    )*};
}

for_each_client! {
    whatever_ends_a_modern_call_over_http_ends_it_once, and_at_once_over_modern_http: 0;
    whatever_ends_a_modern_call_over_stdio_ends_it_once, and_at_once_over_modern_stdio: 1;
    whatever_ends_a_legacy_call_over_http_ends_it_once, and_at_once_over_legacy_http: 2;
    whatever_ends_a_legacy_call_over_stdio_ends_it_once, and_at_once_over_legacy_stdio: 3;
    whatever_ends_a_call_over_the_pair_ends_it_once, and_at_once_over_the_pair: 4;
}
