//! Secrets in cached lists: a mark replaces each of them in a file, and each mark is replaced by
//! its secret when the file is read.
//!
//! Lists from the cache are what the server has sent, byte for byte, because approved definitions
//! are compared by their hashes.
//!
//! Invariant: a hidden line repeats no secret, in none of the spellings that are searched for.

use std::cmp::Reverse;
use std::sync::Arc;

use bytes::Bytes;

use weir_base::secrets::secret::Secret;
use weir_base::secrets::secret_search::SecretPatterns;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

/// Secrets that a server is given and may repeat in its lists. Cheap to clone.
#[derive(Clone)]
pub(super) struct HiddenSecrets {
    /// The longest first: one may contain another.
    secrets: Arc<[Secret]>,
    patterns: Arc<SecretPatterns>,
}

impl HiddenSecrets {
    pub(super) fn new(mut secrets: Vec<Secret>) -> Self {
        secrets.sort_by(|a, b| {
            let order = |it: &Secret| Reverse(it.expose().len());
            order(a).cmp(&order(b)).then_with(|| a.expose().cmp(b.expose()))
        });
        let patterns = Arc::new(SecretPatterns::of_request(&secrets));
        Self { secrets: secrets.into(), patterns }
    }

    /// Digest of the secrets: marks have a meaning only with the ones that they were made with.
    pub(super) fn digest(&self) -> String {
        let each: Vec<_> = self.secrets.iter().flat_map(|it| sha256(it.expose())).collect();
        hex(&sha256(each)[..8])
    }

    /// Returns a line with marks in the place of secrets, and whether it has any. `None` if it
    /// repeats a secret in another spelling, which no mark could restore.
    pub(super) fn hide(&self, line: Bytes) -> Option<(Bytes, bool)> {
        if line.contains(&MARK_BYTE) {
            return None;
        }
        if !self.patterns.are_in(&line) {
            return Some((line, false));
        }
        let mut text = std::str::from_utf8(&line).ok()?.to_owned();
        for (number, secret) in self.secrets.iter().enumerate() {
            if !secret.expose().contains(MARK) {
                text = text.replace(secret.expose(), &format!("{MARK}{number}{MARK}"));
            }
        }
        (!self.patterns.are_in(text.as_bytes())).then(|| (text.into(), true))
    }

    /// Returns a line with the secrets in the place of their marks; `None` if a mark has none.
    pub(super) fn reveal(&self, line: Bytes) -> Option<Bytes> {
        if !line.contains(&MARK_BYTE) {
            return Some(line);
        }
        let mut revealed = String::with_capacity(line.len());
        let mut parts = std::str::from_utf8(&line).ok()?.split(MARK);
        revealed.push_str(parts.next()?);
        while let Some(number) = parts.next() {
            let number: usize = number.parse().ok()?;
            revealed.push_str(self.secrets.get(number)?.expose());
            revealed.push_str(parts.next()?);
        }
        Some(revealed.into())
    }
}

impl std::fmt::Debug for HiddenSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.secrets.len())
    }
}

/// Character around the number of a secret: JSON contains it only as an escape.
const MARK: char = '\u{1}';
const MARK_BYTE: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(secrets: &[&str]) -> HiddenSecrets {
        HiddenSecrets::new(secrets.iter().map(|secret| Secret::from(*secret)).collect())
    }

    #[test]
    fn a_line_comes_back_as_it_was_and_has_no_secret_meanwhile() {
        let secrets = hidden(&["canary", "canary-canary", "hunter2"]);
        for line in [
            r#"{"name":"a"}"#,
            r#"{"name":"a","description":"use canary, not canary-canary"}"#,
            r#"{"canarycanary":"hunter2"}"#,
        ] {
            let (text, _) = secrets.hide(line.into()).expect("it can be hidden");
            let shown = String::from_utf8_lossy(&text);
            assert!(!shown.contains("canary") && !shown.contains("hunter2"), "{shown}");
            assert_eq!(secrets.reveal(text).expect("it was hidden"), line);
        }
    }

    #[test]
    fn a_line_that_no_mark_can_restore_is_not_hidden() {
        let secrets = hidden(&["can/ary"]);
        for line in [r#"{"a":"can\/ary"}"#, r#"{"a":"can%2Fary"}"#, "{\"a\":\"\u{1}\"}"] {
            assert!(secrets.hide(line.into()).is_none(), "{line}");
        }
        for line in ["\u{1}7\u{1}", "\u{1}0", "\u{1}x\u{1}"] {
            assert!(secrets.reveal(line.into()).is_none(), "{line:?}");
        }
        assert_ne!(secrets.digest(), hidden(&["canary"]).digest());
    }
}
