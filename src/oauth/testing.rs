//! Network of tests: documents by URL, and a token endpoint.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::{Request, Response};
use url::Url;

use super::vault::tests::record;
use super::vault::{SignInNumber, SignInRecord};
use super::{
    BearerChallenge, ClientCredential, Exchange, Grant, OAuthHttp, ReceivedBody, RegisteredClient,
    ResourceIndicator, Settings, SignIn,
};
use crate::allowed_addresses::AllowedAddresses;
use crate::sync::Mutex;
use crate::timestamp::unix_time;

/// Scripted servers. A URL without a response has status 404.
#[derive(Default)]
pub(super) struct Script {
    responses: Mutex<HashMap<String, Response<Bytes>>>,
    /// URLs whose response is cut off.
    cut: Mutex<HashSet<String>>,
    /// URLs whose server accepts no connection.
    unreachable: Mutex<HashSet<String>>,
    requests: Mutex<Vec<Request<Bytes>>>,
}

/// Whether the addresses are checked to which a request may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Filtered(pub(super) bool);

impl Script {
    pub(super) fn document(&self, url: &str, text: &str) {
        self.respond(url, 200, text);
    }

    /// Sends a page of HTML for this URL.
    pub(super) fn page(&self, url: &str) {
        self.respond(url, 200, "<!doctype html><title>Welcome</title>");
    }

    pub(super) fn fail(&self, url: &str) {
        self.respond(url, 503, "");
    }

    /// Sends this text for this URL, and no end of the response.
    pub(super) fn cut_off(&self, url: &str, text: &str) {
        self.document(url, text);
        self.cut.lock().insert(url.to_owned());
    }

    /// Never opens a connection for this URL.
    pub(super) fn connect_nowhere(&self, url: &str) {
        self.unreachable.lock().insert(url.to_owned());
    }

    pub(super) fn respond(&self, url: &str, status: u16, text: &str) {
        let response = Response::builder().status(status);
        let response = response.body(Bytes::copy_from_slice(text.as_bytes())).expect("valid");
        self.responses.lock().insert(url.to_owned(), response);
    }

    /// Returns method and URL of each request so far, and forgets them.
    pub(super) fn requests(&self) -> Vec<String> {
        let requests = self.take_requests();
        requests.iter().map(|request| format!("{} {}", request.method(), request.uri())).collect()
    }

    pub(super) fn take_requests(&self) -> Vec<Request<Bytes>> {
        std::mem::take(&mut self.requests.lock())
    }
}

impl OAuthHttp for Script {
    fn send<'a>(
        &'a self,
        mut request: Request<Bytes>,
        _: usize,
        allowed: Option<&'a AllowedAddresses>,
    ) -> BoxFuture<'a, Result<Response<Bytes>, String>> {
        if self.unreachable.lock().contains(&request.uri().to_string()) {
            self.requests.lock().push(request);
            return std::future::pending().boxed();
        }
        if let Err(error) = Exchange::begin(&mut request) {
            return std::future::ready(Err(error)).boxed();
        }
        let response = self.responses.lock().get(&request.uri().to_string()).cloned();
        let is_cut = self.cut.lock().contains(&request.uri().to_string());
        let received = request.extensions_mut().remove::<ReceivedBody>().filter(|_| is_cut);
        if let (Some(received), Some(response)) = (received, &response) {
            let _ = received.append(response.body(), usize::MAX);
        }
        request.extensions_mut().insert(Filtered(allowed.is_some()));
        self.requests.lock().push(request);
        let not_found = || Response::builder().status(404).body(Bytes::new()).expect("valid");
        async move {
            // Other tasks may run meanwhile.
            tokio::task::yield_now().await;
            match is_cut {
                true => Err("the connection was closed".into()),
                false => Ok(response.unwrap_or_else(not_found)),
            }
        }
        .boxed()
    }
}

/// Sign-in that waits for the response of a scripted server.
pub(crate) async fn sign_in() -> SignIn {
    let script = Script::default();
    script.document(
        "https://mcp.test/.well-known/oauth-authorization-server",
        r#"{"issuer":"https://mcp.test","authorization_endpoint":"https://mcp.test/authorize",
        "token_endpoint":"https://mcp.test/token","registration_endpoint":"https://mcp.test/register",
        "code_challenge_methods_supported":["S256"]}"#,
    );
    script.respond("https://mcp.test/register", 201, r#"{"client_id":"new"}"#);
    let settings = Settings { grant: Grant::AuthorizationCode { client: None }, ..settings() };
    let (challenge, uri) = (BearerChallenge::default(), "http://127.0.0.1:7/callback".to_owned());
    SignIn::begin(&script, "hub", &settings, &challenge, uri, None).await.expect("it begins")
}

/// A new sign-in of a user to this upstream, with this token.
pub(crate) fn signed_in(upstream: &Url, token: &str) -> SignInRecord {
    SignInRecord {
        number: SignInNumber::random(),
        upstream: upstream.to_string(),
        resource: Some(upstream.to_string()),
        access_token: token.into(),
        expires: Some(unix_time().as_secs() + 10_000),
        lifetime: Some(10_000),
        ..record()
    }
}

/// Record of one sign-in with another token.
pub(crate) fn renewed(record: &SignInRecord, token: &str) -> SignInRecord {
    SignInRecord { access_token: token.into(), ..record.clone() }
}

/// Settings of a client with a secret, whose authorization server is discovered.
pub(crate) fn settings() -> Settings {
    Settings {
        upstream: Url::parse("https://mcp.test/mcp").expect("a URL"),
        url_hash: "hash".into(),
        grant: Grant::ClientCredentials(RegisteredClient {
            id: "weir".into(),
            credential: ClientCredential::Secret("hunter2".into()),
        }),
        client_metadata_url: None,
        state: None,
        issuer: None,
        metadata_url: None,
        metadata_issuer: None,
        token_url: None,
        scopes: None,
        resource: ResourceIndicator::Auto,
        assumes_pkce: false,
        params: Vec::new(),
        allowed: AllowedAddresses::default(),
    }
}
