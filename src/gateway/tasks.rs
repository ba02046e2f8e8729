//! Handles of tasks: an upstream's own id for work that goes on, in a form that leads back to it.
//!
//! A handle is sealed: it holds the upstream, the tool that the task is of, the era in which it was begun and the
//! upstream's id, and opens only for the principal that it was given to. There is no table to fill, so
//! tasks may be as many and live as long as their upstreams like.
//!
//! Promises: nobody can guess a handle, read one, or use somebody else's; whoever may not call the tool
//! any more cannot ask about its tasks either. Handles are good for the life of the process.
//!
//! Knows nothing of: what a task is, and how it is doing.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;

use crate::json::{self, Object};
use crate::mcp::call::{Body, Outcome, Reply};
use crate::mcp::meta;
use crate::mcp::name::UpstreamName;
use crate::mcp::revision::Era;
use crate::policy::Principal;

/// The longest handle that is looked at, in characters.
const MAX_HANDLE: usize = 4 * 1024;

/// What handles are sealed with.
pub(super) struct Handles {
    key: LessSafeKey,
}

/// What a handle leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Task {
    /// Whose it is.
    pub(super) upstream: Box<str>,
    /// The tool's public name.
    pub(super) tool: Box<str>,
    /// The era in which it was begun: the two know tasks of different shapes.
    pub(super) era: Era,
    /// The upstream's own id.
    pub(super) own: Box<str>,
}

impl Handles {
    /// Handles of this process.
    pub(super) fn new() -> Self {
        let mut key = [0; 32];
        getrandom::fill(&mut key).expect("the system has random numbers");
        let key = UnboundKey::new(&AES_256_GCM, &key).expect("a key of the algorithm's length");
        Self { key: LessSafeKey::new(key) }
    }

    fn seal(&self, principal: &Principal, task: &Task) -> String {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).expect("the system has random numbers");
        let era = match task.era {
            Era::Legacy => "0",
            Era::Modern => "1",
        };
        let [upstream, tool, own] =
            [&task.upstream, &task.tool, &task.own].map(|text| json::quote(text));
        let mut sealed = [era.as_bytes(), &upstream, b",", &tool, b",", &own].concat();
        let aad = Aad::from(principal.name.as_bytes());
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed)
            .expect("a text this short can be sealed");
        URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat())
    }

    /// What this principal's handle leads to; `None` if it is not one, or somebody else's.
    pub(super) fn open(&self, principal: &Principal, handle: &str) -> Option<Task> {
        if handle.len() > MAX_HANDLE {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(handle).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let aad = Aad::from(principal.name.as_bytes());
        let text = std::str::from_utf8(self.key.open_in_place(nonce, aad, &mut sealed).ok()?);
        let text = text.ok()?;
        let era = match text.as_bytes().first()? {
            b'0' => Era::Legacy,
            _ => Era::Modern,
        };
        let parts = json::elements(&format!("[{}]", &text[1..]).into())?;
        let part = |at: usize| {
            let text = std::str::from_utf8(parts.get(at)?).ok()?;
            json::decode_string(text).map(Box::<str>::from)
        };
        Some(Task { upstream: part(0)?, tool: part(1)?, era, own: part(2)? })
    }
}

/// Whose tasks a reply may name, and of which tool.
pub(super) struct Dressing {
    pub(super) handles: Arc<Handles>,
    pub(super) principal: Principal,
    /// Who answers.
    pub(super) upstream: UpstreamName,
    /// The tool's public name.
    pub(super) tool: Box<str>,
    /// The client's era: a task of the other one means nothing to it.
    pub(super) era: Era,
}

