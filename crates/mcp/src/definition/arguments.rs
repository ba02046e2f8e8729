//! Arguments that a prompt declares.
//!
//! They are parsed once, when the definition is published, so that checking a request need not
//! parse the definition again.

use bytes::Bytes;

use weir_base::json::{self, Object};

/// Argument declarations of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptArguments {
    arguments: Box<[(Box<str>, bool)]>,
}

impl PromptArguments {
    /// Parses the declarations in a prompt's definition; `None` if they are malformed. A prompt
    /// without declarations has no arguments.
    pub fn read(definition: &Object) -> Option<Self> {
        let Some(list) = definition.get_bytes("arguments") else { return Some(Self::default()) };
        if *list == *b"null" {
            return Some(Self::default());
        }
        let arguments = json::trusted_elements(&list)?.map(argument);
        Some(Self { arguments: arguments.collect::<Option<_>>()? })
    }

    /// Names of the required arguments.
    pub fn required(&self) -> impl Iterator<Item = &str> {
        self.arguments.iter().filter(|(_, required)| *required).map(|(name, _)| &**name)
    }

    /// Whether there is an argument of this name.
    pub fn has(&self, name: &str) -> bool {
        self.arguments.iter().any(|(known, _)| **known == *name)
    }
}

fn argument(text: Bytes) -> Option<(Box<str>, bool)> {
    let argument = Object::parse_within(text, usize::MAX).ok()?;
    let name = argument.get_string("name")?;
    Some(((*name).into(), argument.get("required") == Some("true")))
}

#[cfg(test)]
mod tests {
    use crate::definition::arguments::*;

    fn read(text: &'static str) -> Option<(Vec<String>, bool)> {
        let declared = PromptArguments::read(&Object::parse(text).expect("an object"))?;
        Some((declared.required().map(str::to_owned).collect(), declared.has("b")))
    }

    #[test]
    fn arguments_are_read_from_a_definition() {
        let none = Some((vec![], false));
        assert_eq!(read("{}"), none);
        assert_eq!(read(r#"{"arguments":null}"#), none);
        assert_eq!(read(r#"{"arguments":[]}"#), none);
        let two = r#"{"arguments":[{"name":"\u0061","required":true},{"name":"b"},{"name":"c","required":false}]}"#;
        assert_eq!(read(two), Some((vec!["a".into()], true)));
        for unreadable in
            [r#"{"arguments":{}}"#, r#"{"arguments":[7]}"#, r#"{"arguments":[{"name":7}]}"#]
        {
            assert_eq!(read(unreadable), None, "{unreadable}");
        }
    }
}
