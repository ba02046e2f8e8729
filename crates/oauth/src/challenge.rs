//! Challenges: what a server that refuses a request says in `WWW-Authenticate` (RFC 9110, 11.6.1).

use hyper::header::{HeaderMap, WWW_AUTHENTICATE};

/// Challenge of the scheme `Bearer` (RFC 6750, 3; RFC 9728, 5.1).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BearerChallenge {
    /// URL of the metadata of the resource.
    pub(crate) resource_metadata: Option<String>,
    /// Scopes that the request needs, separated by spaces.
    pub(crate) scope: Option<String>,
    /// Error code, such as `invalid_token`.
    pub(crate) error: Option<String>,
}

impl BearerChallenge {
    /// Returns whether the token is valid, and does not have the scopes that the request needs.
    pub fn demands_scope(&self) -> bool {
        self.error.as_deref() == Some("insufficient_scope")
    }

    /// Returns the values of its parameters.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        [&self.resource_metadata, &self.scope, &self.error].into_iter().flatten().map(|it| &**it)
    }

    /// Finds the challenge in the headers of a response. Malformed parts are skipped, and of
    /// several challenges of this scheme the first one counts.
    pub fn find(headers: &HeaderMap) -> Option<Self> {
        let mut found: Option<Self> = None;
        let mut is_bearer = false;
        let texts = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|text| text.to_str().ok());
        for item in texts.flat_map(split_list) {
            let parameter = match split_scheme(item) {
                None => item,
                Some((scheme, parameter)) => {
                    is_bearer = scheme.eq_ignore_ascii_case("bearer") && found.is_none();
                    if is_bearer {
                        found = Some(Self::default());
                    }
                    parameter
                }
            };
            if let Some(challenge) = found.as_mut().filter(|_| is_bearer) {
                challenge.set(parameter);
            }
        }
        found
    }

    /// Takes a parameter, and those behind it without a comma, as some servers write them.
    fn set(&mut self, mut parameters: &str) {
        while let Some((name, rest)) = parameters.split_once('=') {
            let (value, rest) = split_value(rest.trim());
            parameters = rest;
            let place = match &*name.trim().to_ascii_lowercase() {
                "resource_metadata" => &mut self.resource_metadata,
                "scope" => &mut self.scope,
                "error" => &mut self.error,
                _ => continue,
            };
            place.get_or_insert(value);
        }
    }
}

/// Splits a list at its commas, except those in quoted strings.
fn split_list(text: &str) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |c| {
        let was_escaped = is_escaped;
        is_escaped = is_quoted && c == '\\' && !was_escaped;
        is_quoted ^= c == '"' && !was_escaped;
        c == ',' && !is_quoted
    })
    .map(str::trim)
    .filter(|item| !item.is_empty())
}

/// Splits the scheme off the first parameter of a challenge; `None` if the item is a parameter.
fn split_scheme(item: &str) -> Option<(&str, &str)> {
    let end = item.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(item.len());
    let (word, rest) = item.split_at(end);
    let rest = rest.trim_start();
    (!rest.starts_with('=')).then_some((word, rest))
}

/// Splits the value off the first parameter: a quoted string without its quotes, or a text up to
/// the end.
fn split_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else { return (text.to_owned(), "") };
    let (mut value, mut is_escaped) = (String::new(), false);
    for (at, c) in quoted.char_indices() {
        match c {
            '"' if !is_escaped => return (value, &quoted[at + 1..]),
            '\\' if !is_escaped => is_escaped = true,
            c => {
                is_escaped = false;
                value.push(c);
            }
        }
    }
    (text.to_owned(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(values: &[&str]) -> Option<BearerChallenge> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(WWW_AUTHENTICATE, value.parse().expect("a header"));
        }
        BearerChallenge::find(&headers)
    }

    fn challenge(texts: [Option<&str>; 3]) -> Option<BearerChallenge> {
        let [resource_metadata, scope, error] = texts.map(|text| text.map(str::to_owned));
        Some(BearerChallenge { resource_metadata, scope, error })
    }

    #[test]
    fn a_challenge_is_found_among_others_and_in_all_forms() {
        let url = "https://a.test/.well-known/oauth-protected-resource";
        let own = format!("Bearer resource_metadata=\"{url}\", scope=\"a b\", error=invalid_token");
        let all = challenge([Some(url), Some("a b"), Some("invalid_token")]);
        assert_eq!(find(&[&own]), all);
        assert_eq!(find(&["Basic realm=\"a, b\"", &own]), all);
        assert_eq!(find(&[&format!("Negotiate abc==, {own}, Digest scope=\"x\"")]), all);
        assert_eq!(find(&[&own.replace("Bearer", "bEARER").replace("scope=", "Scope = ")]), all);
        assert_eq!(find(&[&own.replace(',', "")]), all, "a server that forgets the commas");
        assert_eq!(find(&["Bearer"]), challenge([None; 3]));
        assert_eq!(find(&["Bearer realm=\"x\""]), challenge([None; 3]));
        assert_eq!(find(&["Basic realm=\"Bearer scope=x\""]), None);
        assert_eq!(find(&[]), None);
        assert_eq!(
            find(&[r#"Bearer realm="a \" , scope=b \\", scope="c\"\\d""#]),
            challenge([None, Some("c\"\\d"), None])
        );
    }

    #[test]
    fn the_first_of_several_counts() {
        let expected = challenge([None, Some("a"), None]);
        assert_eq!(find(&["Bearer scope=a, scope=b, Bearer scope=c, error=d"]), expected);
        assert_eq!(find(&["Bearer scope=a", "Bearer scope=c"]), expected);
        assert_eq!(find(&["Bearer x, scope=a, ,,"]), expected);
    }
}
