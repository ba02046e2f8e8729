//! What an upstream asks of a client in the middle of a call, and what comes back.
//!
//! In the canonical form a question is part of a reply (`input_required`), and its answer part of the
//! request that is sent again. The legacy era sends questions as requests of its own; only its dialects
//! know that.
//!
//! Promise: what a client did not declare is told from what it did in one place, [`Abilities::lacks`].
//!
//! Knows nothing of: how a question reaches its client.

use crate::json::Object;
use crate::jsonrpc;
use crate::mcp::revision::Revision;

/// What a reply asks: questions by their keys.
pub const INPUT_REQUESTS: &str = "inputRequests";
/// What a retry answers, by the same keys.
pub const INPUT_RESPONSES: &str = "inputResponses";
/// What a retry gives back as it came.
pub const REQUEST_STATE: &str = "requestState";

/// How a legacy server says that the visit of a URL is done with.
pub const VISIT_DONE: &str = "notifications/elicitation/complete";
/// What tells one visit from another, where revisions have that: in the question and in the news of its end.
pub const ELICITATION_ID: &str = "elicitationId";

/// What a client can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// `sampling/createMessage`: text from its model.
    Sampling,
    /// `elicitation/create`: input from its user.
    Elicitation,
    /// `roots/list`: the folders that it works in.
    Roots,
}

impl Subject {
    /// All subjects.
    pub const ALL: [Self; 3] = [Self::Sampling, Self::Elicitation, Self::Roots];

    /// The method's name on the wire.
    pub fn method(self) -> &'static str {
        match self {
            Self::Sampling => "sampling/createMessage",
            Self::Elicitation => "elicitation/create",
            Self::Roots => "roots/list",
        }
    }

    /// The subject of the method of this name.
    pub fn of_method(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|subject| subject.method() == name)
    }
}

/// One question of an upstream's.
#[derive(Debug, Clone)]
pub struct Question {
    /// What tells it from the others of its call: the upstream's own key (modern), or minted.
    pub key: Box<str>,
    /// What it is about.
    pub subject: Subject,
    /// The parameters, as sent.
    pub params: Object,
}

impl Question {
    /// Reads the question of this key among those of a reply; `None` if it is none that a client knows.
    pub fn read(requests: &Object, key: &str) -> Option<Self> {
        let request = requests.get_object(key)?;
        let subject = Subject::of_method(&request.get_string("method")?)?;
        let params = match request.has("params") {
            true => request.get_object("params")?,
            false => Object::new(),
        };
        Some(Self { key: key.into(), subject, params })
    }

    /// Whether it sends the user to a URL.
    pub fn is_visit(&self) -> bool {
        let mode = self.params.get_string("mode");
        self.subject == Subject::Elicitation && mode.as_deref() == Some("url")
    }
}

/// What a client answered to a question: a result, or an error object.
#[derive(Debug, Clone)]
pub struct Answered {
    /// The question's key.
    pub key: Box<str>,
    /// How it was answered.
    pub outcome: jsonrpc::Outcome,
}

/// What a client declared that it can be asked, or what a question takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Abilities {
    /// Text from its model.
    pub sampling: bool,
    /// Sampling with tools.
    pub sampling_tools: bool,
    /// Sampling with the context of servers included.
    pub sampling_context: bool,
    /// Forms for its user.
    pub form: bool,
    /// URLs for its user to visit.
    pub url: bool,
    /// The folders that it works in.
    pub roots: bool,
}

impl Abilities {
    /// Everything that Weir can carry.
    pub const ALL: Self = Self {
        sampling: true,
        sampling_tools: true,
        sampling_context: true,
        form: true,
        url: true,
        roots: true,
    };

    /// URLs to visit, and nothing else.
    pub const URL: Self = Self {
        sampling: false,
        sampling_tools: false,
        sampling_context: false,
        form: false,
        url: true,
        roots: false,
    };

    /// Reads a client's capabilities.
    pub fn read(capabilities: &Object) -> Self {
        let sampling = capabilities.get_object("sampling");
        let elicitation = capabilities.get_object("elicitation");
        let has = |object: &Option<Object>, member: &str| {
            object.as_ref().is_some_and(|object| object.has(member))
        };
        Self {
            sampling: sampling.is_some(),
            sampling_tools: has(&sampling, "tools"),
            sampling_context: has(&sampling, "context"),
            // Spec 2025-11-25, elicitation: an empty object declares forms, as it did before URLs came.
            form: has(&elicitation, "form") || elicitation.as_ref().is_some_and(Object::is_empty),
            url: has(&elicitation, "url"),
            roots: capabilities.has("roots"),
        }
    }

    /// Those that exist in this revision.
    #[must_use]
    pub fn within(self, revision: Revision) -> Self {
        let (forms, newest) =
            (revision >= Revision::V2025_06_18, revision >= Revision::V2025_11_25);
        Self {
            sampling_tools: self.sampling_tools && newest,
            sampling_context: self.sampling_context && newest,
            form: self.form && forms,
            url: self.url && newest,
            ..self
        }
    }

