//! Secrets that a server is given, with each part of them that it may repeat alone.
//!
//! A server quotes one line of a key, the password of a URL or the token behind `Bearer`. A search
//! for the whole value misses that.
//!
//! Invariant: no part is shorter than six bytes: such ones are words and numbers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::secret::Secret;
use super::secret_shape::{
    HEADER_OPTIONS, is_secret, is_secret_segment, looks_secret, looks_secret_as_argument,
    names_a_secret,
};

/// Secrets that one server is given.
#[derive(Debug, Default)]
pub struct GivenSecrets(Vec<Secret>);

impl GivenSecrets {
    /// Adds a value that may be a secret whatever it looks like: of a variable, of a header, or the
    /// content of a file.
    pub fn add_value(&mut self, value: &str) {
        self.add(value.trim());
        // A key in a variable often has `\n` in the place of its line breaks.
        let lines = value.lines().flat_map(|line| line.split("\\n")).map(str::trim);
        lines.filter(|line| line.len() >= MIN_LINE_BYTES).for_each(|line| self.add(line));
        self.add_urls(value);
        self.add_words(value);
        self.add_fields(value);
        // User and password, as HTTP's Basic has them.
        if let Some((user, password)) = value.split_once(':')
            && !user.is_empty()
            && !value.contains(|c: char| c.is_whitespace() || "/{}".contains(c))
            && !password.contains(':')
        {
            self.add(password);
        }
    }

    /// Adds the fields of a text whose names say that they are secrets: `Password=…` between
    /// separators, and members of JSON.
    fn add_fields(&mut self, text: &str) {
        for field in text.split([';', '&', ' ', '\n']) {
            if let Some((_, held)) = field.split_once('=').filter(|(name, _)| names_a_secret(name))
            {
                self.add(held.trim_matches(QUOTES));
            }
        }
        let words: Vec<_> = text.split('"').collect();
        for member in words.windows(3) {
            if member[1].trim() == ":" && names_a_secret(member[0]) {
                self.add(member[2]);
            }
        }
    }

    /// Adds the value of a header, each word of which may be the secret.
    pub fn add_header(&mut self, value: &str) {
        self.add_value(value);
        value.split_whitespace().for_each(|word| self.add(word));
    }

    /// Adds what the arguments of a program contain and is a secret by its option, its name or its
    /// shape.
    pub fn add_arguments<'a>(&mut self, arguments: impl IntoIterator<Item = &'a str>) {
        let mut before = "";
        for argument in arguments {
            if let Some(secret) = secret_in_argument(before, argument) {
                self.add_value(secret);
            }
            self.add_urls(argument);
            self.add_fields(argument);
            before = argument;
        }
    }

    /// Adds the secrets in the URLs of a text: user information, and parts of path and query that
    /// look like secrets; as they are written, and decoded.
    pub fn add_urls(&mut self, text: &str) {
        for (at, separator) in text.match_indices("://") {
            let rest = &text[at + separator.len()..];
            let ends_url = |c: char| c.is_whitespace() || QUOTES.contains(&c);
            let url = &rest[..rest.find(ends_url).unwrap_or(rest.len())];
            let user_info = &url[..user_info_end(url)];
            self.add_encoded(user_info);
            self.add_encoded(user_info.split_once(':').map_or("", |(_, password)| password));
            let rest = &url[user_info.len()..];
            let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
            for segment in path.split(['/', '#']).skip(1) {
                if is_secret_segment(segment) {
                    self.add_encoded(segment);
                }
            }
            for pair in query.split(['&', '#']) {
                let pair = pair.split_once('=').filter(|(name, held)| is_secret(name, held));
                self.add_encoded(pair.map_or("", |(_, held)| held));
            }
        }
    }

    /// Adds a part of a URL as it is written, and decoded: a server repeats either.
    pub fn add_encoded(&mut self, part: &str) {
        self.add(part);
        if part.contains('%') {
            self.add(&percent_decoded(part));
        }
    }

    /// Returns the secrets, without those that are the same.
    pub fn into_vec(self) -> Vec<Secret> {
        self.0
    }

    /// Adds the words of a value that look like secrets, and those behind a scheme of HTTP.
    fn add_words(&mut self, value: &str) {
        let is_between = |c: char| c.is_whitespace() || QUOTES.contains(&c) || "{}[],".contains(c);
        let mut before = "";
        for word in value.split(is_between).filter(|word| !word.is_empty()) {
            let is_behind = |scheme: &str| before.eq_ignore_ascii_case(scheme);
            if looks_secret(word) || SCHEMES.into_iter().any(is_behind) {
                self.add(word);
            }
            if is_behind("basic")
                && let Ok(user_info) = STANDARD.decode(word)
                && let Ok(user_info) = String::from_utf8(user_info)
            {
                self.add(&user_info);
                self.add(user_info.split_once(':').map_or("", |(_, password)| password));
            }
            before = word;
        }
    }

    fn add(&mut self, part: &str) {
        if part.len() >= MIN_BYTES && !self.0.iter().any(|secret| secret.expose() == part) {
            self.0.push(part.into());
        }
    }
}

/// Returns the part of an argument that is a secret, apart from those of URLs in it.
fn secret_in_argument<'a>(before: &str, argument: &'a str) -> Option<&'a str> {
    let is_header = HEADER_OPTIONS.contains(&before);
    let separator = if is_header { ':' } else { '=' };
    let scheme = argument.find("://").unwrap_or(argument.len());
    let split = argument.split_once(separator).filter(|(name, _)| is_header || name.len() < scheme);
    if let Some((name, value)) = split {
        if !is_header && HEADER_OPTIONS.contains(&name) {
            return secret_in_argument(name, value);
        }
        let is_secret = is_header || is_secret(name.trim_start_matches('-'), value);
        return (is_secret && !value.contains("://")).then_some(value);
    }
    if scheme < argument.len() || argument.starts_with('-') {
        return None;
    }
    let is_value = before.starts_with('-') && names_a_secret(before.trim_start_matches('-'));
    (is_header || is_value || looks_secret_as_argument(argument)).then_some(argument)
}

