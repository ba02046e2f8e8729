//! Tasks of a simulated server.

use std::time::Duration;

use weir_mcp::kind::Kind;

use super::{Dice, InterceptedCalls, Server, number_of, proof};
use crate::sim::fact::ServerEnd;
use crate::sim::ledger::have_tasks;
use crate::upstream::Call;
use crate::world::pass;

impl Server {
    /// Whether the client of this request accepts a task as a result.
    pub(super) fn can_begin_task(&self, kind: Kind, number: u64) -> bool {
        let fact = self.ledger.fact(number);
        let takes =
            fact.is_some_and(|it| it.takes_tasks && have_tasks(it.side, self.upstream.side()));
        kind == Kind::Tool && takes
    }

    /// Answers with a task, and announces its status later.
    pub(super) fn begin_task(&self, call: Call, number: u64, dice: &mut Dice) {
        let (own, state) = (format!("t{number}"), self.state(number));
        call.result(&match self.upstream.side().is_modern() {
            true => format!(r#"{{"resultType":"task","taskId":"{own}",{state}}}"#),
            false => format!(r#"{{"task":{{"taskId":"{own}",{state}}}}}"#),
        });
        let (upstream, mut dice) = (self.upstream.clone(), dice.fork());
        self.tasks.spawn(async move {
            for _ in 0..dice.below(4) {
                pass(Duration::from_millis(dice.below(1_000))).await;
                upstream.announce_task(&own, &state);
            }
        });
    }

    /// Members of a task beside its id.
    fn state(&self, number: u64) -> String {
        let ttl = if self.upstream.side().is_modern() { "ttlMs" } else { "ttl" };
        let proof = proof(self.name, number);
        format!(
            r#""status":"working","statusMessage":"{proof}","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","{ttl}":60000"#
        )
    }

    pub(super) async fn answer_task_requests(self, mut intercepted: InterceptedCalls, gets: bool) {
        while let Some(call) = intercepted.any().await {
            self.answer_task_request(call, gets);
        }
    }

    /// Answers with the status of a task, or cancels it. The asking client must be the one that
    /// began it, or have its role.
    fn answer_task_request(&self, call: Call, gets: bool) {
        let number = number_of(&call);
        self.ledger.execute(number);
        self.ledger.ended_there(number, ServerEnd::Ended);
        let own = call.params.get_string("taskId").map(|own| own.into_owned()).unwrap_or_default();
        self.ledger.record(self.name, format!("is asked {number}, about the task {own}"));
        let begun = own.strip_prefix('t').and_then(|it| it.parse::<u64>().ok());
        let role = |number| self.ledger.fact(number).map(|fact| fact.role);
        let Some(begun) = begun.filter(|begun| role(*begun) == role(number)) else {
            return self
                .ledger
                .object(format!("{number} is about the task {own} of somebody else"));
        };
        let state = self.state(begun);
        call.result(&match (self.upstream.side().is_modern(), gets) {
            (true, true) => format!(r#"{{"resultType":"complete","taskId":"{own}",{state}}}"#),
            (true, false) => r#"{"resultType":"complete"}"#.to_owned(),
            (false, _) => format!(r#"{{"taskId":"{own}",{state}}}"#),
        });
    }
}
