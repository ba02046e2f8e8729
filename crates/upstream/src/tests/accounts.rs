//! Change of the account at an upstream, while sessions, streams and calls of the former one go on.

use std::path::Path;
use std::time::Duration;

use hyper::header::AUTHORIZATION;
use hyper::{Method, Response};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::testing::{Exchange, SendCall, World, call, discovered, initialized, payload};
use crate::tests::sign_in::with_account;
use crate::{ConnectionStatus, Error, Settings, UpstreamSource};
use weir_mcp::call::{CallContext, UpstreamRequest};
use weir_mcp::input_request::ClientFeatures;
use weir_mcp::revision::{Era, Revision};
use weir_oauth::testing::{refreshed, signed_in};
use weir_oauth::{Grant, SignInRecord, Vault};

type Going = JoinHandle<Result<String, Error>>;

/// State folder, and an upstream to which users sign in.
struct Installation {
    state: tempfile::TempDir,
    settings: Settings,
}

impl Installation {
    fn new() -> Self {
        let state = tempfile::tempdir().expect("a folder");
        let mut settings = with_account(None);
        let UpstreamSource::Http { account: Some(account), .. } = &mut settings.source else {
            unreachable!("it has an account");
        };
        account.grant = Grant::AuthorizationCode { client: None };
        account.state = Some(state.path().to_owned());
        Self { state, settings }
    }

    /// Signs in as `weir login` does, and returns the record.
    async fn sign_in(&self, token: &str) -> SignInRecord {
        let UpstreamSource::Http { account: Some(account), .. } = &self.settings.source else {
            unreachable!("it has an account");
        };
        let record = signed_in(&account.upstream, token);
        self.keep(&record).await;
        record
    }

    async fn keep(&self, record: &SignInRecord) {
        let name = self.settings.name.as_str();
        let _ = Vault::sign_in(self.path(), name, record.clone()).await.expect("written");
    }

    async fn sign_out(&self) {
        let _ = Vault::sign_out(self.path(), self.settings.name.as_str()).await.expect("removed");
    }

    fn path(&self) -> &Path {
        self.state.path()
    }

    /// Starts the upstream, whose server has connected in this era with the session `s1`.
    async fn open(&self, era: Era, token: &str) -> World {
        let mut world = World::start(self.settings.clone());
        let discover = next(&mut world, "server/discover", token, None).await;
        match era {
            Era::Modern => discover.answer(discovered()),
            Era::Legacy => {
                discover.status(400);
                accept(&mut world, token, "s1").await;
            }
        }
        world.up().await;
        world
    }
}

/// Returns the next message, which must be of this method, account and session.
async fn next(world: &mut World, method: &str, token: &str, session: Option<&str>) -> Exchange {
    let request = world.post().await;
    assert_eq!(request.body["method"], method, "{}", request.body);
    assert_eq!(request.headers[AUTHORIZATION], format!("Bearer {token}"));
    let found = request.headers.get("mcp-session-id").map(|it| it.to_str().expect("text"));
    assert_eq!(found, session);
    request
}

/// Accepts a legacy handshake with this token.
async fn accept(world: &mut World, token: &str, session: &str) {
    let initialize = next(world, "initialize", token, None).await;
    let body =
        json!({ "jsonrpc": "2.0", "id": initialize.id(), "result": initialized("2025-11-25") });
    let response = Response::builder()
        .header("content-type", "application/json")
        .header("mcp-session-id", session);
    initialize.reply(response, body.to_string());
    next(world, "notifications/initialized", token, Some(session)).await.status(202);
}

fn start(world: &World, request: Box<UpstreamRequest>) -> Going {
    let upstream = world.upstream.clone();
    tokio::spawn(async move { Ok(payload(upstream.send(request).await?).await) })
}

async fn end(going: Going) -> Result<String, Error> {
    going.await.expect("no panic")
}

/// Call of a client that declares other capabilities than Weir's own session.
fn of_roots() -> Box<UpstreamRequest> {
    let caller = CallContext {
        features: ClientFeatures { roots: true, ..ClientFeatures::default() },
        capabilities: r#"{"roots":{}}"#.into(),
        ..CallContext::without_features(Revision::NEWEST_LEGACY)
    };
    Box::new(UpstreamRequest { caller: Box::new(caller), ..*call(Revision::NEWEST_LEGACY) })
}

/// Time within which another sign-in is noticed.
const NOTICED: Duration = Duration::from_secs(2);

