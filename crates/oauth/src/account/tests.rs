//! Tests of accounts: a script is the network.

mod refusals;
mod scopes;
mod server_binding;
mod sign_in;
mod sign_in_refresh;

use std::path::Path;

use futures::FutureExt;
use hyper::Uri;

use super::*;
use crate::testing::{Script, record, settings};
use crate::vault::{SignInRecord, Vault};
use crate::{ClientCredential, Grant, RegisteredClient};
use weir_base::time::timestamp::unix_time;

const TOKEN_URL: &str = "https://id.test/token";

/// Account with a configured token endpoint, and its network.
fn account() -> (Arc<Account>, Arc<Script>) {
    let token_url = Some(Uri::from_static(TOKEN_URL));
    open(Settings { token_url, ..settings() })
}

fn open(settings: Settings) -> (Arc<Account>, Arc<Script>) {
    let script = Arc::new(Script::default());
    let (http, tracker) = (Arc::clone(&script), TaskTracker::new());
    let (name, stop) = ("hub".to_owned(), CancellationToken::new());
    (Account::new(name, settings, http, tracker, stop), script)
}

/// Account of a user whose vault is in this folder.
fn of_user(state: &tempfile::TempDir) -> (Arc<Account>, Arc<Script>) {
    open(Settings {
        grant: Grant::AuthorizationCode { client: None },
        state: Some(state.path().into()),
        ..settings()
    })
}

fn issue(script: &Script, token: &str, seconds: u64) {
    let text =
        format!(r#"{{"access_token":"{token}","token_type":"Bearer","expires_in":{seconds}}}"#);
    script.document(TOKEN_URL, &text);
}

/// Signs in as another process, such as `weir login`, does.
async fn keep(state: &tempfile::TempDir, record: &SignInRecord) -> Vault {
    let _ = Vault::sign_in(state.path(), "hub", record.clone()).await.expect("written");
    Vault::open(state.path()).expect("a vault")
}

fn fresh() -> SignInRecord {
    SignInRecord { expires: Some(unix_time().as_secs() + 1_000), ..record() }
}

fn sent(token: &AccessToken) -> String {
    assert!(token.authorization().is_sensitive());
    token.authorization().to_str().expect("text").to_owned()
}

async fn token(account: &Arc<Account>) -> Result<Option<String>, OAuthError> {
    account.token().await.map(|token| token.as_ref().map(sent))
}

async fn refresh(account: &Arc<Account>, token: &AccessToken) -> Result<String, OAuthError> {
    let refreshed = account.refresh(Some(token), BearerChallenge::default()).await;
    refreshed.as_ref().map(sent).map_err(Clone::clone)
}

#[tokio::test(start_paused = true)]
async fn a_token_is_refreshed_before_it_expires_and_no_request_waits_for_that() {
    let (account, script) = account();
    issue(&script, "first", 100);
    let all = futures::future::join_all((0..50).map(|_| token(&account))).await;
    assert!(all.iter().all(|it| it == &Ok(Some("Bearer first".into()))), "{all:?}");
    assert_eq!(script.requests(), [format!("POST {TOKEN_URL}")]);
    issue(&script, "second", 100);
    tokio::time::advance(Duration::from_secs(79)).await;
    assert_eq!(token(&account).await, Ok(Some("Bearer first".into())));
    assert!(script.requests().is_empty());
    tokio::time::advance(Duration::from_secs(2)).await;
    let all = futures::future::join_all((0..50).map(|_| token(&account))).await;
    assert!(all.iter().all(|it| it == &Ok(Some("Bearer first".into()))), "{all:?}");
    let refresh = account.state.lock().running.clone().expect("it runs");
    refresh.await.expect("refreshed");
    assert_eq!(token(&account).await, Ok(Some("Bearer second".into())));
    assert_eq!(script.requests(), [format!("POST {TOKEN_URL}")]);
    // Nothing was requested for so long that it has expired.
    issue(&script, "third", 100);
    tokio::time::advance(Duration::from_secs(200)).await;
    assert_eq!(token(&account).await, Ok(Some("Bearer third".into())));
}

#[tokio::test(start_paused = true)]
async fn a_valid_token_outlives_an_hour_of_errors_and_an_expired_one_fails_fast() {
    let (account, script) = account();
    issue(&script, "first", 5_000);
    token(&account).await.expect("issued");
    script.requests();
    script.fail(TOKEN_URL);
    tokio::time::advance(Duration::from_secs(4_001)).await;
    for _ in 0..900 {
        assert_eq!(token(&account).await, Ok(Some("Bearer first".into())));
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!((15..40).contains(&script.requests().len()));
    tokio::time::advance(Duration::from_secs(100)).await;
    let expected = format!("{TOKEN_URL}: the response status is 503 Service Unavailable");
    for _ in 0..2_700 {
        assert_eq!(token(&account).await, Err(OAuthError::Unavailable(expected.clone())));
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!((40..80).contains(&script.requests().len()));
    issue(&script, "second", 100);
    tokio::time::advance(Duration::from_secs(75)).await;
    assert_eq!(token(&account).await, Ok(Some("Bearer second".into())));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_outlives_the_request_that_started_it_and_ends_with_weir() {
    let (account, script) = account();
    issue(&script, "first", 100);
    let mut request = std::pin::pin!(account.token());
    assert!(futures::poll!(&mut request).is_pending());
    let refresh = account.state.lock().running.clone().expect("it runs");
    // The request is not polled any more.
    assert_eq!(refresh.await.as_ref().map(sent), Ok("Bearer first".into()));
    let (account, _) = self::account();
    account.client.stop.cancel();
    assert_eq!(token(&account).await, Err(stopping()));
}

#[test]
fn a_refresh_outlives_the_runtime_of_the_request_that_started_it() {
    let runtime = || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a runtime")
    };
    let (program, worker) = (runtime(), runtime());
    let (account, script) = program.block_on(async { account() });
    issue(&script, "first", 100);
    worker.block_on(async { assert!(account.token().now_or_never().is_none()) });
    drop(worker);
    assert_eq!(program.block_on(token(&account)), Ok(Some("Bearer first".into())));
}
