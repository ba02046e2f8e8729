//! A prompt's arguments, before its upstream is asked.
//!
//! Spec, prompts, security considerations: implementations MUST carefully validate all prompt inputs. A tool's arguments
//! have a JSON schema, which is its upstream's to hold.
//!
//! Knows nothing of: who asks.

use super::{ArgumentCheck, Rules};
use crate::json::{self, Malformed, Object};
use crate::mcp::definition::arguments::Declared;

/// What is wrong with a prompt's arguments; the text is fit for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadArguments {
    /// Spec: a map of strings.
    #[error("{}", .0.in_member("arguments"))]
    NoObject(Malformed),
    /// One that has to be there is not.
    #[error("missing required argument {0:?}")]
    Missing(Box<str>),
    /// Spec: the values are strings.
    #[error("argument {0:?} must be a string")]
    NoString(Box<str>),
    /// Longer than is taken.
    #[error("argument {0:?} has more than {1} bytes")]
    TooLarge(Box<str>, usize),
    /// The prompt has no such argument.
    #[error("unknown argument {0:?}")]
    Unknown(Box<str>),
}

/// Holds the arguments in `params` to what the prompt declares; `None` where that could not be read.
pub(super) fn check(
    rules: &Rules,
    declared: Option<&Declared>,
    params: &Object,
) -> Result<(), BadArguments> {
    if rules.arguments == ArgumentCheck::Off {
        return Ok(());
    }
    let arguments = match params.get_bytes("arguments") {
        None => Object::new(),
        // Some clients write what they do not have as null.
        Some(null) if *null == *b"null" => Object::new(),
        Some(text) => Object::parse_again(text).map_err(BadArguments::NoObject)?,
    };
    let mut required = declared.into_iter().flat_map(Declared::required);
    if let Some(name) = required.find(|name| !arguments.has(name)) {
        return Err(BadArguments::Missing(name.into()));
    }
    for (name, raw) in arguments.members() {
        let raw = std::str::from_utf8(&raw).unwrap_or_default();
        let value = raw.starts_with('"').then_some(raw);
        let value = value.ok_or_else(|| BadArguments::NoString(short(name)))?;
        // Escapes only make a text longer: most are short enough as they stand.
        let limit = rules.max_argument;
        if value.len() > limit && json::decode_string(value).is_none_or(|it| it.len() > limit) {
            return Err(BadArguments::TooLarge(short(name), limit));
        }
        if rules.arguments == ArgumentCheck::Declared
            && declared.is_some_and(|declared| !declared.has(name))
        {
            return Err(BadArguments::Unknown(short(name)));
        }
    }
    Ok(())
}

/// A client's own word, as much of it as is shown back.
fn short(name: &str) -> Box<str> {
    name.chars().take(MAX_SHOWN_CHARS).collect::<String>().into()
}

const MAX_SHOWN_CHARS: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT: &str =
        r#"{"name":"p","arguments":[{"name":"need","required":true},{"name":"may"}]}"#;

    fn checked(setting: ArgumentCheck, params: &'static str) -> String {
        let rules = Rules { arguments: setting, max_argument: 4, ..Rules::default() };
        let declared = Declared::read(&Object::parse(PROMPT).expect("a prompt"));
        let params = Object::parse(params).expect("parameters");
        match check(&rules, declared.as_ref(), &params) {
            Ok(()) => "good".to_owned(),
            Err(bad) => bad.to_string(),
        }
    }

    #[test]
    fn arguments_are_held_to_what_is_declared() {
        let [off, required, declared] =
            [ArgumentCheck::Off, ArgumentCheck::Required, ArgumentCheck::Declared];
        let missing = "missing required argument \"need\"";
        for (params, of_required, of_declared) in [
            (r#"{"arguments":{"need":"x"}}"#, "good", "good"),
            (r#"{"arguments":{"need":"","may":"\u0061bcd"}}"#, "good", "good"),
            (r#"{"arguments":{"\u006eeed":"x"}}"#, "good", "good"),
            ("{}", missing, missing),
            (r#"{"arguments":null}"#, missing, missing),
            (r#"{"arguments":{"may":"x"}}"#, missing, missing),
            (
                r#"{"arguments":[]}"#,
                "`arguments` must be an object",
                "`arguments` must be an object",
            ),
            (
                r#"{"arguments":{"need":"x","need":"y"}}"#,
                "`arguments`: member \"need\" stands twice",
                "`arguments`: member \"need\" stands twice",
            ),
            (
                r#"{"arguments":{"need":7}}"#,
                "argument \"need\" must be a string",
                "argument \"need\" must be a string",
            ),
            (
                r#"{"arguments":{"need":null}}"#,
                "argument \"need\" must be a string",
                "argument \"need\" must be a string",
            ),
            (
                r#"{"arguments":{"need":"12345"}}"#,
                "argument \"need\" has more than 4 bytes",
                "argument \"need\" has more than 4 bytes",
            ),
            (
                r#"{"arguments":{"need":"x","o\u001bdd":"x"}}"#,
                "good",
                "unknown argument \"o\\u{1b}dd\"",
            ),
        ] {
            assert_eq!(checked(off, params), "good", "{params}");
            assert_eq!(checked(required, params), of_required, "{params}");
            assert_eq!(checked(declared, params), of_declared, "{params}");
        }
    }

    #[test]
    fn what_is_declared_unreadably_forbids_nothing() {
        let rules = Rules { arguments: ArgumentCheck::Declared, ..Rules::default() };
        let params = Object::parse(r#"{"arguments":{"a":"x"}}"#).expect("parameters");
        assert_eq!(check(&rules, None, &params), Ok(()));
    }
}
