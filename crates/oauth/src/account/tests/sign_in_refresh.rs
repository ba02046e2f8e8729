//! Tests of the refresh of sign-ins: where it is kept, what it must not lose, and how it ends.

use super::*;

#[tokio::test(start_paused = true)]
async fn no_refresh_token_is_sent_where_the_vault_cannot_be_changed() {
    let state = tempfile::tempdir().expect("a folder");
    keep(&state, &record()).await;
    let lock = state.path().join("sign-in/changes.lock");
    std::fs::remove_file(&lock).expect("removed");
    std::fs::create_dir(&lock).expect("a folder");
    let (account, script) = of_user(&state);
    let failed = token(&account).await.expect_err("refused").to_string();
    assert!(failed.ends_with("it is a folder, not a regular file"), "{failed}");
    assert_eq!(script.requests(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_token_of_the_sign_in_that_the_server_repeats_is_not_shown() {
    let state = tempfile::tempdir().expect("a folder");
    let (access_token, client_secret) = ("canary-of-a-token".into(), Some("canary-1".into()));
    keep(&state, &SignInRecord { access_token, client_secret, ..record() }).await;
    let (account, script) = of_user(&state);
    let description = "canary-of-a-token expired, you sent canary-1 and hunter3";
    let body = format!(r#"{{"error":"slow","error_description":"{description}"}}"#);
    script.respond(TOKEN_URL, 400, &body);
    let text = format!("{TOKEN_URL} refuses the request: slow: *** expired, you sent *** and ***");
    assert_eq!(token(&account).await, Err(OAuthError::Refused(text)));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_has_begun_is_kept_although_weir_stops() {
    let state = tempfile::tempdir().expect("a folder");
    let vault = Vault::open(state.path()).expect("a vault");
    keep(&state, &record()).await;
    let (account, script) = open(Settings {
        grant: Grant::AuthorizationCode { client: None },
        state: Some(state.path().into()),
        ..settings()
    });
    issue(&script, "second", 1_000);
    let mut request = std::pin::pin!(account.token());
    while script.requests().is_empty() {
        assert!(futures::poll!(&mut request).is_pending());
        tokio::task::yield_now().await;
    }
    account.client.stop.cancel();
    assert_eq!(request.await.map(|token| token.as_ref().map(sent)), {
        Ok(Some("Bearer second".into()))
    });
    let kept = vault.read("hub").expect("readable").expect("a record");
    assert_eq!(kept.access_token.expose(), "second");
    // Nothing begins any more.
    tokio::time::advance(Duration::from_secs(2_000)).await;
    assert_eq!(token(&account).await, Err(stopping()));
    assert!(script.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_sign_in_that_is_replaced_or_removed_in_a_refresh_stays_so_and_its_tokens_are_revoked() {
    const REVOKED: &str = "POST https://id.test/revoke";
    let number = SignInNumber::random();
    let revocation_endpoint = Some("https://id.test/revoke".to_owned());
    let before = SignInRecord { number, revocation_endpoint, ..record() };
    let other = SignInRecord { number: SignInNumber::random(), ..fresh() };
    let registered = SignInRecord { client_id: "new".into(), ..other.clone() };
    // A server may count the sign-ins of one client as one.
    for (after, revoked) in [(Some(registered), 1), (Some(other), 0), (None, 1)] {
        let state = tempfile::tempdir().expect("a folder");
        let vault = keep(&state, &before).await;
        let (account, script) = of_user(&state);
        script.respond("https://id.test/revoke", 200, "");
        issue(&script, "refreshed", 1_000);
        let mut request = std::pin::pin!(account.token());
        while script.requests().is_empty() {
            assert!(futures::poll!(&mut request).is_pending());
            tokio::task::yield_now().await;
        }
        match &after {
            Some(after) => drop(keep(&state, after).await),
            None => drop(Vault::sign_out(state.path(), "hub").await),
        }
        let failed = request.await;
        assert!(failed.is_err(), "{failed:?}");
        assert_eq!(vault.read("hub"), Ok(after.clone()));
        account.client.tracker.close();
        account.client.tracker.wait().await;
        let requests = script.requests();
        assert_eq!(requests.iter().filter(|it| **it == REVOKED).count(), revoked);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(token(&account).await.is_ok(), after.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refreshed_sign_in_that_cannot_be_written_is_not_lost() {
    let state = tempfile::tempdir().expect("a folder");
    let vault = keep(&state, &record()).await;
    let (account, script) = of_user(&state);
    script.document(
        TOKEN_URL,
        r#"{"access_token":"second","token_type":"Bearer","expires_in":1000,"refresh_token":"r2"}"#,
    );
    let mut request = std::pin::pin!(account.token());
    while script.requests().is_empty() {
        assert!(futures::poll!(&mut request).is_pending());
        tokio::task::yield_now().await;
    }
    // A folder in the place of the file cannot be replaced by a file.
    let folder = state.path().join("sign-in");
    let is_record = |name: &str| !name.ends_with(".lock") && name.len() == 32;
    let names = std::fs::read_dir(&folder).expect("a folder");
    let mut names = names.map(|it| it.expect("an entry").file_name().into_string().unwrap());
    let path = folder.join(names.find(|name| is_record(name)).expect("a record"));
    let aside = state.path().join("aside");
    std::fs::rename(&path, &aside).expect("moved");
    std::fs::create_dir(&path).expect("made");
    let failed = request.await;
    assert!(matches!(&failed, Err(OAuthError::Unavailable(_))), "{failed:?}");
    std::fs::remove_dir(&path).expect("removed");
    std::fs::rename(&aside, &path).expect("moved");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(token(&account).await, Ok(Some("Bearer second".into())));
    assert!(script.requests().is_empty(), "the former refresh token is not used again");
    let kept = vault.read("hub").expect("readable").expect("a record");
    assert_eq!(kept.refresh_token, Some("r2".into()));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_token_is_kept_also_if_the_access_token_beside_it_cannot_be_used() {
    let state = tempfile::tempdir().expect("a folder");
    let vault = keep(&state, &record()).await;
    let (account, script) = of_user(&state);
    let body = r#"{"access_token":"odd","token_type":"N_A","refresh_token":"r2"}"#;
    script.document(TOKEN_URL, body);
    let text = format!("{TOKEN_URL}: the token is not of the type Bearer");
    let failed = Err(OAuthError::Unavailable(text));
    assert_eq!(token(&account).await, failed);
    let kept = vault.read("hub").expect("readable").expect("a record");
    assert_eq!((kept.access_token.expose(), kept.refresh_token), ("hunter2", Some("r2".into())));
    // The record that was written for it does not end the pause after the failure.
    script.requests();
    let mut requests = 0;
    for _ in 0..60 {
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(token(&account).await, failed);
        requests += script.requests().len();
    }
    assert!((1..12).contains(&requests), "{requests} requests in a minute");
    // The next attempt has the new refresh token.
    script.document(TOKEN_URL, &body.replace("N_A", "Bearer").replace("odd", "second"));
    tokio::time::advance(Duration::from_secs(75)).await;
    assert_eq!(token(&account).await, Ok(Some("Bearer second".into())));
    let request = script.take_requests().pop().expect("a request");
    assert!(String::from_utf8_lossy(request.body()).contains("refresh_token=r2"));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_token_is_kept_also_if_its_response_is_cut_off_or_is_no_json() {
    for (body, is_cut) in [
        (r#"{"access_token":"odd","token_type":"Bearer","refresh_token":"r2","x":"y"#, true),
        (r#"{ "refresh_token" : "r\u0032" , "access_to"#, true),
        (r#"{"token_type":"refresh_token","refresh_token":"r2""#, true),
        (r#"{"expires_in":NaN,"access_token":"odd","refresh_token":"r2"}"#, false),
        (r#"{"access_token":"odd","token_type":"Bearer","refresh_token":"r2"}}"#, false),
        (r#"[{"access_token":"odd","token_type":"Bearer","refresh_token":"r2"}]"#, false),
        (r#"{"error":"invalid_grant","refresh_token":"r2"}"#, false),
    ] {
        let state = tempfile::tempdir().expect("a folder");
        let vault = keep(&state, &record()).await;
        let (account, script) = of_user(&state);
        match is_cut {
            true => script.cut_off(TOKEN_URL, body),
            false => script.document(TOKEN_URL, body),
        }
        let failed = token(&account).await;
        assert!(matches!(failed, Err(OAuthError::Unavailable(_))), "{body}: {failed:?}");
        let kept = vault.read("hub").expect("readable").expect("a record");
        let kept = (kept.access_token.expose(), kept.refresh_token);
        assert_eq!(kept, ("hunter2", Some("r2".into())), "{body}");
    }
    // Without a refresh token nothing changes, also if the text only looks like one.
    for body in [
        r#"{"access_token":"odd","token_type":"Bearer","refresh_token":"r2"#,
        r#"{"x":"\"refresh_token\":\"r2\""#,
        r#"{"refresh_token":7,"#,
        r#"{"refresh_token":"","#,
    ] {
        let state = tempfile::tempdir().expect("a folder");
        let vault = keep(&state, &record()).await;
        let (account, script) = of_user(&state);
        script.cut_off(TOKEN_URL, body);
        let failed = token(&account).await;
        assert!(matches!(failed, Err(OAuthError::Unavailable(_))), "{body}: {failed:?}");
        assert_eq!(vault.read("hub"), Ok(Some(record())), "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_waits_for_the_lock_or_has_no_connection_yet_ends_when_weir_stops() {
    let state = tempfile::tempdir().expect("a folder");
    let vault = keep(&state, &record()).await;
    let lock = vault.lock_refresh("hub").await.expect("locked");
    let (account, script) = of_user(&state);
    issue(&script, "second", 1_000);
    let mut request = std::pin::pin!(account.token());
    assert!(futures::poll!(&mut request).is_pending());
    account.client.stop.cancel();
    let begin = Instant::now();
    assert_eq!(request.await.map(|token| token.as_ref().map(sent)), Err(stopping()));
    assert_eq!(begin.elapsed(), Duration::ZERO);
    drop(lock);
    // The request is on its way to a server that does not accept the connection.
    let (account, script) = of_user(&state);
    script.connect_nowhere(TOKEN_URL);
    let mut request = std::pin::pin!(account.token());
    while script.requests().is_empty() {
        assert!(futures::poll!(&mut request).is_pending());
        tokio::task::yield_now().await;
    }
    account.client.stop.cancel();
    assert_eq!(request.await.map(|token| token.as_ref().map(sent)), Err(stopping()));
    assert_eq!(begin.elapsed(), Duration::ZERO);
    let kept = vault.read("hub").expect("readable").expect("a record");
    assert_eq!(kept, record());
}

#[tokio::test(start_paused = true)]
async fn an_hour_of_failures_ends_no_sign_in_and_asks_about_once_a_minute() {
    let state = tempfile::tempdir().expect("a folder");
    let vault = keep(&state, &record()).await;
    let (account, script) = of_user(&state);
    for (status, text) in [(500, ""), (503, "<html>"), (200, "<html>"), (429, "{}")] {
        script.respond(TOKEN_URL, status, text);
        let mut requests = 0;
        for _ in 0..900 {
            let failed = token(&account).await;
            assert!(matches!(failed, Err(OAuthError::Unavailable(_))), "{failed:?}");
            requests += script.requests().len();
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!((10..60).contains(&requests), "{requests} requests in 15 min");
    }
    assert!(vault.read("hub").expect("readable").is_some());
    assert_eq!(account.sign_in_needed(), None);
    issue(&script, "second", 1_000);
    tokio::time::advance(Duration::from_secs(75)).await;
    assert_eq!(token(&account).await, Ok(Some("Bearer second".into())));
}
