//! Secrets: a text that is never displayed, and random tokens.
//!
//! Invariants: no `Display`, no serialization; `Debug` prints `***`; comparing takes the same time
//! wherever two secrets differ; the memory is overwritten when the last owner drops it.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Secret text, such as a key or password.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Returns the secret, for sending or checking it.
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

/// Returns a new unguessable text: 256 random bits as base64url.
pub fn random_token() -> Box<str> {
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

    #[test]
    fn s18_ids_that_nobody_can_guess_never_come_twice_and_have_no_pattern() {
        let is_night = std::env::var_os("WEIR_NIGHTLY").is_some();
        let count: u32 = if is_night { 1_000_000 } else { 100_000 };
        let (mut ids, mut often) = (Vec::new(), [0_u32; 256]);
        for _ in 0..count {
            let id = URL_SAFE_NO_PAD.decode(&*random_token()).expect("base64url");
            id.iter().for_each(|byte| often[usize::from(*byte)] += 1);
            ids.push(<[u8; 32]>::try_from(id).expect("256 bits"));
        }
        // Half of the bits are ones, and each byte comes equally often: to six standard deviations.
        let bits = f64::from(count) * 256.0;
        let ones: u32 =
            (0_u8..=255).zip(often).map(|(byte, times)| byte.count_ones() * times).sum();
        assert!((f64::from(ones) - bits / 2.0).abs() < 3.0 * bits.sqrt(), "{ones} of {bits}");
        let each = bits / 8.0 / 256.0;
        let spread: f64 = often.iter().map(|times| (f64::from(*times) - each).powi(2) / each).sum();
        assert!((spread - 255.0).abs() < 6.0 * 510_f64.sqrt(), "{spread}");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count as usize);
    }
}
