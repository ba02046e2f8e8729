//! Cookies of one session with a network server (RFC 6265): a load balancer may find the replica
//! that has the session by one.
//!
//! Invariants: a cookie goes to no other host than that which has set it, whatever its `Domain`
//! says, and only with TLS or on this machine if it is `Secure`. Number and size are bounded.
//! Cookies end with the client of the session: no other session or account has them.

use cookie::Cookie;
use hyper::header::{COOKIE, HeaderMap, HeaderValue, SET_COOKIE};
use tokio::time::Instant;
use url::Url;

use weir_base::net::allowed_addresses::is_loopback_host;
use weir_base::tasks::sync::Mutex;

/// Cookies of one session.
pub(crate) struct SessionCookies {
    /// URL of the server.
    url: Option<Url>,
    /// The oldest first.
    kept: Mutex<Vec<KeptCookie>>,
}

struct KeptCookie {
    name: String,
    value: String,
    path: String,
    expires: Option<Instant>,
}

impl KeptCookie {
    fn len(&self) -> usize {
        self.name.len() + self.value.len()
    }

    fn is_expired(&self) -> bool {
        self.expires.is_some_and(|at| at <= Instant::now())
    }

    /// Whether it is for requests to this path (RFC 6265, 5.1.4).
    fn is_for(&self, path: &str) -> bool {
        path.strip_prefix(&*self.path).is_some_and(|rest| {
            rest.is_empty() || self.path.ends_with('/') || rest.starts_with('/')
        })
    }
}

impl SessionCookies {
    /// Creates an empty collection for a server.
    pub(crate) fn new(url: &str) -> Self {
        Self { url: Url::parse(url).ok(), kept: Mutex::default() }
    }

    /// Adds those for a request to this path. A cookie of the configuration goes first, and one of
    /// the same name is left out.
    pub(crate) fn add_to(&self, path: &str, headers: &mut HeaderMap) {
        let mut kept = self.kept.lock();
        if kept.is_empty() {
            return;
        }
        kept.retain(|cookie| !cookie.is_expired());
        let configured = headers.get(COOKIE).and_then(|value| value.to_str().ok());
        let mut text = configured.unwrap_or_default().to_owned();
        let is_configured = |name: &str| {
            let mut pairs = configured.unwrap_or_default().split(';');
            pairs.any(|pair| pair.split('=').next().unwrap_or_default().trim() == name)
        };
        for KeptCookie { name, value, .. } in
            kept.iter().filter(|cookie| cookie.is_for(path) && !is_configured(&cookie.name))
        {
            let separator = if text.is_empty() { "" } else { "; " };
            text += &format!("{separator}{name}={value}");
        }
        if let Ok(mut value) = HeaderValue::try_from(text)
            && !value.is_empty()
        {
            value.set_sensitive(true);
            headers.insert(COOKIE, value);
        }
    }

    /// Keeps those that the response to a request to this path sets.
    pub(crate) fn keep(&self, path: &str, response: &HeaderMap) {
        for value in response.get_all(SET_COOKIE) {
            let cookie = value.to_str().ok().and_then(|text| Cookie::parse(text).ok());
            if let Some(cookie) = cookie {
                self.keep_one(path, &cookie);
            }
        }
    }

    fn keep_one(&self, path: &str, cookie: &Cookie<'_>) {
        let host = self.url.as_ref().and_then(Url::host_str).unwrap_or_default();
        let is_protected =
            self.url.as_ref().is_some_and(|url| url.scheme() == "https") || is_loopback_host(host);
        let is_of_host = cookie.domain().is_none_or(|domain| {
            let domain = domain.trim_start_matches('.').to_ascii_lowercase();
            host.strip_suffix(&*domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        });
        if !is_of_host || cookie.secure() == Some(true) && !is_protected {
            return;
        }
        let given = cookie.path().filter(|path| path.starts_with('/'));
        let kept = KeptCookie {
            name: cookie.name().to_owned(),
            value: cookie.value().to_owned(),
            path: given.unwrap_or_else(|| default_path(path)).to_owned(),
            expires: expiry(cookie),
        };
        let mut all = self.kept.lock();
        all.retain(|other| (&other.name, &other.path) != (&kept.name, &kept.path));
        if kept.is_expired() || kept.len() + kept.path.len() > MAX_COOKIE_BYTES {
            return;
        }
        all.push(kept);
        while all.len() > MAX_COOKIES
            || all.iter().map(KeptCookie::len).sum::<usize>() > MAX_COOKIES_BYTES
        {
            all.remove(0);
        }
    }
}

/// Returns the path of a cookie that names none (RFC 6265, 5.1.4).
fn default_path(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(last) => &path[..last],
    }
}

