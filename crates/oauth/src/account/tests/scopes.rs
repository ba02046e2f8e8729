//! Tests of scopes that the upstream demands.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_machine_follows_a_demand_for_scopes_and_keeps_them() {
    let (account, script) = account();
    let demand = |scope: &str| BearerChallenge {
        scope: Some(scope.into()),
        error: Some("insufficient_scope".into()),
        ..BearerChallenge::default()
    };
    let requested = || {
        let request = script.take_requests().pop().expect("a request");
        let form = url::form_urlencoded::parse(request.body()).into_owned();
        form.into_iter().find(|(name, _)| name == "scope").map(|(_, scope)| scope)
    };
    issue(&script, "first", 100);
    let first = account.token().await.expect("issued").expect("a token");
    assert_eq!(requested(), None);
    issue(&script, "second", 100);
    let refreshes = (0..50).map(|_| account.refresh(Some(&first), demand("a b")));
    let all = futures::future::join_all(refreshes).await;
    assert!(all.iter().all(|it| it.as_ref().map(sent) == Ok("Bearer second".into())));
    assert_eq!(requested().as_deref(), Some("a b"));
    let second = account.token().await.expect("issued").expect("a token");
    // What was requested does not help; something else is requested with it.
    let refused = account.reject(&second, &demand("b")).await;
    let expected = "the upstream demands b, a scope that was requested, and was not granted or \
                    is not enough";
    assert_eq!(refused.to_string(), expected);
    let refused = account.refresh(Some(&second), demand("b")).await.map(|token| sent(&token));
    assert_eq!(refused, Err(OAuthError::Refused(expected.into())));
    assert!(script.requests().is_empty());
    issue(&script, "third", 100);
    let third = account.refresh(Some(&second), demand("c")).await.expect("issued");
    assert_eq!(requested().as_deref(), Some("a b c"));
    let refused = account.refresh(Some(&third), demand("d")).await;
    assert!(refused.is_err_and(|error| error.to_string().ends_with("try again in 10 min")));
    tokio::time::advance(Duration::from_secs(81)).await;
    issue(&script, "fourth", 100);
    token(&account).await.expect("valid");
    let refresh = account.state.lock().running.clone().expect("it runs");
    refresh.await.expect("refreshed");
    assert_eq!(requested().as_deref(), Some("a b c"));
}

#[tokio::test(start_paused = true)]
async fn requests_with_the_same_demand_share_a_token_and_none_joins_a_refresh_without_it() {
    let (account, script) = account();
    let demand = BearerChallenge {
        scope: Some("c".into()),
        error: Some("insufficient_scope".into()),
        ..BearerChallenge::default()
    };
    issue(&script, "first", 100);
    let first = account.token().await.expect("issued").expect("a token");
    tokio::time::advance(Duration::from_secs(85)).await;
    script.requests();
    issue(&script, "second", 100);
    account.token().await.expect("still valid");
    let (one, other) = tokio::join!(
        account.refresh(Some(&first), demand.clone()),
        account.refresh(Some(&first), demand.clone())
    );
    let [one, other] = [one, other].map(|refreshed| refreshed.expect("issued").number());
    assert_eq!((one, other), (first.number().next().next(), one));
    let requests = script.take_requests();
    let scopes: Vec<_> = requests
        .iter()
        .map(|request| String::from_utf8_lossy(request.body()).contains("scope=c"))
        .collect();
    assert_eq!(scopes, [false, true]);
    // What cannot be followed is recorded once.
    let third = account.token().await.expect("there").expect("a token");
    let mut outcomes = account.outcomes();
    for is_new in [true, false] {
        account.reject(&third, &demand).await;
        assert_eq!(outcomes.has_changed().expect("open"), is_new);
        outcomes.mark_unchanged();
    }
    assert!(matches!(*outcomes.borrow(), TokenOutcome::Failed(OAuthError::Refused(_))));
}

#[tokio::test(start_paused = true)]
async fn scopes_that_the_authorization_server_refuses_do_not_end_the_account() {
    let (account, script) = account();
    issue(&script, "first", 100);
    let first = account.token().await.expect("issued").expect("a token");
    script.respond(TOKEN_URL, 400, r#"{"error":"invalid_scope"}"#);
    let demand = BearerChallenge {
        scope: Some("unknown".into()),
        error: Some("insufficient_scope".into()),
        ..BearerChallenge::default()
    };
    let refused = account.refresh(Some(&first), demand).await;
    assert!(matches!(refused, Err(OAuthError::Refused(_))), "{refused:?}");
    assert_eq!(token(&account).await, Ok(Some("Bearer first".into())));
    script.requests();
    issue(&script, "second", 100);
    tokio::time::advance(Duration::from_secs(81)).await;
    token(&account).await.expect("valid");
    let refresh = account.state.lock().running.clone().expect("it runs");
    assert_eq!(refresh.await.as_ref().map(sent), Ok("Bearer second".into()));
    let request = script.take_requests().pop().expect("a request");
    let mut form = url::form_urlencoded::parse(request.body());
    assert!(form.all(|(name, _)| name != "scope"));
}

#[tokio::test(start_paused = true)]
async fn a_user_signs_in_again_for_more_scopes_and_requests_have_the_new_token_then() {
    let state = tempfile::tempdir().expect("a folder");
    let vault = Vault::open(state.path()).expect("a vault");
    let write = async |record: &SignInRecord| {
        keep(&state, record).await;
    };
    let expires = Some(unix_time().as_secs() + 1_000);
    write(&SignInRecord { expires, scope: Some("a".into()), ..record() }).await;
    let (account, script) = open(Settings {
        grant: Grant::AuthorizationCode { client: None },
        state: Some(state.path().into()),
        ..settings()
    });
    let demand = BearerChallenge {
        scope: Some("b".into()),
        error: Some("insufficient_scope".into()),
        ..BearerChallenge::default()
    };
    let first = account.token().await.expect("there").expect("a token");
    for _ in 0..3 {
        let refused = account.refresh(Some(&first), demand.clone()).await;
        let text = "the upstream demands b: sign in again with `weir login hub`";
        let refused = refused.map(|token| sent(&token));
        assert_eq!(refused, Err(OAuthError::SignInNeeded(text.into())));
    }
    assert_eq!(account.sign_in_needed(), None, "other requests are served");
    assert_eq!(token(&account).await, Ok(Some("Bearer hunter2".into())));
    let demanded = vault.read("hub").expect("readable").expect("a record");
    let scope = demanded.step_up.widen(Some("a".into()), demanded.scope.as_deref());
    assert_eq!(scope.as_deref(), Some("a b"));
    // The user signs in again, with `weir login`.
    let access_token = "wider".into();
    write(&SignInRecord { access_token, scope, ..demanded }).await;
    let wider = account.refresh(Some(&first), demand.clone()).await.expect("there");
    assert_eq!(sent(&wider), "Bearer wider");
    let refused = account.reject(&wider, &demand).await;
    assert!(matches!(&refused, OAuthError::Refused(text) if text.contains("was requested")));
    assert!(script.requests().is_empty());
}
