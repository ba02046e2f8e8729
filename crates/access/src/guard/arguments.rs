//! Checks of a prompt's arguments, before the request goes to its upstream.
//!
//! Spec, prompts, security considerations: implementations MUST carefully validate all prompt
//! inputs. The arguments of a tool have a JSON schema, which the tool's upstream enforces.

use super::{ArgumentCheck, GuardRules};
use weir_base::json::{self, Object, ParseError};
use weir_mcp::definition::arguments::PromptArguments;

/// Defect of a prompt's arguments, as a text for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadArguments {
    /// Spec: the arguments are a map of strings.
    #[error("{}", .0.in_member("arguments"))]
    NoObject(ParseError),
    /// A required argument is missing.
    #[error("missing required argument {0:?}")]
    Missing(Box<str>),
    /// Spec: the values are strings.
    #[error("argument {0:?} must be a string")]
    NoString(Box<str>),
    /// The argument exceeds the size limit.
    #[error("argument {0:?} has more than {1} bytes")]
    TooLarge(Box<str>, usize),
    /// The prompt has no argument of this name.
    #[error("unknown argument {0:?}")]
    Unknown(Box<str>),
}

/// Checks the arguments in `params` against the prompt's declaration, which is `None` if it could
/// not be read.
pub(super) fn check(
    rules: &GuardRules,
    declared: Option<&PromptArguments>,
    params: &Object,
) -> Result<(), BadArguments> {
    if rules.arguments == ArgumentCheck::Off {
        return Ok(());
    }
    let arguments = match params.get_bytes("arguments") {
        None => Object::new(),
        // Some clients send null for missing arguments.
        Some(null) if *null == *b"null" => Object::new(),
        Some(text) => Object::parse_trusted(text).map_err(BadArguments::NoObject)?,
    };
    let mut required = declared.into_iter().flat_map(PromptArguments::required);
    if let Some(name) = required.find(|name| !arguments.has(name)) {
        return Err(BadArguments::Missing(name.into()));
    }
    for (name, raw) in arguments.members() {
        if !raw.starts_with(b"\"") {
            return Err(BadArguments::NoString(short(name)));
        }
        // Escapes only make a text longer, so most values are short enough without decoding.
        let limit = rules.max_argument;
        if raw.len() > limit && json::decode_bytes(&raw).is_none_or(|it| it.len() > limit) {
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

/// Returns the beginning of a client's text, for an error message.
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
        let rules = GuardRules { arguments: setting, max_argument: 4, ..GuardRules::default() };
        let declared = PromptArguments::read(&Object::parse(PROMPT).expect("a prompt"));
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
                "`arguments`: member \"need\" occurs twice",
                "`arguments`: member \"need\" occurs twice",
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
        let rules = GuardRules { arguments: ArgumentCheck::Declared, ..GuardRules::default() };
        let params = Object::parse(r#"{"arguments":{"a":"x"}}"#).expect("parameters");
        assert_eq!(check(&rules, None, &params), Ok(()));
    }
}
