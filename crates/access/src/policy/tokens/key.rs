//! One public key of a provider, for a single algorithm.
//!
//! Invariant: a key is created only from a complete JWK for signatures, and verifies nothing that
//! was signed with another algorithm than its own: the author of a token's header cannot choose the
//! algorithm.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519,
    ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384,
    RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents, VerificationAlgorithm,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use strum::{EnumString, IntoStaticStr, VariantArray};

use weir_base::json::Object;

/// Signature algorithm of a token (RFC 7518, 3.1; RFC 8037). Algorithms with a shared secret are
/// not supported, because the verifier of such a signature can create one. An RSA key without an
/// algorithm gets the first allowed RSA algorithm, so the order matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray, EnumString)]
#[strum(serialize_all = "UPPERCASE")]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// RSASSA-PSS with SHA-384.
    Ps384,
    /// RSASSA-PSS with SHA-512.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// ECDSA on P-521 with SHA-512.
    Es512,
    /// Ed25519.
    #[strum(serialize = "EdDSA")]
    EdDsa,
}

impl Algorithm {
    /// Parses the name in a header or in a JWK. RFC 9864 names Ed25519 by its curve.
    pub(super) fn parse(name: &str) -> Option<Self> {
        if name == "Ed25519" { Some(Self::EdDsa) } else { name.parse().ok() }
    }

    fn rsa_parameters(self) -> Option<&'static RsaParameters> {
        match self {
            Self::Rs256 => Some(&RSA_PKCS1_2048_8192_SHA256),
            Self::Rs384 => Some(&RSA_PKCS1_2048_8192_SHA384),
            Self::Rs512 => Some(&RSA_PKCS1_2048_8192_SHA512),
            Self::Ps256 => Some(&RSA_PSS_2048_8192_SHA256),
            Self::Ps384 => Some(&RSA_PSS_2048_8192_SHA384),
            Self::Ps512 => Some(&RSA_PSS_2048_8192_SHA512),
            Self::Es256 | Self::Es384 | Self::Es512 | Self::EdDsa => None,
        }
    }
}

/// Public key for verifying signatures.
pub(super) struct VerificationKey {
    pub(super) algorithm: Algorithm,
    public: ParsedPublicKey,
}

/// Reason why a JWK cannot be used, as a text for the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyError {
    /// The JWK is for another use.
    Unsuitable(&'static str),
    /// The JWK is malformed.
    Malformed(&'static str),
}

impl From<&'static str> for KeyError {
    fn from(why: &'static str) -> Self {
        Self::Malformed(why)
    }
}

impl VerificationKey {
    /// Parses a JWK for one of the allowed algorithms.
    pub(super) fn from_jwk(jwk: &Object, allowed: &[Algorithm]) -> Result<Self, KeyError> {
        if ["d", "k", "p", "q"].iter().any(|private| jwk.has(private)) {
            return Err("it is a private or shared key, which lets any reader sign".into());
        }
        if jwk.has("use") && jwk.get_string("use").as_deref() != Some("sig") {
            return Err(KeyError::Unsuitable("it is not for signatures"));
        }
        if jwk.has("key_ops") && !may_verify(jwk) {
            return Err(KeyError::Unsuitable("it is not for verifying signatures"));
        }
        let kind = jwk.get_string("kty").ok_or("it has no kty")?;
        let curve = jwk.get_string("crv");
        let algorithm = match (&*kind, curve.as_deref()) {
            ("RSA", _) => stated_algorithm(jwk)?
                .or_else(|| {
                    allowed.iter().copied().find(|allowed| allowed.rsa_parameters().is_some())
                })
                .ok_or(KeyError::Unsuitable("no RSA algorithm is allowed"))?,
            ("EC", Some("P-256")) => Algorithm::Es256,
            ("EC", Some("P-384")) => Algorithm::Es384,
            ("EC", Some("P-521")) => Algorithm::Es512,
            ("OKP", Some("Ed25519")) => Algorithm::EdDsa,
            _ => return Err(KeyError::Unsuitable("its kty and crv have no supported algorithm")),
        };
        if stated_algorithm(jwk)?.is_some_and(|stated_algorithm| stated_algorithm != algorithm) {
            return Err("its alg does not match its kty and crv".into());
        }
        if !allowed.contains(&algorithm) {
            return Err(KeyError::Unsuitable("its algorithm is not allowed by the configuration"));
        }
        let public = match (algorithm, algorithm.rsa_parameters()) {
            (_, Some(parameters)) if kind == "RSA" => rsa_parameters(jwk, parameters)?,
            (Algorithm::Es256, _) => on_curve(jwk, 32, &ECDSA_P256_SHA256_FIXED)?,
            (Algorithm::Es384, _) => on_curve(jwk, 48, &ECDSA_P384_SHA384_FIXED)?,
            (Algorithm::Es512, _) => on_curve(jwk, 66, &ECDSA_P521_SHA512_FIXED)?,
            (Algorithm::EdDsa, _) => {
                ParsedPublicKey::new(&ED25519, bytes(jwk, "x")?).map_err(|_| NOT_A_KEY)?
            }
            _ => return Err("its alg does not match its kty".into()),
        };
        Ok(Self { algorithm, public })
    }

