//! Private key of a client, which signs its assertions (RFC 7523; RFC 7515, compact form).

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeyPair as RsaKeyPair;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    RSA_PKCS1_SHA256,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use weir_base::secrets::secret::Secret;

/// Private key for signatures, with the algorithm that belongs to it: RS256, ES256, ES384 or
/// EdDSA. Cheap to clone.
#[derive(Clone)]
pub struct SigningKey {
    /// Text of the key, by which keys are compared.
    pem: Secret,
    pair: Arc<KeyPair>,
    /// Name of the key at the authorization server.
    id: Option<String>,
}

enum KeyPair {
    Ecdsa(EcdsaKeyPair, &'static str),
    Ed25519(Ed25519KeyPair),
    Rsa(RsaKeyPair),
}

impl SigningKey {
    /// Parses a private key in PEM: PKCS #8, PKCS #1 (RSA) or SEC 1 (EC). `id` is the name that
    /// signatures contain.
    ///
    /// # Errors
    ///
    /// A text for the operator if this is no private key, or none of these algorithms.
    pub fn from_pem(pem: Secret, id: Option<String>) -> Result<Self, &'static str> {
        let der = PrivateKeyDer::from_pem_slice(pem.expose().as_bytes())
            .map_err(|_| "this is not a private key in PEM")?;
        let pair = KeyPair::from_der(der.secret_der())
            .ok_or("the key is neither RSA of 2048 to 8192 bits, nor P-256, P-384 or Ed25519")?;
        Ok(Self { pem, pair: Arc::new(pair), id })
    }

    /// Returns a signed token with these claims; `None` if signing fails.
    pub(super) fn sign(&self, claims: &impl Serialize) -> Option<String> {
        let header = JwsHeader { alg: self.pair.algorithm(), typ: "JWT", kid: self.id.as_deref() };
        let [header, claims] = [serde_json::to_vec(&header), serde_json::to_vec(claims)];
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let signed = format!("{}.{}", encode(&header.ok()?), encode(&claims.ok()?));
        let signature = self.pair.sign(signed.as_bytes())?;
        Some(format!("{signed}.{}", encode(&signature)))
    }
}

impl PartialEq for SigningKey {
    fn eq(&self, other: &Self) -> bool {
        self.pem == other.pem && self.id == other.id
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.pair.algorithm()).field(&self.id).finish()
    }
}

impl KeyPair {
    fn from_der(der: &[u8]) -> Option<Self> {
        let ecdsa = |algorithm, name| {
            EcdsaKeyPair::from_private_key_der(algorithm, der).map(|pair| Self::Ecdsa(pair, name))
        };
        ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING, "ES256")
            .or_else(|_| ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING, "ES384"))
            .or_else(|_| Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map(Self::Ed25519))
            .or_else(|_| RsaKeyPair::from_pkcs8(der).map(Self::Rsa))
            .or_else(|_| RsaKeyPair::from_der(der).map(Self::Rsa))
            .ok()
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Ecdsa(_, name) => name,
            Self::Ed25519(_) => "EdDSA",
            Self::Rsa(_) => "RS256",
        }
    }

    fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match self {
            Self::Ecdsa(pair, _) => Some(pair.sign(&random, message).ok()?.as_ref().to_vec()),
            Self::Ed25519(pair) => Some(pair.sign(message).as_ref().to_vec()),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).ok()?;
                Some(signature)
            }
        }
    }
}

#[derive(Serialize)]
struct JwsHeader<'a> {
    alg: &'static str,
    typ: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kid: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, KeyPair as _,
        RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
    };

    use super::*;

    fn pem(algorithm: &'static rcgen::SignatureAlgorithm) -> Secret {
        let pair = rcgen::KeyPair::generate_for(algorithm).expect("a key");
        pair.serialize_pem().into()
    }

    fn public_key(key: &SigningKey) -> Vec<u8> {
        match &*key.pair {
            KeyPair::Ecdsa(pair, _) => pair.public_key().as_ref().to_vec(),
            KeyPair::Ed25519(pair) => pair.public_key().as_ref().to_vec(),
            KeyPair::Rsa(pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    #[test]
    fn a_key_signs_with_the_algorithm_that_belongs_to_it() {
        let algorithms: [(_, _, &'static dyn VerificationAlgorithm); 4] = [
            (&rcgen::PKCS_ECDSA_P256_SHA256, "ES256", &ECDSA_P256_SHA256_FIXED),
            (&rcgen::PKCS_ECDSA_P384_SHA384, "ES384", &ECDSA_P384_SHA384_FIXED),
            (&rcgen::PKCS_ED25519, "EdDSA", &ED25519),
            (&rcgen::PKCS_RSA_SHA256, "RS256", &RSA_PKCS1_2048_8192_SHA256),
        ];
        for (algorithm, name, verification) in algorithms {
            let key = SigningKey::from_pem(pem(algorithm), Some("k1".into())).expect(name);
            let token = key.sign(&["claims"]).expect("signed");
            let (signed, signature) = token.rsplit_once('.').expect("three parts");
            let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).expect("base64url");
            let texts: Vec<_> = signed.split('.').map(decode).collect();
            let header = format!(r#"{{"alg":"{name}","typ":"JWT","kid":"k1"}}"#);
            assert_eq!(texts, [header.as_bytes(), br#"["claims"]"#]);
            let public_key = UnparsedPublicKey::new(verification, public_key(&key));
            public_key.verify(signed.as_bytes(), &decode(signature)).expect("genuine");
            assert_eq!(format!("{key:?}"), format!(r#"SigningKey("{name}", Some("k1"))"#));
        }
    }

    #[test]
    fn a_text_without_a_usable_key_is_refused() {
        for text in ["", "hunter2", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"]
        {
            SigningKey::from_pem(text.into(), None).expect_err(text);
        }
    }
}
