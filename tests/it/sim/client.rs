//! A client in a simulation: what it does, and what it has to get for it.

mod asked;
mod lists;
mod tasks;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use weir::json::{self, Object};
use weir::mcp::kind::{Kind, Topic};

use super::dice::Dice;
use super::fact::{ClientEnd, Fact};
use super::ledger::{Fate, Ledger, Since};
use super::rules::{Rules, base_of};
use super::server::{METHODS, Server, name_of, proof};
use crate::cell::{LEGACY_HTTP, Side};
use crate::client::{Client, Exchange, Reply, object, string};
use crate::world::pass;

/// How many requests a client has under way at the most, and how many it makes with each hand.
const HANDS: u64 = 3;
const TURNS: u64 = 7;

/// How many calls a client begins at once, to want none of them.
const STORM: u64 = 6;

/// How long a client waits for an answer: longer than any time limit, that of a question too.
const PATIENCE: Duration = Duration::from_secs(700);

/// How long a client waits until it tries again what has broken off.
const AGAIN: Duration = Duration::from_millis(300);

/// Each topic's number of notices, and the keys of each kind as they were listed last.
type Told = (BTreeMap<Topic, u32>, BTreeMap<Kind, Vec<String>>);

pub(super) struct Person {
    name: String,
    role: &'static str,
    client: Client,
    can: Can,
    servers: Vec<Server>,
    ledger: Arc<Ledger>,
    seed: u64,
    /// What it has been told, and has listed since: each topic's number of notices, each kind's keys.
    told: Mutex<Told>,
    listens: bool,
}

/// What a client can do beside calling.
#[derive(Debug, Clone, Copy)]
pub(super) struct Can {
    /// It can be asked.
    answer: bool,
    /// It takes a task for an answer.
    tasks: bool,
}

/// An item that a client asks for.
struct Wanted {
    server: Server,
    method: &'static str,
    key: String,
    is_there: IsThere,
    since: Since,
    /// How often its server had gone before.
    falls: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IsThere {
    Always,
    Perhaps,
    Never,
}

impl Can {
    pub(super) fn throw(dice: &mut Dice) -> Self {
        Self { answer: !dice.one_in(4), tasks: !dice.one_in(3) }
    }

    /// What a client of this side declares for it.
    pub(super) fn declared(self, side: Side) -> String {
        let answer = if self.answer { r#""elicitation":{"form":{}}"# } else { "" };
        let extension = r#""extensions":{"io.modelcontextprotocol/tasks":{}}"#;
        let tasks = if self.tasks && side.is_modern() { extension } else { "" };
        let comma = if answer.is_empty() || tasks.is_empty() { "" } else { "," };
        format!("{{{answer}{comma}{tasks}}}")
    }
}

impl Person {
    pub(super) fn new(
        number: u64,
        role: &'static str,
        client: Client,
        can: Can,
        servers: &[Server],
        ledger: &Arc<Ledger>,
        mut dice: Dice,
    ) -> Self {
        let name = format!("{role} {number}");
        ledger.tell(&name, format!("comes: {}, {can:?}", client.side));
        let (listens, seed) = (dice.one_in(2), dice.next());
        let (servers, ledger) = (servers.to_vec(), Arc::clone(ledger));
        Self { name, role, client, can, servers, ledger, seed, told: Mutex::default(), listens }
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
            match dice.below(14) {
                0 | 1 => {
                    let kind = Kind::ALL[dice.below(4) as usize];
                    self.walk(kind).await;
                }
                2 | 3 => self.ask_about_a_task(&mut dice).await,
                4 => self.want_nothing_of_it(&mut dice).await,
                _ => self.want(&mut dice).await,
            }
        }
    }

    // === One item ===

