//! A client whose calls go on as tasks, and who asks about tasks, its own and others'.

use std::time::Duration;

use weir::mcp::task::{TOLD_TO_LISTENERS, TOLD_TO_OWNERS};

use super::super::fact::ClientEnd;
use super::super::ledger::have_tasks;
use super::super::server::proof;
use super::{Dice, Person, number_in, text_of};
use crate::client::object;
use crate::world::pass;

/// How long somebody listens for what becomes of a task.
const LISTENING: Duration = Duration::from_secs(3);

impl Person {
    /// Keeps the handle of a task, if the call has become one, and perhaps listens for what becomes of it.
    pub(super) async fn keep_task(&self, number: u64, result: &str, dice: &mut Dice) {
        let result = object(result);
        let task = result.get_object("task").unwrap_or(result);
        let Some(handle) = task.get_string("taskId").map(std::borrow::Cow::into_owned) else {
            return;
        };
        self.ledger.count("tasks");
        self.ledger.hand_out(&handle, number);
        if self.ledger.has_stopped() {
            return;
        }
        if dice.one_in(2) {
            self.ask_about(&handle, number, dice).await;
        } else if self.client.side.is_modern() {
            // Whether it is in time, and how it ends, nobody minds: what comes is looked at.
            let listening = self.follow_task(number, &handle);
            let _ = tokio::time::timeout(LISTENING, listening).await;
        }
    }

    async fn follow_task(&self, number: u64, handle: &str) {
        let params = format!(r#"{{"notifications":{{"taskIds":["{handle}"]}}}}"#);
        let mut exchange = self.client.start("subscriptions/listen", &params);
        while let Some(message) = exchange.next().await {
            let message = object(&message);
            let params = message.get_object("params").unwrap_or_default();
            if text_of(&message, "method") != TOLD_TO_LISTENERS {
                continue;
            }
            self.ledger.count("news of tasks");
            self.tell(format!("hears of the task {number}"));
            let said = number_in(&text_of(&params, "statusMessage"), '#');
            if said != Some(number) || text_of(&params, "taskId") != handle {
                self.object(format!("it listens for the task {number}, and hears {params:?}"));
            }
        }
    }

    /// What comes on a stream for everything may be about a task: then it has to be this client's.
    pub(super) fn hear_of_task(&self, message: &weir::json::Object) -> bool {
        if text_of(message, "method") != TOLD_TO_OWNERS {
            return false;
        }
        self.ledger.count("news of tasks");
        let params = message.get_object("params").unwrap_or_default();
        let number = number_in(&text_of(&params, "statusMessage"), '#').unwrap_or_default();
        self.tell(format!("hears of the task {number}"));
        // Whoever has asked about a task of its principal's follows it from then on.
        if !self.ledger.follows(&self.name, number) {
            let owner = self.ledger.fact(number).map(|fact| fact.who);
            self.object(format!("it hears of the task {number}, which {owner:?} began"));
        }
        true
    }

    /// Asks about a task that somebody has begun: only its owner's principal gets anything for it.
    pub(super) async fn ask_about_a_task(&self, dice: &mut Dice) {
        if let Some((handle, begun)) = self.ledger.any_task(dice) {
            self.ask_about(&handle, begun, dice).await;
        }
    }

    async fn ask_about(&self, handle: &str, begun: u64, dice: &mut Dice) {
        let Some(fact) = self.ledger.fact(begun) else { return };
        let number = self.begin();
        let method = if dice.one_in(3) { "tasks/cancel" } else { "tasks/get" };
        self.tell(format!("asks {number}: {method} of {begun}"));
        if fact.role == self.role {
            self.ledger.follow(&self.name, begun);
        }
        let params = format!(r#"{{"taskId":"{handle}","_meta":{{"sim/number":{number}}}}}"#);
        let mut exchange = self.client.start(method, &params);
        let answer = self.answer(&mut exchange).await;
        let executed = self.ledger.fact(number).map(|fact| fact.executed).unwrap_or_default();
        let is_own = fact.role == self.role && have_tasks(self.client.side, fact.side);
        if !is_own && executed > 0 {
            self.object(format!("it asked about the task {begun} of {}", fact.who));
        }
        let Some(reply) = answer else {
            self.tell(format!("sees {number} break off"));
            return self.ledger.ended_here(number, ClientEnd::BrokenOff);
        };
        match &reply.outcome {
            Ok(result) => {
                self.ledger.count(if fact.who == self.name { "own tasks" } else { "shared tasks" });
                self.tell(format!("has {number}"));
                self.ledger.ended_here(number, ClientEnd::Has);
                let is_about =
                    self.servers.iter().any(|it| result.contains(&proof(it.name, begun)));
                if !is_own || (method == "tasks/get" && !is_about) {
                    self.object(format!("upon the task {begun} it got {result}"));
                }
            }
            Err(error) => {
                let code = reply.code();
                self.ledger.count(if is_own { "tasks refused" } else { "tasks of others" });
                self.tell(format!("is refused {number}: {code}"));
                self.ledger.ended_here(number, ClientEnd::Refused(code));
                // Unknown: of somebody else, or of a tool that it may not use now, or never could.
                if !matches!(code, 5030 | 5040 | -32603 | -32602 | -32601 | -32021) {
                    self.object(format!("upon the task {begun} it got {error}"));
                }
            }
        }
        pass(Duration::from_millis(dice.below(100))).await;
    }
}
