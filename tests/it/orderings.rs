//! What may end a call, in every order: each order has the outcome that a small model says, the upstream
//! is told exactly when the model says, and nothing is left.

use std::time::Duration;

use weir::app::Outcome;
use weir::jsonrpc;

use crate::cell::{CLIENTS, LEGACY_HTTP, LEGACY_SSE, MODERN_HTTP, Side, UPSTREAMS, Wire};
use crate::client::{Client, Exchange, named};
use crate::upstream::Call;
use crate::world::{World, hub, pass, settle, with_pair};

const CONFIG: &str = "[defaults]\ntimeouts.call = \"5s\"\n";
const RESULT: &str = r#"{"resultType":"complete","content":[{"type":"text","text":"mine"}]}"#;

/// Longer than any time limit here.
const LONG: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The client says that it wants no answer any more.
    Cancel,
    /// The client is gone, in the way of its wire.
    Leave,
    /// The upstream answers.
    Answer,
    /// The time limit passes.
    TimeOut,
    /// The upstream starts anew.
    Restart,
    /// The doors close.
    Stop,
    /// A reload puts another connection to the upstream in the place of the one that the call is on.
    Swap,
    /// A reload takes the upstream out of the configuration; it goes once the call is over.
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

/// What lies between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gap {
    /// All that is ready runs.
    Settled,
    /// So many turns of the scheduler.
    Turns(usize),
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    /// What the client got; nothing if it was gone or wanted nothing.
    got: Option<Result<(), i64>>,
    /// Whether the upstream, which had not answered, was told; `None` where it broke itself.
    told: Option<bool>,
}

// === The model ===

/// How a call ends. Who leaves takes no answer along, not even one that has come.
fn model(client: Side, events: &[Event]) -> End {
    let end = ended(client, events);
    let leaves = |event: &Event| match event {
        Event::Cancel => client == MODERN_HTTP,
        event => *event == Event::Leave,
    };
    End { got: end.got.filter(|_| !events.iter().any(leaves)), ..end }
}

/// How a call ends, event by event.
fn ended(client: Side, events: &[Event]) -> End {
    let (mut is_there, mut has_stopped) = (true, false);
    let end = |is_there: bool, got, told| End { got: Some(got).filter(|_| is_there), told };
    for event in events {
        match event {
            Event::Answer => return end(is_there, Ok(()), Some(false)),
            Event::TimeOut => return end(is_there, Err(5040), Some(true)),
            Event::Restart => return end(is_there, Err(5030), None),
            // A modern client over HTTP has no other word for it.
            Event::Cancel if client == MODERN_HTTP => {
                return End { got: None, told: Some(true) };
            }
            // Closed doors hear nothing more, and what is under way runs on.
            Event::Cancel if has_stopped => {}
            Event::Cancel => return End { got: None, told: Some(true) },
            // What a legacy client leaves over HTTP is only its stream, as long as it may come back.
            Event::Leave if client == LEGACY_HTTP && !has_stopped => is_there = false,
            Event::Leave => return End { got: None, told: Some(true) },
            Event::Stop if !is_there => return End { got: None, told: Some(true) },
            Event::Stop => has_stopped = true,
            // What is under way ends where it began.
            Event::Swap | Event::Drain => {}
        }
    }
    // Its time limit is the last thing that happens to it.
    end(is_there, Err(5040), Some(true))
}

#[test]
fn the_model_knows_the_difference_between_leaving_and_detaching() {
    let left = |client| model(client, &[Event::Leave, Event::Answer]);
    assert_eq!(left(MODERN_HTTP), End { got: None, told: Some(true) });
    assert_eq!(left(LEGACY_HTTP), End { got: None, told: Some(false) });
    // Behind closed doors nobody can come back for it.
    let end = model(LEGACY_HTTP, &[Event::Leave, Event::Stop, Event::Answer]);
    assert_eq!(end, End { got: None, told: Some(true) });
}

// === The house ===

/// One call with somebody at both ends.
struct Play<'a> {
    world: &'a World,
    call: Option<Call>,
    exchange: Option<Exchange<'a>>,
    was_told: bool,
    has_stopped: bool,
}

impl Play<'_> {
    async fn happen(&mut self, event: Event, client: &Client) {
        match event {
            Event::Cancel if client.side == MODERN_HTTP => self.exchange = None,
            // Nobody takes it any more, and over the pair nobody would say so.
            Event::Cancel if client.side == LEGACY_SSE && self.has_stopped => {}
            Event::Cancel => {
                let message = br#"{"requestId":1000}"#;
                let message = jsonrpc::write_notification("notifications/cancelled", message);
                if client.side.wire == Wire::Http {
                    let headers = client.http().headers("", "{}");
                    // Behind closed doors nobody takes it.
                    let mut posted = client.http().post(message, &headers);
                    let _ = tokio::time::timeout(Duration::from_millis(1), posted.opened()).await;
                } else {
                    client.stdio().send(&message);
                }
            }
            Event::Leave => self.exchange = None,
            Event::Answer => {
                if let Some(call) = self.call.take() {
                    self.was_told = !call.is_wanted();
                    call.result(RESULT);
                }
            }
            Event::TimeOut => pass(Duration::from_secs(6)).await,
            Event::Restart => self.world.upstream("hub").restart(),
            Event::Stop => {
                self.has_stopped = true;
                self.world.stop_doors();
            }
            Event::Swap | Event::Drain => reload(self.world, client.side, event).await,
        }
    }
}

