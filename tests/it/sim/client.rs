//! A simulated client: its actions, and the results that it must get.

mod asked;
mod lists;
mod tasks;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use weir_base::json::{self, Object};
use weir_mcp::kind::{Kind, ListTopic};

use super::dice::Dice;
use super::fact::{ClientEnd, RequestFacts};
use super::ledger::{Ledger, ServerAction, Since};
use super::rules::{Rules, base_of};
use super::server::{METHODS, Server, name_of, proof};
use crate::cell::{LEGACY_HTTP, Side};
use crate::client::{Client, Exchange, Reply, object, string};
use crate::world::pass;

/// Greatest number of requests in flight of a client, and requests that each slot makes.
const HANDS: u64 = 3;
const TURNS: u64 = 7;

/// Number of calls that a client begins at once and abandons.
const STORM: u64 = 6;

/// Time that a client waits for a response: longer than any time limit, that of an input request
/// included.
const PATIENCE: Duration = Duration::from_secs(700);

/// Pause of a client after a broken connection.
const AGAIN: Duration = Duration::from_millis(300);

/// Number of notifications of each topic, and the keys of each kind as last listed.
type SeenChanges = (BTreeMap<ListTopic, u32>, BTreeMap<Kind, Vec<String>>);

pub(super) struct SimulatedClient {
    name: String,
    role: &'static str,
    client: Client,
    can: ClientAbilities,
    servers: Vec<Server>,
    ledger: Arc<Ledger>,
    seed: u64,
    /// Received notifications by topic, and the keys of each kind as listed since.
    seen_changes: Mutex<SeenChanges>,
    listens: bool,
}

/// Optional abilities of a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientAbilities {
    /// It answers input requests.
    answer: bool,
    /// It accepts a task as a result.
    tasks: bool,
}

/// An item that a client requests.
struct WantedItem {
    server: Server,
    method: &'static str,
    key: String,
    is_there: ItemPresence,
    since: Since,
    /// Number of its server's outages before the request.
    outages: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ItemPresence {
    Always,
    Perhaps,
    Never,
}

impl ClientAbilities {
    pub(super) fn random(dice: &mut Dice) -> Self {
        Self { answer: !dice.one_in(4), tasks: !dice.one_in(3) }
    }

    /// Capabilities of a client of this side.
    pub(super) fn declared(self, side: Side) -> String {
        let answer = if self.answer { r#""elicitation":{"form":{}}"# } else { "" };
        let extension = r#""extensions":{"io.modelcontextprotocol/tasks":{}}"#;
        let tasks = if self.tasks && side.is_modern() { extension } else { "" };
        let comma = if answer.is_empty() || tasks.is_empty() { "" } else { "," };
        format!("{{{answer}{comma}{tasks}}}")
    }
}

impl SimulatedClient {
    pub(super) fn new(
        number: u64,
        role: &'static str,
        client: Client,
        can: ClientAbilities,
        servers: &[Server],
        ledger: &Arc<Ledger>,
        mut dice: Dice,
    ) -> Self {
        let name = format!("{role} {number}");
        ledger.record(&name, format!("comes: {}, {can:?}", client.side));
        let (listens, seed) = (dice.one_in(2), dice.next());
        let (servers, ledger) = (servers.to_vec(), Arc::clone(ledger));
        Self {
            name,
            role,
            client,
            can,
            servers,
            ledger,
            seed,
            seen_changes: Mutex::default(),
            listens,
        }
    }

