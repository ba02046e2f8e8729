//! A signed token as text: its three parts, read strictly.
//!
//! Promise: what is read has one meaning only: canonical base64url, JSON objects without a member twice, and
//! nothing critical that is not understood (RFC 7515, 4.1.11).
//! Knows nothing of: keys, and what claims mean. Where a header brings a key along (`jwk`, `jku`, `x5u`,
//! `x5c`), nobody looks.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::Bad;
use super::key::Algorithm;
use super::key_set::MAX_KEY_ID_BYTES;
use crate::json::Object;

/// A token whose signature nobody has checked yet.
pub(super) struct Compact<'a> {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
    pub(super) claims: Object,
    /// What the signature is of.
    pub(super) signed: &'a [u8],
    pub(super) signature: Vec<u8>,
}

/// Whether a credential has the form of a token, signed or encrypted. API keys have no dots.
pub(in crate::policy) fn is_token(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let dots = text.bytes().filter(|byte| *byte == b'.').count();
    matches!(dots, 2 | 4) && text.bytes().all(plain)
}

impl<'a> Compact<'a> {
    /// Reads a token.
    pub(super) fn parse(token: &'a str) -> Result<Self, Bad> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Bad::TooLong);
        }
        let mut parts = token.split('.');
        let (header, claims, signature) = match [(); 6].map(|()| parts.next()) {
            [Some(header), Some(claims), Some(signature), None, ..] => (header, claims, signature),
            [_, _, _, _, Some(_), None] => return Err(Bad::Encrypted),
            _ => return Err(Bad::Form),
        };
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| Bad::Form);
        let signed = &token.as_bytes()[..header.len() + 1 + claims.len()];
        let header = Object::parse(decode(header)?).map_err(|_| Bad::Header)?;
        let claims = Object::parse(decode(claims)?).map_err(|_| Bad::Claims)?;
        let signature = decode(signature)?;
        if header.has("crit") {
            return Err(Bad::Critical);
        }
        let algorithm = header.get_string("alg").and_then(|name| Algorithm::parse(&name));
        let algorithm = algorithm.ok_or(Bad::Algorithm)?;
        if header.has("typ") {
            let kind = header.get_string("typ").ok_or(Bad::Type)?.to_ascii_lowercase();
            // RFC 9068, 2.1: the prefix may be left out. Others are for other ends: DPoP proofs, logout, events.
            if !["jwt", "at+jwt", "application/at+jwt"].contains(&&*kind) {
                return Err(Bad::Type);
            }
        }
        let key_id = match header.has("kid") {
            true => Some(header.get_string("kid").ok_or(Bad::KeyId)?.into_owned()),
            false => None,
        };
        if key_id.as_ref().is_some_and(|id| id.len() > MAX_KEY_ID_BYTES) {
            return Err(Bad::KeyId);
        }
        Ok(Self { algorithm, key_id, claims, signed, signature })
    }
}

/// The longest token. A request's whole head has as much room.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
