//! Where a provider keeps its keys.
//!
//! Promise: a document that is not the configured issuer's own leads nowhere, and nothing leads from a
//! protected address to an unprotected one.
//! Knows nothing of: keys, caching, and how a document is fetched.

use std::net::IpAddr;

use bytes::Bytes;
use hyper::Uri;

use crate::json::Object;

/// Where an issuer's metadata may be, the likelier place first: OpenID Connect Discovery, 4, then RFC 8414, 3.
pub(super) fn places(issuer: &str) -> Result<[Uri; 2], String> {
    let issuer: Uri = issuer.parse().map_err(|_| "the issuer is no URL".to_owned())?;
    let (scheme, authority) = (issuer.scheme_str(), issuer.authority());
    let (Some(scheme), Some(authority)) = (scheme, authority) else {
        return Err("the issuer is no URL".to_owned());
    };
    let path = issuer.path().trim_end_matches('/');
    let build = |path: String| {
        let uri = Uri::builder().scheme(scheme).authority(authority.clone()).path_and_query(path);
        uri.build().map_err(|error| error.to_string())
    };
    Ok([
        build(format!("{path}/.well-known/openid-configuration"))?,
        build(format!("/.well-known/oauth-authorization-server{path}"))?,
    ])
}

/// Reads where the keys are from an issuer's metadata.
pub(super) fn read(issuer: &str, document: Bytes) -> Result<Uri, String> {
    let document = Object::parse(document).map_err(|error| error.to_string())?;
    // RFC 8414, 3.3: it must be the same, character by character.
    match document.get_string("issuer") {
        Some(named) if named == issuer => {}
        Some(named) => {
            let named: String = named.chars().take(SHOWN_CHARS).collect();
            return Err(format!("it is that of another issuer, {named:?}"));
        }
        None => return Err("it names no issuer".to_owned()),
    }
    let uri = document.get_string("jwks_uri").ok_or("it names no jwks_uri")?;
    let uri: Uri = uri.parse().map_err(|_| "its jwks_uri is no URL")?;
    let issuer: Uri = issuer.parse().map_err(|_| "the issuer is no URL")?;
    match may_hold_keys(&issuer, &uri) {
        true => Ok(uri),
        false => Err("its jwks_uri is no https:// URL".to_owned()),
    }
}

/// Whether an issuer's keys may be fetched from this place: over https, or on this machine if the issuer is
/// there, too.
pub fn may_hold_keys(issuer: &Uri, uri: &Uri) -> bool {
    let plain = |uri: &Uri| uri.scheme_str() == Some("http") && is_loopback(uri);
    let named = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    named && (uri.scheme_str() == Some("https") || plain(issuer) && plain(uri))
}

/// Whether a URL names this machine.
pub fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// How much of a foreign text is told.
const SHOWN_CHARS: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_looked_for_at_both_well_known_places() {
        for (issuer, expected) in [
            (
                "https://id.example.com",
                [
                    "https://id.example.com/.well-known/openid-configuration",
                    "https://id.example.com/.well-known/oauth-authorization-server",
                ],
            ),
            (
                "https://id.example.com/",
                [
                    "https://id.example.com/.well-known/openid-configuration",
                    "https://id.example.com/.well-known/oauth-authorization-server",
                ],
            ),
            (
                "https://id.example.com:8443/realms/a",
                [
                    "https://id.example.com:8443/realms/a/.well-known/openid-configuration",
                    "https://id.example.com:8443/.well-known/oauth-authorization-server/realms/a",
                ],
            ),
        ] {
            let found = places(issuer).expect("a URL").map(|uri| uri.to_string());
            assert_eq!(found, expected, "{issuer}");
        }
    }

    #[test]
    fn only_the_issuers_own_document_leads_to_keys() {
        let issuer = "https://id.example.com/a";
        let judge = |text: &str| read(issuer, Bytes::copy_from_slice(text.as_bytes()));
        for (text, expected) in [
            (
                r#"{"issuer":"https://id.example.com/a","jwks_uri":"https://keys.example.com/k?v=1"}"#,
                Ok("https://keys.example.com/k?v=1"),
            ),
            (
                r#"{"issuer":"https://id.example.com/a/","jwks_uri":"https://k.example.com/"}"#,
                Err("it is that of another issuer, \"https://id.example.com/a/\""),
            ),
            (
                r#"{"issuer":"https://id.example.com/a","jwks_uri":"http://k.example.com/"}"#,
                Err("its jwks_uri is no https:// URL"),
            ),
            (
                r#"{"issuer":"https://id.example.com/a","jwks_uri":"http://127.0.0.1/"}"#,
                Err("its jwks_uri is no https:// URL"),
            ),
            (
                r#"{"issuer":"https://id.example.com/a","jwks_uri":"https://a@k.example.com/"}"#,
                Err("its jwks_uri is no https:// URL"),
            ),
            (
                r#"{"issuer":"https://id.example.com/a","jwks_uri":"file:///etc/passwd"}"#,
                Err("its jwks_uri is no URL"),
            ),
            (r#"{"issuer":"https://id.example.com/a"}"#, Err("it names no jwks_uri")),
            (r#"{"jwks_uri":"https://k.example.com/"}"#, Err("it names no issuer")),
            ("[]", Err("not a JSON object")),
        ] {
            let found = judge(text).map(|uri| uri.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text}");
        }
    }

    #[test]
    fn unprotected_keys_are_good_on_this_machine_only() {
        let good = |issuer: &'static str, keys: &'static str| {
            may_hold_keys(&Uri::from_static(issuer), &Uri::from_static(keys))
        };
        assert!(good("http://127.0.0.1:3000", "http://127.0.0.1:3000/jwks"));
        assert!(good("http://localhost:3000", "http://[::1]:3000/jwks"));
        assert!(good("http://localhost:3000", "https://keys.example.com/jwks"));
        assert!(!good("http://localhost:3000", "http://keys.example.com/jwks"));
        assert!(!good("https://id.example.com", "http://localhost/jwks"));
        assert!(!good("https://id.example.com", "http://localhost.example.com/jwks"));
    }
}