/// Returns the time at which a cookie expires; `None` if it lasts as long as the session.
fn expiry(cookie: &Cookie<'_>) -> Option<Instant> {
    let remaining = match (cookie.max_age(), cookie.expires_datetime()) {
        (Some(max_age), _) => max_age,
        (None, Some(date)) => date - cookie::time::OffsetDateTime::now_utc(),
        (None, None) => return None,
    };
    let remaining = std::time::Duration::try_from(remaining).unwrap_or_default();
    Instant::now().checked_add(remaining)
}

/// Most cookies of a session.
const MAX_COOKIES: usize = 32;
/// Longest cookie (RFC 6265, 6.1), and their longest sum: servers bound the size of a head.
const MAX_COOKIE_BYTES: usize = 4 * 1024;
const MAX_COOKIES_BYTES: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns what a request to `/a/mcp` contains after these were set by a response to it.
    fn sent(url: &str, set: &[&str]) -> String {
        let cookies = SessionCookies::new(url);
        set_all(&cookies, set);
        cookie_header(&cookies, "/a/mcp", HeaderMap::new())
    }

    fn set_all(cookies: &SessionCookies, set: &[&str]) {
        let mut response = HeaderMap::new();
        for value in set {
            response.append(SET_COOKIE, HeaderValue::from_str(value).expect("a value"));
        }
        cookies.keep("/a/mcp", &response);
    }

    fn cookie_header(cookies: &SessionCookies, path: &str, mut headers: HeaderMap) -> String {
        cookies.add_to(path, &mut headers);
        let value = headers.get(COOKIE).map(|value| value.to_str().expect("text"));
        value.unwrap_or_default().to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_cookie_goes_to_the_host_and_the_path_for_which_it_was_set() {
        let https = "https://a.mcp.test/a/mcp";
        for (url, set, expected) in [
            (https, &["x=1"][..], "x=1"),
            (https, &["x=1; Path=/; HttpOnly; SameSite=Lax", "y=2"], "x=1; y=2"),
            (https, &["x=1", "x=2"], "x=2"),
            (https, &["x=1; Path=/a", "x=2; Path=/"], "x=1; x=2"),
            (https, &["x=1; Path=/b"], ""),
            (https, &["x=1; Path=/a/m"], ""),
            (https, &["x=1; Domain=mcp.test"], "x=1"),
            (https, &["x=1; Domain=.A.mcp.test"], "x=1"),
            (https, &["x=1; Domain=other.test", "y=1; Domain=p.test"], ""),
            (https, &["x=1; Secure"], "x=1"),
            ("http://mcp.test/a/mcp", &["x=1; Secure"], ""),
            ("http://127.0.0.1:1/a/mcp", &["x=1; Secure"], "x=1"),
            (https, &["x=1", "x=; Max-Age=0"], ""),
            (https, &["x=1", "x=; Expires=Thu, 01 Jan 1970 00:00:00 GMT"], ""),
            (https, &["x=1; Max-Age=-5", "=1", "x", ""], ""),
        ] {
            assert_eq!(sent(url, set), expected, "{url} {set:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cookie_is_not_sent_after_its_time() {
        let cookies = SessionCookies::new("https://mcp.test/a/mcp");
        set_all(&cookies, &["x=1; Max-Age=60", "y=2; Max-Age=99999999999999999"]);
        assert_eq!(cookie_header(&cookies, "/a/mcp", HeaderMap::new()), "x=1; y=2");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(cookie_header(&cookies, "/a/mcp", HeaderMap::new()), "y=2");
    }

    #[tokio::test(start_paused = true)]
    async fn a_configured_cookie_stays_and_those_of_the_server_follow() {
        let cookies = SessionCookies::new("https://mcp.test/a/mcp");
        set_all(&cookies, &["x=1", "y=2"]);
        let configured = HeaderMap::from_iter([(COOKIE, HeaderValue::from_static("a=b; x=own"))]);
        assert_eq!(cookie_header(&cookies, "/a/mcp", configured), "a=b; x=own; y=2");
    }

    #[tokio::test(start_paused = true)]
    async fn number_and_size_of_the_cookies_of_a_session_are_bounded() {
        let cookies = SessionCookies::new("https://mcp.test/a/mcp");
        for count in 0..100 {
            set_all(&cookies, &[&format!("x{count}=1")]);
        }
        let text = cookie_header(&cookies, "/a/mcp", HeaderMap::new());
        assert!(text.starts_with("x68=1; ") && text.ends_with("; x99=1"), "{text}");
        let long = "v".repeat(4_000);
        for name in ["a", "b", "c"] {
            set_all(&cookies, &[&format!("{name}={long}")]);
        }
        set_all(&cookies, &[&format!("d={}", "v".repeat(5_000))]);
        let text = cookie_header(&cookies, "/a/mcp", HeaderMap::new());
        assert_eq!(text, format!("b={long}; c={long}"));
    }
}