    async fn want(&self, dice: &mut Dice) {
        let wanted = self.pick(dice);
        let number = self.begin();
        let params = self.params(&wanted, number, dice);
        self.tell(format!("asks {number}: {} {}", wanted.method, wanted.key));
        let mut exchange = self.client.start(wanted.method, &params);
        let mut patience = dice.one_in(5).then(|| Duration::from_millis(dice.below(300)));
        loop {
            let answer = self.answer(&mut exchange);
            let answer = match patience.take() {
                None => answer.await,
                Some(patience) => match tokio::time::timeout(patience, answer).await {
                    Ok(answer) => answer,
                    Err(_) => return self.give_up(exchange, number, dice.one_in(2)).await,
                },
            };
            match answer.as_ref().and_then(|reply| self.round(reply, number, &params)) {
                None => return self.judge(&wanted, number, answer).await,
                Some(None) => {
                    self.tell(format!("does not come back for {number}"));
                    return self.ledger.ended_here(number, ClientEnd::StayedAway);
                }
                Some(Some(further)) => {
                    pass(Duration::from_millis(dice.below(300))).await;
                    exchange = self.client.start(wanted.method, &further);
                }
            }
        }
    }

    /// Begins calls at once, and wants none of them.
    async fn want_nothing_of_it(&self, dice: &mut Dice) {
        self.ledger.count("storms of cancels");
        let mut calls = Vec::new();
        for _ in 0..1 + dice.below(STORM) {
            let (wanted, number) = (self.pick(dice), self.begin());
            self.tell(format!("asks {number} in vain: {} {}", wanted.method, wanted.key));
            let params = self.params(&wanted, number, dice);
            calls.push((self.client.start(wanted.method, &params), number, dice.one_in(2)));
        }
        pass(Duration::from_millis(dice.below(60))).await;
        let given_up = calls
            .into_iter()
            .map(|(exchange, number, with_a_word)| self.give_up(exchange, number, with_a_word));
        join_all(given_up).await;
    }

    fn begin(&self) -> u64 {
        let fact = Fact::new(&self.name, self.role, self.client.side, self.can.tasks);
        self.ledger.begin(fact)
    }