/// Reloads the configuration, which closed doors do not do any more.
async fn reload(world: &World, client: Side, event: Event) {
    let config = match event {
        Event::Swap => format!("{CONFIG}[upstreams.hub]\nlimits = {{ max_items = 99 }}\n"),
        // There has to be one.
        _ => format!("{CONFIG}[upstreams.away]\nurl = \"http://away.test/mcp\"\n"),
    };
    let config = if client == LEGACY_SSE { with_pair(&config) } else { config };
    let names: &[&str] = if event == Event::Swap { &["hub"] } else { &[] };
    let outcome = world.reload_with(names, &config).await;
    let is_good = matches!(outcome, Outcome::Applied { .. } | Outcome::Failed(_));
    assert!(is_good, "{event:?}: {outcome:?}");
}

/// Lets the events happen to a call, and tells how it ended.
async fn play(client: Side, upstream: Side, events: &[Event], gap: Gap) -> End {
    let config = if client == LEGACY_SSE { with_pair(CONFIG) } else { CONFIG.into() };
    let world = World::start(hub(upstream), &config).await;
    let end = {
        let mut caller = Some(world.client(client).await);
        let mut held = world.upstream("hub").hold("tools/call");
        let exchange = caller.as_ref().expect("it has come").start_as(
            1_000.into(),
            "tools/call",
            &named("hub__a"),
        );
        let call = held.next().await;
        // What the upstream has not said yet it may say when the test is over.
        let (call, exchange, was_told) = (Some(call), Some(exchange), false);
        let mut play = Play { world: &world, call, exchange, was_told, has_stopped: false };
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
            if leaves && client.wire != Wire::Http {
                break;
            }
        }
        let Play { call, exchange, mut was_told, .. } = play;
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
        if leaves && client.wire != Wire::Http {
            // The conversation ends with its stream; the rest happens to nobody.
            caller = None;
            let rest = events.iter().skip_while(|event| **event != Event::Leave).skip(1);
            for event in rest {
                match event {
                    Event::Restart => world.upstream("hub").restart(),
                    Event::Stop => world.stop_doors(),
                    Event::TimeOut => pass(Duration::from_secs(6)).await,
                    Event::Swap | Event::Drain => reload(&world, client, *event).await,
                    _ => settle().await,
                }
            }
        }
        pass(LONG).await;
        if let Some(call) = &call {
            assert!(!call.is_wanted(), "the upstream still works at it");
            was_told = true;
        }
        drop(caller);
        End { got, told: Some(was_told) }
    };
    world.close().await;
    end
}

/// Whether the house ended a call as one of these says. Where two things happen at once each side may see
/// another of them first.
fn agrees(is: End, said: &[End]) -> bool {
    let told = |said: &End| said.told.is_none() || is.told == said.told;
    said.iter().any(|said| is.got == said.got) && said.iter().any(told)
}

/// Tries orders with these upstreams. A gap in which not all runs lets neighbours change places.
async fn try_orders(client: Side, upstreams: &[Side], orders: &[Vec<Event>], gaps: &[Gap]) {
    let (mut wrong, begin) = (Vec::new(), std::time::Instant::now());
    for upstream in upstreams.iter().copied() {
        for order in orders {
            for gap in gaps {
                let is = play(client, upstream, order, *gap).await;
                let mut said = vec![model(client, order)];
                if *gap != Gap::Settled {
                    for at in 1..order.len() {
                        let mut other = order.clone();
                        other.swap(at - 1, at);
                        said.push(model(client, &other));
                    }
                }
                if !agrees(is, &said) {
                    let what = format!("{client} → {upstream}: {order:?}, {gap:?}");
                    wrong.push(format!("{what}: {is:?}, not {said:?}"));
                }
            }
        }
    }
    let plays = upstreams.len() * orders.len() * gaps.len();
    eprintln!("{client}: {plays} plays in {:.1?}", begin.elapsed());
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Every order of two events, and by night of three.
fn orders() -> Vec<Vec<Event>> {
    let pairs = EVENTS.iter().flat_map(|first| {
        EVENTS.iter().filter(move |second| *second != first).map(|second| vec![*first, *second])
    });
    let mut pairs: Vec<_> = pairs.collect();
    if std::env::var_os("WEIR_NIGHTLY").is_none() {
        // Of two reloads in a row the first one is as if it had not been, and a restart ends what any has left.
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
