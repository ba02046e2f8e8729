//! Rules for the URLs of OAuth: which of them may be called, and at which addresses.

use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Response, StatusCode, Uri};
use url::{Position, Url, form_urlencoded};

use super::exchange::timeout_awake;
use super::{OAuthError, ReceivedBody, Settings};
use weir_base::net::http_send::HttpSend;
use weir_base::text::quote::quote;

/// HTTP client that calls allowed URLs only.
pub(super) struct OAuthClient<'a> {
    http: &'a dyn HttpSend,
    /// Settings of the account for which it works.
    pub(super) settings: &'a Settings,
}

impl<'a> OAuthClient<'a> {
    /// Creates the client for the account with these settings.
    pub(super) fn new(http: &'a dyn HttpSend, settings: &'a Settings) -> Self {
        Self { http, settings }
    }

    /// Sends a request to a URL and returns its response.
    pub(super) async fn send(
        &self,
        url: &str,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, OAuthError> {
        self.send_up_to(MAX_BODY_BYTES, url, request).await
    }

    /// Sends a request for tokens to a URL, and returns its response, or how much of a successful
    /// one has come, beside the error.
    pub(super) async fn send_for_tokens(
        &self,
        url: &str,
        mut request: Request<Bytes>,
    ) -> Result<Response<Bytes>, (OAuthError, Bytes)> {
        let received = ReceivedBody::default();
        request.extensions_mut().insert(received.clone());
        let response = self.send_up_to(MAX_TOKEN_RESPONSE_BYTES, url, request).await;
        response.map_err(|error| (error, received.take()))
    }

    /// Sends a request to a URL and returns the status of its response.
    pub(super) async fn send_for_status(
        &self,
        url: &str,
        request: Request<Bytes>,
    ) -> Result<StatusCode, OAuthError> {
        self.send_up_to(0, url, request).await.map(|response| response.status())
    }

    async fn send_up_to(
        &self,
        limit: usize,
        url: &str,
        mut request: Request<Bytes>,
    ) -> Result<Response<Bytes>, OAuthError> {
        let (uri, is_own) = self.check(url).map_err(OAuthError::Refused)?;
        let mut allowed = self.settings.allowed.clone();
        allowed.any_name = uri.host().is_some_and(|host| self.settings.names_host(host));
        let allowed = (!is_own).then_some(&allowed);
        *request.uri_mut() = uri;
        let response = timeout_awake(TIMEOUT, self.http.send(request, limit, allowed)).await;
        let error = match response {
            Some(Ok(response)) => return Ok(response),
            Some(Err(error)) => error,
            None => format!("no response within {} s", TIMEOUT.as_secs()),
        };
        Err(OAuthError::Unavailable(format!("{}: {error}", quote(url, MAX_SHOWN_CHARS))))
    }

    /// Returns the URL in the form in which it is called, and whether it has the upstream's origin.
    pub(super) fn check(&self, text: &str) -> Result<(Uri, bool), String> {
        let refuse = |why| Err(format!("{} {why}", shown_url(text)));
        // The parser would skip some of these.
        if text.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\') {
            return refuse("is not a URL");
        }
        let Ok(url) = Url::parse(text) else { return refuse("is not a URL") };
        if !self.settings.protects(&url) {
            return refuse("is not an https:// URL");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("contains credentials");
        }
        match url[..Position::AfterQuery].parse() {
            // The upstream's origin is trusted as far as the upstream is.
            Ok(uri) => Ok((uri, url.origin() == self.settings.upstream.origin())),
            Err(_) => refuse("is not a URL"),
        }
    }
}

/// Returns the endpoint of a server without those parameters of its query that a request has
/// itself: none comes twice (RFC 6749, 3.1). The others stay as they are.
pub(super) fn without_parameters(endpoint: &str, is_own: impl Fn(&str) -> bool) -> String {
    let endpoint = endpoint.split('#').next().unwrap_or_default();
    let Some((rest, query)) = endpoint.split_once('?') else { return endpoint.to_owned() };
    let is_other = |pair: &&str| {
        let mut pairs = form_urlencoded::parse(pair.as_bytes());
        !pairs.any(|(name, _)| is_own(&name))
    };
    let others: Vec<&str> = query.split('&').filter(is_other).collect();
    match others.is_empty() {
        true => rest.to_owned(),
        false => format!("{rest}?{}", others.join("&")),
    }
}

