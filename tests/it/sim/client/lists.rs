//! Lists of a simulated client, and its notifications of changes.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use tokio_util::sync::CancellationToken;
use weir_base::json::{self, Object};
use weir_mcp::kind::{Kind, ListTopic};

use super::super::ledger::Since;
use super::super::rules::{Rules, base_of};
use super::super::server::{Server, name_of};
use super::{AGAIN, SimulatedClient};
use crate::client::{ClientTransport, keys_of, object, string};
use crate::world::pass;

impl SimulatedClient {
    /// Lists the keys of a kind through all pages; `None` if the connection broke.
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
                self.record(format!("lists {kind:?}: {}", keys.join(" ")));
                self.check_walk(kind, &keys, begun);
                return Some(keys);
            }
        }
    }

    /// Checks that one configuration explains all of a page.
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

    /// Checks that a walk meets each item once that exists all the time, whatever else changes.
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

    /// Checks that the lists finally match the servers, and that a listening client was notified.
    pub(crate) async fn look_around(&self) {
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
            let seen_changes = self.seen_changes.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(seen_changes) =
                seen_changes.1.get(&kind).filter(|seen_changes| **seen_changes != keys)
            {
                self.object(format!("it was told of {seen_changes:?}, and there are {keys:?}"));
            }
        }
    }

    // === Notifications ===

    /// Listens, and lists after each notification. Clients with one common stream get input
    /// requests there.
    pub(crate) async fn attend(&self, over: &CancellationToken) {
        if self.listens || self.has_one_stream() {
            over.run_until_cancelled(self.listen_on()).await;
        }
    }

    fn has_one_stream(&self) -> bool {
        matches!(self.client.transport, ClientTransport::Stdio(_)) && !self.client.side.is_modern()
    }

    async fn listen_on(&self) {
        // A client that opens a common stream later may have missed something.
        while !self.ledger.has_stopped() {
            let Some(mut stream) = self.client.try_listen_for(&ListTopic::ALL).await else {
                pass(AGAIN).await;
                continue;
            };
            if self.listens {
                self.record("listens");
                for kind in Kind::ALL {
                    self.look_again(kind).await;
                }
            }
            while let Some(message) = stream.next_untimed().await {
                if !self.handle_message(&object(&message)).await {
                    // This message ends the stream.
                    break;
                }
            }
            if self.listens {
                self.record("listens no more");
            }
            pass(AGAIN).await;
        }
    }

    /// Handles a message on a stream that is not a call's own. Returns whether the stream
    /// continues.
    async fn handle_message(&self, message: &Object) -> bool {
        let method = message.get_string("method");
        if let Some(topic) = method.as_deref().and_then(ListTopic::of_notification) {
            if self.listens {
                self.record(format!("hears of {topic:?}"));
                *self.seen_changes().0.entry(topic).or_default() += 1;
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
        // A common stream also carries cancellations of input requests, and late responses.
        self.handle_task_message(message) || self.has_one_stream()
    }

    async fn look_again(&self, kind: Kind) {
        let mut keys = self.walk(kind).await;
        while keys.is_none() && !self.ledger.has_stopped() {
            pass(AGAIN).await;
            keys = self.walk(kind).await;
        }
        self.seen_changes().1.insert(kind, keys.unwrap_or_default());
    }

    /// Checks that the client was never notified of invisible items, and once of each visible
    /// change.
    pub(crate) fn check(&self) {
        for (topic, count) in &self.seen_changes().0 {
            let changes = self.ledger.changes(self.role, *topic);
            if *count > changes {
                self.object(format!("it heard {count} times of {topic:?}; {changes} changes"));
            }
        }
    }
}
