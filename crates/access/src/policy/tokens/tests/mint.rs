//! Creates tokens, valid and invalid ones.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING,
    ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair,
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384,
    RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{AUDIENCE, ISSUER};

/// The moment of these tests.
pub(super) const NOW: u64 = 1_900_000_000;

pub(super) fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(NOW)
}

/// Keys of the provider, and one more of each kind that belongs to an attacker.
pub(super) struct MintKeys {
    pub(super) rsa: RsaKeyPair,
    pub(super) other_rsa: RsaKeyPair,
    pub(super) p256: EcdsaKeyPair,
    pub(super) other_p256: EcdsaKeyPair,
    pub(super) p384: EcdsaKeyPair,
    pub(super) p521: EcdsaKeyPair,
    pub(super) ed25519: Ed25519KeyPair,
}

pub(super) fn keys() -> &'static MintKeys {
    static KEYS: OnceLock<MintKeys> = OnceLock::new();
    KEYS.get_or_init(|| {
        let rsa = || RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
        let on =
            |curve: &'static EcdsaSigningAlgorithm| EcdsaKeyPair::generate(curve).expect("a key");
        MintKeys {
            rsa: rsa(),
            other_rsa: rsa(),
            p256: on(&ECDSA_P256_SHA256_FIXED_SIGNING),
            other_p256: on(&ECDSA_P256_SHA256_FIXED_SIGNING),
            p384: on(&ECDSA_P384_SHA384_FIXED_SIGNING),
            p521: on(&ECDSA_P521_SHA512_FIXED_SIGNING),
            ed25519: Ed25519KeyPair::generate().expect("a key"),
        }
    })
}

/// The provider's JWKS: RSA keys pinned to an algorithm each, and one key on each curve.
pub(super) fn jwks() -> String {
    let keys = keys();
    let named = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"];
    let rsa = named.map(|alg| rsa_jwk(&keys.rsa, alg, Some(alg)));
    let curves = [
        ec_jwk(&keys.p256, "ES256", "P-256"),
        ec_jwk(&keys.p384, "ES384", "P-384"),
        ec_jwk(&keys.p521, "ES512", "P-521"),
        format!(
            r#"{{"kty":"OKP","crv":"Ed25519","kid":"EdDSA","use":"sig","x":"{}"}}"#,
            encode(keys.ed25519.public_key())
        ),
        rsa_jwk(&keys.rsa, "plain", None),
    ];
    set_of(&[&rsa[..], &curves].concat())
}

pub(super) fn set_of(keys: &[String]) -> String {
    format!(r#"{{"keys":[{}]}}"#, keys.join(","))
}

pub(super) fn rsa_jwk(key: &RsaKeyPair, id: &str, algorithm: Option<&str>) -> String {
    let (n, e) = rsa_numbers(key);
    let algorithm = algorithm.map(|it| format!(r#","alg":"{it}""#)).unwrap_or_default();
    format!(
        r#"{{"kty":"RSA","kid":"{id}","use":"sig"{algorithm},"n":"{}","e":"{}"}}"#,
        encode(n),
        encode(e)
    )
}

/// Modulus and exponent of an RSAPublicKey in DER (RFC 8017, A.1.1): two integers in a sequence.
pub(super) fn rsa_numbers(key: &RsaKeyPair) -> (Vec<u8>, Vec<u8>) {
    let (sequence, _) = tlv(key.public_key().as_ref());
    let (n, rest) = tlv(sequence);
    let (e, _) = tlv(rest);
    // Without the sign's byte.
    (n[1..].to_vec(), e.to_vec())
}

/// The content of the first element, and what follows it.
fn tlv(der: &[u8]) -> (&[u8], &[u8]) {
    let (length, head) = match der[1] {
        short @ ..=0x80 => (usize::from(short), 2),
        0x81 => (usize::from(der[2]), 3),
        _ => (usize::from(der[2]) << 8 | usize::from(der[3]), 4),
    };
    der[head..].split_at(length)
}

pub(super) fn ec_jwk(key: &EcdsaKeyPair, id: &str, curve: &str) -> String {
    let point = key.public_key().as_ref();
    let (x, y) = point[1..].split_at(point.len() / 2);
    let (x, y) = (encode(x), encode(y));
    format!(r#"{{"kty":"EC","crv":"{curve}","kid":"{id}","use":"sig","x":"{x}","y":"{y}"}}"#)
}

/// The claims of a good token.
pub(super) fn claims() -> String {
    format!(
        r#"{{"iss":"{ISSUER}","sub":"ann","aud":"{AUDIENCE}","exp":{},"nbf":{NOW},"iat":{NOW},"azp":"ide","scope":"mcp.use openid","roles":["devs"]}}"#,
        NOW + 600
    )
}

/// Good claims but for what is replaced.
pub(super) fn claims_but(from: &str, to: &str) -> String {
    let claims = claims();
    assert!(claims.contains(from), "{from}");
    claims.replace(from, to)
}

/// A good token, signed in this way with the key of this name.
pub(super) fn token(algorithm: &str) -> String {
    let header = format!(r#"{{"alg":"{algorithm}","kid":"{algorithm}","typ":"at+jwt"}}"#);
    signed(algorithm, &header, &claims())
}

/// A token with these claims.
pub(super) fn token_of(claims: &str) -> String {
    signed("ES256", r#"{"alg":"ES256","kid":"ES256"}"#, claims)
}

/// A token with this header, signed as `algorithm` says, whatever the header says.
pub(super) fn signed(algorithm: &str, header: &str, claims: &str) -> String {
    let message = format!("{}.{}", encode(header), encode(claims));
    let signature = sign(algorithm, message.as_bytes());
    format!("{message}.{}", encode(signature))
}

fn sign(algorithm: &str, message: &[u8]) -> Vec<u8> {
    let keys = keys();
    let with = |key: &EcdsaKeyPair| {
        key.sign(&SystemRandom::new(), message).expect("signed").as_ref().to_vec()
    };
    match algorithm {
        "RS256" => rsa(&keys.rsa, &RSA_PKCS1_SHA256, message),
        "RS384" => rsa(&keys.rsa, &RSA_PKCS1_SHA384, message),
        "RS512" => rsa(&keys.rsa, &RSA_PKCS1_SHA512, message),
        "PS256" => rsa(&keys.rsa, &RSA_PSS_SHA256, message),
        "PS384" => rsa(&keys.rsa, &RSA_PSS_SHA384, message),
        "PS512" => rsa(&keys.rsa, &RSA_PSS_SHA512, message),
        "other RS256" => rsa(&keys.other_rsa, &RSA_PKCS1_SHA256, message),
        "ES256" => with(&keys.p256),
        "other ES256" => with(&keys.other_p256),
        "ES384" => with(&keys.p384),
        "ES512" => with(&keys.p521),
        "EdDSA" => keys.ed25519.sign(message).as_ref().to_vec(),
        "none" => Vec::new(),
        other => panic!("{other}"),
    }
}

fn rsa(key: &RsaKeyPair, padding: &'static dyn RsaEncoding, message: &[u8]) -> Vec<u8> {
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(padding, &SystemRandom::new(), message, &mut signature).expect("signed");
    signature
}

/// A token signed with a public secret: HMAC over a public key.
pub(super) fn hmac_signed(header: &str, claims: &str, secret: &[u8]) -> String {
    let message = format!("{}.{}", encode(header), encode(claims));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    format!("{message}.{}", encode(hmac::sign(&key, message.as_bytes())))
}

/// Public RSA key of the provider.
pub(super) fn public_rsa() -> Vec<u8> {
    keys().rsa.public_key().as_ref().to_vec()
}

pub(super) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
