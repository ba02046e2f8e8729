//! Input requests: requests of an upstream to the client in the middle of a call, and the client's
//! responses.
//!
//! Inside Weir, as in the modern era, an input request is part of a response (`input_required`),
//! and the input response is part of the request that is sent again. In the legacy era they are
//! separate requests of the server; only its dialects handle that.
//!
//! Invariant: [`ClientFeatures::missing_for`] is the only check of declared client capabilities.

use strum::{EnumString, IntoStaticStr};

use crate::jsonrpc;
use crate::revision::Revision;
use weir_base::json::Object;

/// Member of a response with the input requests by their keys.
pub const INPUT_REQUESTS: &str = "inputRequests";
/// Member of a retry with the input responses by the same keys.
pub const INPUT_RESPONSES: &str = "inputResponses";
/// Opaque state that a retry returns unchanged.
pub const REQUEST_STATE: &str = "requestState";

/// Notification of a legacy server that a URL elicitation is complete.
pub const ELICITATION_COMPLETE: &str = "notifications/elicitation/complete";
/// Member that identifies a URL elicitation in its request and in its completion notification, in
/// revisions that have it.
pub const ELICITATION_ID: &str = "elicitationId";

/// Kind of an input request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumString, IntoStaticStr)]
pub enum InputKind {
    /// `sampling/createMessage`: text from its model.
    #[strum(serialize = "sampling/createMessage")]
    Sampling,
    /// `elicitation/create`: input from its user.
    #[strum(serialize = "elicitation/create")]
    Elicitation,
    /// `roots/list`: the folders that it works in.
    #[strum(serialize = "roots/list")]
    Roots,
}

impl InputKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Sampling, Self::Elicitation, Self::Roots];

    /// The method's name in the protocol.
    pub fn method(self) -> &'static str {
        self.into()
    }

    /// The kind with this method.
    pub fn of_method(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

/// One input request of an upstream.
#[derive(Debug, Clone)]
pub struct InputRequest {
    /// Key that is unique within its call: the upstream's own (modern), or a generated one.
    pub key: Box<str>,
    /// The kind of input.
    pub kind: InputKind,
    /// The parameters, as sent.
    pub params: Object,
}

impl InputRequest {
    /// Parses the input request with this key of a response; `None` if it is malformed or of an
    /// unknown kind.
    pub fn read(requests: &Object, key: &str) -> Option<Self> {
        let request = requests.get_object(key)?;
        let kind = InputKind::of_method(&request.get_string("method")?)?;
        let params = match request.has("params") {
            true => request.get_object_or_empty_array("params")?,
            false => Object::new(),
        };
        Some(Self { key: key.into(), kind, params })
    }

    /// Whether it is an elicitation in URL mode.
    pub fn is_url_elicitation(&self) -> bool {
        let mode = self.params.get_string("mode");
        self.kind == InputKind::Elicitation && mode.as_deref() == Some("url")
    }
}

/// Response of a client to an input request: a result, or an error object.
#[derive(Debug, Clone)]
pub struct InputResponse {
    /// The key of the input request.
    pub key: Box<str>,
    /// Result or error.
    pub outcome: jsonrpc::ResponsePayload,
}

/// Client features for input requests: those that a client declares, or those that a request needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ClientFeatures {
    /// Sampling of its model.
    pub sampling: bool,
    /// Sampling with tools.
    pub sampling_tools: bool,
    /// Sampling with the context of servers included.
    pub sampling_context: bool,
    /// Elicitation in form mode.
    pub form: bool,
    /// Elicitation in URL mode.
    pub url: bool,
    /// Roots.
    pub roots: bool,
}

impl ClientFeatures {
    /// No feature.
    const NONE: Self = Self {
        sampling: false,
        sampling_tools: false,
        sampling_context: false,
        form: false,
        url: false,
        roots: false,
    };
    /// Elicitation in URL mode only.
    pub const URL: Self = Self { url: true, ..Self::NONE };
    /// All features that Weir forwards.
    pub const ALL: Self = Self {
        sampling: true,
        sampling_tools: true,
        sampling_context: true,
        form: true,
        url: true,
        roots: true,
    };

