//! The key of an identity provider, and the access tokens that it signs.

use std::sync::OnceLock;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

fn key() -> &'static EcdsaKeyPair {
    static KEY: OnceLock<EcdsaKeyPair> = OnceLock::new();
    KEY.get_or_init(|| {
        EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key pair")
    })
}

/// Document with the public key.
pub(crate) fn jwks() -> String {
    let point = key().public_key().as_ref();
    let [x, y] = [&point[1..33], &point[33..]].map(|number| URL_SAFE_NO_PAD.encode(number));
    format!(
        r#"{{"keys":[{{"kty":"EC","crv":"P-256","kid":"k","use":"sig","x":"{x}","y":"{y}"}}]}}"#
    )
}

/// Access token with these claims, which are JSON.
pub(crate) fn signed(claims: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","kid":"k","typ":"at+jwt"}"#);
    let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims));
    let signature = key().sign(&SystemRandom::new(), message.as_bytes()).expect("signed");
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}
