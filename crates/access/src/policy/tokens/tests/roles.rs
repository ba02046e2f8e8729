//! Tests of the mapping from claims to roles.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::mint;
use super::{TestPolicy, settings};
use crate::policy::AuthError;
use crate::policy::role::{MAX_COMBINATIONS, NO_ROLE, Role, Roles};
use crate::policy::tokens::{Settings, TokenError};
use weir_mcp::kind::Kind;
use weir_mcp::pattern::AllowDeny;

/// The role of who shows a token with this in place of its roles.
async fn role_of(settings: Settings, claim: &str) -> String {
    let fixture = TestPolicy::open_with(settings).await;
    let token = mint::token_of(&mint::claims_but(r#""roles":["devs"]"#, claim));
    let found = fixture.authenticate(&token).await.expect("a good token").role;
    fixture.close().await;
    found.to_string()
}

#[tokio::test(start_paused = true)]
async fn values_of_a_claim_give_roles() {
    for (claim, expected) in [
        (r#""roles":["devs"]"#, "dev"),
        (r#""roles":"devs""#, "dev"),
        (r#""roles":["operators","devs","others","devs"]"#, "dev+ops"),
        (r#""roles":["others"]"#, NO_ROLE),
        (r#""roles":[]"#, NO_ROLE),
        (r#""roles":["Devs"]"#, NO_ROLE),
        (r#""roles":"devs operators""#, NO_ROLE),
        (r#""roles":{"devs":true}"#, NO_ROLE),
        (r#""roles":[["devs"],7,null,"operators"]"#, "ops"),
        (r#""groups":["devs"]"#, NO_ROLE),
        // A value that is the name of a role is not mapped by that.
        (r#""roles":["dev","all"]"#, NO_ROLE),
    ] {
        assert_eq!(role_of(settings(), claim).await, expected, "{claim}");
    }
    let with_default = || Settings { default_role: Some("all".into()), ..settings() };
    assert_eq!(role_of(with_default(), r#""roles":["others"]"#).await, "all");
    assert_eq!(role_of(with_default(), r#""roles":["devs"]"#).await, "dev");
}

#[tokio::test(start_paused = true)]
async fn a_role_claim_may_be_a_path_a_url_or_the_scopes() {
    for (role_claim, claim, expected) in [
        ("realm_access.roles", r#""realm_access":{"roles":["devs"]}"#, "dev"),
        ("resource_access.weir.roles", r#""resource_access":{"weir":{"roles":["devs"]}}"#, "dev"),
        ("https://corp.test/roles", r#""https://corp.test/roles":["devs"]"#, "dev"),
        ("realm_access.roles", r#""realm_access":{"roles":["devs"],"roles":["x"]}"#, NO_ROLE),
        ("scp", r#""scp":"x devs""#, "dev"),
        ("scp", r#""scp":["devs","operators"]"#, "dev+ops"),
        ("email", r#""email":"devs","email_verified":true"#, "dev"),
        ("email", r#""email":"devs","email_verified":false"#, NO_ROLE),
        ("email", r#""email":"devs""#, NO_ROLE),
    ] {
        let settings = Settings { role_claim: role_claim.into(), ..settings() };
        assert_eq!(role_of(settings, claim).await, expected, "{role_claim}: {claim}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_user_is_one_plain_text() {
    let long = format!(r#""sub":"{}""#, "x".repeat(513));
    for claim in [
        r#""sub":"""#,
        r#""sub":7"#,
        r#""sub":["ann"]"#,
        r#""sub":null"#,
        r#""sub":"a\nb""#,
        r#""sub":"a\u0000b""#,
        r#""subject":"ann""#,
        &long,
    ] {
        let fixture = TestPolicy::open().await;
        let token = mint::token_of(&mint::claims_but(r#""sub":"ann""#, claim));
        assert_eq!(fixture.authenticate(&token).await, Err(TokenError::User.into()), "{claim}");
        fixture.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_without_a_required_scope_is_told_all_of_them() {
    let scopes_required = vec!["mcp.use".to_owned(), "mcp.write".to_owned()];
    let required = || Settings { scopes_required: scopes_required.clone(), ..settings() };
    for (claim, is_enough) in [
        (r#""scope":"mcp.use openid""#, false),
        (r#""scope":"openid mcp.write mcp.use""#, true),
        (r#""scp":["mcp.use","mcp.write"]"#, true),
        (r#""scp":"mcp.use mcp.write""#, true),
        (r#""scope":"mcp.use","scp":["mcp.write"]"#, true),
        (r#""scope":"mcp.users mcp.write""#, false),
        (r#""scope":7"#, false),
        (r#""a":1"#, false),
    ] {
        let fixture = TestPolicy::open_with(required()).await;
        let token = mint::token_of(&mint::claims_but(r#""scope":"mcp.use openid""#, claim));
        let expected = Err(AuthError::Scope("mcp.use mcp.write".into()));
        let found = fixture.authenticate(&token).await;
        assert_eq!(found.is_ok(), is_enough, "{claim}");
        assert!(is_enough || found == expected, "{claim}");
        fixture.close().await;
    }
}

fn set(names: &[&str]) -> BTreeSet<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

#[test]
fn several_roles_are_the_union_of_allows_less_the_union_of_denies() {
    let role = |allow: &[&str], deny: &[&str]| Role {
        prompts: AllowDeny::new(allow, deny),
        ..Role::default()
    };
    let roles = Roles::new([
        ("a".to_owned(), role(&["hub/*"], &["hub/secret"])),
        ("b".to_owned(), role(&["hub/secret", "x/*"], &[])),
    ]);
    let name = roles.combine(&set(&["b", "a"])).expect("room");
    assert_eq!(&*name, "a+b");
    let both = roles.get(&name).0;
    let allows =
        |upstream: &str, own| both.allows(Kind::Prompt, &upstream.parse().expect("a name"), own);
    assert!(allows("hub", "a") && allows("x", "a"));
    assert!(!allows("hub", "secret") && !allows("y", "a"));
    assert!(!both.allows(Kind::Tool, &"hub".parse().expect("a name"), "a"));
    assert_eq!(roles.combine(&set(&["a"])).as_deref(), Some("a"));
    assert_eq!(*roles.get(&roles.combine(&set(&[])).expect("room")).0, Role::default());
}

#[test]
fn combinations_of_roles_are_bounded() {
    let names: Vec<String> = (0..2_000).map(|n| format!("r{n}")).collect();
    let roles = Roles::new(names.iter().map(|name| (name.clone(), Role::everything())));
    let pair = |n: usize| set(&["r0", &names[n]]);
    for n in 1..=MAX_COMBINATIONS {
        assert!(roles.combine(&pair(n)).is_some(), "{n}");
    }
    assert_eq!(roles.combine(&pair(MAX_COMBINATIONS + 1)), None);
    assert!(roles.combine(&pair(1)).is_some());
    assert!(roles.combine(&set(&["r7"])).is_some());
}
