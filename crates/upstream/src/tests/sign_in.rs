//! Access tokens of Weir's own in the requests to an upstream.

use std::time::Duration;

use hyper::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use hyper::{Response, Uri};
use serde_json::json;
use tokio::time::advance;
use url::Url;

use crate::health::status_report::State;
use crate::testing::{
    Exchange, SendCall, TestTransport, World, call, discovered, payload, settings,
};
use crate::{ConnectionStatus, Error, Settings, UpstreamSource};
use weir_mcp::revision::{Era, Revision};
use weir_oauth as oauth;
use weir_oauth::Grant;
use weir_oauth::testing::settings as account_settings;

const TOKEN_PATH: &str = "/token";

/// Settings of an upstream with an account, whose token endpoint is configured or discovered.
pub(super) fn with_account(token_path: Option<&str>) -> Settings {
    let mut settings = settings(TestTransport::Http);
    if let UpstreamSource::Http { url, account, .. } = &mut settings.source {
        *url = Uri::from_static("https://upstream.test/mcp?x=1");
        let upstream = Url::parse(&url.to_string()).expect("a URL");
        let at_upstream = |path: &str| {
            upstream.join(path).expect("a path").as_str().parse::<Uri>().expect("a URL")
        };
        let token_url = token_path.map(at_upstream);
        *account = Some(Box::new(oauth::Settings { token_url, upstream, ..account_settings() }));
    }
    settings
}

fn authorization(request: &Exchange) -> Option<&str> {
    request.headers.get(AUTHORIZATION).map(|value| value.to_str().expect("text"))
}

impl World {
    /// Responds to the request for a token.
    async fn issue(&mut self, token: &str, seconds: u64) {
        let request = self.post().await;
        assert_eq!(request.uri, TOKEN_PATH);
        assert_eq!(authorization(&request), Some("Basic d2VpcjpodW50ZXIy"));
        request.json(
            200,
            json!({ "access_token": token, "token_type": "Bearer", "expires_in": seconds }),
        );
    }

    /// Returns the next message, which must have this token.
    async fn post_with(&mut self, token: &str) -> Exchange {
        let request = self.post().await;
        assert_eq!(request.uri, "/mcp?x=1");
        assert_eq!(authorization(&request), Some(&*format!("Bearer {token}")));
        request
    }
}

fn refuse_token(request: Exchange) {
    let challenge = "Bearer error=\"invalid_token\"";
    request.reply(Response::builder().status(401).header(WWW_AUTHENTICATE, challenge), "");
}