    fn params(&self, wanted: &Wanted, number: u64, dice: &mut Dice) -> String {
        let member = if wanted.method == "resources/read" { "uri" } else { "name" };
        let key = string(json::quote(&wanted.key));
        let token = if dice.one_in(2) { r#","progressToken":"t""# } else { "" };
        let is_task = self.ledger.fate(number).0 == Fate::Task && wanted.method == "tools/call";
        let asks_for_one = is_task && self.can.tasks && !self.client.side.is_modern();
        let task = if asks_for_one { r#","task":{"ttl":60000}"# } else { "" };
        format!(r#"{{"{member}":{key}{task},"_meta":{{"sim/number":{number}{token}}}}}"#)
    }

    /// What is answered, if anything is while somebody would wait for it.
    async fn answer(&self, exchange: &mut Exchange<'_>) -> Option<Reply> {
        let mut notes = Vec::new();
        loop {
            // On a stream for everything nobody tells a late request that the stream has ended.
            let message = tokio::time::timeout(PATIENCE, exchange.next()).await.ok()??;
            let said = object(&message);
            match (said.has("method"), said.has("id")) {
                // Closed doors refuse what they have not read.
                (false, false) => return None,
                (false, true) => return Some(exchange.read(&message, notes)),
                (true, true) => self.be_asked(&said).await,
                (true, false) => notes.push(message),
            }
        }
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
        let mut key = server.public(kind, &name_of(kind, server.name, &name));
        if kind == Kind::Resource && name == "nothing" {
            // One that nobody lists goes to whoever lists others of its scheme.
            key = "none:///nothing".into();
        }
        let since = self.ledger.since();
        let falls = server.falls();
        Wanted { server, method, key, is_there, since, falls }
    }

    /// Whether another server may be asked for it: a resource that nobody lists goes to whoever lists others of its
    /// scheme, if that is one alone.
    fn may_stray(&self, wanted: &Wanted) -> bool {
        wanted.method == "resources/read" && !self.ledger.has_stayed(wanted.server.name)
    }

    /// Whether what was asked for had to be there, under every configuration that may have decided it.
    fn is_there(&self, wanted: &Wanted) -> IsThere {
        let rules = self.ledger.rules_since(wanted.since);
        let name = base_of(&wanted.key);
        let may = |rules: &Rules| rules.has(wanted.server.name) && rules.may(self.role, &name);
        match wanted.is_there {
            IsThere::Never => IsThere::Never,
            _ if self.may_stray(wanted) => IsThere::Perhaps,
            _ if !rules.iter().any(may) => IsThere::Never,
            // One that came back has to be listed first.
            IsThere::Always
                if rules.iter().all(may) && self.ledger.has_stayed(wanted.server.name) =>
            {
                IsThere::Always
            }
            _ => IsThere::Perhaps,
        }
    }

    /// Ends a request that it no longer wants, with its era's word for it or by leaving.
    async fn give_up(&self, exchange: Exchange<'_>, number: u64, with_a_word: bool) {
        self.tell(format!("gives {number} up"));
        self.ledger.ended_here(number, ClientEnd::GaveUp);
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
    async fn judge(&self, wanted: &Wanted, number: u64, answer: Option<Reply>) {
        let Some(fact) = self.ledger.fact(number) else { return };
        let (fate, mut dice) = self.ledger.fate(number);
        let by = |server: &Server| proof(server.name, number);
        let owns: Vec<_> = match self.may_stray(wanted) {
            true => self.servers.iter().map(by).collect(),
            false => vec![by(&wanted.server)],
        };
        let is_own = |text: &str| owns.iter().any(|own| text.contains(own));
        let (key, is_there) = (&wanted.key, self.is_there(wanted));
        if is_there == IsThere::Never && fact.executed > 0 {
            self.object(format!("{number}, which it may not use, was executed: {key}"));
        }
        let Some(reply) = answer else {
            self.tell(format!("sees {number} break off"));
            self.ledger.ended_here(number, ClientEnd::BrokenOff);
            let is_http = self.client.side.is_http();
            // What has begun to pass ends with the server that it comes from.
            let is_cut = fate == Fate::Large && wanted.server.falls() > wanted.falls;
            let may_break =
                is_http && (is_cut || fate == Fate::CutShort || self.ledger.is_stormy());
            // Nor are answers to questions taken at closed doors.
            let is_new = fact.executed == 0 || fate == Fate::Asks;
            let unheard = self.ledger.has_stopped() && is_new;
            if !may_break && !unheard {
                self.object(format!("{number} has no answer; {fate:?}, {}", self.client.side));
            }
            return;
        };
        match &reply.outcome {
            Ok(result) => {
                self.tell(format!("has {number}"));
                self.ledger.ended_here(number, ClientEnd::Has);
                let is_right = is_own(result) && result.matches('#').count() == 2;
                if !is_right || result.contains("second time") || result.contains("somebody") {
                    self.object(format!("{number} has another's answer: {result}"));
                }
                if is_there == IsThere::Never {
                    self.object(format!("{number}, which it may not use, was answered: {key}"));
                }
                if fate == Fate::Task {
                    self.keep_task(number, result, &mut dice).await;
                }
            }
            Err(error) => {
                let code = reply.code();
                self.tell(format!("is refused {number}: {code}"));
                self.ledger.ended_here(number, ClientEnd::Refused(code));
                let is_unknown = matches!(code, -32602 | -32002);
                let expected = match code {
                    // The server's own words.
                    -31000 => fate == Fate::Refused && is_own(error),
                    // It would have to be asked.
                    -32021 => fate == Fate::Asks && !self.can.answer,
                    // A server that broke, is away, said what is no answer, or took too long.
                    5030 | 5040 | -32603 => is_there != IsThere::Never,
                    _ => is_unknown && is_there != IsThere::Always,
                };
                if !expected {
                    self.object(format!("{number} ({key}, {is_there:?}, {fate:?}) got {error}"));
                }
            }
        }
    }

    /// A message that may get lost, on its way or at closed doors.
    async fn say(&self, message: &str) {
        if !self.client.side.is_http() {
            return self.client.stdio().send(message.as_bytes());
        }
        let http = self.client.http();
        let mut posted = http.post(message.to_owned(), &http.headers("", "{}"));
        posted.opened().await;
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

/// The number between these marks: which request somebody speaks of, and of which server.
fn number_in(text: &str, mark: char) -> Option<u64> {
    let (_, rest) = text.split_once(mark)?;
    let (number, _) = rest.split_once(" by ")?;
    number.parse().ok()
}

/// The text of a message's member.
fn text_of(message: &Object, member: &str) -> String {
    message.get_string(member).map(std::borrow::Cow::into_owned).unwrap_or_default()
}
