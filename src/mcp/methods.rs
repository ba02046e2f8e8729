//! Method labels of metrics: the methods of all revisions, and one label for every other method.
//!
//! Invariant: however many method names clients invent, there are at most [`MethodLabel::COUNT`]
//! labels.

/// Label of a method in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodLabel(u8);

impl MethodLabel {
    /// Number of labels.
    pub const COUNT: usize = KNOWN.len() + 1;

    /// The label of a method.
    pub fn of(method: &str) -> Self {
        let known = KNOWN.iter().position(|known| *known == method);
        Self(known.unwrap_or(KNOWN.len()) as u8)
    }

    /// All labels.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(|at| Self(at as u8))
    }

    /// The method's name, or `other`.
    pub fn name(self) -> &'static str {
        self.known().unwrap_or("other")
    }

    /// The method's name; `None` for the label of all other methods.
    pub fn known(self) -> Option<&'static str> {
        KNOWN.get(self.index()).copied()
    }

    /// The index in tables with one entry per label.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Known methods, the most frequent first, because the list is searched linearly.
const KNOWN: [&str; 19] = [
    "tools/call",
    "prompts/get",
    "resources/read",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "completion/complete",
    "initialize",
    "server/discover",
    "ping",
    "subscriptions/listen",
    "resources/subscribe",
    "resources/unsubscribe",
    "logging/setLevel",
    "tasks/get",
    "tasks/result",
    "tasks/update",
    "tasks/cancel",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::call::Method;
    use crate::mcp::kind::{Kind, SUBSCRIBE, UNSUBSCRIBE};

    #[test]
    fn every_method_of_the_other_tables_is_known_and_whatever_else_comes_is_one() {
        let listed = Kind::ALL.map(Kind::list_method);
        let called = Method::ALL.map(Method::as_str);
        for method in listed.into_iter().chain(called).chain([SUBSCRIBE, UNSUBSCRIBE]) {
            assert_eq!(MethodLabel::of(method).name(), method);
        }
        for method in ["", "other", "tools/Call", "tools/call\n", "tools/call2"] {
            assert_eq!(MethodLabel::of(method).name(), "other", "{method:?}");
        }
        assert_eq!(MethodLabel::all().count(), MethodLabel::COUNT);
    }
}
