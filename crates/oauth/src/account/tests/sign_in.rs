//! Tests of sign-ins that other processes make, change and remove.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_sign_in_is_used_and_refreshed_and_what_is_refreshed_is_kept() {
    let state = tempfile::tempdir().expect("a folder");
    let open_account = || {
        open(Settings {
            grant: Grant::AuthorizationCode { client: None },
            state: Some(state.path().into()),
            ..settings()
        })
    };
    let (account, script) = open_account();
    let needed = || Err(OAuthError::SignInNeeded("sign in with `weir login hub`".into()));
    assert_eq!(token(&account).await, needed());
    assert_eq!(account.sign_in_needed().as_deref(), Some("sign in with `weir login hub`"));
    assert!(!state.path().join("sign-in").exists(), "nothing is made before a sign-in");
    let vault = Vault::open(state.path()).expect("a vault");
    keep(&state, &fresh()).await;
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(token(&account).await, Ok(Some("Bearer hunter2".into())));
    assert_eq!(account.sign_in_needed(), None);
    assert!(script.requests().is_empty());

    // Its token is refused: the refresh token is replaced, or stays.
    let response = r#"{"access_token":"second","token_type":"Bearer","expires_in":1000,"refresh_token":"next"}"#;
    script.document(TOKEN_URL, response);
    let first = account.token().await.expect("there").expect("a token");
    let second = account.refresh(Some(&first), BearerChallenge::default()).await.expect("issued");
    assert_eq!(sent(&second), "Bearer second");
    let request = script.take_requests().pop().expect("a request");
    assert_eq!(request.uri(), TOKEN_URL);
    let form: Vec<_> = url::form_urlencoded::parse(request.body()).into_owned().collect();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        form,
        [
            pair("grant_type", "refresh_token"),
            pair("refresh_token", "hunter3"),
            pair("resource", "https://mcp.test/mcp")
        ]
    );
    let refreshed = vault.read("hub").expect("readable").expect("a record");
    assert_eq!(refreshed.refresh_token, Some("next".into()));
    // Another process uses what this one has refreshed.
    let (other, other_script) = open_account();
    assert_eq!(token(&other).await, Ok(Some("Bearer second".into())));
    assert!(other_script.requests().is_empty());

    // A server that fails does not end the sign-in; one that refuses the refresh token does.
    script.fail(TOKEN_URL);
    let failed = account.refresh(Some(&second), BearerChallenge::default()).await;
    assert!(matches!(failed, Err(OAuthError::Unavailable(_))), "{failed:?}");
    assert!(vault.read("hub").expect("readable").is_some());
    tokio::time::advance(Duration::from_secs(75)).await;
    script.respond(TOKEN_URL, 400, r#"{"error":"invalid_grant"}"#);
    let failed = account.refresh(Some(&second), BearerChallenge::default()).await;
    assert_eq!(failed.map(|token| sent(&token)), needed().map(|_: Option<String>| String::new()));
    assert_eq!(vault.read("hub"), Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_sign_in_for_another_url_or_issuer_is_not_used() {
    let state = tempfile::tempdir().expect("a folder");
    let elsewhere = [
        SignInRecord { upstream: "https://mcp.test/other".into(), ..record() },
        SignInRecord { issuer: "https://evil.test".into(), ..record() },
        SignInRecord { client_id: "other".into(), ..record() },
    ];
    for signed_in in elsewhere {
        keep(&state, &signed_in).await;
        let client = RegisteredClient { id: "weir".into(), credential: ClientCredential::None };
        let (account, script) = open(Settings {
            grant: Grant::AuthorizationCode { client: Some(client) },
            issuer: Some("https://id.test".into()),
            state: Some(state.path().into()),
            ..settings()
        });
        assert!(matches!(token(&account).await, Err(OAuthError::SignInNeeded(_))));
        assert!(script.requests().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_sign_in_that_is_removed_or_replaced_is_not_used_any_more() {
    let state = tempfile::tempdir().expect("a folder");
    keep(&state, &fresh()).await;
    let (account, script) = of_user(&state);
    assert_eq!(token(&account).await, Ok(Some("Bearer hunter2".into())));
    let other = SignInRecord { access_token: "other".into(), ..fresh() };
    keep(&state, &other).await;
    tokio::time::advance(CHECK_INTERVAL).await;
    assert_eq!(token(&account).await, Ok(Some("Bearer other".into())));
    // A change that leaves the token leaves it here, too.
    keep(&state, &SignInRecord { scope: Some("a".into()), ..other }).await;
    tokio::time::advance(CHECK_INTERVAL).await;
    assert_eq!(token(&account).await, Ok(Some("Bearer other".into())));
    let _ = Vault::sign_out(state.path(), "hub").await.expect("removed");
    tokio::time::advance(CHECK_INTERVAL).await;
    assert!(matches!(token(&account).await, Err(OAuthError::SignInNeeded(_))));
    assert!(script.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_sign_in_has_a_number_that_refreshes_keep_and_the_next_sign_in_changes() {
    let state = tempfile::tempdir().expect("a folder");
    let (first, second) = (SignInNumber::random(), SignInNumber::random());
    let vault = keep(&state, &SignInRecord { number: first, ..record() }).await;
    let (account, script) = of_user(&state);
    assert_eq!(account.sign_in(), Some(first));
    issue(&script, "refreshed", 1_000);
    let token = account.token().await.expect("there").expect("a token");
    assert_eq!((token.sign_in(), account.sign_in()), (first, Some(first)));
    assert_eq!(vault.read("hub").expect("readable").expect("a record").number, first);
    let mut next = std::pin::pin!(account.sign_in_other_than(Some(first)));
    assert!(futures::poll!(&mut next).is_pending());
    // The same user, or another one.
    keep(&state, &SignInRecord { number: second, ..fresh() }).await;
    assert_eq!(next.await, Some(second));
    let token = account.token().await.expect("there").expect("a token");
    assert_eq!(token.sign_in(), second);
    let _ = Vault::sign_out(state.path(), "hub").await.expect("removed");
    assert_eq!(account.sign_in_other_than(Some(second)).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_sign_in_that_ran_out_is_still_the_same_until_the_user_signs_out() {
    let state = tempfile::tempdir().expect("a folder");
    let number = SignInNumber::random();
    let vault = keep(&state, &SignInRecord { number, ..record() }).await;
    let (account, script) = of_user(&state);
    script.respond(TOKEN_URL, 400, r#"{"error":"invalid_grant"}"#);
    assert!(matches!(token(&account).await, Err(OAuthError::SignInNeeded(_))));
    assert_eq!((vault.read("hub"), account.sign_in()), (Ok(None), Some(number)));
    // After a restart, too.
    assert_eq!(of_user(&state).0.sign_in(), Some(number));
    let _ = Vault::sign_out(state.path(), "hub").await.expect("removed");
    assert_eq!(account.sign_in_other_than(Some(number)).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_sign_in_that_becomes_unreadable_is_not_used_until_it_can_be_read_again() {
    use std::os::unix::fs::PermissionsExt;

    let state = tempfile::tempdir().expect("a folder");
    keep(&state, &fresh()).await;
    let (account, script) = of_user(&state);
    assert_eq!(token(&account).await, Ok(Some("Bearer hunter2".into())));
    let folder = std::fs::read_dir(state.path().join("sign-in")).expect("a folder");
    let mut paths = folder.map(|it| it.expect("an entry").path());
    let is_record = |path: &std::path::PathBuf| {
        path.extension().is_none() && path.file_name().is_some_and(|it| it.len() == 32)
    };
    let record = paths.find(is_record).expect("a record");
    let content = std::fs::read(&record).expect("readable");
    let number = account.sign_in();
    for break_record in [
        |path: &Path| std::fs::write(path, "damaged"),
        |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o644)),
        |path: &Path| {
            std::fs::remove_file(path)?;
            std::fs::create_dir(path)
        },
    ] {
        break_record(&record).expect("changed");
        tokio::time::advance(CHECK_INTERVAL).await;
        token(&account).await.expect_err("not used");
        assert_eq!(account.sign_in(), number);
        let _ = std::fs::remove_dir(&record);
        std::fs::write(&record, &content).expect("written");
        std::fs::set_permissions(&record, PermissionsExt::from_mode(0o600)).expect("changed");
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(token(&account).await, Ok(Some("Bearer hunter2".into())));
    }
    assert!(script.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_holds_until_the_sign_in_changes() {
    let state = tempfile::tempdir().expect("a folder");
    keep(&state, &record()).await;
    let (account, script) = of_user(&state);
    script.respond(TOKEN_URL, 400, r#"{"error":"server_is_odd"}"#);
    for _ in 0..3 {
        assert!(matches!(token(&account).await, Err(OAuthError::Refused(_))));
        tokio::time::advance(CHECK_INTERVAL).await;
    }
    assert_eq!(script.requests().len(), 1);
    let mut made = std::pin::pin!(account.sign_in_made());
    assert!(futures::poll!(&mut made).is_pending());
    tokio::time::advance(CHECK_INTERVAL).await;
    assert!(futures::poll!(&mut made).is_pending());
    keep(&state, &SignInRecord { access_token: "new".into(), ..fresh() }).await;
    made.await;
    assert_eq!(token(&account).await, Ok(Some("Bearer new".into())));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_forgotten_registers_again_with_the_next_sign_in() {
    for (client, is_kept) in [(None, false), (Some("weir"), true)] {
        let state = tempfile::tempdir().expect("a folder");
        let is_configured_client = client.is_some();
        let vault = keep(&state, &SignInRecord { is_configured_client, ..record() }).await;
        let credential = ClientCredential::None;
        let client = client.map(|id| RegisteredClient { id: id.to_owned(), credential });
        let (account, script) = open(Settings {
            grant: Grant::AuthorizationCode { client },
            state: Some(state.path().into()),
            ..settings()
        });
        script.respond(TOKEN_URL, 401, r#"{"error":"invalid_client"}"#);
        let failed = token(&account).await;
        assert_eq!(matches!(failed, Err(OAuthError::Refused(_))), is_kept, "{failed:?}");
        assert_eq!(account.sign_in_needed().is_some(), !is_kept);
        assert_eq!(vault.read("hub").expect("readable").is_some(), is_kept);
    }
}
