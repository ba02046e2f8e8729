//! A client in a simulation: what it does, and what it has to get for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use tokio_util::sync::CancellationToken;
use weir::json;
use weir::mcp::kind::{Kind, Topic};

use super::dice::Dice;
use super::ledger::{Fate, Ledger};
use super::server::{METHODS, Server, is_open, name_of, proof};
use crate::cell::{LEGACY_HTTP, Side};
use crate::client::{Client, Exchange, Reply, keys_of, object, string};
use crate::world::pass;

/// How many requests a client has under way at the most, and how many it makes with each hand.
const HANDS: u64 = 3;
const TURNS: u64 = 8;

/// How long a client waits for an answer: far longer than any time limit.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long a client waits until it tries again what has broken off.
const AGAIN: Duration = Duration::from_millis(300);

/// Each topic's number of notices, and the keys of each kind as they were listed last.
type Told = (BTreeMap<Topic, u32>, BTreeMap<Kind, Vec<String>>);

pub(super) struct Person {
    name: String,
    role: &'static str,
    client: Client,
    servers: Vec<Server>,
    ledger: Arc<Ledger>,
    seed: u64,
    /// What it has been told, and has listed since: each topic's number of notices, each kind's keys.
    told: Mutex<Told>,
    listens: bool,
}

/// An item that a client asks for.
struct Wanted {
    server: Server,
    kind: Kind,
    method: &'static str,
    key: String,
    is_there: IsThere,
}

#[derive(PartialEq, Eq)]
enum IsThere {
    Always,
    Perhaps,
    Never,
}

impl Person {
    pub(super) fn new(
        number: u64,
        role: &'static str,
        client: Client,
        servers: &[Server],
        ledger: &Arc<Ledger>,
        mut dice: Dice,
    ) -> Self {
        let name = format!("{role} {number}");
        ledger.tell(&name, format!("comes: {}", client.side));
        let (listens, seed) = (dice.one_in(2), dice.next());
        let (servers, ledger) = (servers.to_vec(), Arc::clone(ledger));
        Self { name, role, client, servers, ledger, seed, told: Mutex::default(), listens }
    }

    /// Everything that it does.
    pub(super) async fn live(&self) {
        let mut dice = Dice::new(self.seed);
        let hands: Vec<_> = (0..HANDS).map(|_| self.work(dice.fork())).collect();
        join_all(hands).await;
    }

    async fn work(&self, mut dice: Dice) {
        for _ in 0..dice.below(TURNS) {
            pass(Duration::from_millis(dice.below(900))).await;
            if self.ledger.has_stopped() {
                return;
            }
            match dice.below(5) {
                0 => {
                    let kind = Kind::ALL[dice.below(4) as usize];
                    if let Some(keys) = self.walk(kind).await {
                        self.check_walk(kind, &keys);
                    }
                }
                _ => self.want(&mut dice).await,
            }
        }
    }

    // === One item ===

