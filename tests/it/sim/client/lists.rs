//! What a client lists, and what it hears of changes.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use tokio_util::sync::CancellationToken;
use weir::json::{self, Object};
use weir::mcp::kind::{Kind, Topic};

use super::super::ledger::Since;
use super::super::rules::{Rules, base_of};
use super::super::server::{Server, name_of};
use super::{AGAIN, Person};
use crate::client::{Wired, keys_of, object, string};
use crate::world::pass;

impl Person {
    /// The keys of a kind through all pages; `None` if the connection broke.
    pub(super) async fn walk(&self, kind: Kind) -> Option<Vec<String>> {
        let (mut keys, mut cursor) = (Vec::new(), None::<String>);
        let begun = self.ledger.since();
        loop {
            let params = match &cursor {
                Some(cursor) => format!(r#"{{"cursor":{}}}"#, string(json::quote(cursor))),
                None => "{}".to_owned(),
            };
            let since = self.ledger.since();
            let mut exchange = self.client.start(kind.list_method(), &params);
            let Some(reply) = self.answer(&mut exchange).await else {
                if !self.is_shaken() {
                    self.object(format!("a list of {kind:?} broke off"));
                }
                return None;
            };
            let page = object(reply.result());
            let listed = keys_of(kind, &page);
            self.check_page(kind, &listed, since);
            keys.extend(listed);
            cursor = page.get_string("nextCursor").map(Into::into);
            if cursor.is_none() {
                self.tell(format!("lists {kind:?}: {}", keys.join(" ")));
                self.check_walk(kind, &keys, begun);
                return Some(keys);
            }
        }
    }

    /// One configuration decides a page, and all of it.
    fn check_page(&self, kind: Kind, keys: &[String], since: Since) {
        let shows = |rules: &Rules, key: &String| {
            let server = self.servers.iter().find(|server| server.owns(kind, key));
            server.is_some_and(|it| rules.has(it.name)) && rules.may(self.role, &base_of(key))
        };
        let rules = self.ledger.rules_since(since);
        if !rules.iter().any(|rules| keys.iter().all(|key| shows(rules, key))) {
            self.object(format!("no configuration shows {keys:?}: {rules:?}"));
        }
    }

    /// Whatever changes meanwhile, a walk meets everything once that is there all the time.
    fn check_walk(&self, kind: Kind, keys: &[String], begun: Since) {
        let all: BTreeSet<_> = keys.iter().collect();
        if all.len() != keys.len() {
            self.object(format!("a walk of {kind:?} met something twice: {keys:?}"));
        }
        let rules = self.ledger.rules_since(begun);
        for server in self.servers.iter().filter(|it| self.ledger.has_stayed(it.name)) {
            for name in ["open_0", "secret_0"] {
                let key = server.public(kind, &name_of(kind, server.name, name));
                if rules.iter().all(|rules| rules.may(self.role, name)) && !all.contains(&key) {
                    self.object(format!("a walk of {kind:?} without {key}: {keys:?}"));
                }
            }
        }
    }

    /// In the end everything is as the servers have it, and whoever listens knows.
    pub(in super::super) async fn look_around(&self) {
        let rules = self.ledger.rules();
        for kind in Kind::ALL {
            let mut keys = self.walk(kind).await;
            while keys.is_none() {
                pass(AGAIN).await;
                keys = self.walk(kind).await;
            }
            let keys = keys.unwrap_or_default();
            let of = |server: &Server| server.listed(kind, &rules, self.role);
            let expected: Vec<_> = self.servers.iter().flat_map(of).collect();
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

    /// Listens, and lists when it is told to. Who has one stream for everything is asked there, too.
    pub(in super::super) async fn attend(&self, over: &CancellationToken) {
        if self.listens || self.has_one_stream() {
            over.run_until_cancelled(self.listen_on()).await;
        }
    }

    fn has_one_stream(&self) -> bool {
        matches!(self.client.wire, Wired::Stdio(_)) && !self.client.side.is_modern()
    }

    async fn listen_on(&self) {
        // Whoever comes later to a stream of everything may have missed something.
        while !self.ledger.has_stopped() {
            let Some(mut ears) = self.client.try_listen_for(&Topic::ALL).await else {
                pass(AGAIN).await;
                continue;
            };
            if self.listens {
                self.tell("listens");
                for kind in Kind::ALL {
                    self.look_again(kind).await;
                }
            }
            while let Some(message) = ears.whenever().await {
                if !self.hear(&object(&message)).await {
                    // The end of the stream, in words.
                    break;
                }
            }
            if self.listens {
                self.tell("listens no more");
            }
            pass(AGAIN).await;
        }
    }

    /// Takes what comes on a stream that is not a call's own. Tells whether the stream goes on.
    async fn hear(&self, message: &Object) -> bool {
        let method = message.get_string("method");
        if let Some(topic) = method.as_deref().and_then(Topic::of_notification) {
            if self.listens {
                self.tell(format!("hears of {topic:?}"));
                *self.told().0.entry(topic).or_default() += 1;
                for kind in Kind::ALL.into_iter().filter(|kind| kind.topic() == topic) {
                    self.look_again(kind).await;
                }
            }
            return true;
        }
        if method.is_some() && message.has("id") {
            self.be_asked(message).await;
            return true;
        }
        // On a stream for everything questions are taken back, and what is late has an answer.
        self.hear_of_task(message) || self.has_one_stream()
    }

    async fn look_again(&self, kind: Kind) {
        let mut keys = self.walk(kind).await;
        while keys.is_none() && !self.ledger.has_stopped() {
            pass(AGAIN).await;
            keys = self.walk(kind).await;
        }
        self.told().1.insert(kind, keys.unwrap_or_default());
    }

    /// Nobody hears of what it cannot see, and of what it can once.
    pub(in super::super) fn check(&self) {
        for (topic, count) in &self.told().0 {
            let changes = self.ledger.changes(self.role, *topic);
            if *count > changes {
                self.object(format!("it heard {count} times of {topic:?}; {changes} changes"));
            }
        }
    }
}
