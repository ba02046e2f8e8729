//! Expansion of a URI template (RFC 6570) with the values of its variables.
//!
//! Supported are the forms of section 3.2 for values that are strings: operators, lists of
//! variables, prefixes (`{x:3}`); `{x*}` is `{x}`. An expansion never exceeds the maximum length of
//! a URI.

use weir_mcp::definition::item::MAX_URI_BYTES;

/// A URI that a template yields.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expansion {
    pub(super) uri: String,
    /// End of the first occurrence of the queried variable's value.
    pub(super) end: usize,
    /// Whether a variable with an unknown value precedes an occurrence of the queried one.
    pub(super) is_behind_unknown: bool,
}

/// Value of a variable.
#[derive(Debug, Clone, Copy)]
pub(super) enum VariableValue<'a> {
    /// The value to complete.
    Queried(&'a str),
    Known(&'a str),
    /// A placeholder for an unknown value.
    Unknown(&'a str),
}

/// Expands `template`; `None` if it is malformed, does not contain the queried variable, or yields
/// a URI that is too long.
pub(super) fn expand<'a>(
    template: &str,
    value: impl Fn(&str) -> VariableValue<'a>,
) -> Option<Expansion> {
    let mut uri = String::new();
    let (mut end, mut has_unknown, mut is_behind_unknown) = (None, false, false);
    let mut rest = template;
    while let Some((literal, after)) = rest.split_once('{') {
        let (expression, after) = after.split_once('}')?;
        KEEPS_RESERVED.encode(literal, &mut uri);
        rest = after;
        let operator = Operator::of(expression)?;
        for (at, variable) in expression[operator.length..].split(',').enumerate() {
            let (name, max_chars) = read_variable(variable)?;
            let (text, is_queried) = match value(name) {
                VariableValue::Queried(text) => {
                    is_behind_unknown |= has_unknown;
                    (text, true)
                }
                VariableValue::Known(text) => (text, false),
                VariableValue::Unknown(text) => {
                    has_unknown = true;
                    (text, false)
                }
            };
            let text = text.char_indices().nth(max_chars).map_or(text, |(end, _)| &text[..end]);
            uri.push_str(if at == 0 { operator.first } else { operator.separator });
            if let Some(empty) = operator.named {
                uri.push_str(name);
                uri.push_str(if text.is_empty() { empty } else { "=" });
            }
            if uri.len() + text.len() > MAX_URI_BYTES {
                return None;
            }
            operator.encode(text, &mut uri);
            if is_queried {
                end = end.or(Some(uri.len()));
            }
        }
    }
    KEEPS_RESERVED.encode(rest, &mut uri);
    Some(Expansion { uri, end: end?, is_behind_unknown })
}

/// The template with its literals as they are in an expansion (section 3.1): percent-encoded where
/// no URI may contain their characters; `None` if that changes nothing, or if it is malformed.
pub(super) fn encode_literals(template: &str) -> Option<String> {
    let mut encoded = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((literal, after)) = rest.split_once('{') {
        let (expression, after) = after.split_once('}')?;
        KEEPS_RESERVED.encode(literal, &mut encoded);
        encoded.extend(["{", expression, "}"]);
        rest = after;
    }
    KEEPS_RESERVED.encode(rest, &mut encoded);
    (encoded != template).then_some(encoded)
}

/// Returns the URI that a template yields with this text as the value of each variable, but a
/// number for ports; `None` as for [`expand`].
pub(super) fn sample(template: &str, value: &str) -> Option<String> {
    // A template without variables has no queried one.
    if !template.contains('{') {
        return Some(encode_literals(template).unwrap_or_else(|| template.to_owned()));
    }
    let value =
        |name: &str| VariableValue::Queried(if name.contains("port") { "1" } else { value });
    expand(template, value).map(|it| it.uri)
}

/// Parses a variable: its name, and the maximum number of characters of its value.
fn read_variable(variable: &str) -> Option<(&str, usize)> {
    let (name, max_chars) = match variable.split_once(':') {
        Some((name, max_chars)) => (name, max_chars.parse().ok()?),
        None => (variable.strip_suffix('*').unwrap_or(variable), usize::MAX),
    };
    (!name.is_empty()).then_some((name, max_chars))
}

/// Operator of an expression (RFC 6570, appendix A).
struct Operator {
    /// Length of the operator in the expression.
    length: usize,
    first: &'static str,
    separator: &'static str,
    /// Text after the name of an empty variable; `None` if names are not written.
    named: Option<&'static str>,
    keeps_reserved: bool,
}

impl Operator {
    /// The operator of an expression; `None` if it is reserved (section 2.2).
    fn of(expression: &str) -> Option<Self> {
        let of = |first, separator, named, keeps_reserved| {
            Some(Self { length: 1, first, separator, named, keeps_reserved })
        };
        match *expression.as_bytes().first()? {
            b'+' => of("", ",", None, true),
            b'#' => of("#", ",", None, true),
            b'.' => of(".", ".", None, false),
            b'/' => of("/", "/", None, false),
            b';' => of(";", ";", Some(""), false),
            b'?' => of("?", "&", Some("="), false),
            b'&' => of("&", "&", Some("="), false),
            b'=' | b',' | b'!' | b'@' | b'|' => None,
            _ => Some(Self {
                length: 0,
                first: "",
                separator: ",",
                named: None,
                keeps_reserved: false,
            }),
        }
    }

    fn encode(&self, value: &str, uri: &mut String) {
        let bytes = value.as_bytes();
        for (at, byte) in bytes.iter().enumerate() {
            let is_kept = byte.is_ascii_alphanumeric()
                || b"-._~".contains(byte)
                || (self.keeps_reserved
                    && (b":/?#[]@!$&'()*+,;=".contains(byte) || is_escape(&bytes[at..])));
            if is_kept {
                uri.push(char::from(*byte));
            } else {
                const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
                let digits = [byte >> 4, byte & 15].map(|it| char::from(DIGITS[usize::from(it)]));
                uri.push('%');
                uri.extend(digits);
            }
        }
    }
}

/// Whether the text begins with a percent escape.
fn is_escape(bytes: &[u8]) -> bool {
    bytes[0] == b'%'
        && bytes.get(1..3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// The operator `+`.
const KEEPS_RESERVED: Operator =
    Operator { length: 1, first: "", separator: ",", named: None, keeps_reserved: true };

#[cfg(test)]
mod tests {
    use super::*;

    fn check(template: &str, expected: Option<&str>) {
        let value = |name: &str| match name {
            "var" => VariableValue::Queried("value"),
            "hello" => VariableValue::Known("Hello World!"),
            "path" => VariableValue::Known("/foo/bar"),
            "half" => VariableValue::Known("50%"),
            "escaped" => VariableValue::Known("a%2Fb"),
            "letter" => VariableValue::Known("\u{e9}"),
            "empty" => VariableValue::Known(""),
            "x" => VariableValue::Known("1024"),
            _ => VariableValue::Unknown("?"),
        };
        let found = expand(template, value);
        assert_eq!(found.as_ref().map(|it| &*it.uri), expected, "{template}");
        if let Some(Expansion { uri, end, .. }) = found {
            assert!(uri[..end].ends_with("value"), "{template}");
        }
    }

    #[test]
    fn examples_of_the_rfc_expand_as_it_says() {
        for (template, expected) in [
            ("{var}", "value"),
            ("{hello}/{var}", "Hello%20World%21/value"),
            ("{+var}", "value"),
            ("{+hello}{var}", "Hello%20World!value"),
            ("{+half}{var}", "50%25value"),
            ("{half}{var}", "50%25value"),
            ("{+escaped}{escaped}{var}", "a%2Fba%252Fbvalue"),
            ("{+path}/here{var}", "/foo/bar/herevalue"),
            ("here?ref={+path}{var}", "here?ref=/foo/barvalue"),
            ("X{#var}", "X#value"),
            ("X{#path,var}", "X#/foo/bar,value"),
            ("map?{x,empty},{var}", "map?1024,,value"),
            ("X{.x,var}", "X.1024.value"),
            ("{/var,x}/here", "/value/1024/here"),
            ("{/path}{var}", "/%2Ffoo%2Fbarvalue"),
            ("{;x,empty,var}", ";x=1024;empty;var=value"),
            ("{?x,empty,var}", "?x=1024&empty=&var=value"),
            ("?fixed=yes{&var}", "?fixed=yes&var=value"),
            ("{path:2}{var:30}", "%2Ffvalue"),
            ("{letter}{+letter}{var*}", "%C3%A9%C3%A9value"),
            ("a b/\u{e9}%20%/{var}|", "a%20b/%C3%A9%20%25/value%7C"),
        ] {
            check(template, Some(expected));
        }
    }

    #[test]
    fn what_is_no_template_or_lacks_the_variable_has_no_expansion() {
        for template in ["", "{x}", "{var", "{}{var}", "{!x}{var}", "{x:y}{var}", "{x,,var}"] {
            check(template, None);
        }
        check(&"{var}".repeat(MAX_URI_BYTES), None);
    }

    #[test]
    fn an_unknown_value_before_the_variable_is_told() {
        let check = |template: &str, expected: bool| {
            let value = |name: &str| match name {
                "a" => VariableValue::Queried("a"),
                "k" => VariableValue::Known("k"),
                _ => VariableValue::Unknown("?"),
            };
            let found = expand(template, value).map(|it| it.is_behind_unknown);
            assert_eq!(found, Some(expected), "{template}");
        };
        check("{a}/{u}", false);
        check("{k}/{a}", false);
        check("{u}/{a}", true);
        check("{a}/{u}/{a}", true);
    }
}
