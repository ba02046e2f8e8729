//! A simulated server: its handling of requests, and its faults.

mod asking;
mod tasks;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::task::TaskTracker;
use weir_mcp::kind::Kind;

use super::dice::Dice;
use super::fact::ServerEnd;
use super::ledger::{Ledger, ServerAction};
use super::rules::{Rules, base_of};
use crate::upstream::{Call, Cancelled, InterceptedCalls, Upstream, definition, own_key};
use crate::world::pass;

/// Executed methods, with the kind of their items.
pub(super) const METHODS: [(&str, Kind); 3] =
    [("tools/call", Kind::Tool), ("prompts/get", Kind::Prompt), ("resources/read", Kind::Resource)];

/// Methods about tasks.
const ABOUT_TASKS: [&str; 2] = ["tasks/get", "tasks/cancel"];

/// Number of changes and faults of a server.
const MISFORTUNES: u64 = 12;

#[derive(Clone)]
pub(super) struct Server {
    pub(super) name: &'static str,
    upstream: Upstream,
    ledger: Arc<Ledger>,
    /// Current lists, by kind.
    lists: Arc<[Mutex<BTreeSet<String>>; 4]>,
    /// Number of open requests.
    open: Arc<AtomicI64>,
    /// Number of outages, in which it left its messages unfinished.
    outages: Arc<AtomicU64>,
    tasks: TaskTracker,
}

/// Names that a server lists at first. Item 0 of either sort stays for ever.
pub(super) fn first_names(kind: Kind, server: &str) -> Vec<String> {
    let names = ["open_0", "open_1", "secret_0", "secret_1"];
    names.iter().map(|name| name_of(kind, server, name)).collect()
}

/// Name of an item, where clients do not put the server's name before it.
pub(super) fn name_of(kind: Kind, server: &str, name: &str) -> String {
    match kind {
        Kind::Prompt | Kind::Tool => name.to_owned(),
        Kind::Resource => format!("{server}_{name}"),
        // A scheme has no underscore.
        Kind::Template => format!("{server}-{}", name.replace('_', "-")),
    }
}

impl Server {
    pub(super) fn new(
        name: &'static str,
        upstream: &Upstream,
        ledger: &Arc<Ledger>,
        tasks: &TaskTracker,
    ) -> Self {
        let lists = Kind::ALL.map(|kind| Mutex::new(first_names(kind, name).into_iter().collect()));
        let (upstream, ledger, tasks) = (upstream.clone(), Arc::clone(ledger), tasks.clone());
        upstream.become_unreliable();
        let (open, outages) = (Arc::default(), Arc::default());
        Self { name, upstream, ledger, lists: Arc::new(lists), open, outages, tasks }
    }

    /// Keys of the listed items, as these rules make them visible to clients.
    pub(super) fn listed(&self, kind: Kind, rules: &Rules, role: &str) -> Vec<String> {
        let names = self.lists[kind.index()].lock().unwrap_or_else(PoisonError::into_inner).clone();
        let may = |name: &String| rules.has(self.name) && rules.may(role, &base_of(name));
        names.into_iter().filter(may).map(|name| self.public(kind, &name)).collect()
    }

    /// Key of an item, as clients see it.
    pub(super) fn public(&self, kind: Kind, name: &str) -> String {
        match kind {
            Kind::Prompt | Kind::Tool => format!("{}__{name}", self.name),
            Kind::Resource | Kind::Template => own_key(kind, name),
        }
    }

    /// Whether a key, as clients see it, belongs to one of the server's items.
    pub(super) fn owns(&self, kind: Kind, key: &str) -> bool {
        match kind {
            Kind::Prompt | Kind::Tool => key.starts_with(&format!("{}__", self.name)),
            Kind::Resource => key.starts_with(&format!("file:///{}_", self.name)),
            Kind::Template => key.starts_with(&format!("{}-", self.name)),
        }
    }

