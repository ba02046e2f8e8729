//! Equivalence of URIs: the spellings that a client may derive from a listed URI.
//!
//! Clients parse a URI before they send it: they write the scheme and the host in lower case,
//! remove a default port and dot segments, and percent-encode spaces and letters. RFC 3986
//! (section 6.2) and WHATWG's URL standard call the results equal.
//!
//! Invariant: equivalent URIs have one form, and the form is its own form. It only finds a listed
//! resource, whose own URI is then checked and sent, so no rule depends on it.

use url::Url;

use crate::definition::item::MAX_URI_BYTES;

/// The form that all URIs share which are equivalent to this one; `None` if it has a control
/// character or is no URI for WHATWG's parsers.
pub fn equivalence_form(uri: &str) -> Option<String> {
    if uri.len() > MAX_URI_BYTES || uri.contains(char::is_control) {
        return None;
    }
    let mut form = normalized(Url::parse(uri).ok()?.as_str());
    // Decoding can make a dot segment, which the parser then removes.
    for _ in 0..MAX_ROUNDS {
        let next = normalized(Url::parse(&form).ok()?.as_str());
        if next == form {
            return Some(form);
        }
        form = next;
    }
    None
}

/// Normalizes the host's case and the percent-encoding (RFC 3986, sections 6.2.2.1 and 6.2.2.2),
/// and encodes what no URI may contain.
fn normalized(uri: &str) -> String {
    let host = host_range(uri);
    let bytes = uri.as_bytes();
    let mut form = String::with_capacity(uri.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let is_in_host = host.contains(&at);
        let (decoded, length) = match escaped(&bytes[at..]) {
            Some(escaped) => (escaped, 3),
            None => (*byte, 1),
        };
        let is_unreserved = decoded.is_ascii_alphanumeric() || b"-._~".contains(&decoded);
        let is_delimiter =
            b":/?#@!$&'()*+,;=".contains(&decoded) || is_in_host && matches!(decoded, b'[' | b']');
        if is_unreserved || length == 1 && is_delimiter {
            let decoded = char::from(decoded);
            form.push(if is_in_host { decoded.to_ascii_lowercase() } else { decoded });
        } else {
            form.push_str(&format!("%{decoded:02X}"));
        }
        at += length;
    }
    form
}

/// Returns the byte that a percent escape at the beginning of a text stands for.
fn escaped(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"%")?.get(..2)?;
    let digits = std::str::from_utf8(digits).ok().filter(|it| !it.starts_with('+'))?;
    u8::from_str_radix(digits, 16).ok()
}

/// The positions of the host and port.
fn host_range(uri: &str) -> std::ops::Range<usize> {
    let start = uri.find(':').map_or(uri.len(), |colon| colon + 1);
    if !uri[start..].starts_with("//") {
        return 0..0;
    }
    let start = start + 2;
    let end = uri[start..].find(['/', '?', '#']).map_or(uri.len(), |length| start + length);
    let host = uri[start..end].rfind('@').map_or(start, |at| start + at + 1);
    host..end
}

/// Maximum number of times that a form is normalized again; a second one is rare.
const MAX_ROUNDS: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spellings_of_one_uri_have_one_form() {
        for (uri, others) in [
            ("file:///a b/é.txt", &["file:///a%20b/%C3%A9.txt", "FILE:///a%20b/%c3%a9.txt"][..]),
            ("https://Host.example/A", &["https://host.example:443/A", "HTTPS://host.example/A"]),
            ("http://h", &["http://h/", "http://h:80", "http://H:/"]),
            ("db://Table/%7euser", &["db://table/~user", "DB://TABLE/%7Euser"]),
            ("note:///a/./b/../c", &["note:///a/c", "note:///a/%2E/c"]),
            ("note:a b|c", &["note:a%20b%7Cc", "NOTE:a%20b%7cc"]),
            ("file:///a[1]{x}", &["file:///a%5B1%5D%7Bx%7D"]),
            ("file:///100%", &["file:///100%25"]),
            ("https://h/?q='a b'", &["https://h/?q=%27a%20b%27"]),
        ] {
            let form = equivalence_form(uri).expect(uri);
            for other in others {
                assert_eq!(equivalence_form(other).as_ref(), Some(&form), "{other} for {uri}");
            }
        }
    }

    #[test]
    fn different_uris_have_different_forms() {
        for (one, other) in [
            ("file:///a", "file:///A"),
            ("file:///a", "file:///a/"),
            ("file:///a/b", "file:///a%2Fb"),
            ("file:///a", "file:///a?"),
            ("note:///a?q", "note:///a%3Fq"),
            ("http://h/", "https://h/"),
            ("db://u@h/", "db://U@h/"),
            ("file:///caf\u{e9}", "file:///cafe\u{301}"),
            ("file:///a%2525", "file:///a%25"),
        ] {
            assert_ne!(equivalence_form(one), equivalence_form(other), "{one} and {other}");
        }
        for none in ["", "a", "file:///a\tb", "file:///\u{7f}", "http://"] {
            assert_eq!(equivalence_form(none), None, "{none:?}");
        }
    }

    proptest! {
        #[test]
        fn form_is_its_own_form_and_that_of_what_clients_write(
            uri in "(file|https|db|note):/{0,3}[a-cA-C0-9.;:?#@/+~' é|-]{0,12}(%2[0-9A-F]|%[cC]3%[aA]9)?[a-c/]{0,3}",
        ) {
            if let Some(form) = equivalence_form(&uri) {
                prop_assert_eq!(equivalence_form(&form), Some(form.clone()));
                let parsed = Url::parse(&uri).expect("it has a form").to_string();
                prop_assert_eq!(equivalence_form(&parsed), Some(form));
            }
        }
    }
}
