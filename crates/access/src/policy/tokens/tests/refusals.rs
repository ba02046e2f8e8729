//! Tests of users and tokens that the configuration refuses although the provider accepts them.

use std::time::{Duration, SystemTime};

use super::mint::{self, NOW, claims_but, token, token_of};
use super::{TestPolicy, settings};
use crate::policy::Refusal::{self, Blocked, IssuedBefore, NoIssueTime};
use crate::policy::role::Role;
use crate::policy::tokens::TokenError;
use crate::policy::{self, AuthAttempt, AuthError, Credentials, Refusals};

fn refusing(refuse: impl Fn(&mut Refusals)) -> policy::Settings {
    let mut refusals = Refusals::default();
    refuse(&mut refusals);
    policy::Settings {
        roles: ["dev", "ops", "all"].map(|name| (name.to_owned(), Role::default())).into(),
        providers: vec![settings()],
        refusals,
        ..policy::Settings::default()
    }
}

fn refused(refusal: Refusal) -> AuthError {
    AuthError::Token(refusal.into())
}

fn issued(at: impl std::fmt::Display) -> String {
    token_of(&claims_but(&format!("\"iat\":{NOW}"), &format!("\"iat\":{at}")))
}

#[tokio::test(start_paused = true)]
async fn a_refused_user_or_token_is_refused_at_once_and_others_are_not() {
    type Refuse = fn(&mut Refusals);
    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }
    let [good, early, late] = [token("ES256"), issued(NOW - 1), issued(format!("{NOW}.5"))];
    let undated = token_of(&claims_but(&format!("\"iat\":{NOW},"), ""));
    let other_application = token_of(&claims_but("\"azp\":\"ide\"", "\"azp\":\"cli\""));
    let bob = token_of(&claims_but("\"sub\":\"ann\"", "\"sub\":\"bob\""));
    let rows: [(Refuse, &str, Option<Refusal>); 13] = [
        (|_| {}, &good, None),
        (|_| {}, &undated, None),
        (|it| it.block("corp", "ann"), &good, Some(Blocked)),
        (|it| it.block("corp", "ann"), &other_application, Some(Blocked)),
        (|it| it.block("corp", "ann"), &bob, None),
        (|it| it.block("other", "ann"), &good, None),
        (|it| it.block("corp", "Ann"), &good, None),
        (|it| it.refuse_before("corp", at(NOW)), &good, None),
        (|it| it.refuse_before("corp", at(NOW)), &early, Some(IssuedBefore)),
        (|it| it.refuse_before("corp", at(NOW + 1)), &late, Some(IssuedBefore)),
        (|it| it.refuse_before("corp", at(NOW)), &undated, Some(NoIssueTime)),
        (|it| it.refuse_before("other", at(NOW + 9)), &good, None),
        (|it| it.refuse_before("other", at(NOW + 9)), &undated, None),
    ];
    for (row, (refuse, token, refusal)) in rows.into_iter().enumerate() {
        // The token is accepted, and cached, before the configuration refuses it.
        let mut fixture = TestPolicy::open().await;
        let attempt =
            AuthAttempt { credentials: Credentials::Bearer(token), certificate: None, from: None };
        let (principal, pass) =
            fixture.policy.authenticate(attempt, mint::now()).await.expect("it is accepted");
        fixture.policy = fixture.policy.with_settings(refusing(refuse));
        let expected = refusal.map(refused);
        assert_eq!(fixture.authenticate(token).await.err(), expected, "row {row}");
        // Streams and sessions are judged by what was verified when they began.
        let again = fixture.policy.reauthenticate(&pass, &principal, mint::now());
        assert_eq!(again.err(), expected, "row {row}");
        // Without the refusal it is accepted again, with the keys that are known.
        fixture.policy = fixture.policy.with_settings(refusing(|_| {}));
        assert_eq!(fixture.authenticate(token).await.err(), None, "row {row}");
        assert!(fixture.provider.take_requests().is_empty(), "row {row}");
        fixture.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_first_seen_under_the_refusal_is_refused_each_time() {
    let mut fixture = TestPolicy::open().await;
    fixture.policy = fixture.policy.with_settings(refusing(|it| it.block("corp", "ann")));
    for _ in 0..2 {
        let refused = fixture.authenticate(&token("RS256")).await.err();
        assert_eq!(refused, Some(self::refused(Blocked)));
    }
    // A forged token of a blocked user is a wrong signature: nothing unverified is reported.
    let forged = mint::signed("other ES256", r#"{"alg":"ES256","kid":"ES256"}"#, &mint::claims());
    assert_eq!(
        fixture.authenticate(&forged).await.err(),
        Some(AuthError::Token(TokenError::Signature))
    );
    fixture.close().await;
}