    /// Starts handling executions and requests about tasks.
    pub(super) fn serve(&self) -> Vec<BoxFuture<'static, ()>> {
        self.ledger.record(self.name, format!("stands there: {}", self.upstream.side()));
        let serve = |(method, kind): (&str, Kind)| {
            let intercepted = self.upstream.intercept(method);
            self.clone().take_all(intercepted, kind).boxed()
        };
        let serve_task_method = |method: &str| {
            let intercepted = self.upstream.intercept(method);
            self.clone().answer_task_requests(intercepted, method == "tasks/get").boxed()
        };
        METHODS
            .into_iter()
            .map(serve)
            .chain(ABOUT_TASKS.into_iter().map(serve_task_method))
            .collect()
    }

    async fn take_all(self, mut intercepted: InterceptedCalls, kind: Kind) {
        while let Some(call) = intercepted.any().await {
            let number = number_of(&call);
            let server = self.clone();
            match call.params.has("inputResponses") {
                true => self.go_on(call, kind, number),
                false => drop(self.tasks.spawn(server.execute(call, kind, number))),
            }
        }
    }

    async fn execute(self, call: Call, kind: Kind, number: u64) {
        self.ledger.execute(number);
        self.ledger.record(self.name, format!("has {number}"));
        self.open.fetch_add(1, Ordering::Relaxed);
        let (action, mut dice) = self.ledger.action(number);
        let delay = if dice.one_in(3) { 0 } else { dice.below(400) };
        let how = tokio::select! {
            biased;
            how = call.gone() => Some(how),
            () = pass(Duration::from_millis(delay)), if action != ServerAction::Silence => None,
        };
        match how {
            Some(how) => self.is_over(number, how),
            None if action == ServerAction::Asks => self.ask(call, kind, number).await,
            None => {
                self.ledger.record(self.name, format!("ends {number}: {action:?}"));
                self.ledger.ended_there(number, ServerEnd::Ended);
                match self.can_begin_task(kind, number) && action == ServerAction::Task {
                    true => self.begin_task(call, number, &mut dice),
                    false => self.end(call, kind, number, action, &mut dice).await,
                }
            }
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that a request was cancelled.
    fn is_over(&self, number: u64, how: Cancelled) {
        self.ledger.record(self.name, format!("hears that {number} is over"));
        let end = match how {
            Cancelled::Notified => ServerEnd::Notified,
            Cancelled::Closed => ServerEnd::Closed,
        };
        self.ledger.ended_there(number, end);
    }

    async fn end(
        &self,
        call: Call,
        kind: Kind,
        number: u64,
        action: ServerAction,
        dice: &mut Dice,
    ) {
        let is_http = self.upstream.side().is_http();
        let result = |more: &str| self.result(kind, number, more);
        match action {
            ServerAction::Noted if call.wants_progress() => {
                for step in 1..=1 + dice.below(3) {
                    call.progress(&format!(r#""progress":{step}"#));
                    pass(Duration::from_millis(dice.below(100))).await;
                }
                call.result(&result(""));
            }
            ServerAction::Large | ServerAction::CutShort if is_http => {
                let whole = result(&"large ".repeat(12_000 + dice.below(3_000) as usize));
                let whole = format!(r#"{{"jsonrpc":"2.0","id":{{id}},"result":{whole}}}"#);
                let cut = whole.len() - 1 - dice.below(whole.len() as u64 - 70_000) as usize;
                call.piece(&whole[..cut]);
                pass(Duration::from_millis(dice.below(100))).await;
                if action == ServerAction::Large {
                    call.piece(&whole[cut..]);
                } else {
                    call.hang_up();
                }
            }
            ServerAction::Refused => call.respond_raw(&format!(
                r##"{{"jsonrpc":"2.0","id":{{id}},"error":{{"code":-31000,"message":"{}"}}}}"##,
                proof(self.name, number)
            )),
            ServerAction::HungUp => call.hang_up(),
            ServerAction::Garbage => call.respond_raw(r#"{"jsonrpc":"2.0","id":{id}}"#),
            ServerAction::Twice => {
                let first = format!(r#"{{"jsonrpc":"2.0","id":{{id}},"result":{}}}"#, result(""));
                call.send_raw(&first);
                call.result(&result("a second time"));
            }
            ServerAction::Misdirected => {
                let wrong = result("for somebody else");
                call.send_raw(&format!(r#"{{"jsonrpc":"2.0","id":987654321,"result":{wrong}}}"#));
                call.result(&result(""));
            }
            _ => call.result(&result("")),
        }
    }

    fn result(&self, kind: Kind, number: u64, more: &str) -> String {
        let text = format!("{more} {}", proof(self.name, number));
        let era = if self.upstream.side().is_modern() { r#""resultType":"complete","# } else { "" };
        let text = format!(r#"{{"type":"text","text":"{text}"}}"#);
        match kind {
            Kind::Tool => format!(r#"{{{era}"content":[{text}]}}"#),
            Kind::Prompt => {
                format!(r#"{{{era}"messages":[{{"role":"user","content":{text}}}]}}"#)
            }
            Kind::Resource | Kind::Template => {
                let text = text.replace(r#""type":"text""#, r#""uri":"file:///x""#);
                let age = r#""ttlMs":0,"cacheScope":"private","#;
                let age = if era.is_empty() { "" } else { age };
                format!(r#"{{{era}{age}"contents":[{text}]}}"#)
            }
        }
    }

    /// Number of outages, in which it left its messages unfinished.
    pub(super) fn outages(&self) -> u64 {
        self.outages.load(Ordering::Relaxed)
    }

    fn fall(&self, how: &str) {
        self.ledger.record(self.name, how);
        self.ledger.fall();
        self.outages.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs the server's changes and faults, one after the other.
    pub(super) async fn run_faults(&self, mut dice: Dice) {
        let upstream = &self.upstream;
        for _ in 0..dice.below(MISFORTUNES) {
            pass(Duration::from_millis(50 + dice.below(1_500))).await;
            if self.ledger.has_stopped() {
                break;
            }
            match dice.below(10) {
                0 => {
                    self.fall("restarts");
                    upstream.restart();
                }
                1 => {
                    self.fall("is away");
                    upstream.go_down();
                    pass(Duration::from_millis(dice.below(6_000))).await;
                    self.ledger.record(self.name, "is back");
                    upstream.come_up();
                }
                2 if upstream.side().is_http() && !upstream.side().is_modern() => {
                    self.ledger.record(self.name, "forgets");
                    upstream.forget_sessions();
                }
                3 => {
                    let kind = Kind::ALL[dice.below(4) as usize];
                    upstream.announce(kind.topic());
                }
                _ => self.change(&mut dice),
            }
        }
        upstream.come_up();
    }

    /// Adds or removes an item and notifies the current listeners.
    fn change(&self, dice: &mut Dice) {
        let kind = Kind::ALL[dice.below(4) as usize];
        let sort = if dice.one_in(2) { "open" } else { "secret" };
        let name = name_of(kind, self.name, &format!("{sort}_{}", 1 + dice.below(4)));
        let item = definition(kind, &name);
        self.ledger.record(self.name, format!("changes {kind:?} {name}"));
        let mut list = self.lists[kind.index()].lock().unwrap_or_else(PoisonError::into_inner);
        if list.remove(&name) {
            self.upstream.change_quietly(kind, |all| all.retain(|it| *it != item));
        } else {
            self.upstream.change_quietly(kind, |all| all.push(item));
            list.insert(name.clone());
        }
        drop(list);
        self.ledger.change(kind.topic(), &base_of(&name));
        self.upstream.announce(kind.topic());
    }

    /// Checks that nothing is left open when all clients are gone.
    pub(super) fn check(&self) {
        let open = self.open.load(Ordering::Relaxed);
        if open != 0 {
            self.ledger.object(format!("{} was not told of the end of {open} requests", self.name));
        }
        self.check_answers();
    }
}

/// Number of a request in the ledger.
fn number_of(call: &Call) -> u64 {
    let inner = call.params.get_object("_meta").expect("_meta");
    inner.get("sim/number").expect("a number").parse().expect("a number")
}

/// Text that only the response of this server to this request contains.
pub(super) fn proof(server: &str, number: u64) -> String {
    format!("#{number} by {server}#")
}
