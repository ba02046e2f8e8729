//! Input requests of a simulated server.

use weir_base::json::Object;
use weir_mcp::kind::Kind;

use super::Server;
use crate::client::object;
use crate::sim::fact::ServerEnd;
use crate::upstream::Call;

impl Server {
    /// Sends an input request in its era's way, and ends the call with any response.
    pub(super) async fn ask(&self, call: Call, kind: Kind, number: u64) {
        self.ledger.record(self.name, format!("asks about {number}"));
        let (id, name) = (question_id(number), self.name);
        let params = format!(
            r#"{{"message":"?{number} by {name}?","requestedSchema":{{"type":"object","properties":{{}}}}}}"#
        );
        if self.upstream.side().is_modern() {
            // The server keeps no state: the responses come with another request, or never.
            self.ledger.ended_there(number, ServerEnd::Ended);
            return call.result(&format!(
                r#"{{"resultType":"input_required","inputRequests":{{"{id}":{{"method":"elicitation/create","params":{params}}}}},"requestState":"of {number}"}}"#
            ));
        }
        call.send_request(&format!(
            r#"{{"jsonrpc":"2.0","id":"{id}","method":"elicitation/create","params":{params}}}"#
        ));
        let answer = tokio::select! {
            biased;
            how = call.gone() => return self.is_over(number, how),
            answer = self.upstream.response_to(&id) => object(&answer),
        };
        let result = answer.get_object("result");
        if result.is_some() {
            self.ledger.record_response(number);
        }
        self.check_answer(number, &result.unwrap_or_default());
        self.ledger.record(self.name, format!("has an answer and ends {number}"));
        self.ledger.ended_there(number, ServerEnd::Ended);
        call.result(&self.result(kind, number, ""));
    }

    /// Handles the next round of a call.
    pub(super) fn go_on(&self, call: Call, kind: Kind, number: u64) {
        let answers = call.params.get_object("inputResponses").unwrap_or_default();
        let state = call.params.get_string("requestState");
        if state.as_deref() != Some(&format!("of {number}")) {
            self.ledger.object(format!("{number} goes on with the state {state:?}"));
        }
        self.ledger.record_response(number);
        self.check_answer(number, &answers.get_object(&question_id(number)).unwrap_or_default());
        self.ledger.record(self.name, format!("has an answer and ends {number}"));
        call.result(&self.result(kind, number, ""));
    }

    /// Checks that a response comes from the call's own client, for this call.
    fn check_answer(&self, number: u64, answer: &Object) {
        let Some(content) = answer.get_object("content").filter(|it| it.has("number")) else {
            return;
        };
        self.ledger.count("answers");
        let by = content.get_string("by").map(|by| by.into_owned());
        let own = self.ledger.fact(number).map(|fact| fact.who);
        if by != own || content.get("number") != Some(&number.to_string()) {
            self.ledger.object(format!("{number} of {own:?} was answered with {content:?}"));
        }
    }

    /// Checks that each request of a legacy server has one response at most.
    pub(super) fn check_answers(&self) {
        let mut ids = std::collections::HashSet::new();
        for answer in self.upstream.all_responses() {
            let id = object(&answer).get_string("id").map(|id| id.into_owned());
            if id.is_some_and(|id| !ids.insert(id)) {
                self.ledger.object(format!("{} was answered once more: {answer}", self.name));
            }
        }
    }
}

fn question_id(number: u64) -> String {
    format!("q{number}")
}
