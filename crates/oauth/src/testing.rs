//! Network of tests: documents by URL, and a token endpoint.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::{Request, Response};
use url::Url;

use super::step_up::StepUp;
use super::vault::{SignInNumber, SignInRecord};
use super::{
    BearerChallenge, ClientCredential, Exchange, Grant, ReceivedBody, RegisteredClient,
    ResourceIndicator, Settings, SignIn,
};
use weir_base::net::allowed_addresses::AllowedAddresses;
use weir_base::net::http_send::HttpSend;
use weir_base::tasks::sync::Mutex;
use weir_base::time::timestamp::unix_time;

/// Scripted servers. A URL without a response has status 404.
#[derive(Default)]
pub struct Script {
    responses: Mutex<HashMap<String, Response<Bytes>>>,
    /// URLs whose response is cut off.
    cut: Mutex<HashSet<String>>,
    /// URLs whose server accepts no connection.
    unreachable: Mutex<HashSet<String>>,
    requests: Mutex<Vec<Request<Bytes>>>,
}

/// Whether the addresses are checked to which a request may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filtered(pub bool);

impl Script {
    /// Sends a document for this URL.
    pub fn document(&self, url: &str, text: &str) {
        self.respond(url, 200, text);
    }

    /// Sends a page of HTML for this URL.
    pub fn page(&self, url: &str) {
        self.respond(url, 200, "<!doctype html><title>Welcome</title>");
    }

    /// Sends an error of the server for this URL.
    pub fn fail(&self, url: &str) {
        self.respond(url, 503, "");
    }

    /// Sends this text for this URL, and no end of the response.
    pub fn cut_off(&self, url: &str, text: &str) {
        self.document(url, text);
        self.cut.lock().insert(url.to_owned());
    }

    /// Never opens a connection for this URL.
    pub fn connect_nowhere(&self, url: &str) {
        self.unreachable.lock().insert(url.to_owned());
    }

    /// Sends this status and text for this URL.
    pub fn respond(&self, url: &str, status: u16, text: &str) {
        let response = Response::builder().status(status);
        let response = response.body(Bytes::copy_from_slice(text.as_bytes())).expect("valid");
        self.responses.lock().insert(url.to_owned(), response);
    }

    /// Returns method and URL of each request so far, and forgets them.
    pub fn requests(&self) -> Vec<String> {
        let requests = self.take_requests();
        requests.iter().map(|request| format!("{} {}", request.method(), request.uri())).collect()
    }

    /// Takes the requests so far.
    pub fn take_requests(&self) -> Vec<Request<Bytes>> {
        std::mem::take(&mut self.requests.lock())
    }
}

impl HttpSend for Script {
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
pub async fn sign_in() -> SignIn {
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
pub fn signed_in(upstream: &Url, token: &str) -> SignInRecord {
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
pub fn refreshed(record: &SignInRecord, token: &str) -> SignInRecord {
    SignInRecord { access_token: token.into(), ..record.clone() }
}

/// Settings of a client with a secret, whose authorization server is discovered.
pub fn settings() -> Settings {
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

/// Sign-in record of a user.
pub fn record() -> SignInRecord {
    SignInRecord {
        number: SignInNumber::default(),
        upstream: "https://mcp.test/mcp".into(),
        url_hash: None,
        issuer: "https://id.test".into(),
        token_endpoint: "https://id.test/token".into(),
        token_endpoint_auth_methods_supported: None,
        revocation_endpoint: None,
        client_id: "weir".into(),
        is_configured_client: false,
        client_secret: Some("hunter1".into()),
        resource: Some("https://mcp.test/mcp".into()),
        scope: None,
        step_up: StepUp::default(),
        access_token: "hunter2".into(),
        expires: Some(7),
        lifetime: Some(1_000),
        refresh_token: Some("hunter3".into()),
    }
}
