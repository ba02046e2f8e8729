//! Recognition of secrets among the values of a configuration: by their names, and by their shape.
//!
//! A value that is wrongly taken for a secret does no harm: it is moved to a file of its own, or
//! left out of a text.

/// Returns whether a value with this name is a secret.
pub fn is_secret(name: &str, value: &str) -> bool {
    !value.is_empty()
        && !["true", "false"].contains(&value)
        && (names_a_secret(name) || looks_secret(value))
}

/// Returns whether a name is that of a secret.
pub fn names_a_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric());
    parts.into_iter().any(|part| SECRET_SUFFIXES.iter().any(|word| part.ends_with(word)))
        && !LOCATION_SUFFIXES.iter().any(|word| name.ends_with(word))
}

/// Returns whether a value has the shape of a secret.
pub fn looks_secret(value: &str) -> bool {
    let value = value.trim();
    let scheme = value.split_once(' ').map(|(scheme, _)| scheme.to_ascii_lowercase());
    let is_credentials = scheme.is_some_and(|s| ["bearer", "basic", "token"].contains(&s.as_str()));
    is_credentials || has_prefix(value) || has_password(value) || is_random(value)
}

/// Returns whether a URL contains a password.
fn has_password(value: &str) -> bool {
    let Some((_, rest)) = value.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

/// Returns whether an argument has the shape of a secret. Arguments are words more often than the
/// values of variables and headers, so a dash is evidence against it.
pub fn looks_secret_as_argument(value: &str) -> bool {
    looks_secret(value) && (!is_random(value) || !value.contains('-') || has_prefix(value))
}

/// Returns whether a path segment looks like a secret: some services put one into the URL.
pub fn looks_secret_as_path(part: &str) -> bool {
    is_random(part) || has_prefix(part)
}

/// Returns whether a segment of a URL's path looks like a secret, or more like a generated text
/// than like a word or a name.
pub fn is_secret_segment(part: &str) -> bool {
    looks_secret_as_path(part) || is_random_segment(part)
}

fn is_random_segment(part: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"_+=-~%".contains(&b);
    part.len() >= MIN_SEGMENT_BYTES
        && part.bytes().all(legal)
        && part.bytes().any(|b| b.is_ascii_digit())
        && part.bytes().any(|b| b.is_ascii_alphabetic())
}

fn has_prefix(value: &str) -> bool {
    let begins = |prefix: &&str| {
        value.len() > prefix.len() + 4 && value.get(..prefix.len()) == Some(*prefix)
    };
    PREFIXES.iter().any(begins)
}

/// Returns whether a value looks generated: long, without spaces or slashes, letters and digits.
fn is_random(value: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"_+=-".contains(&b);
    value.len() >= 32
        && value.bytes().all(legal)
        && value.bytes().any(|b| b.is_ascii_digit())
        && value.bytes().any(|b| b.is_ascii_alphabetic())
}

/// Options of programs whose value is a header.
pub const HEADER_OPTIONS: [&str; 3] = ["--header", "--headers", "-H"];

/// Shortest text that looks like a generated one.
const MIN_SEGMENT_BYTES: usize = 16;

/// Ends of name parts that indicate a secret.
const SECRET_SUFFIXES: [&str; 16] = [
    "token",
    "key",
    "secret",
    "secrets",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "pass",
    "authorization",
    "bearer",
    "credential",
    "credentials",
    "auth",
    "pat",
    "cookie",
];

/// Ends of names that contain the location of a secret instead.
const LOCATION_SUFFIXES: [&str; 5] = ["file", "path", "dir", "url", "uri"];

/// Prefixes of the tokens of well-known services.
const PREFIXES: [&str; 22] = [
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "sk-",
    "sk_",
    "rk_",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "eyJ",
    "hf_",
    "npm_",
    "lin_api_",
    "ntn_",
    "-----BEGIN",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_known_by_its_name_or_by_its_shape() {
        for (name, value) in [
            ("GITHUB_TOKEN", "x"),
            ("X-Api-Key", "abc"),
            ("apiKey", "abc"),
            ("Authorization", "abc"),
            ("DB_PASSWORD", "1234"),
            ("DATABASE_URL", "postgres://me:hunter2@db/x"),
            ("X", "Bearer abc"),
            ("X", "ghp_0123456789"),
            ("ID", "3f786850e387550fdab836ed7e6dc881de23001b"),
        ] {
            assert!(is_secret(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("LOG_LEVEL", "info"),
            ("TOKEN_FILE", "/run/token"),
            ("MAX_TOKENS", "4096"),
            ("GITHUB_TOKEN", ""),
            ("USE_AUTH", "true"),
            ("ROOT", "/home/me/a/rather/long/path/with-2-numbers"),
            ("URL", "https://me@example.com/x"),
        ] {
            assert!(!is_secret(name, value), "{name}={value}");
        }
    }
}
