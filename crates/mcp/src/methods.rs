//! Methods of client requests, in all revisions: the one table of them.
//!
//! The era of a request, the configuration of limits and the labels of metrics come from it.
//!
//! Invariant: however many method names clients invent, there are at most [`MethodLabel::COUNT`]
//! labels.

use crate::call::Method;
use crate::kind::{Kind, SUBSCRIBE, UNSUBSCRIBE};

/// Method of client requests.
#[derive(Debug, Clone, Copy)]
pub struct ClientMethod {
    /// The name in the protocol.
    pub name: &'static str,
    /// Whether a request is about an item.
    pub has_item: bool,
    /// Whether the name alone says that a request is modern.
    pub is_modern: bool,
}

/// All methods, the most frequent first, because the table is searched linearly.
pub const METHODS: [ClientMethod; 19] = [
    about_item(Method::CallTool.as_str()),
    about_item(Method::GetPrompt.as_str()),
    about_item(Method::ReadResource.as_str()),
    plain(Kind::Tool.list_method()),
    plain(Kind::Prompt.list_method()),
    plain(Kind::Resource.list_method()),
    plain(Kind::Template.list_method()),
    about_item(Method::Complete.as_str()),
    plain("initialize"),
    modern("server/discover"),
    plain("ping"),
    modern("subscriptions/listen"),
    about_item(SUBSCRIBE),
    about_item(UNSUBSCRIBE),
    plain("logging/setLevel"),
    about_item(Method::GetTask.as_str()),
    about_item(Method::TaskResult.as_str()),
    about_item(Method::UpdateTask.as_str()),
    about_item(Method::CancelTask.as_str()),
];

const fn plain(name: &'static str) -> ClientMethod {
    ClientMethod { name, has_item: false, is_modern: false }
}

const fn about_item(name: &'static str) -> ClientMethod {
    ClientMethod { has_item: true, ..plain(name) }
}

const fn modern(name: &'static str) -> ClientMethod {
    ClientMethod { is_modern: true, ..plain(name) }
}

/// Label of a method in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodLabel(u8);

impl MethodLabel {
    /// Number of labels.
    pub const COUNT: usize = METHODS.len() + 1;

    /// The label of a method.
    pub fn of(method: &str) -> Self {
        let known = METHODS.iter().position(|known| known.name == method);
        Self(known.unwrap_or(METHODS.len()) as u8)
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
        METHODS.get(self.index()).map(|known| known.name)
    }

    /// The index in tables with one entry per label.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
