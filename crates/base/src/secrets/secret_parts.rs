//! Parts of secrets that a text may repeat alone: lines of a key, and the password of a URL.

use super::secret::Secret;

/// Returns secrets, and behind each the parts of it that are secrets as well: its lines, if it has
/// several, and the user and password of a URL, also decoded, that have at least `shortest` bytes.
pub fn with_parts<'a>(secrets: impl IntoIterator<Item = &'a str>, shortest: usize) -> Vec<Secret> {
    let mut all = Vec::new();
    for secret in secrets {
        all.push(Secret::from(secret));
        // A key in a variable often has `\n` in the place of its line breaks.
        let lines = secret.split('\n').flat_map(|line| line.split("\\n")).map(str::trim);
        let lines = lines.filter(|line| line.len() >= MIN_LINE_BYTES && *line != secret);
        all.extend(lines.map(Secret::from));
        for credential in url_credentials(secret).into_iter().flatten() {
            let decoded = percent_decoded(credential).map(Secret::from);
            let forms = decoded.into_iter().chain([Secret::from(credential)]);
            all.extend(forms.filter(|form| form.expose().len() >= shortest));
        }
    }
    all
}

/// Returns user and password of a URL, as one text and the password alone.
pub fn url_credentials(url: &str) -> Option<[&str; 2]> {
    let (before, _) = url.rsplit_once('@')?;
    let (_, user) = before.split_once("://")?;
    Some([user, user.split_once(':').map_or(user, |(_, password)| password)])
}

/// Decodes a percent-encoded text; `None` if nothing in it is encoded.
fn percent_decoded(text: &str) -> Option<String> {
    // Large enough from the beginning, so that no copy of a part stays in memory.
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let encoded = match (first, behind) {
            (b'%', [high, low, behind @ ..]) => {
                hex_digit(*high).zip(hex_digit(*low)).map(|(high, low)| (high * 16 + low, behind))
            }
            _ => None,
        };
        let (byte, behind) = encoded.unwrap_or((*first, behind));
        decoded.push(byte);
        rest = behind;
    }
    let decoded = String::from_utf8(decoded).ok()?;
    (decoded.len() < text.len()).then_some(decoded)
}

fn hex_digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Shortest line of a secret that is taken for one: shorter ones are brackets and single words.
const MIN_LINE_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(secret: &str) -> Vec<String> {
        let parts = with_parts([secret], 6);
        parts[1..].iter().map(|part| part.expose().to_owned()).collect()
    }

    #[test]
    fn lines_of_a_secret_are_secrets_and_short_ones_are_not() {
        assert!(parts("one-line-token").is_empty());
        assert_eq!(
            parts("-----BEGIN-----\n  MIIEvQIBADAN\nab==\n"),
            ["-----BEGIN-----", "MIIEvQIBADAN"]
        );
        assert_eq!(parts(r"-----BEGIN-----\nMIIEvQIBADAN"), ["-----BEGIN-----", "MIIEvQIBADAN"]);
        assert_eq!(parts("secret-token\n"), ["secret-token"]);
    }

    #[test]
    fn the_password_of_a_url_is_a_secret_in_each_spelling() {
        assert_eq!(
            parts("postgres://ann:p%40ss%2Fword@db:5432/x"),
            ["ann:p@ss/word", "ann:p%40ss%2Fword", "p@ss/word", "p%40ss%2Fword"]
        );
        assert_eq!(parts("redis://:hunter22@db"), [":hunter22", "hunter22"]);
        assert_eq!(parts("http://a:b@c"), [""; 0]);
        assert_eq!(parts("ann@example.com"), [""; 0]);
        // Neither a wrong encoding nor another character set is decoded.
        assert_eq!(parts("x://100%%zz@h"), ["100%%zz", "100%%zz"]);
        assert_eq!(parts("x://%ff%ff@h"), ["%ff%ff", "%ff%ff"]);
    }
}