/// Returns the length of the user information with which the rest of a URL begins. A password that
/// is not encoded may contain what ends an authority.
fn user_info_end(url: &str) -> usize {
    let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let has_password = authority.rsplit_once(':').is_some_and(|(_, rest)| !is_port(rest));
    let end = authority.rfind('@').or_else(|| url.rfind('@').filter(|_| has_password));
    end.unwrap_or_default()
}

fn percent_decoded(text: &str) -> String {
    let (mut decoded, mut rest) = (Vec::new(), text.as_bytes());
    while let [byte, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *byte == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(encoded) => {
                decoded.push(encoded);
                rest = &after[2..];
            }
            None => {
                decoded.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8(decoded).unwrap_or_default()
}

/// Shortest part that is taken for a secret.
const MIN_BYTES: usize = 6;

/// Shortest line of a value that is taken for a secret.
const MIN_LINE_BYTES: usize = 8;

/// Characters around a URL or a word.
const QUOTES: [char; 5] = ['"', '\'', '`', '<', '>'];

/// Schemes of the header `Authorization`, in front of the secret.
const SCHEMES: [&str; 3] = ["bearer", "basic", "token"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::secret_search::SecretPatterns;

    fn of(add: impl FnOnce(&mut GivenSecrets)) -> Vec<String> {
        let mut given = GivenSecrets::default();
        add(&mut given);
        given.into_vec().iter().map(|secret| secret.expose().to_owned()).collect()
    }

    #[test]
    fn each_long_line_of_a_value_is_a_secret() {
        let key = "-----BEGIN KEY-----\nAAAABBBB\nshort\n  CCCCDDDD\r\n-----END KEY-----\n";
        let found = of(|given| given.add_value(key));
        let escaped = of(|given| given.add_value(&key.replace('\n', "\\n")));
        for line in ["AAAABBBB", "CCCCDDDD", key.trim()] {
            assert!(found.iter().any(|it| it == line), "{line}: {found:?}");
            assert!(
                line.contains("KEY") || escaped.iter().any(|it| it == line),
                "{line}: {escaped:?}"
            );
        }
        assert!(!found.iter().any(|it| it == "short"), "{found:?}");
    }

    #[test]
    fn a_password_of_a_url_is_a_secret_encoded_and_decoded() {
        for (value, expected) in [
            ("postgres://me:hunt%40er2@db/x", &["hunt%40er2", "hunt@er2"][..]),
            ("see https://me:hunter2@h:80/a and https://x/y", &["hunter2", "me:hunter2"][..]),
            ("https://me:hunt/er2@h/", &["hunt/er2"][..]),
            ("https://0123456789abcdef@h/", &["0123456789abcdef"][..]),
            ("https://h/ghp_0123456789?api_key=hunter%2D2", &["ghp_0123456789", "hunter-2"][..]),
        ] {
            let found = of(|given| given.add_urls(value));
            for secret in expected {
                assert!(found.iter().any(|it| it == secret), "{value}: {found:?}");
            }
        }
        for value in ["https://registry.npmjs.org/@scope/package", "http://h:8080/a@b?x=1", "a@b"] {
            assert_eq!(of(|given| given.add_urls(value)), [""; 0], "{value}");
        }
    }

    #[test]
    fn the_secret_of_a_longer_value_is_one() {
        for (value, secret) in [
            ("Bearer hunter2-hunter2", "hunter2-hunter2"),
            (r#"{"Authorization": "Bearer hunter2"}"#, "hunter2"),
            ("Basic bWU6aHVudGVyMg==", "hunter2"),
            ("Server=h;Password=hunter2;Timeout=5", "hunter2"),
            (r#"{"name": "x", "apiKey": "hunter2"}"#, "hunter2"),
            ("ann:hunter2", "hunter2"),
            ("first ghp_0123456789 last", "ghp_0123456789"),
        ] {
            let found = of(|given| given.add_value(value));
            assert!(found.iter().any(|it| it == secret), "{value}: {found:?}");
        }
        let found = of(|given| given.add_header("key hunter2"));
        assert!(found.iter().any(|it| it == "hunter2"), "{found:?}");
    }

    #[test]
    fn an_argument_is_a_secret_by_its_option_its_name_or_its_shape() {
        let found = of(|given| {
            given.add_arguments([
                "-y",
                "@modelcontextprotocol/server-everything",
                "--api-key",
                "canary-1",
                "--token=canary-2",
                "DB_PASSWORD=canary-3",
                "--header",
                "X-Anything: canary-4",
                "--header=Authorization: Bearer canary-5",
                "ghp_canary6",
                "https://me:canary-7@h/x",
                "--url=https://me:canary-8@h/x",
                "--log-level",
                "verbose",
                "/home/ann/documents",
                "--connection-string",
                "Server=h;User Id=sa;Password=canary-9;",
                "--dsn",
                "host=h password=canary-0",
            ]);
        });
        for number in 0..=9 {
            let canary =
                if number == 6 { "canary6".to_owned() } else { format!("canary-{number}") };
            assert!(found.iter().any(|it| it.contains(&canary)), "{canary}: {found:?}");
        }
        let secrets = SecretPatterns::new(found.iter().map(String::as_str));
        let text =
            "@modelcontextprotocol/server-everything --log-level verbose /home/ann/documents";
        assert_eq!(secrets.redact(text), text);
        assert_eq!(secrets.redact("canary-5 canary%2D7"), "*** ***");
    }
}