    async fn want(&self, dice: &mut Dice) {
        let wanted = self.pick(dice);
        let number = self.ledger.number();
        let member = if wanted.kind == Kind::Resource { "uri" } else { "name" };
        let key = string(json::quote(&wanted.key));
        let token = if dice.one_in(2) { r#","progressToken":"t""# } else { "" };
        let params = format!(r#"{{"{member}":{key},"_meta":{{"sim/number":{number}{token}}}}}"#);
        self.tell(format!("asks {number}: {} {}", wanted.method, wanted.key));
        let mut exchange = self.client.start(wanted.method, &params);
        if dice.one_in(5) {
            let patience = Duration::from_millis(dice.below(300));
            match tokio::time::timeout(patience, exchange.answer()).await {
                Ok(answer) => self.judge(&wanted, number, answer.ok()),
                Err(_) => {
                    self.tell(format!("gives {number} up"));
                    self.leave(exchange, dice.one_in(2)).await;
                }
            }
            return;
        }
        let answer = self.answer(&mut exchange).await;
        self.judge(&wanted, number, answer);
    }

    /// What is answered, if anything is while somebody would wait for it.
    async fn answer(&self, exchange: &mut Exchange<'_>) -> Option<Reply> {
        // On a stream for everything nobody tells a late request that the stream has ended.
        tokio::time::timeout(PATIENCE, exchange.answer()).await.ok()?.ok()
    }

    fn pick(&self, dice: &mut Dice) -> Wanted {
        let server = self.servers[dice.below(self.servers.len() as u64) as usize].clone();
        let (method, kind) = METHODS[dice.below(3) as usize];
        let sort = if dice.one_in(3) { "secret" } else { "open" };
        let (name, is_there) = match dice.below(4) {
            0 => ("nothing".to_owned(), IsThere::Never),
            1 => (format!("{sort}_{}", 1 + dice.below(4)), IsThere::Perhaps),
            _ => (format!("{sort}_0"), IsThere::Always),
        };
        let may = self.role == "staff" || is_open(&name);
        let is_there = if may { is_there } else { IsThere::Never };
        let mut key = server.public(kind, &name_of(kind, server.name, &name));
        if kind == Kind::Resource && name == "nothing" {
            // One that nobody lists goes to whoever lists others of its scheme.
            key = "none:///nothing".into();
        }
        Wanted { server, kind, method, key, is_there }
    }

    /// Ends a request that it no longer wants, with its era's word for it or by leaving.
    async fn leave(&self, exchange: Exchange<'_>, with_a_word: bool) {
        // In a storm the word may be lost, and the connection with it.
        let may_say = !(self.client.side == LEGACY_HTTP && self.is_shaken());
        if with_a_word && may_say {
            exchange.cancel().await;
        }
    }

    fn is_shaken(&self) -> bool {
        self.ledger.is_stormy() || self.ledger.has_stopped()
    }

    /// Compares what came with what may come.
    fn judge(&self, wanted: &Wanted, number: u64, answer: Option<Reply>) {
        let executed = self.ledger.executed(number);
        let (fate, _) = self.ledger.fate(number);
        let own = proof(wanted.server.name, number);
        let (key, is_there) = (&wanted.key, &wanted.is_there);
        if *is_there == IsThere::Never && executed > 0 {
            self.object(format!("{number}, which it may not use, was executed: {key}"));
        }
        let Some(reply) = answer else {
            self.tell(format!("sees {number} break off"));
            let is_http = self.client.side.is_http();
            let may_break = is_http && (fate == Fate::CutShort || self.ledger.is_stormy());
            let unheard = self.ledger.has_stopped() && executed == 0;
            if !may_break && !unheard {
                self.object(format!("{number} has no answer; {fate:?}, {}", self.client.side));
            }
            return;
        };
        match &reply.outcome {
            Ok(result) => {
                self.tell(format!("has {number}"));
                let is_right = result.contains(&own) && result.matches('#').count() == 2;
                if !is_right || result.contains("second time") || result.contains("somebody") {
                    self.object(format!("{number} has another's answer: {result}"));
                }
                if executed != 1 || *is_there == IsThere::Never {
                    self.object(format!("{number} was answered and executed {executed} times"));
                }
            }
            Err(error) => {
                let code = reply.code();
                self.tell(format!("is refused {number}: {code}"));
                let is_unknown = matches!(code, -32602 | -32002);
                let expected = match code {
                    // The server's own words.
                    -31000 => fate == Fate::Refused && error.contains(&own),
                    // A server that broke, is away, said what is no answer, or took too long.
                    5030 | 5040 | -32603 => *is_there != IsThere::Never,
                    _ => is_unknown && *is_there != IsThere::Always,
                };
                if !expected {
                    self.object(format!("{number} ({key}, {fate:?}) got {error}"));
                }
            }
        }
    }

    // === Lists ===

    /// The keys of a kind through all pages; `None` if the connection broke.
    async fn walk(&self, kind: Kind) -> Option<Vec<String>> {
        let (mut keys, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let params = match &cursor {
                Some(cursor) => format!(r#"{{"cursor":{}}}"#, string(json::quote(cursor))),
                None => "{}".to_owned(),
            };
            let mut exchange = self.client.start(kind.list_method(), &params);
            let Some(reply) = self.answer(&mut exchange).await else {
                if !self.is_shaken() {
                    self.object(format!("a list of {kind:?} broke off"));
                }
                return None;
            };
            let page = object(reply.result());
            keys.extend(keys_of(kind, &page));
            cursor = page.get_string("nextCursor").map(Into::into);
            if cursor.is_none() {
                self.tell(format!("lists {kind:?}: {}", keys.join(" ")));
                return Some(keys);
            }
        }
    }

    /// Whatever changes meanwhile, a walk meets everything once that is there all the time.
    fn check_walk(&self, kind: Kind, keys: &[String]) {
        let all: BTreeSet<_> = keys.iter().collect();
        if all.len() != keys.len() {
            self.object(format!("a walk of {kind:?} met something twice: {keys:?}"));
        }
        if self.role == "guest" && keys.iter().any(|key| !is_open(key)) {
            self.object(format!("a guest has listed {keys:?}"));
        }
        for server in &self.servers {
            for name in ["open_0", "secret_0"] {
                let key = server.public(kind, &name_of(kind, server.name, name));
                let may = self.role == "staff" || is_open(name);
                if may != all.contains(&key) {
                    self.object(format!("a walk of {kind:?}, {key}: {keys:?}"));
                }
            }
        }
    }

    /// In the end everything is as the servers have it, and whoever listens knows.
    pub(super) async fn look_around(&self) {
        for kind in Kind::ALL {
            let mut keys = self.walk(kind).await;
            while keys.is_none() {
                pass(AGAIN).await;
                keys = self.walk(kind).await;
            }
            let keys = keys.unwrap_or_default();
            let expected: Vec<_> =
                self.servers.iter().flat_map(|server| server.listed(kind, self.role)).collect();
            let sorted = |keys: &[String]| keys.iter().cloned().collect::<BTreeSet<_>>();
            if sorted(&keys) != sorted(&expected) {
                self.object(format!("in the end {kind:?} are {keys:?}, not {expected:?}"));
            }
            let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(told) = told.1.get(&kind).filter(|told| **told != keys) {
                self.object(format!("it was told of {told:?}, and there are {keys:?}"));
            }
        }
    }

    // === Notices ===

    /// Listens, and lists when it is told to.
    pub(super) async fn listen(&self, over: &CancellationToken) {
        if self.listens {
            over.run_until_cancelled(self.listen_on()).await;
        }
    }

    async fn listen_on(&self) {
        // Whoever comes later to a stream of everything may have missed something.
        while !self.ledger.has_stopped() {
            let Some(mut ears) = self.client.try_listen_for(&Topic::ALL).await else {
                pass(AGAIN).await;
                continue;
            };
            self.tell("listens");
            for kind in Kind::ALL {
                self.look_again(kind).await;
            }
            while let Some(message) = ears.next().await {
                let method = object(&message).get_string("method").map(|it| it.into_owned());
                let topic = method.as_deref().and_then(Topic::of_notification);
                let Some(topic) = topic else {
                    // The end of the stream, in words.
                    break;
                };
                self.tell(format!("hears of {topic:?}"));
                *self.told().0.entry(topic).or_default() += 1;
                for kind in Kind::ALL.into_iter().filter(|kind| kind.topic() == topic) {
                    self.look_again(kind).await;
                }
            }
            self.tell("listens no more");
            pass(AGAIN).await;
        }
    }

    async fn look_again(&self, kind: Kind) {
        let mut keys = self.walk(kind).await;
        while keys.is_none() && !self.ledger.has_stopped() {
            pass(AGAIN).await;
            keys = self.walk(kind).await;
        }
        self.told().1.insert(kind, keys.unwrap_or_default());
    }

    /// Nobody hears of what it cannot see.
    pub(super) fn check(&self) {
        for (topic, count) in &self.told().0 {
            if !self.ledger.has_changed(self.role, *topic) {
                self.object(format!("it heard {count} times of {topic:?}, which are as they were"));
            }
        }
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, what: impl Into<String>) {
        self.ledger.tell(&self.name, what);
    }

    fn object(&self, what: String) {
        let side: Side = self.client.side;
        self.ledger.object(format!("{} ({side}): {what}", self.name));
    }
}