    /// Runs all actions of the client.
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
                4 => self.abandon_calls(&mut dice).await,
                _ => self.want(&mut dice).await,
            }
        }
    }

    // === One item ===

    async fn want(&self, dice: &mut Dice) {
        let wanted = self.pick(dice);
        let number = self.begin();
        let params = self.params(&wanted, number, dice);
        self.record(format!("asks {number}: {} {}", wanted.method, wanted.key));
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
                    self.record(format!("does not come back for {number}"));
                    return self.ledger.ended_here(number, ClientEnd::StayedAway);
                }
                Some(Some(further)) => {
                    pass(Duration::from_millis(dice.below(300))).await;
                    exchange = self.client.start(wanted.method, &further);
                }
            }
        }
    }

    /// Begins calls at once, and abandons all of them.
    async fn abandon_calls(&self, dice: &mut Dice) {
        self.ledger.count("storms of cancels");
        let mut calls = Vec::new();
        for _ in 0..1 + dice.below(STORM) {
            let (wanted, number) = (self.pick(dice), self.begin());
            self.record(format!("asks {number} in vain: {} {}", wanted.method, wanted.key));
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
        let fact = RequestFacts::new(&self.name, self.role, self.client.side, self.can.tasks);
        self.ledger.begin(fact)
    }

    fn params(&self, wanted: &WantedItem, number: u64, dice: &mut Dice) -> String {
        let member = if wanted.method == "resources/read" { "uri" } else { "name" };
        let key = string(json::quote(&wanted.key));
        let token = if dice.one_in(2) { r#","progressToken":"t""# } else { "" };
        let is_task =
            self.ledger.action(number).0 == ServerAction::Task && wanted.method == "tools/call";
        let asks_for_one = is_task && self.can.tasks && !self.client.side.is_modern();
        let task = if asks_for_one { r#","task":{"ttl":60000}"# } else { "" };
        format!(r#"{{"{member}":{key}{task},"_meta":{{"sim/number":{number}{token}}}}}"#)
    }

    /// Waits for the response, if one comes within the client's patience.
    async fn answer(&self, exchange: &mut Exchange<'_>) -> Option<Reply> {
        let mut notifications = Vec::new();
        loop {
            // On a common stream a late request is not informed that the stream has ended.
            let message = tokio::time::timeout(PATIENCE, exchange.next()).await.ok()??;
            let sent = object(&message);
            match (sent.has("method"), sent.has("id")) {
                // A stopped gateway refuses messages that it has not read.
                (false, false) => return None,
                (false, true) => return Some(exchange.read(&message, notifications)),
                (true, true) => self.be_asked(&sent).await,
                (true, false) => notifications.push(message),
            }
        }
    }

    fn pick(&self, dice: &mut Dice) -> WantedItem {
        let server = self.servers[dice.below(self.servers.len() as u64) as usize].clone();
        let (method, kind) = METHODS[dice.below(3) as usize];
        let sort = if dice.one_in(3) { "secret" } else { "open" };
        let (name, is_there) = match dice.below(4) {
            0 => ("nothing".to_owned(), ItemPresence::Never),
            1 => (format!("{sort}_{}", 1 + dice.below(4)), ItemPresence::Perhaps),
            _ => (format!("{sort}_0"), ItemPresence::Always),
        };
        let mut key = server.public(kind, &name_of(kind, server.name, &name));
        if kind == Kind::Resource && name == "nothing" {
            // Weir forwards an unlisted resource to the server that lists others of its scheme.
            key = "none:///nothing".into();
        }
        let since = self.ledger.since();
        let outages = server.outages();
        WantedItem { server, method, key, is_there, since, outages }
    }

    /// Whether Weir may forward the request to another server: an unlisted resource goes to the
    /// only server that lists others of its scheme.
    fn may_stray(&self, wanted: &WantedItem) -> bool {
        wanted.method == "resources/read" && !self.ledger.has_stayed(wanted.server.name)
    }

    /// Whether the requested item had to exist, under every configuration that may have applied.
    fn is_there(&self, wanted: &WantedItem) -> ItemPresence {
        let rules = self.ledger.rules_since(wanted.since);
        let name = base_of(&wanted.key);
        let may = |rules: &Rules| rules.has(wanted.server.name) && rules.may(self.role, &name);
        match wanted.is_there {
            ItemPresence::Never => ItemPresence::Never,
            _ if self.may_stray(wanted) => ItemPresence::Perhaps,
            _ if !rules.iter().any(may) => ItemPresence::Never,
            // A server that came back has to be listed first.
            ItemPresence::Always
                if rules.iter().all(may) && self.ledger.has_stayed(wanted.server.name) =>
            {
                ItemPresence::Always
            }
            _ => ItemPresence::Perhaps,
        }
    }

    /// Abandons a request, by cancelling it in its era's way or by disconnecting.
    async fn give_up(&self, exchange: Exchange<'_>, number: u64, with_a_word: bool) {
        self.record(format!("gives {number} up"));
        self.ledger.ended_here(number, ClientEnd::GaveUp);
        // In a storm the cancellation may be lost together with its connection.
        let may_say = !(self.client.side == LEGACY_HTTP && self.is_shaken());
        if with_a_word && may_say {
            exchange.cancel().await;
        }
    }

    fn is_shaken(&self) -> bool {
        self.ledger.is_stormy() || self.ledger.has_stopped()
    }

    /// Compares the response with the allowed ones.
    async fn judge(&self, wanted: &WantedItem, number: u64, answer: Option<Reply>) {
        let Some(fact) = self.ledger.fact(number) else { return };
        let (action, mut dice) = self.ledger.action(number);
        let by = |server: &Server| proof(server.name, number);
        let owns: Vec<_> = match self.may_stray(wanted) {
            true => self.servers.iter().map(by).collect(),
            false => vec![by(&wanted.server)],
        };
        let is_own = |text: &str| owns.iter().any(|own| text.contains(own));
        let (key, is_there) = (&wanted.key, self.is_there(wanted));
        if is_there == ItemPresence::Never && fact.executed > 0 {
            self.object(format!("{number}, which it may not use, was executed: {key}"));
        }
        let Some(reply) = answer else {
            self.record(format!("sees {number} break off"));
            self.ledger.ended_here(number, ClientEnd::BrokenOff);
            let is_http = self.client.side.is_http();
            // A response that is being forwarded ends with its server.
            let is_cut = action == ServerAction::Large && wanted.server.outages() > wanted.outages;
            let may_break =
                is_http && (is_cut || action == ServerAction::CutShort || self.ledger.is_stormy());
            // A stopped gateway takes no responses to input requests either.
            let is_new = fact.executed == 0 || action == ServerAction::Asks;
            let unanswered = self.ledger.has_stopped() && is_new;
            if !may_break && !unanswered {
                self.object(format!("{number} has no answer; {action:?}, {}", self.client.side));
            }
            return;
        };
        match &reply.outcome {
            Ok(result) => {
                self.record(format!("has {number}"));
                self.ledger.ended_here(number, ClientEnd::Has);
                let is_right = is_own(result) && result.matches('#').count() == 2;
                if !is_right || result.contains("second time") || result.contains("somebody") {
                    self.object(format!("{number} has another's answer: {result}"));
                }
                if is_there == ItemPresence::Never {
                    self.object(format!("{number}, which it may not use, was answered: {key}"));
                }
                if action == ServerAction::Task {
                    self.keep_task(number, result, &mut dice).await;
                }
            }
            Err(error) => {
                let code = reply.code();
                self.record(format!("is refused {number}: {code}"));
                self.ledger.ended_here(number, ClientEnd::Refused(code));
                let is_unknown = matches!(code, -32602 | -32002);
                let expected = match code {
                    // The error is the server's own.
                    -31000 => action == ServerAction::Refused && is_own(error),
                    // The call needs an input request.
                    -32021 => action == ServerAction::Asks && !self.can.answer,
                    // The server broke off, is unavailable, sent an invalid response, or took too
                    // long.
                    5030 | 5040 | -32603 => is_there != ItemPresence::Never,
                    _ => is_unknown && is_there != ItemPresence::Always,
                };
                if !expected {
                    self.object(format!("{number} ({key}, {is_there:?}, {action:?}) got {error}"));
                }
            }
        }
    }

    /// Sends a message that may get lost on its way or be refused by a stopped gateway.
    async fn say(&self, message: &str) {
        if !self.client.side.is_http() {
            return self.client.stdio().send(message.as_bytes());
        }
        let http = self.client.http();
        let mut posted = http.post(message.to_owned(), &http.headers("", "{}"));
        posted.opened().await;
    }

    fn seen_changes(&self) -> std::sync::MutexGuard<'_, SeenChanges> {
        self.seen_changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, what: impl Into<String>) {
        self.ledger.record(&self.name, what);
    }

    fn object(&self, what: String) {
        let side: Side = self.client.side;
        self.ledger.object(format!("{} ({side}): {what}", self.name));
    }
}

/// Number between these marks: it names a request and its server.
fn number_in(text: &str, mark: char) -> Option<u64> {
    let (_, rest) = text.split_once(mark)?;
    let (number, _) = rest.split_once(" by ")?;
    number.parse().ok()
}

/// Text of a member of a message.
fn text_of(message: &Object, member: &str) -> String {
    message.get_string(member).map(std::borrow::Cow::into_owned).unwrap_or_default()
}