    /// Parses a client's capabilities.
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
            // Spec 2025-11-25, elicitation: an empty object declares form mode, as it did before
            // URL mode existed.
            form: has(&elicitation, "form") || elicitation.as_ref().is_some_and(Object::is_empty),
            url: has(&elicitation, "url"),
            roots: capabilities.has("roots"),
        }
    }

    /// The features that exist in this revision.
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

    /// The union of both.
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

    /// The capabilities by which a client of this revision declares the features.
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

    /// The features that `request` needs, if not all of them are declared; `None` if it can be
    /// sent.
    pub fn missing_for(self, request: &InputRequest) -> Option<Self> {
        match request.kind {
            InputKind::Sampling => {
                let tools = request.params.has("tools") || request.params.has("toolChoice");
                let lacks = (tools && !self.sampling_tools) || !self.sampling;
                lacks.then_some(Self { sampling: true, sampling_tools: tools, ..Self::NONE })
            }
            InputKind::Elicitation => {
                let url = request.is_url_elicitation();
                let lacks = if url { !self.url } else { !self.form };
                lacks.then_some(Self { form: !url, url, ..Self::NONE })
            }
            InputKind::Roots => (!self.roots).then_some(Self { roots: true, ..Self::NONE }),
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
            let features = ClientFeatures::read(&object(declared));
            assert_eq!(features.declare(Revision::V2025_11_25).to_bytes(), expected, "{declared}");
        }
        let older = ClientFeatures::ALL.declare(Revision::V2025_06_18);
        assert_eq!(older.to_bytes(), r#"{"sampling":{},"elicitation":{},"roots":{}}"#);
        let oldest = ClientFeatures::ALL.declare(Revision::V2024_11_05);
        assert_eq!(oldest.to_bytes(), r#"{"sampling":{},"roots":{}}"#);
    }

    #[test]
    fn input_request_with_an_empty_array_of_parameters_has_none() {
        let params = |params: &str| {
            let requests = format!(r#"{{"k":{{"method":"roots/list","params":{params}}}}}"#);
            let requests = Object::parse(requests).expect("an object");
            InputRequest::read(&requests, "k").map(|it| it.params.to_bytes())
        };
        assert_eq!(params("[]"), Some("{}".into()));
        assert_eq!(params(r#"{"a":1}"#), Some(r#"{"a":1}"#.into()));
        assert_eq!((params("[1]"), params("null")), (None, None));
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
            let features = ClientFeatures::read(&object(declared)).within(revision);
            assert_eq!(features.declare(Revision::NEWEST).to_bytes(), expected, "{revision}");
        }
    }

    #[test]
    fn a_question_takes_what_it_is_about() {
        let request = |kind, params| InputRequest { key: "k".into(), kind, params: object(params) };
        let all = ClientFeatures::ALL;
        for (kind, params, without) in [
            (InputKind::Sampling, "{}", ClientFeatures { sampling: false, ..all }),
            (
                InputKind::Sampling,
                r#"{"tools":[]}"#,
                ClientFeatures { sampling_tools: false, ..all },
            ),
            (InputKind::Elicitation, "{}", ClientFeatures { form: false, ..all }),
            (InputKind::Elicitation, r#"{"mode":"url"}"#, ClientFeatures { url: false, ..all }),
            (
                InputKind::Elicitation,
                r#"{"mode":"\u0075rl"}"#,
                ClientFeatures { url: false, ..all },
            ),
            (InputKind::Roots, "{}", ClientFeatures { roots: false, ..all }),
        ] {
            let request = request(kind, params);
            assert_eq!(all.missing_for(&request), None);
            assert!(without.missing_for(&request).is_some(), "{request:?}");
        }
    }
}
