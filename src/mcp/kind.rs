//! The four kinds of things that a server lists, and the one table of their names on the wire.
//!
//! A [`Kind`] is a value: whatever is done to prompts is done to the other kinds by the same code.

use std::fmt;

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A prompt, by name.
    Prompt,
    /// A tool, by name.
    Tool,
    /// A resource, by URI.
    Resource,
    /// A resource template, by its URI template.
    Template,
}

/// What a change notification is about: templates announce themselves as resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// `notifications/prompts/list_changed`
    Prompts,
    /// `notifications/tools/list_changed`
    Tools,
    /// `notifications/resources/list_changed`, templates included
    Resources,
}

/// The notification that announces a changed resource.
pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";

/// The member of a listen request's filter that names resources.
pub const RESOURCE_SUBSCRIPTIONS: &str = "resourceSubscriptions";

/// The request by which a legacy client begins to hear of a resource.
pub const SUBSCRIBE: &str = "resources/subscribe";

/// The request that ends it.
pub const UNSUBSCRIBE: &str = "resources/unsubscribe";

impl Kind {
    /// All kinds, in the order in which they are listed.
    pub const ALL: [Self; 4] = [Self::Prompt, Self::Tool, Self::Resource, Self::Template];

    /// The method that lists this kind.
    pub fn list_method(self) -> &'static str {
        match self {
            Self::Prompt => "prompts/list",
            Self::Tool => "tools/list",
            Self::Resource => "resources/list",
            Self::Template => "resources/templates/list",
        }
    }

    /// The kind that a method lists.
    pub fn of_list_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.list_method() == method)
    }

    /// The member of a list's result that holds the items.
    pub fn list_member(self) -> &'static str {
        match self {
            Self::Prompt => "prompts",
            Self::Tool => "tools",
            Self::Resource => "resources",
            Self::Template => "resourceTemplates",
        }
    }

    /// The member of an item that tells it from the others of its upstream.
    pub fn key_member(self) -> &'static str {
        match self {
            Self::Prompt | Self::Tool => "name",
            Self::Resource => "uri",
            Self::Template => "uriTemplate",
        }
    }

    /// Whether the key is a name, which Weir prefixes, and not a URI, which also stands inside results.
    pub fn has_name(self) -> bool {
        matches!(self, Self::Prompt | Self::Tool)
    }

    /// What a change of this kind is announced as.
    pub fn topic(self) -> Topic {
        match self {
            Self::Prompt => Topic::Prompts,
            Self::Tool => Topic::Tools,
            Self::Resource | Self::Template => Topic::Resources,
        }
    }

    /// A number for tables that have a place per kind.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl Topic {
    /// All topics.
    pub const ALL: [Self; 3] = [Self::Prompts, Self::Tools, Self::Resources];

    /// The notification that announces a change.
    pub fn notification(self) -> &'static str {
        match self {
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Tools => "notifications/tools/list_changed",
            Self::Resources => "notifications/resources/list_changed",
        }
    }

    /// The topic that a notification announces.
    pub fn of_notification(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topic| topic.notification() == method)
    }

    /// The capability under which a server declares it.
    pub fn capability(self) -> &'static str {
        match self {
            Self::Prompts => "prompts",
            Self::Tools => "tools",
            Self::Resources => "resources",
        }
    }

    /// The member of a listen request's filter that opts in to it.
    pub fn filter_member(self) -> &'static str {
        match self {
            Self::Prompts => "promptsListChanged",
            Self::Tools => "toolsListChanged",
            Self::Resources => "resourcesListChanged",
        }
    }

    /// A number for tables that have a place per topic.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl Kind {
    /// What it is called in JSON: one word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Tool => "tool",
            Self::Resource => "resource",
            Self::Template => "template",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prompt => "prompt",
            Self::Tool => "tool",
            Self::Resource => "resource",
            Self::Template => "resource template",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_wire_lead_back() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of_list_method(kind.list_method()), Some(kind));
            assert_eq!(Kind::ALL[kind.index()], kind);
        }
        for topic in Topic::ALL {
            assert_eq!(Topic::of_notification(topic.notification()), Some(topic));
            assert_eq!(Topic::ALL[topic.index()], topic);
        }
    }
}