impl Dressing {
    /// Puts a handle wherever a reply names a task: in a task itself, in what announces a new one, and in
    /// a result's relation to one. A reply that still arrives is too large to be any of these but a
    /// result, and passes as it is.
    pub(super) fn dress(&self, reply: Reply) -> Reply {
        let Reply { era, outcome: Outcome::Result(Body::Whole(text)) } = reply else {
            return reply;
        };
        let handle = |own: &str| {
            let upstream = self.upstream.as_str().into();
            let task = Task { upstream, tool: self.tool.clone(), era, own: own.into() };
            json::quote(&self.handles.seal(&self.principal, &task))
        };
        let text = match era == self.era {
            true => dressed(&text, handle).unwrap_or(text),
            false => text,
        };
        Reply { era, outcome: Outcome::Result(Body::Whole(text)) }
    }
}

impl fmt::Debug for Dressing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dressing").field("tool", &self.tool).finish_non_exhaustive()
    }
}

/// The result with handles in place of ids; `None` if it has none.
fn dressed(text: &Bytes, handle: impl Fn(&str) -> Bytes) -> Option<Bytes> {
    let mut result = Object::parse_within(text.clone(), usize::MAX).ok()?;
    let mut changed = replace(&mut result, &handle);
    if let Some(mut task) = result.get_object("task")
        && replace(&mut task, &handle)
    {
        result.set("task", task.to_bytes());
        changed = true;
    }
    if let Some(mut meta) = result.get_object("_meta")
        && let Some(mut related) = meta.get_object(meta::RELATED_TASK)
        && replace(&mut related, &handle)
    {
        meta.set(meta::RELATED_TASK, related.to_bytes());
        result.set("_meta", meta.to_bytes());
        changed = true;
    }
    changed.then(|| result.to_bytes())
}

fn replace(object: &mut Object, handle: impl Fn(&str) -> Bytes) -> bool {
    let own = object.get_string("taskId").map(|own| handle(&own));
    let found = own.is_some();
    if let Some(handle) = own {
        object.set("taskId", handle);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(name: &str) -> Principal {
        Principal::new(name, "local")
    }

    fn task() -> Task {
        Task {
            upstream: "hub".into(),
            tool: "hub__\"x\"".into(),
            era: Era::Modern,
            own: "t,1".into(),
        }
    }

    #[test]
    fn a_handle_opens_for_whom_it_was_given_to_and_for_nobody_else() {
        let (handles, alice) = (Handles::new(), principal("alice"));
        let handle = handles.seal(&alice, &task());
        assert_eq!(handles.open(&alice, &handle), Some(task()));
        assert_ne!(handles.seal(&alice, &task()), handle, "no two are alike");
        assert_eq!(handles.open(&principal("bob"), &handle), None);
        assert_eq!(Handles::new().open(&alice, &handle), None, "of another process");
        for bad in ["", "x", "t,1", &handle[1..], &handle[..handle.len() - 1]] {
            assert_eq!(handles.open(&alice, bad), None, "{bad}");
        }
        assert_eq!(handles.open(&alice, &"A".repeat(MAX_HANDLE + 1)), None);
    }

    #[test]
    fn every_place_that_names_a_task_gets_the_handle_and_all_else_stays() {
        let handle = |own: &str| json::quote(&format!("<{own}>"));
        for (text, expected) in [
            (r#"{"content":[{"taskId":"t"}], "n":1e400}"#, None),
            (r#"{"taskId":7}"#, None),
            (
                r#"{"resultType":"task","taskId":"t","ttlMs":1.0}"#,
                Some(r#"{"resultType":"task","taskId":"<t>","ttlMs":1.0}"#),
            ),
            (
                r#"{"task":{"taskId":"t","status":"working"},"_meta":{"a":1}}"#,
                Some(r#"{"task":{"taskId":"<t>","status":"working"},"_meta":{"a":1}}"#),
            ),
            (
                r#"{"content":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}"#,
                Some(
                    r#"{"content":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"<t>"}}}"#,
                ),
            ),
        ] {
            assert_eq!(
                dressed(&text.into(), handle).as_deref(),
                expected.map(str::as_bytes),
                "{text}"
            );
        }
    }
}
