//! URI references, resolved against their base URL (RFC 3986, section 5), and origins.

use hyper::Uri;

/// Resolves `reference` against `base`; `None` if the result is no URL over HTTP. A fragment is
/// dropped, since it is never sent.
pub(crate) fn resolve(base: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.split('#').next().unwrap_or_default();
    let (scheme, authority) = (base.scheme_str()?, base.authority()?.as_str());
    let base_path = base.path();
    let (start, rest) = if has_scheme(reference) {
        (None, reference.to_owned())
    } else if reference.starts_with("//") {
        (None, format!("{scheme}:{reference}"))
    } else if reference.starts_with('/') {
        (Some(""), reference.to_owned())
    } else if reference.is_empty() {
        (Some(""), base.path_and_query().map_or("/", |all| all.as_str()).to_owned())
    } else if reference.starts_with('?') {
        (Some(base_path), reference.to_owned())
    } else {
        (Some(&base_path[..=base_path.rfind('/')?]), reference.to_owned())
    };
    let whole: Uri = match start {
        None => rest.parse().ok()?,
        Some(start) => format!("{scheme}://{authority}{start}{rest}").parse().ok()?,
    };
    let mut path = remove_dot_segments(whole.path());
    if let Some(query) = whole.query() {
        path = path + "?" + query;
    }
    let mut parts = whole.into_parts();
    parts.authority.as_ref()?;
    parts.path_and_query = Some(path.parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// Whether two URLs have the same scheme, host and port.
pub(crate) fn same_origin(one: &Uri, other: &Uri) -> bool {
    origin(one).is_some_and(|origin_of_one| origin(other) == Some(origin_of_one))
}

/// Returns the origin of an HTTP URL as text.
pub(crate) fn origin(url: &Uri) -> Option<String> {
    let scheme = url.scheme_str()?.to_ascii_lowercase();
    let own_port = match &*scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let port = url.port_u16().unwrap_or(own_port);
    Some(format!("{scheme}://{}:{port}", url.host()?.to_ascii_lowercase()))
}

/// Whether a reference begins with a scheme, and so is absolute.
fn has_scheme(reference: &str) -> bool {
    reference.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}

/// Removes the `.` and `..` segments of a path that begins with `/` (section 5.2.4).
fn remove_dot_segments(path: &str) -> String {
    let mut segments_left: Vec<&str> = Vec::new();
    let segments = path.strip_prefix('/').unwrap_or(path).split('/');
    let mut ends_in_dots = false;
    for segment in segments {
        ends_in_dots = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => drop(segments_left.pop()),
            segment => segments_left.push(segment),
        }
    }
    if ends_in_dots {
        segments_left.push("");
    }
    format!("/{}", segments_left.join("/"))
}

#[cfg(test)]
mod tests {
    use crate::upstream::transport::uri_reference::*;

    #[test]
    fn a_reference_is_resolved_against_the_url_that_it_came_from() {
        let base = Uri::from_static("https://a.test:8443/v1/sse?x=1");
        for (reference, expected) in [
            ("/message?sessionId=1", Some("https://a.test:8443/message?sessionId=1")),
            ("messages/?id=a/b", Some("https://a.test:8443/v1/messages/?id=a/b")),
            ("./m#part", Some("https://a.test:8443/v1/m")),
            ("../m", Some("https://a.test:8443/m")),
            ("../../../m/..", Some("https://a.test:8443/")),
            ("/a/./b/../c", Some("https://a.test:8443/a/c")),
            ("?id=1", Some("https://a.test:8443/v1/sse?id=1")),
            ("", Some("https://a.test:8443/v1/sse?x=1")),
            ("m:1/x", None),
            ("./m:1/x", Some("https://a.test:8443/v1/m:1/x")),
            ("//b.test/m", Some("https://b.test/m")),
            ("http://b.test", Some("http://b.test/")),
            ("HTTPS://A.test:8443/m", Some("https://A.test:8443/m")),
            ("file:///etc/passwd", None),
            ("javascript:1", None),
            ("http:", None),
            ("/a b", None),
            ("/a\r\nx: y", None),
        ] {
            let resolved = resolve(&base, reference).map(|uri| uri.to_string());
            assert_eq!(resolved.as_deref(), expected, "{reference:?}");
        }
        let bare = Uri::from_static("http://a.test");
        let resolved = resolve(&bare, "m").map(|uri| uri.to_string());
        assert_eq!(resolved.as_deref(), Some("http://a.test/m"));
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let base = Uri::from_static("http://A.test/sse");
        for (other, same) in [
            ("http://a.test:80/m", true),
            ("http://a.TEST", true),
            ("http://user@a.test/m", true),
            ("http://a.test:8080/m", false),
            ("https://a.test/m", false),
            ("https://a.test:80/m", false),
            ("http://a.test.evil/m", false),
            ("http://a.test@evil.test/m", false),
            ("http://sub.a.test/m", false),
            ("ftp://a.test/m", false),
        ] {
            assert_eq!(same_origin(&base, &other.parse().expect("a URI")), same, "{other}");
        }
    }
}