    /// All that is in either.
    pub fn and(self, other: Self) -> Self {
        Self {
            sampling: self.sampling || other.sampling,
            sampling_tools: self.sampling_tools || other.sampling_tools,
            sampling_context: self.sampling_context || other.sampling_context,
            form: self.form || other.form,
            url: self.url || other.url,
            roots: self.roots || other.roots,
        }
    }

    /// The capabilities that a client of this revision declares them with.
    pub fn declare(self, revision: Revision) -> Object {
        let mut capabilities = Object::new();
        if self.sampling {
            let mut sampling = Object::new();
            if self.sampling_tools && revision >= Revision::V2025_11_25 {
                sampling.set("tools", "{}");
            }
            if self.sampling_context && revision >= Revision::V2025_11_25 {
                sampling.set("context", "{}");
            }
            capabilities.set("sampling", sampling.to_bytes());
        }
        if (self.form || self.url) && revision >= Revision::V2025_06_18 {
            let mut elicitation = Object::new();
            if revision >= Revision::V2025_11_25 {
                if self.form {
                    elicitation.set("form", "{}");
                }
                if self.url {
                    elicitation.set("url", "{}");
                }
            }
            capabilities.set("elicitation", elicitation.to_bytes());
        }
        if self.roots {
            capabilities.set("roots", "{}");
        }
        capabilities
    }

    /// What answering `question` takes and was not declared; `None` if it can be asked.
    pub fn lacks(self, question: &Question) -> Option<Self> {
        let none = Self::default();
        match question.subject {
            Subject::Sampling => {
                let tools = question.params.has("tools") || question.params.has("toolChoice");
                let lacks = (tools && !self.sampling_tools) || !self.sampling;
                lacks.then_some(Self { sampling: true, sampling_tools: tools, ..none })
            }
            Subject::Elicitation => {
                let url = question.is_visit();
                let needs = Self { form: !url, url, ..none };
                let lacks = if url { !self.url } else { !self.form };
                lacks.then_some(needs)
            }
            Subject::Roots => (!self.roots).then_some(Self { roots: true, ..none }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &'static str) -> Object {
        Object::parse(text).expect(text)
    }

    #[test]
    fn what_was_declared_is_read_and_declared_again() {
        for (declared, expected) in [
            ("{}", "{}"),
            (r#"{"sampling":{}}"#, r#"{"sampling":{}}"#),
            (r#"{"sampling":{"tools":{}}}"#, r#"{"sampling":{"tools":{}}}"#),
            (r#"{"elicitation":{}}"#, r#"{"elicitation":{"form":{}}}"#),
            (r#"{"elicitation":{"url":{}}}"#, r#"{"elicitation":{"url":{}}}"#),
            (r#"{"roots":{"listChanged":true},"x":{}}"#, r#"{"roots":{}}"#),
        ] {
            let abilities = Abilities::read(&object(declared));
            assert_eq!(abilities.declare(Revision::V2025_11_25).to_bytes(), expected, "{declared}");
        }
        let older = Abilities::ALL.declare(Revision::V2025_06_18);
        assert_eq!(older.to_bytes(), r#"{"sampling":{},"elicitation":{},"roots":{}}"#);
        let oldest = Abilities::ALL.declare(Revision::V2024_11_05);
        assert_eq!(oldest.to_bytes(), r#"{"sampling":{},"roots":{}}"#);
    }

    #[test]
    fn a_client_cannot_be_asked_for_what_its_revision_does_not_know() {
        let declared = r#"{"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}},"roots":{}}"#;
        for (revision, expected) in [
            (Revision::V2024_11_05, r#"{"sampling":{},"roots":{}}"#),
            (Revision::V2025_03_26, r#"{"sampling":{},"roots":{}}"#),
            (Revision::V2025_06_18, r#"{"sampling":{},"elicitation":{"form":{}},"roots":{}}"#),
            (Revision::V2025_11_25, declared),
        ] {
            let abilities = Abilities::read(&object(declared)).within(revision);
            assert_eq!(abilities.declare(Revision::NEWEST).to_bytes(), expected, "{revision}");
        }
    }

    #[test]
    fn a_question_takes_what_it_is_about() {
        let question =
            |subject, params| Question { key: "k".into(), subject, params: object(params) };
        let all = Abilities::ALL;
        for (subject, params, without) in [
            (Subject::Sampling, "{}", Abilities { sampling: false, ..all }),
            (Subject::Sampling, r#"{"tools":[]}"#, Abilities { sampling_tools: false, ..all }),
            (Subject::Elicitation, "{}", Abilities { form: false, ..all }),
            (Subject::Elicitation, r#"{"mode":"url"}"#, Abilities { url: false, ..all }),
            (Subject::Elicitation, r#"{"mode":"\u0075rl"}"#, Abilities { url: false, ..all }),
            (Subject::Roots, "{}", Abilities { roots: false, ..all }),
        ] {
            let question = question(subject, params);
            assert_eq!(all.lacks(&question), None);
            assert!(without.lacks(&question).is_some(), "{question:?}");
        }
    }
}