/// Parses a URL by which a server names itself or another one. The parser changes nothing of it
/// except for the case of scheme and host, the usual port, and an empty path (RFC 3986, 6.2.2 and
/// 6.2.3), so each reader of the text finds the same server.
pub(super) fn parse_name(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let (scheme, rest) = text.split_once("://")?;
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // The colons of an IPv6 address are followed by its bracket.
    let (host, port) = match authority.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
        Some((host, port)) => (host, Some(port).filter(|port| !port.is_empty())),
        None => (authority, None),
    };
    let is_port = |port: &str| url.port_or_known_default().is_some_and(|it| it.to_string() == port);
    let parsed_path = &url[Position::BeforePath..];
    let is_same = scheme.eq_ignore_ascii_case(url.scheme())
        && url.host_str().is_some_and(|it| it.eq_ignore_ascii_case(host))
        && port.is_none_or(is_port)
        && (path == parsed_path
            || !path.starts_with('/') && parsed_path.strip_prefix('/') == Some(path));
    is_same.then_some(url)
}

/// Returns a URL that a server has named, for messages: bounded, and without its credentials. Of a
/// text that may be no URL everything before an `@` is left out.
pub(super) fn shown_url(text: &str) -> String {
    let Some((before, rest)) = text.rsplit_once('@') else { return quote(text, MAX_SHOWN_CHARS) };
    let scheme = ["https://", "http://"].into_iter().find(|scheme| before.starts_with(scheme));
    quote(&format!("{}***@{rest}", scheme.unwrap_or_default()), MAX_SHOWN_CHARS)
}

