//! The methods that are counted by their names, of all revisions; every other one is counted as one.
//!
//! Promise: however many names clients invent, there are no more operations than [`Operation::COUNT`].
//!
//! Knows nothing of: what a method does.

/// A method, as far as it is told apart where requests are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation(u8);

impl Operation {
    /// How many there are.
    pub const COUNT: usize = KNOWN.len() + 1;

    /// Finds the operation of a method.
    pub fn of(method: &str) -> Self {
        let known = KNOWN.iter().position(|known| *known == method);
        Self(known.unwrap_or(KNOWN.len()) as u8)
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(|at| Self(at as u8))
    }

    /// The method's name, or `other`.
    pub fn name(self) -> &'static str {
        self.known().unwrap_or("other")
    }

    /// The method's name, if it is told apart.
    pub fn known(self) -> Option<&'static str> {
        KNOWN.get(self.index()).copied()
    }

    /// A number for tables that have a place per operation.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// In the order in which they are likely, since they are looked through.
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
        let asked = Method::ALL.map(Method::as_str);
        for method in listed.into_iter().chain(asked).chain([SUBSCRIBE, UNSUBSCRIBE]) {
            assert_eq!(Operation::of(method).name(), method);
        }
        for method in ["", "other", "tools/Call", "tools/call\n", "tools/call2"] {
            assert_eq!(Operation::of(method).name(), "other", "{method:?}");
        }
        assert_eq!(Operation::all().count(), Operation::COUNT);
    }
}