#[tokio::test(start_paused = true)]
async fn every_request_has_a_token_from_the_handshake_on() {
    for era in [Era::Modern, Era::Legacy] {
        let mut world = World::start(with_account(Some(TOKEN_PATH)));
        world.issue("first", 1_000).await;
        let discover = world.post_with("first").await;
        if era == Era::Modern {
            discover.answer(discovered());
        } else {
            discover.status(400);
            let initialize = world.post_with("first").await;
            let id = initialize.id();
            let result = crate::testing::initialized("2025-11-25");
            initialize.json(200, json!({ "jsonrpc": "2.0", "id": id, "result": result }));
            world.post_with("first").await.status(202);
        }
        world.up().await;
        let (upstream, revision) = (world.upstream.clone(), Revision::NEWEST);
        let answer = async {
            world.post_with("first").await.answer(json!({ "content": [] }));
            // The token is renewed beside the next call, which does not wait for that.
            advance(Duration::from_secs(801)).await;
        };
        let (reply, ()) = tokio::join!(upstream.send(call(revision)), answer);
        assert_eq!(payload(reply.expect("a reply")).await, r#"{"content":[]}"#);
        let answer = async {
            let first = world.post().await;
            let second = world.post().await;
            let (token, call) =
                if first.uri == TOKEN_PATH { (first, second) } else { (second, first) };
            assert_eq!(authorization(&call), Some("Bearer first"));
            call.answer(json!({ "content": [] }));
            token.json(200, json!({ "access_token": "second", "token_type": "Bearer" }));
        };
        let (reply, ()) = tokio::join!(upstream.send(call(revision)), answer);
        reply.expect("a reply");
        assert!(world.is_quiet().await);
        let answer = async {
            world.post_with("second").await.answer(json!({ "content": [] }));
        };
        let (reply, ()) = tokio::join!(upstream.send(call(revision)), answer);
        reply.expect("a reply");
        drop(upstream);
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_token_is_refused_is_sent_once_more_with_a_new_one() {
    let mut world = World::start(with_account(Some(TOKEN_PATH)));
    world.issue("first", 1_000).await;
    world.post_with("first").await.answer(discovered());
    world.up().await;
    let upstream = world.upstream.clone();
    let answer = async {
        let refused = world.post_with("first").await;
        let body = refused.body.clone();
        refuse_token(refused);
        world.issue("second", 1_000).await;
        let again = world.post_with("second").await;
        // The server has not read the first message, so this is no second request.
        assert_eq!(again.body, body);
        again.answer(json!({ "content": [] }));
    };
    let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
    assert_eq!(payload(reply.expect("a reply")).await, r#"{"content":[]}"#);
    // The session goes on.
    assert!(matches!(&*world.upstream.status().borrow(), ConnectionStatus::Up(_)));
    assert!(world.is_quiet().await);
    drop(upstream);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_with_a_new_token_ends_alone_and_opens_no_breaker() {
    let mut world = World::start(with_account(Some(TOKEN_PATH)));
    world.issue("first", 10_000).await;
    world.post_with("first").await.answer(discovered());
    world.up().await;
    let upstream = world.upstream.clone();
    let expected = "no access token: the upstream refuses an access token that is new";
    let is_expected = |error: &Error| matches!(error, Error::Unavailable(text) if text == expected);
    let answer = async {
        refuse_token(world.post_with("first").await);
        world.issue("second", 10_000).await;
        refuse_token(world.post_with("second").await);
    };
    let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
    assert!(reply.as_ref().is_err_and(is_expected), "{reply:?}");
    // No further token is requested for such requests.
    for _ in 0..100 {
        let answer = async { refuse_token(world.post_with("second").await) };
        let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
        assert!(reply.as_ref().is_err_and(is_expected), "{reply:?}");
    }
    let answer = async {
        world.post_with("second").await.answer(json!({ "content": [] }));
    };
    let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
    reply.expect("the breaker has admitted it");
    assert!(world.is_quiet().await);
    drop(upstream);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_hour_without_an_authorization_server_opens_no_breaker() {
    let mut world = World::start(with_account(Some(TOKEN_PATH)));
    world.issue("first", 10).await;
    world.post_with("first").await.answer(discovered());
    world.up().await;
    let upstream = world.upstream.clone();
    for _ in 0..48 {
        // Longer than each pause.
        advance(Duration::from_secs(75)).await;
        let answer = async {
            let request = world.post().await;
            assert_eq!(request.uri, TOKEN_PATH);
            request.status(500);
        };
        let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
        assert!(matches!(reply, Err(Error::Unavailable(_))), "{reply:?}");
        // The others fail at once.
        for _ in 0..10 {
            let reply = upstream.send(call(Revision::NEWEST)).await;
            assert!(matches!(reply, Err(Error::Unavailable(_))), "{reply:?}");
        }
    }
    assert_eq!(upstream.report().counts.breaker_opens, 0);
    advance(Duration::from_secs(75)).await;
    let answer = async {
        world.issue("second", 1_000).await;
        world.post_with("second").await.answer(json!({ "content": [] }));
    };
    let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
    reply.expect("a reply");
    drop(upstream);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_needs_more_scopes_is_sent_once_more_with_them() {
    let mut world = World::start(with_account(Some(TOKEN_PATH)));
    world.issue("narrow", 1_000).await;
    world.post_with("narrow").await.answer(discovered());
    world.up().await;
    let upstream = world.upstream.clone();
    let demand = |request: Exchange, scope: &str| {
        let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"");
        request.reply(Response::builder().status(403).header(WWW_AUTHENTICATE, challenge), "");
    };
    let answer = async {
        demand(world.post_with("narrow").await, "write");
        world.issue("wide", 1_000).await;
        world.post_with("wide").await.answer(json!({ "content": [] }));
    };
    let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
    reply.expect("a reply");
    // A demand that a token cannot meet ends the request alone, and is not repeated.
    for _ in 0..100 {
        let answer = async { demand(world.post_with("wide").await, "write") };
        let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
        let expected = "no access token: the upstream demands write, a scope that was requested";
        let is_expected =
            |error: &Error| matches!(error, Error::Unavailable(text) if text.starts_with(expected));
        assert!(reply.as_ref().is_err_and(is_expected), "{reply:?}");
    }
    // Another 403 is the server's own response.
    let answer = async { world.post_with("wide").await.status(403) };
    let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
    assert!(matches!(reply, Err(Error::HttpStatus { .. })), "{reply:?}");
    assert_eq!(upstream.report().state, State::Up);
    assert!(world.is_quiet().await);
    drop(upstream);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_upstream_to_which_no_user_is_signed_in_needs_that_and_is_not_down() {
    let mut settings = with_account(None);
    if let UpstreamSource::Http { account: Some(account), .. } = &mut settings.source {
        account.grant = Grant::AuthorizationCode { client: None };
    }
    let mut world = World::start(settings);
    let name = world.upstream.name().to_string();
    let needed = format!("sign in with `weir login {name}`");
    assert_eq!(world.down().await, format!("no access token: {needed}"));
    let report = world.upstream.report();
    assert_eq!((report.state, report.reason), (State::NeedsSignIn, Some(needed)));
    let refused = world.upstream.send(call(Revision::NEWEST)).await;
    assert!(matches!(refused, Err(Error::SignInNeeded(_))), "{refused:?}");
    assert_eq!(report.counts.breaker_opens, 0);
    assert!(world.is_quiet().await, "nothing is sent without a token");
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_refusal_leads_to_the_authorization_server() {
    let mut world = World::start(with_account(None));
    let discover = world.post().await;
    assert_eq!(authorization(&discover), None);
    let challenge = "Bearer resource_metadata=\"https://upstream.test/meta\", scope=\"a b\"";
    discover.reply(Response::builder().status(401).header(WWW_AUTHENTICATE, challenge), "");
    let metadata = world.request().await;
    assert_eq!((metadata.uri.path(), authorization(&metadata)), ("/meta", None));
    metadata.json(
        200,
        json!({ "resource": "https://upstream.test/", "authorization_servers": ["https://upstream.test/as"] }),
    );
    let metadata = world.request().await;
    assert_eq!(metadata.uri, "/.well-known/oauth-authorization-server/as");
    let (issuer, token_endpoint) = ("https://upstream.test/as", "https://upstream.test/token");
    metadata.json(200, json!({ "issuer": issuer, "token_endpoint": token_endpoint }));
    world.issue("first", 1_000).await;
    world.post_with("first").await.answer(discovered());
    world.up().await;
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_upstream_without_a_token_is_down_for_a_reason_that_names_no_secret() {
    let mut world = World::start(with_account(Some(TOKEN_PATH)));
    let request = world.post().await;
    let refusal = json!({ "error": "invalid_client", "error_description": "hunter2 is wrong" });
    request.json(401, refusal);
    assert_eq!(
        world.down().await,
        "no access token: https://upstream.test/token refuses the request: invalid_client: *** is \
         wrong"
    );
    // The authorization server is not asked again with each attempt to connect.
    advance(Duration::from_secs(40)).await;
    assert!(world.is_quiet().await);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_that_the_server_repeats_does_not_reach_the_client() {
    let token = "canary-of-an-access-token";
    let mut world = World::start(with_account(Some(TOKEN_PATH)));
    world.issue(token, 1_000).await;
    world.post_with(token).await.answer(discovered());
    world.up().await;
    let upstream = world.upstream.clone();
    let answer = async {
        let text = format!("you sent Bearer {token}, did you?");
        world.post_with(token).await.answer(json!({ "content": [], "text": text }));
    };
    let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
    let shown = payload(reply.expect("a reply")).await;
    let hidden = "*".repeat(token.len());
    assert_eq!(shown, format!(r#"{{"content":[],"text":"you sent Bearer {hidden}, did you?"}}"#));
    // A challenge that repeats it is not read: it would be shown to the operator, and requested.
    let quoted_pairs: String = token.chars().flat_map(|c| ['\\', c]).collect();
    for repeated in [token, &*quoted_pairs] {
        let answer = async {
            let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{repeated}\"");
            let response = Response::builder().status(403).header(WWW_AUTHENTICATE, challenge);
            world.post_with(token).await.reply(response, "");
        };
        let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
        assert!(matches!(reply, Err(Error::HttpStatus { .. })), "{repeated}: {reply:?}");
    }
    // A header that repeats it is not shown, either.
    let answer = async {
        let response = Response::builder().header("content-type", format!("{token};a=b"));
        world.post_with(token).await.reply(response, "");
    };
    let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
    let Err(error) = reply.map(drop) else { panic!("it is no response") };
    let error = error.to_string();
    assert!(error.contains("unexpected content type ***"), "{error}");
    world.check().await.answer(discovered());
    assert!(world.is_quiet().await);
    drop(upstream);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_that_an_event_stream_repeats_in_pieces_does_not_reach_the_client() {
    let token = format!("canary/{}", "0123456789abcdef".repeat(1000));
    let mut world = World::start(with_account(Some(TOKEN_PATH)));
    world.issue(&token, 1_000).await;
    world.post_with(&token).await.answer(discovered());
    world.up().await;
    let upstream = world.upstream.clone();
    let spelled = token.replacen('/', r"\/", 1).replacen("c", r"\u0063", 1);
    let answer = async {
        let request = world.post_with(&token).await;
        let id = request.id();
        let text = format!("{token}, {spelled}");
        let body = format!(
            "data: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[],\"text\":\"{text}\"}}}}\n\n"
        );
        let events = request.events();
        for piece in body.as_bytes().chunks(4_000) {
            events.raw(piece.to_vec());
        }
    };
    let (reply, ()) = tokio::join!(upstream.send(call(Revision::NEWEST)), answer);
    let shown = payload(reply.expect("a reply")).await;
    let [token, spelled] = [&token, &spelled].map(|text| "*".repeat(text.len()));
    assert_eq!(shown, format!(r#"{{"content":[],"text":"{token}, {spelled}"}}"#));
    assert!(world.is_quiet().await);
    drop(upstream);
    world.finish().await;
}
