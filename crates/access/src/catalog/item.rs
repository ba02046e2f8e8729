//! One item of the merged lists, as a view hands it out.
//!
//! Invariant: only a [`RoleView`](super::RoleView) hands one out, so the owner of an
//! [`ExportedItem`] may use the item.

use bytes::Bytes;

use weir_base::json::Object;
use weir_mcp::definition::arguments::PromptArguments;
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::definition::param_headers::ParamHeaders;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;

/// An exported item. A client gets it only through a view of its role, which authorizes it.
#[derive(Debug, PartialEq, Eq)]
pub struct ExportedItem {
    /// The item's kind.
    pub kind: Kind,
    /// The upstream that owns the item.
    pub upstream: UpstreamName,
    /// The upstream's own name or URI.
    pub own: Box<str>,
    /// The public name or URI.
    pub key: Box<str>,
    /// The form that the URIs which are equivalent to the key of a resource share, if it is another
    /// text than the key.
    pub(crate) equivalence_form: Option<Box<str>>,
    /// The definition under the public name, as it stands in lists, on one line; empty for a URI
    /// that no upstream lists.
    pub json: Bytes,
    /// The definition for clients of older revisions, if they cannot read it as it is.
    pub(crate) older_json: Option<Bytes>,
    /// The arguments of a tool that its callers repeat in HTTP headers.
    pub param_headers: Option<ParamHeaders>,
    /// Whether the item can only be called as a task of 2025-11-25.
    pub needs_task: bool,
    /// The arguments of a prompt; `None` if its definition does not declare them readably.
    pub prompt_arguments: Option<PromptArguments>,
}

impl ExportedItem {
    /// Whether the upstream lists the item; a resource that is not listed can be read as well.
    pub fn is_listed(&self) -> bool {
        !self.json.is_empty()
    }

    /// Whether a client that reads this form can use the item. An item that it cannot use is
    /// invisible to it.
    pub fn is_for(&self, form: DefinitionForm) -> bool {
        !self.needs_task || form == DefinitionForm::WithTasks
    }

    /// Whether the definition has an output schema, and that for older clients has none.
    pub(super) fn lacks_output_schema(&self) -> bool {
        let has_one = |json: &Bytes| {
            Object::parse_trusted(json.clone()).is_ok_and(|it| it.has("outputSchema"))
        };
        self.older_json.as_ref().is_some_and(|older| has_one(&self.json) && !has_one(older))
    }

    /// The definition in this form.
    pub(super) fn json_as(&self, form: DefinitionForm) -> &Bytes {
        match (form, &self.older_json) {
            (DefinitionForm::Older | DefinitionForm::WithTasks, Some(older_json)) => older_json,
            (DefinitionForm::Older | DefinitionForm::WithTasks | DefinitionForm::Newest, _) => {
                &self.json
            }
        }
    }
}
