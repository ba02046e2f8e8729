//! Tests of the users that a policy remembers, with the role that each had last.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::mint::{self, claims_but, token_of};
use super::{TestPolicy, settings};
use crate::policy::role::{NO_ROLE, Role};
use crate::policy::tokens::provider::Provider;
use crate::policy::tokens::seen_users::{MAX_NAMED_USERS, SEEN_USERS, SeenUsers};
use crate::policy::tokens::{SeenUser, Settings, UserSearch};
use crate::policy::{self, Principal, Refusals};

fn configured(providers: Vec<Settings>) -> policy::Settings {
    policy::Settings {
        roles: ["dev", "ops", "all"].map(|name| (name.to_owned(), Role::default())).into(),
        providers,
        ..policy::Settings::default()
    }
}

/// Token of a user with these members in place of the roles.
fn token(user: &str, roles: &str) -> String {
    let claims = claims_but(r#""roles":["devs"]"#, roles);
    token_of(&claims.replace(r#""sub":"ann""#, &format!(r#""sub":"{user}""#)))
}

fn seen(role: &str, at: SystemTime, is_current: bool) -> UserSearch {
    UserSearch::Seen(SeenUser { role: role.into(), at, is_current })
}

#[tokio::test(start_paused = true)]
async fn a_user_is_remembered_with_the_role_of_the_last_token() {
    let fixture = TestPolicy::open().await;
    let now = mint::now();
    assert_eq!(fixture.policy.find_user("corp/ann"), UserSearch::Unseen);
    for (second, roles, expected) in [
        (0, r#""roles":["devs"]"#, "dev"),
        (1, r#""roles":["operators","devs"]"#, "dev+ops"),
        (2, r#""roles":["others"]"#, NO_ROLE),
        // The first token again, which is verified no more.
        (3, r#""roles":["devs"]"#, "dev"),
    ] {
        let at = now + Duration::from_secs(second);
        fixture.authenticate_at(&token("ann", roles), at).await.expect("it is good");
        assert_eq!(fixture.policy.find_user("corp/ann"), seen(expected, at, true), "{roles}");
    }
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_user_whose_token_is_refused_is_not_remembered() {
    let mut fixture = TestPolicy::open().await;
    let mut refusals = Refusals::default();
    refusals.block("corp", "eve");
    fixture.policy =
        fixture.policy.with_settings(policy::Settings { refusals, ..configured(vec![settings()]) });
    let forged = mint::signed("other ES256", r#"{"alg":"ES256","kid":"ES256"}"#, &mint::claims());
    for token in [token("eve", r#""roles":[]"#), forged] {
        assert!(fixture.authenticate(&token).await.is_err());
    }
    for name in ["corp/eve", "corp/ann"] {
        assert_eq!(fixture.policy.find_user(name), UserSearch::Unseen, "{name}");
    }
    assert_eq!(fixture.policy.users_without_role(), [("corp".to_owned(), 0)].into());
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_name_is_found_as_it_is_written_and_one_that_looks_alike_is_named() {
    let fixture = TestPolicy::open().await;
    for user in ["team/Bob", "a\u{200b}b", "straße"] {
        fixture.authenticate(&token(user, r#""roles":["devs"]"#)).await.expect("it is good");
    }
    let similar = |name: &str| UserSearch::Similar(name.into());
    let is_seen = |name| matches!(fixture.policy.find_user(name), UserSearch::Seen(_));
    for name in ["corp/team/Bob", "corp/a\u{200b}b", "corp/straße"] {
        assert!(is_seen(name), "{name:?}");
    }
    for (name, expected) in [
        ("corp/team/bob", similar("corp/team/Bob")),
        ("corp/teamBob ", similar("corp/team/Bob")),
        ("corp/ab", similar("corp/a\u{200b}b")),
        ("corp/STRAßE", similar("corp/straße")),
        ("corp/team", UserSearch::Unseen),
        ("corp/", UserSearch::Unseen),
        ("corp", UserSearch::Unseen),
        ("other/team/Bob", UserSearch::Unseen),
        ("", UserSearch::Unseen),
    ] {
        assert_eq!(fixture.policy.find_user(name), expected, "{name:?}");
    }
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_the_users_of_a_provider_and_marks_those_of_another_mapping() {
    let fixture = TestPolicy::open().await;
    let now = mint::now();
    fixture.authenticate(&token("ann", r#""roles":["devs"]"#)).await.expect("it is good");
    fixture.authenticate(&token("bob", r#""roles":["x"]"#)).await.expect("it is good");
    let find = |policy: &policy::Policy| policy.find_user("corp/ann");
    let count = |policy: &policy::Policy| policy.users_without_role().remove("corp");
    let same = fixture.policy.with_settings(configured(vec![settings()]));
    assert_eq!((find(&same), count(&same)), (seen("dev", now, true), Some(1)));
    let others = Settings { default_role: Some("all".into()), ..settings() };
    let mapped = fixture.policy.with_settings(configured(vec![others]));
    assert_eq!((find(&mapped), count(&mapped)), (seen("dev", now, false), Some(0)));
    // Users of a provider that is removed are forgotten once the reload takes effect.
    let without = fixture.policy.with_settings(configured(Vec::new()));
    assert_eq!(find(&fixture.policy), seen("dev", now, true));
    fixture.policy.stop_removed_providers(&without);
    assert_eq!((find(&without), count(&without)), (UserSearch::Unseen, None));
    fixture.close().await;
}

#[test]
fn users_are_bounded_per_provider_and_those_without_a_role_are_named_once() {
    let [corp, other] = ["corp", "other"].map(|name| {
        let settings = Settings { name: name.into(), ..settings() };
        Provider::new(settings)
    });
    let (users, now) = (SeenUsers::default(), SystemTime::UNIX_EPOCH);
    let record = |provider: &Arc<Provider>, user: usize, role: &str| {
        let name = format!("{}/{user}", provider.settings.name);
        users.record(provider, &Principal::new(name, role), now)
    };
    assert!(!record(&other, 0, "dev"), "it has a role");
    assert!((0..MAX_NAMED_USERS).all(|user| record(&corp, user, NO_ROLE)));
    assert!(!(0..2 * MAX_NAMED_USERS).any(|user| record(&corp, user, NO_ROLE)));
    assert!(!record(&other, 1, NO_ROLE), "enough are named");
    let providers = [Arc::clone(&corp), Arc::clone(&other)];
    let counts = users.without_role(&providers);
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [2 * MAX_NAMED_USERS, 1]);
    // A user who gets a role is counted no longer, and is not named again without one.
    for role in ["dev", NO_ROLE] {
        assert!(!record(&corp, 0, role));
    }
    for user in 0..4 * SEEN_USERS {
        record(&corp, user, NO_ROLE);
    }
    let count = users.without_role(&providers)["corp"];
    assert!((SEEN_USERS..=2 * SEEN_USERS).contains(&count), "{count}");
    let is_seen = |name: &str| matches!(users.find(name, &providers), UserSearch::Seen(_));
    assert!(!is_seen("corp/0") && is_seen(&format!("corp/{}", 4 * SEEN_USERS - 1)));
    assert!(is_seen("other/0"), "another provider's users take no place");
}
