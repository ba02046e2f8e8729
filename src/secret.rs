//! A text that is never shown, and one that nobody can guess.
//!
//! Promises: no `Display`, no serialization; `Debug` prints `***`; comparing takes the same time wherever two
//! differ; the memory is overwritten when the last owner lets go of it.
//!
//! Knows nothing of: where it comes from and who needs it.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// A text that is never shown.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Returns the secret, for the one who has to send it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A new text that nobody can guess: 256 random bits as base64url.
pub fn unguessable() -> Box<str> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    URL_SAFE_NO_PAD.encode(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_compared_and_not_shown() {
        let secret = Secret::from("hunter2");
        assert_eq!(format!("{secret:?} {:#?}", Some(&secret)), "*** Some(\n    ***,\n)");
        assert!(secret == secret.clone() && secret != Secret::from("hunter3"));
        assert!(secret != Secret::from("hunter") && secret.expose() == "hunter2");
    }
}