#[tokio::test(start_paused = true)]
async fn another_sign_in_ends_sessions_and_streams_and_calls_in_flight_end_by_themselves() {
    let installation = Installation::new();
    installation.sign_in("first").await;
    let mut world = installation.open(Era::Legacy, "first").await;
    let going = start(&world, of_roots());
    accept(&mut world, "first", "s2").await;
    let shared_call = next(&mut world, "tools/call", "first", Some("s2")).await;
    let main = start(&world, call(Revision::NEWEST));
    let main_call = next(&mut world, "tools/call", "first", Some("s1")).await;

    installation.sign_in("second").await;
    // Without any call: the stream of the session ends, and another session is opened.
    sleep(NOTICED).await;
    accept(&mut world, "second", "s3").await;
    shared_call.answer(json!({ "of": "first" }));
    main_call.answer(json!({ "of": "first" }));
    assert_eq!(end(going).await.expect("a reply"), r#"{"of":"first"}"#);
    assert_eq!(end(main).await.expect("a reply"), r#"{"of":"first"}"#);

    let going = start(&world, call(Revision::NEWEST));
    next(&mut world, "tools/call", "second", Some("s3")).await.answer(json!({}));
    end(going).await.expect("a reply");
    let going = start(&world, of_roots());
    accept(&mut world, "second", "s4").await;
    next(&mut world, "tools/call", "second", Some("s4")).await.answer(json!({}));
    end(going).await.expect("a reply");
    assert!(world.is_quiet().await);
    world.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_stream_of_a_session_ends_with_its_sign_in() {
    for is_signed_out in [false, true] {
        let installation = Installation::new();
        installation.sign_in("first").await;
        let mut world = installation.open(Era::Legacy, "first").await;
        // The first stream was refused by this server, and another one is tried.
        let stream = loop {
            let request = world.request().await;
            if request.method == Method::GET {
                assert_eq!(request.headers[AUTHORIZATION], "Bearer first");
                break request.events();
            }
        };
        match is_signed_out {
            true => installation.sign_out().await,
            false => drop(installation.sign_in("second").await),
        }
        stream.closed().await;
        if is_signed_out {
            let refused = end(start(&world, call(Revision::NEWEST))).await;
            assert!(matches!(refused, Err(Error::SignInNeeded(_))), "{refused:?}");
            assert!(world.is_quiet().await);
            installation.sign_in("second").await;
        }
        accept(&mut world, "second", "s2").await;
        world.up().await;
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_former_sign_in_is_not_repeated_with_another_account() {
    // A session that is lost before the other sign-in is noticed is replaced by one of the former.
    let cases = [(Era::Legacy, 401, false), (Era::Legacy, 401, true), (Era::Legacy, 404, true)];
    let modern = [(Era::Modern, 401, false), (Era::Modern, 401, true)];
    for (era, status, is_noticed) in cases.into_iter().chain(modern) {
        let installation = Installation::new();
        installation.sign_in("first").await;
        let mut world = installation.open(era, "first").await;
        let going = start(&world, call(Revision::NEWEST));
        let session = (era == Era::Legacy).then_some("s1");
        let request = next(&mut world, "tools/call", "first", session).await;
        installation.sign_in("second").await;
        if is_noticed {
            sleep(NOTICED).await;
            reopen(&mut world, era).await;
        }
        request.status(status);
        if !is_noticed {
            sleep(NOTICED).await;
            reopen(&mut world, era).await;
        }
        let failed = end(going).await;
        assert!(matches!(failed, Err(Error::Unavailable(_))), "{era:?} {status}: {failed:?}");
        assert!(world.is_quiet().await, "{era:?} {status}");
        world.finish().await;
    }
}

/// Accepts the connection of the second sign-in.
async fn reopen(world: &mut World, era: Era) {
    match era {
        Era::Legacy => accept(world, "second", "s2").await,
        Era::Modern => {
            next(world, "server/discover", "second", None).await.answer(discovered());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_binds_sessions_to_users_is_usable_for_the_next_one() {
    // Such a server refuses the session of another user in words of its own.
    for is_called_first in [false, true] {
        let installation = Installation::new();
        installation.sign_in("first").await;
        let mut world = installation.open(Era::Legacy, "first").await;
        installation.sign_in("second").await;
        if !is_called_first {
            sleep(NOTICED).await;
        }
        // The call itself may be the first to notice; nothing of it goes into the former session.
        sleep(Duration::from_millis(1_001)).await;
        let going = start(&world, call(Revision::NEWEST));
        accept(&mut world, "second", "s2").await;
        next(&mut world, "tools/call", "second", Some("s2")).await.answer(json!({}));
        end(going).await.expect("a reply");
        assert!(world.is_quiet().await);
        world.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_rotated_token_and_a_sign_in_that_ran_out_end_no_session() {
    let installation = Installation::new();
    let first = installation.sign_in("first").await;
    let mut world = installation.open(Era::Legacy, "first").await;
    // Another process has refreshed it.
    installation.keep(&refreshed(&first, "rotated")).await;
    sleep(NOTICED).await;
    let going = start(&world, call(Revision::NEWEST));
    next(&mut world, "tools/call", "rotated", Some("s1")).await.answer(json!({}));
    end(going).await.expect("a reply");
    // The upstream refuses the token, and there is no other one.
    let going = start(&world, call(Revision::NEWEST));
    next(&mut world, "tools/call", "rotated", Some("s1")).await.status(401);
    let token = world.post().await;
    assert!(token.uri.path().ends_with("/token"), "{}", token.uri);
    token.json(400, json!({ "error": "invalid_grant" }));
    let refused = end(going).await;
    assert!(matches!(refused, Err(Error::SignInNeeded(_))), "{refused:?}");
    sleep(NOTICED).await;
    assert!(matches!(&*world.upstream.status().borrow(), ConnectionStatus::Up(_)));
    assert_eq!(world.upstream.sign_in(), Some(first.number()));
    assert!(world.is_quiet().await);
    world.finish().await;
}
