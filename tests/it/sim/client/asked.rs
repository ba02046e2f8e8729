//! Input requests to a simulated client during its calls.

use weir_base::json::Object;

use super::{SimulatedClient, number_in, text_of};
use crate::client::{Reply, object};

impl SimulatedClient {
    /// Handles a legacy input request, which has to belong to a call of this client. Answers it, or
    /// does not.
    pub(super) async fn be_asked(&self, question: &Object) {
        let params = question.get_object("params").unwrap_or_default();
        let Some(answer) = self.response_to(&params) else { return };
        let id = question.get("id").unwrap_or("null");
        self.say(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{answer}}}"#)).await;
    }

    /// Members of the next round of a modern client: `None` without an input request, `Some(None)`
    /// if it does not come back.
    #[expect(
        clippy::option_option,
        reason = "nothing to be done, and not doing it, are two things"
    )]
    pub(super) fn round(&self, reply: &Reply, number: u64, params: &str) -> Option<Option<String>> {
        let result = object(reply.outcome.as_ref().ok()?);
        if result.get_string("resultType").as_deref() != Some("input_required") {
            return None;
        }
        let questions = result.get_object("inputRequests").unwrap_or_default();
        let mut answers = Vec::new();
        for key in questions.keys() {
            let question = questions.get_object(key).unwrap_or_default();
            let params = question.get_object("params").unwrap_or_default();
            if number_in(&text_of(&params, "message"), '?') != Some(number) {
                self.object(format!("upon {number} it was asked {params:?}"));
            }
            match self.response_to(&params) {
                Some(answer) => answers.push(format!(r#""{key}":{answer}"#)),
                None => return Some(None),
            }
        }
        let state = result.get("requestState").unwrap_or("null");
        let answers = answers.join(",");
        let inner = params.strip_suffix('}').unwrap_or(params);
        Some(Some(format!(r#"{inner},"inputResponses":{{{answers}}},"requestState":{state}}}"#)))
    }

    /// Response to an input request with these parameters, if the client gives one.
    fn response_to(&self, params: &Object) -> Option<String> {
        let number = number_in(&text_of(params, "message"), '?');
        let fact = number.and_then(|number| Some((number, self.ledger.fact(number)?)));
        let Some((number, fact)) = fact else {
            self.object(format!("it was asked {params:?}"));
            return None;
        };
        if fact.who != self.name || !self.can.answer {
            self.object(format!("it was asked about {number}, a call of {}", fact.who));
        }
        self.ledger.count("questions");
        self.record(format!("is asked about {number}"));
        let (_, mut dice) = self.ledger.action(number);
        let by = &self.name;
        match dice.below(6) {
            0 => None,
            1 => Some(r#"{"action":"decline"}"#.to_owned()),
            _ => Some(format!(
                r#"{{"action":"accept","content":{{"number":{number},"by":"{by}"}}}}"#
            )),
        }
    }
}