    /// Returns whether this is the key's signature of the message.
    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        self.public.verify_sig(message, signature).is_ok()
    }
}

/// Returns the algorithm that a JWK names.
fn stated_algorithm(jwk: &Object) -> Result<Option<Algorithm>, &'static str> {
    if !jwk.has("alg") {
        return Ok(None);
    }
    let algorithm = jwk.get_string("alg").and_then(|name| Algorithm::parse(&name));
    algorithm.map(Some).ok_or("its alg is unknown")
}

fn may_verify(jwk: &Object) -> bool {
    let is_verify = |raw: bytes::Bytes| {
        let text = std::str::from_utf8(&raw).ok().and_then(weir_base::json::decode_string);
        text.is_some_and(|text| text == "verify")
    };
    jwk.get_elements("key_ops").is_some_and(|mut uses| uses.any(is_verify))
}

fn rsa_parameters(
    jwk: &Object,
    parameters: &'static RsaParameters,
) -> Result<ParsedPublicKey, &'static str> {
    let number = |name| -> Result<Vec<u8>, &'static str> {
        let bytes = bytes(jwk, name)?;
        // Some issuers write a leading zero byte, although RFC 7518, 2 forbids it.
        Ok(bytes.into_iter().skip_while(|byte| *byte == 0).collect())
    };
    let (n, e) = (number("n")?, number("e")?);
    let bits = n.len() * 8 - n.first().map_or(0, |byte| byte.leading_zeros() as usize);
    if !(2048..=8192).contains(&bits) {
        return Err("an RSA key has 2048 to 8192 bits");
    }
    RsaPublicKeyComponents { n, e }.to_parsed_public_key(parameters).map_err(|_| NOT_A_KEY)
}

fn on_curve(
    jwk: &Object,
    width: usize,
    algorithm: &'static dyn VerificationAlgorithm,
) -> Result<ParsedPublicKey, &'static str> {
    let (x, y) = (bytes(jwk, "x")?, bytes(jwk, "y")?);
    if x.len() != width || y.len() != width {
        return Err(NOT_A_KEY);
    }
    // Uncompressed point (SEC 1, 2.3.3). Parsing checks that the point is on the curve.
    let point = [&[4][..], &x, &y].concat();
    ParsedPublicKey::new(algorithm, point).map_err(|_| NOT_A_KEY)
}

fn bytes(jwk: &Object, name: &str) -> Result<Vec<u8>, &'static str> {
    let text = jwk.get_string(name).ok_or(NOT_A_KEY)?;
    URL_SAFE_NO_PAD.decode(text.as_bytes()).map_err(|_| NOT_A_KEY)
}

const NOT_A_KEY: &str = "its parameters are not a key of its type";
