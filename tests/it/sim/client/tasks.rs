//! Tasks of a simulated client: its own calls that become tasks, and requests about tasks of
//! others.

use std::time::Duration;

use weir_mcp::task::{TASK_NOTIFICATION, TASK_STATUS_NOTIFICATION};

use super::super::fact::ClientEnd;
use super::super::ledger::have_tasks;
use super::super::server::proof;
use super::{Dice, SimulatedClient, number_in, text_of};
use crate::client::object;
use crate::world::pass;

/// Time that a client listens for the status of a task.
const LISTENING: Duration = Duration::from_secs(3);

impl SimulatedClient {
    /// Records the handle of a task, if the call has become one, and perhaps listens for its
    /// status.
    pub(super) async fn keep_task(&self, number: u64, result: &str, dice: &mut Dice) {
        let result = object(result);
        let task = result.get_object("task").unwrap_or(result);
        let Some(handle) = task.get_string("taskId").map(std::borrow::Cow::into_owned) else {
            return;
        };
        self.ledger.count("tasks");
        self.ledger.record_handle(&handle, number);
        if self.ledger.has_stopped() {
            return;
        }
        if dice.one_in(2) {
            self.ask_about(&handle, number, dice).await;
        } else if self.client.side.is_modern() {
            // The end of the stream does not matter: only its messages are checked.
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
            if text_of(&message, "method") != TASK_NOTIFICATION {
                continue;
            }
            self.ledger.count("news of tasks");
            self.record(format!("hears of the task {number}"));
            let sent = number_in(&text_of(&params, "statusMessage"), '#');
            if sent != Some(number) || text_of(&params, "taskId") != handle {
                self.object(format!("it listens for the task {number}, and hears {params:?}"));
            }
        }
    }

    /// Handles a message of a common stream that may be about a task, which then must be this
    /// client's.
    pub(super) fn handle_task_message(&self, message: &weir_base::json::Object) -> bool {
        if text_of(message, "method") != TASK_STATUS_NOTIFICATION {
            return false;
        }
        self.ledger.count("news of tasks");
        let params = message.get_object("params").unwrap_or_default();
        let number = number_in(&text_of(&params, "statusMessage"), '#').unwrap_or_default();
        self.record(format!("hears of the task {number}"));
        // A client that has asked about a task of its principal follows it from then on.
        if !self.ledger.follows(&self.name, number) {
            let owner = self.ledger.fact(number).map(|fact| fact.who);
            self.object(format!("it hears of the task {number}, which {owner:?} began"));
        }
        true
    }

    /// Asks about a random task: only the principal of its owner may get a result.
    pub(super) async fn ask_about_a_task(&self, dice: &mut Dice) {
        if let Some((handle, begun)) = self.ledger.any_task(dice) {
            self.ask_about(&handle, begun, dice).await;
        }
    }

    async fn ask_about(&self, handle: &str, begun: u64, dice: &mut Dice) {
        let Some(fact) = self.ledger.fact(begun) else { return };
        let number = self.begin();
        let method = if dice.one_in(3) { "tasks/cancel" } else { "tasks/get" };
        self.record(format!("asks {number}: {method} of {begun}"));
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
            self.record(format!("sees {number} break off"));
            return self.ledger.ended_here(number, ClientEnd::BrokenOff);
        };
        match &reply.outcome {
            Ok(result) => {
                self.ledger.count(if fact.who == self.name { "own tasks" } else { "shared tasks" });
                self.record(format!("has {number}"));
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
                self.record(format!("is refused {number}: {code}"));
                self.ledger.ended_here(number, ClientEnd::Refused(code));
                // The task is unknown: it belongs to another principal, or to a tool that the
                // client may not use.
                if !matches!(code, 5030 | 5040 | -32603 | -32602 | -32601 | -32021) {
                    self.object(format!("upon the task {begun} it got {error}"));
                }
            }
        }
        pass(Duration::from_millis(dice.below(100))).await;
    }
}
