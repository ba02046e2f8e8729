//! Tests of tokens that the upstream refuses.

use super::*;
use crate::account::refusals::{MAX_REFUSAL_PAUSE, REJECTED_PAUSE};

#[tokio::test(start_paused = true)]
async fn a_refused_token_is_refreshed_once_for_all_requests_that_had_it() {
    let (account, script) = account();
    issue(&script, "first", 100);
    let first = account.token().await.expect("issued").expect("a token");
    script.requests();
    issue(&script, "second", 100);
    let refreshes = (0..50).map(|_| account.refresh(Some(&first), BearerChallenge::default()));
    let all = futures::future::join_all(refreshes).await;
    assert!(all.iter().all(|it| it.as_ref().map(sent) == Ok("Bearer second".into())));
    assert_eq!(script.requests(), [format!("POST {TOKEN_URL}")]);
    // The upstream refuses the new one, too.
    let second = account.token().await.expect("issued").expect("a token");
    assert_eq!(
        account.reject(&second, &BearerChallenge::default()).await,
        account.client.token_refused()
    );
    let refreshed = account.refresh(Some(&second), BearerChallenge::default()).await;
    assert_eq!(refreshed.map(|token| sent(&token)), Err(account.client.token_refused()));
    assert_eq!(token(&account).await, Ok(Some("Bearer second".into())), "for other requests");
    assert!(script.requests().is_empty());
    tokio::time::advance(REJECTED_PAUSE).await;
    issue(&script, "third", 100);
    let refreshed = account.refresh(Some(&second), BearerChallenge::default()).await;
    assert_eq!(refreshed.map(|token| sent(&token)), Ok("Bearer third".into()));
}

#[tokio::test(start_paused = true)]
async fn refreshes_because_of_refusals_have_a_pace_and_each_caller_a_response_at_once() {
    let (account, script) = account();
    issue(&script, "first", 100_000);
    let mut last = account.token().await.expect("issued").expect("a token");
    script.requests();
    // Each token is refused at its first use, and the next one is accepted.
    let (mut refreshed, mut refused) = (0, 0);
    for _ in 0..1_200 {
        match account.refresh(Some(&last), BearerChallenge::default()).await {
            Ok(next) => (last, refreshed) = (next, refreshed + 1),
            Err(error) => {
                assert_eq!(error, account.client.token_refused());
                refused += 1;
            }
        }
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    assert_eq!(script.requests().len(), refreshed);
    assert!((5..=10).contains(&refreshed), "{refreshed} refreshes in 2 min, {refused} refused");
    assert_eq!(token(&account).await, Ok(Some("Bearer first".into())), "for other requests");
    // One that has lived for long is refreshed at once.
    tokio::time::advance(MAX_REFUSAL_PAUSE).await;
    let refreshed = account.refresh(Some(&last), BearerChallenge::default()).await;
    refreshed.expect("refreshed");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_accepted_again_needs_no_sign_in() {
    let state = tempfile::tempdir().expect("a folder");
    keep(&state, &SignInRecord { refresh_token: None, expires: None, ..record() }).await;
    let (account, script) = of_user(&state);
    let first = account.token().await.expect("there").expect("a token");
    account.accept(&first);
    assert!(matches!(refresh(&account, &first).await, Err(OAuthError::SignInNeeded(_))));
    assert!(account.sign_in_needed().is_some());
    // The upstream refuses one request, and accepts others.
    let first = account.token().await.expect("there").expect("a token");
    account.accept(&first);
    assert_eq!(account.sign_in_needed(), None);
    assert!(script.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_token_that_cannot_be_refreshed_is_good_until_it_expires_or_is_refused() {
    let expires = Some(unix_time().as_secs() + 1_000);
    let lasting = SignInRecord { refresh_token: None, expires, ..record() };
    for is_refused in [false, true] {
        let state = tempfile::tempdir().expect("a folder");
        keep(&state, &lasting).await;
        let (account, script) = of_user(&state);
        token(&account).await.expect("there");
        tokio::time::advance(Duration::from_secs(850)).await;
        let due = account.token().await.expect("there").expect("a token");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(matches!(*account.outcomes().borrow(), crate::TokenOutcome::Failed(_)));
        assert_eq!(account.sign_in_needed(), None);
        if is_refused {
            assert!(matches!(refresh(&account, &due).await, Err(OAuthError::SignInNeeded(_))));
        } else {
            tokio::time::advance(Duration::from_secs(200)).await;
            assert!(matches!(token(&account).await, Err(OAuthError::SignInNeeded(_))));
        }
        assert!(account.sign_in_needed().is_some());
        assert!(script.requests().is_empty());
    }
}
