//! Strict parser of signed tokens in compact serialization (JWS).
//!
//! Invariant: an accepted token has one meaning only: canonical base64url, JSON objects without
//! duplicate members, and no critical extension (RFC 7515, 4.1.11). Keys that a header contains or
//! refers to (`jwk`, `jku`, `x5u`, `x5c`) are ignored.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::TokenError;
use super::key::Algorithm;
use super::key_set::MAX_KEY_ID_BYTES;
use weir_base::json::Object;

/// Token with an unverified signature.
pub(super) struct CompactJws<'a> {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
    pub(super) claims: Object,
    /// Signed bytes.
    pub(super) signed: &'a [u8],
    pub(super) signature: Vec<u8>,
}

/// Returns whether a credential has the form of a token, signed or encrypted. API keys have no
/// dots.
pub(crate) fn is_token(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let dots = text.bytes().filter(|byte| *byte == b'.').count();
    matches!(dots, 2 | 4) && text.bytes().all(plain)
}

impl<'a> CompactJws<'a> {
    /// Parses a token.
    pub(super) fn parse(token: &'a str) -> Result<Self, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong);
        }
        let mut parts = token.split('.');
        let (header, claims, signature) = match [(); 6].map(|()| parts.next()) {
            [Some(header), Some(claims), Some(signature), None, ..] => (header, claims, signature),
            [_, _, _, _, Some(_), None] => return Err(TokenError::Encrypted),
            _ => return Err(TokenError::Form),
        };
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Form);
        let signed = &token.as_bytes()[..header.len() + 1 + claims.len()];
        let header = Object::parse(decode(header)?).map_err(|_| TokenError::Header)?;
        let claims = Object::parse(decode(claims)?).map_err(|_| TokenError::Claims)?;
        let signature = decode(signature)?;
        if header.has("crit") {
            return Err(TokenError::Critical);
        }
        let algorithm = header.get_string("alg").and_then(|name| Algorithm::parse(&name));
        let algorithm = algorithm.ok_or(TokenError::Algorithm)?;
        if header.has("typ") {
            let kind = header.get_string("typ").ok_or(TokenError::Type)?.to_ascii_lowercase();
            // RFC 9068, 2.1: the prefix may be omitted. Other types have other uses: DPoP proofs,
            // logout, events.
            if !["jwt", "at+jwt", "application/at+jwt"].contains(&&*kind) {
                return Err(TokenError::Type);
            }
        }
        let key_id = match header.has("kid") {
            true => Some(header.get_string("kid").ok_or(TokenError::KeyId)?.into_owned()),
            false => None,
        };
        if key_id.as_ref().is_some_and(|id| id.len() > MAX_KEY_ID_BYTES) {
            return Err(TokenError::KeyId);
        }
        Ok(Self { algorithm, key_id, claims, signed, signature })
    }
}

/// Returns the claims of a token, even of one that [`CompactJws::parse`] refuses.
pub(super) fn unverified_claims(token: &str) -> Option<Object> {
    let claims = token.split('.').nth(1).filter(|_| token.len() <= MAX_TOKEN_BYTES)?;
    Object::parse(URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}

/// Longest token, as large as the limit of a request's whole head.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