/// Time limit of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// Maximum size of a response with tokens, which cannot be requested again.
const MAX_TOKEN_RESPONSE_BYTES: usize = 1024 * 1024;
/// Characters of a received text that an error shows.
pub(super) const MAX_SHOWN_CHARS: usize = 200;

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;

    use super::*;
    use crate::testing::{Script, settings};
    use weir_base::net::allowed_addresses::AllowedAddresses;
    use weir_base::tasks::sync::Mutex;

    fn check(upstream: &str, loopback: bool, url: &str) -> Result<String, String> {
        let upstream = Url::parse(upstream).expect("a URL");
        let allowed = AllowedAddresses { loopback, ..AllowedAddresses::default() };
        let http = Script::default();
        let settings = Settings { upstream, allowed, ..settings() };
        let client = OAuthClient::new(&http, &settings);
        client.check(url).map(|(uri, is_own)| format!("{uri}{}", if is_own { " own" } else { "" }))
    }

    #[test]
    fn protected_urls_and_those_of_the_upstream_are_called() {
        let https = |url| check("https://mcp.test/mcp", false, url);
        for (url, called) in [
            ("https://id.test", "https://id.test/"),
            ("https://id.test:8443/a?b=c#d", "https://id.test:8443/a?b=c"),
            ("https://MCP.test:443/x", "https://mcp.test/x own"),
            // The addresses are checked when they are known.
            ("https://0177.1/", "https://127.0.0.1/"),
            ("https://[::ffff:7f00:1]/", "https://[::ffff:7f00:1]/"),
        ] {
            assert_eq!(https(url).as_deref(), Ok(called), "{url}");
        }
        for url in [
            "http://id.test/",
            "http://mcp.test/",
            "http://localhost/",
            "http://127.0.0.1:80/",
            "javascript:alert(1)",
            "file:///etc/passwd",
            "data:text/plain,x",
            "https://ann@id.test/",
            "https://:x@id.test/",
            "https://id.test/\r\nx: y",
            "https://id.test/ x",
            "https:\\\\id.test/",
            "//id.test/",
            "id.test",
            "",
        ] {
            assert!(https(url).is_err(), "{url}");
        }
        for (url, error) in [
            ("https://ann:hunter2@id.test/x", "https://***@id.test/x contains credentials"),
            ("https://hunter2@id.test", "https://***@id.test contains credentials"),
            ("https://ann:hun/ter2@id.test/", "https://***@id.test/ is not a URL"),
            ("https://ann:hunter2@x@id.test/", "https://***@id.test/ contains credentials"),
            ("http://ann:hunter2@id.test/", "http://***@id.test/ is not an https:// URL"),
            ("https:\\\\ann:hunter2@id.test", "***@id.test is not a URL"),
            ("ann:hunter2@id.test", "***@id.test is not an https:// URL"),
        ] {
            assert_eq!(https(url), Err(error.to_owned()), "{url}");
        }
    }

    #[test]
    fn an_upstream_without_tls_gets_codes_tokens_and_secrets_on_this_machine_only() {
        for upstream in [
            "http://mcp.test/mcp",
            "http://10.0.0.1:80/mcp",
            "http://orders.svc/mcp",
            "http://localhost.test/mcp",
            "http://0.0.0.0/mcp",
        ] {
            for loopback in [false, true] {
                let at = |path: &str| Url::parse(upstream).expect("a URL").join(path).expect("one");
                for url in [at("/token"), at("/.well-known/oauth-protected-resource/mcp")] {
                    assert!(check(upstream, loopback, url.as_str()).is_err(), "{url}");
                }
                assert!(check(upstream, loopback, "http://other.test/token").is_err());
                assert_eq!(
                    check(upstream, loopback, "https://id.test/token").as_deref(),
                    Ok("https://id.test/token")
                );
            }
        }
        for upstream in [
            "http://localhost:80/mcp",
            "http://127.0.0.1:3000/mcp",
            "http://127.1:3000/mcp",
            "http://[::1]:3000/mcp",
            "http://[::ffff:127.0.0.1]:3000/mcp",
        ] {
            let url = Url::parse(upstream).expect("a URL").join("/token").expect("one");
            let expected = format!("{url} own");
            assert_eq!(check(upstream, false, url.as_str()).as_deref(), Ok(&*expected));
            for url in ["http://id.test/token", "http://127.0.0.1:3001/token", "http://10.0.0.1/"] {
                assert!(check(upstream, false, url).is_err(), "{upstream}: {url}");
            }
        }
    }

    /// Network that records under which rules its servers are called.
    #[derive(Default)]
    struct Rules(Mutex<Vec<Option<AllowedAddresses>>>);

    impl HttpSend for Rules {
        fn send<'a>(
            &'a self,
            _: Request<Bytes>,
            _: usize,
            allowed: Option<&'a AllowedAddresses>,
        ) -> BoxFuture<'a, Result<Response<Bytes>, String>> {
            self.0.lock().push(allowed.cloned());
            async { Err("no server".to_owned()) }.boxed()
        }
    }

    #[tokio::test]
    async fn any_name_is_allowed_for_the_servers_that_the_operator_has_written() {
        let rules = Rules::default();
        let written = Settings {
            issuer: Some("https://id.internal/realms/a".into()),
            metadata_url: Some("https://meta.internal/x".into()),
            token_url: Some(Uri::from_static("https://KEYS.internal:8443/token")),
            ..settings()
        };
        let client = OAuthClient::new(&rules, &written);
        for (url, any_name) in [
            ("https://mcp.test/token", None),
            ("https://mcp.test:8443/token", Some(true)),
            ("https://id.internal:444/token", Some(true)),
            ("https://META.internal/", Some(true)),
            ("https://keys.internal:8443/token", Some(true)),
            ("https://a.id.internal/", Some(false)),
            ("https://internal/", Some(false)),
            ("https://id.test/", Some(false)),
        ] {
            assert!(client.send(url, Request::new(Bytes::new())).await.is_err());
            let used = rules.0.lock().pop().expect("a request");
            assert_eq!(used.map(|allowed| allowed.any_name), any_name, "{url}");
        }
    }

    /// Server that does not respond in time.
    struct Silent;

    impl HttpSend for Silent {
        fn send<'a>(
            &'a self,
            _: Request<Bytes>,
            limit: usize,
            _: Option<&'a AllowedAddresses>,
        ) -> BoxFuture<'a, Result<Response<Bytes>, String>> {
            assert!([64 * 1024, 1024 * 1024].contains(&limit));
            std::future::pending().boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_of_a_bounded_size_and_comes_within_a_bounded_time() {
        let settings = settings();
        let client = OAuthClient::new(&Silent, &settings);
        let begin = tokio::time::Instant::now();
        let response = client.send("https://id.test/", Request::new(Bytes::new())).await;
        let error = "https://id.test/: no response within 10 s".to_owned();
        assert_eq!(response.map(|_| ()), Err(OAuthError::Unavailable(error)));
        assert_eq!(begin.elapsed(), TIMEOUT);
        let (url, request) = ("https://id.test/", Request::new(Bytes::new()));
        assert!(client.send_for_tokens(url, request).await.is_err());
        assert_eq!(begin.elapsed(), TIMEOUT * 2);
    }

    #[test]
    fn unprotected_urls_of_this_machine_are_called_where_that_is_configured() {
        let local = |url| check("https://mcp.test/mcp", true, url);
        for url in ["http://localhost:3000/", "http://127.0.0.2/", "http://[::1]:1/"] {
            assert_eq!(local(url).as_deref(), Ok(url));
        }
        for url in ["http://localhost.test/", "http://10.0.0.1/", "http://0.0.0.0/"] {
            assert!(local(url).is_err(), "{url}");
        }
    }
}
