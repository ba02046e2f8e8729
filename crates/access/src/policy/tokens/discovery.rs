//! Discovery of the URL of a provider's keys.
//!
//! Invariants: a document of another issuer is refused, and a protected URL never leads to an
//! unprotected one.

use bytes::Bytes;
use hyper::Uri;

use weir_base::json::Object;
use weir_base::net::allowed_addresses::is_loopback_host;

/// Returns the URLs of an issuer's metadata, the likelier one first: OpenID Connect Discovery, 4,
/// then RFC 8414, 3.
pub(super) fn metadata_urls(issuer: &str) -> Result<[Uri; 2], String> {
    let issuer: Uri = issuer.parse().map_err(|_| "the issuer is not a URL".to_owned())?;
    let (scheme, authority) = (issuer.scheme_str(), issuer.authority());
    let (Some(scheme), Some(authority)) = (scheme, authority) else {
        return Err("the issuer is not a URL".to_owned());
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

/// Returns the URL of the keys in an issuer's metadata.
pub(super) fn jwks_uri_from(issuer: &str, document: Bytes) -> Result<Uri, String> {
    let document = Object::parse(document).map_err(|error| error.to_string())?;
    // RFC 8414, 3.3: the issuer must be the same, character by character.
    match document.get_string("issuer") {
        Some(named) if named == issuer => {}
        Some(named) => {
            let named: String = named.chars().take(SHOWN_CHARS).collect();
            return Err(format!("the document names another issuer, {named:?}"));
        }
        None => return Err("the document names no issuer".to_owned()),
    }
    let uri = document.get_string("jwks_uri").ok_or("the document names no jwks_uri")?;
    let uri: Uri = uri.parse().map_err(|_| "its jwks_uri is not a URL")?;
    let issuer: Uri = issuer.parse().map_err(|_| "the issuer is not a URL")?;
    match is_allowed_jwks_uri(&issuer, &uri) {
        true => Ok(uri),
        false => Err("its jwks_uri is not an https:// URL".to_owned()),
    }
}

/// Returns whether an issuer's keys may be fetched from this URL: over https, or from this machine
/// if the issuer is on this machine, too.
pub fn is_allowed_jwks_uri(issuer: &Uri, uri: &Uri) -> bool {
    let plain = |uri: &Uri| uri.scheme_str() == Some("http") && is_loopback(uri);
    let named = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    named && (uri.scheme_str() == Some("https") || plain(issuer) && plain(uri))
}

/// Returns whether a URL names this machine.
pub fn is_loopback(uri: &Uri) -> bool {
    is_loopback_host(uri.host().unwrap_or_default())
}

/// Characters of a received text that an error shows.
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
            let found = metadata_urls(issuer).expect("a URL").map(|uri| uri.to_string());
            assert_eq!(found, expected, "{issuer}");
        }
    }

    #[test]
    fn only_the_issuers_own_document_leads_to_keys() {
        let issuer = "https://id.example.com/a";
        let parse = |text: &str| jwks_uri_from(issuer, Bytes::copy_from_slice(text.as_bytes()));
        for (text, expected) in [
            (
                r#"{"issuer":"https://id.example.com/a","jwks_uri":"https://keys.example.com/k?v=1"}"#,
                Ok("https://keys.example.com/k?v=1"),
            ),
            (
                r#"{"issuer":"https://id.example.com/a/","jwks_uri":"https://k.example.com/"}"#,
                Err("the document names another issuer, \"https://id.example.com/a/\""),
            ),
            (
                r#"{"issuer":"https://id.example.com/a","jwks_uri":"http://k.example.com/"}"#,
                Err("its jwks_uri is not an https:// URL"),
            ),
            (
                r#"{"issuer":"https://id.example.com/a","jwks_uri":"http://127.0.0.1/"}"#,
                Err("its jwks_uri is not an https:// URL"),
            ),
            (
                r#"{"issuer":"https://id.example.com/a","jwks_uri":"https://a@k.example.com/"}"#,
                Err("its jwks_uri is not an https:// URL"),
            ),
            (
                r#"{"issuer":"https://id.example.com/a","jwks_uri":"file:///etc/passwd"}"#,
                Err("its jwks_uri is not a URL"),
            ),
            (r#"{"issuer":"https://id.example.com/a"}"#, Err("the document names no jwks_uri")),
            (r#"{"jwks_uri":"https://k.example.com/"}"#, Err("the document names no issuer")),
            ("[]", Err("not a JSON object")),
        ] {
            let found = parse(text).map(|uri| uri.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text}");
        }
    }

    #[test]
    fn unprotected_keys_are_good_on_this_machine_only() {
        let good = |issuer: &'static str, keys: &'static str| {
            is_allowed_jwks_uri(&Uri::from_static(issuer), &Uri::from_static(keys))
        };
        assert!(good("http://127.0.0.1:3000", "http://127.0.0.1:3000/jwks"));
        assert!(good("http://localhost:3000", "http://[::1]:3000/jwks"));
        assert!(good("http://localhost:3000", "https://keys.example.com/jwks"));
        assert!(!good("http://localhost:3000", "http://keys.example.com/jwks"));
        assert!(!good("https://id.example.com", "http://localhost/jwks"));
        assert!(!good("https://id.example.com", "http://localhost.example.com/jwks"));
    }
}
