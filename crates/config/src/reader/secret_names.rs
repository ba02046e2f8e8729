//! Which values of the configuration may be secrets, by the names of their keys, and which parts of
//! URLs. Reports show all other values as they stand in the file.

use std::ops::Range;

/// Returns user information and query of each URL in a text (RFC 3986, 3.2.1 and 3.4), because the
/// value of any key may be a URL with a password.
pub(super) fn secrets_of_urls(text: &str) -> impl Iterator<Item = Range<usize>> {
    text.match_indices("://").flat_map(|(at, separator)| {
        let start = at + separator.len();
        let rest = &text[start..];
        let ends_url = |c: char| c.is_whitespace() || matches!(c, '"' | '\'');
        let url = &rest[..rest.find(ends_url).unwrap_or(rest.len())];
        let user_info = url.rfind('@').map(|length| start..start + length);
        // A `?` before the `@` belongs to the user information.
        let from = url.rfind('@').map_or(0, |at| at + 1);
        let query = url[from..].find('?').map(|at| start + from + at + 1..start + url.len());
        user_info.into_iter().chain(query)
    })
}

/// Returns what may be user information or query in the span of a malformed URL.
pub(super) fn secrets_of_url(text: &str, span: Range<usize>) -> Vec<Range<usize>> {
    let Some(url) = text.get(span.clone()) else { return vec![span] };
    // An escape may stand for any character.
    if url.contains('\\') {
        return vec![span];
    }
    let start = url.find("//").map_or(1, |at| at + 2).min(url.len());
    let user_info = url.rfind('@').filter(|end| *end > start).map(|end| start..end);
    let from = url.rfind('@').map_or(0, |at| at + 1);
    let query = url[from..].find(['?', '#']).map(|at| from + at + 1..url.len() - 1);
    let local = user_info.into_iter().chain(query.filter(|query| query.start <= query.end));
    local.map(|part| span.start + part.start..span.start + part.end).collect()
}

/// Returns whether the value of a key, or of a table that it is in, may be a secret. Names that the
/// operator has given to tables say nothing.
pub(super) fn may_hold_secrets(path: &str) -> bool {
    let parts: Vec<&str> = path.split('.').collect();
    let first = match parts.first() {
        Some(&("upstreams" | "clients" | "roles")) => 2,
        Some(&"auth") => {
            if parts.get(1) == Some(&"oidc") {
                3
            } else {
                1
            }
        }
        _ => 0,
    };
    parts.iter().skip(first).any(|part| is_like_a_secret(part))
}

/// Returns whether a name is, contains or is like that of a secret or of a table with secrets.
pub(super) fn is_like_a_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // As for misspelled keys.
    let tolerance = (name.chars().count() / 3).max(1);
    let is_part = |part: &&str| name.contains(*part);
    PARTS_OF_SECRET_NAMES.iter().any(is_part)
        || SECRET_WORDS.contains(&&*name)
        || SECRET_NAMES.iter().any(|known| strsim::osa_distance(&name, known) <= tolerance)
}

/// Returns whether the value of a key of this name is never a secret, in any table.
pub(super) fn is_harmless_key(name: &str) -> bool {
    HARMLESS_KEYS.contains(&name) || HARMLESS_WORDS.contains(&name)
}

/// Keys whose values are never secrets. The line of a key that is missing here is redacted.
pub(super) const HARMLESS_KEYS: [&str; 27] = [
    "include",
    "listen",
    "path",
    "public_url",
    "allowed_hosts",
    "allowed_origins",
    "max_body",
    "max_connections",
    "versions",
    "page_size",
    "mode",
    "separator",
    "era",
    "timeouts",
    "retry",
    "limits",
    "prompts_dir",
    "enabled",
    "prefix",
    "prompts",
    "tools",
    "resources",
    "command",
    "cwd",
    "url",
    "role",
    "level",
];

/// Further keys whose values are never secrets. They are usual words, so that a line is taken for a
/// key and not for a text only if an equals sign follows.
pub(super) const HARMLESS_WORDS: [&str; 75] = [
    "watch",
    "max_reply",
    "max_head",
    "max_headers",
    "max_buffered",
    "shutdown_grace",
    "shutdown_delay",
    "session_ttl",
    "session_max_age",
    "sse_keepalive",
    "legacy_sse",
    "resumable",
    "instructions",
    "naming",
    "characters",
    "max_length",
    "anonymous_role",
    "pinning",
    "lock_file",
    "hidden_text",
    "arguments",
    "output",
    "results",
    "max_argument",
    "breaker",
    "lazy",
    "login_path",
    "on_down",
    "on_down_grace",
    "guard",
    "transport",
    "replicas",
    "match",
    "rate",
    "concurrency",
    "burst",
    "expires",
    "format",
    "rotate",
    "on_error",
    "chain",
    "dir",
    "catalog",
    "trusted_proxies",
    "per_client",
    "preset",
    "user_claim",
    "role_claim",
    "roles",
    "default_role",
    "algorithms",
    "blocked",
    "not_before",
    "issuer",
    "audience",
    "allow",
    "deny",
    "call",
    "startup",
    "list",
    "connect",
    "idle",
    "backoff",
    "max_backoff",
    "failures",
    "cool_down",
    "jitter",
    "size",
    "keep",
    "waiting",
    "wait",
    "max_message",
    "max_items",
    "max_pages",
    "max_list",
];

/// Names of secrets, and of tables with secrets, for names that are like them.
const SECRET_NAMES: [&str; 12] = [
    "headers",
    "header",
    "env",
    "auth",
    "token",
    "password",
    "secret",
    "key",
    "key_sha256",
    "params",
    "args",
    "proxy",
];

/// Parts of names of secrets.
const PARTS_OF_SECRET_NAMES: [&str; 15] = [
    "secret",
    "token",
    "pass",
    "pwd",
    "key",
    "header",
    "auth",
    "cred",
    "cookie",
    "bearer",
    "environ",
    "private",
    "jwt",
    "signature",
    "dsn",
];

/// Keys of secrets, or of tables with secrets.
pub(super) const SECRET_WORDS: [&str; 5] = ["env", "headers", "auth", "token", "password"];
