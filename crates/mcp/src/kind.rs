//! Kinds of listed items, with their names in the protocol.
//!
//! A [`Kind`] is a value, so that the same code handles prompts and the other kinds.

use std::fmt;

use strum::IntoStaticStr;

/// Kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
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

/// Topic of a `list_changed` notification. Templates belong to the topic of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum ListTopic {
    /// `notifications/prompts/list_changed`
    Prompts,
    /// `notifications/tools/list_changed`
    Tools,
    /// `notifications/resources/list_changed`, templates included
    Resources,
}

/// Notification of an updated resource.
pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";

/// Member of a listen request's filter that names resources.
pub const RESOURCE_SUBSCRIPTIONS: &str = "resourceSubscriptions";

/// Request by which a legacy client subscribes to a resource.
pub const SUBSCRIBE: &str = "resources/subscribe";

/// Request by which a legacy client unsubscribes from a resource.
pub const UNSUBSCRIBE: &str = "resources/unsubscribe";

impl Kind {
    /// All kinds, in the order in which they are listed.
    pub const ALL: [Self; 4] = [Self::Prompt, Self::Tool, Self::Resource, Self::Template];

    /// The name of the kind in JSON.
    pub fn json_name(self) -> &'static str {
        self.into()
    }

    /// The method that lists this kind.
    pub const fn list_method(self) -> &'static str {
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

    /// The member of an item that identifies it within its upstream.
    pub fn key_member(self) -> &'static str {
        match self {
            Self::Prompt | Self::Tool => "name",
            Self::Resource => "uri",
            Self::Template => "uriTemplate",
        }
    }

    /// Whether the key is a name, which Weir prefixes, and not a URI, which also occurs in results.
    pub fn has_name(self) -> bool {
        matches!(self, Self::Prompt | Self::Tool)
    }

    /// The topic of change notifications of this kind.
    pub fn topic(self) -> ListTopic {
        match self {
            Self::Prompt => ListTopic::Prompts,
            Self::Tool => ListTopic::Tools,
            Self::Resource | Self::Template => ListTopic::Resources,
        }
    }

    /// The index in tables with one entry per kind.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl ListTopic {
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

    /// The capability by which a server declares the topic.
    pub fn capability(self) -> &'static str {
        self.into()
    }

    /// The member of a listen request's filter that opts in to the topic.
    pub fn filter_member(self) -> &'static str {
        match self {
            Self::Prompts => "promptsListChanged",
            Self::Tools => "toolsListChanged",
            Self::Resources => "resourcesListChanged",
        }
    }

    /// The index in tables with one entry per topic.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Template => "resource template",
            Self::Prompt | Self::Tool | Self::Resource => self.json_name(),
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
        for topic in ListTopic::ALL {
            assert_eq!(ListTopic::of_notification(topic.notification()), Some(topic));
            assert_eq!(ListTopic::ALL[topic.index()], topic);
        }
    }
}
