//! User's sign-in of an account, which the vault keeps and other processes use, too.
//!
//! Invariants: a renewed sign-in is written before its tokens are used; one that cannot be written
//! is kept in memory until it can. A sign-in that was removed or replaced is not used for longer
//! than [`LOOK_INTERVAL`].

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Account, AccountState, RenewalFailure};
use crate::oauth::access_token::authorization;
use crate::oauth::token_request::{IssuedToken, TokenGrant, TokenRequest};
use crate::oauth::url_rules::OAuthClient;
use crate::oauth::vault::{RecordLock, SignInRecord, Vault};
use crate::oauth::{OAuthError, RegisteredClient};
use crate::secret::Secret;

impl Account {
    /// Waits until a user has signed in, if the account needs that; otherwise for ever.
    pub(crate) async fn sign_in_made(&self) {
        loop {
            sleep(LOOK_INTERVAL).await;
            let mut state = self.state.lock();
            self.look(&mut state, Instant::now());
            let is_new = match &state.failure {
                Some(
                    RenewalFailure { error: OAuthError::Unavailable(_), .. }
                    | RenewalFailure { is_over: true, .. },
                )
                | None => false,
                Some(failure) => failure.version != state.version && state.version.is_some(),
            };
            if is_new {
                return;
            }
        }
    }

    /// Looks, once in a while, whether another process has changed the user's sign-in: the token of
    /// one that was removed or replaced is not used any more.
    pub(super) fn look(&self, state: &mut AccountState, now: Instant) {
        let Some(folder) = self.settings.state.as_deref() else { return };
        if !self.settings.grant.is_of_user() || state.look.is_some_and(|it| it > now) {
            return;
        }
        state.look = Some(now + LOOK_INTERVAL);
        let version = Vault::version(folder, &self.name);
        if version == state.version {
            return;
        }
        let record = Vault::open_existing(folder).and_then(|vault| match vault {
            Some(vault) => vault.read(&self.name),
            None => Ok(None),
        });
        // One that cannot be read now is read again with the next look.
        let Ok(record) = record else { return };
        state.version = version;
        let record = record.filter(|record| record.is_of(&self.settings));
        let token = record.and_then(|record| authorization(&record.access_token).ok());
        if state.token.is_some() && token != state.last {
            state.token = None;
            state.unwritten = None;
        }
    }

    /// Returns the user's sign-in, and locks it.
    pub(super) async fn sign_in(&self) -> Result<(Vault, RecordLock, SignInRecord), OAuthError> {
        let name = &*self.name;
        let state = self.settings.state.as_deref().ok_or_else(|| self.no_sign_in())?;
        let opened = Vault::open_locked(state, name).await?;
        let (vault, lock) = opened.ok_or_else(|| self.no_sign_in())?;
        let record = vault.read(name)?.filter(|record| record.is_of(&self.settings));
        Ok((vault, lock, record.ok_or_else(|| self.no_sign_in())?))
    }

    pub(super) fn no_sign_in(&self) -> OAuthError {
        OAuthError::SignInNeeded(format!("sign in with `weir login {}`", self.name))
    }

    /// Returns whether a sign-in has another token than the last one.
    pub(super) fn is_new(&self, record: &SignInRecord) -> Result<bool, OAuthError> {
        let token = authorization(&record.access_token)?;
        Ok(self.state.lock().last.as_ref() != Some(&token))
    }

    /// Returns the token of the user's sign-in. If it is the last one, it is renewed first: another
    /// process may have done that already.
    pub(super) async fn renew_sign_in(
        &self,
        client: &OAuthClient<'_>,
        configured: Option<&RegisteredClient>,
    ) -> Result<IssuedToken, OAuthError> {
        let name = &*self.name;
        let (vault, lock, mut record) = self.unless_stopping(self.sign_in()).await?;
        let unwritten = self.state.lock().unwritten.take();
        if let Some((former, renewed)) = unwritten
            && former == record.access_token
        {
            record = self.write(&vault, former, renewed, &lock)?;
        }
        if self.is_new(&record)? && record.is_fresh() {
            let (lifetime, token) = (record.rest(), Ok(record.access_token));
            return Ok(IssuedToken { token, refresh_token: None, lifetime });
        }
        if record.refresh_token.is_some() {
            // Nothing is requested that could not be kept, because the disk is full for example.
            vault.check_space(&record)?;
        }
        let refresh_token = record.refresh_token.take().ok_or_else(|| self.no_sign_in())?;
        let registered = match configured {
            Some(configured) => configured.clone(),
            None => record.client(),
        };
        let server = record.server();
        let request = TokenRequest {
            grant: TokenGrant::Refresh(&refresh_token),
            client: Some(&registered),
            server: &server,
            resource: record.resource.as_deref(),
            scope: None,
        };
        match request.send(client).await {
            Ok(issued) => {
                let former = record.access_token.clone();
                record.renew(&issued, refresh_token);
                self.write(&vault, former, record, &lock)?;
                Ok(issued)
            }
            Err(OAuthError::SignInNeeded(text)) => {
                tracing::warn!(upstream = name, reason = text, "sign-in ended");
                vault.remove(name, &lock)?;
                Err(self.no_sign_in())
            }
            Err(error) => Err(error),
        }
    }

    /// Writes a renewed sign-in. If that fails, it is kept in memory, and written later: the
    /// authorization server may have ended the former refresh token.
    fn write(
        &self,
        vault: &Vault,
        former: Secret,
        renewed: SignInRecord,
        lock: &RecordLock,
    ) -> Result<SignInRecord, OAuthError> {
        let written = vault.write(&self.name, &renewed, lock);
        let mut state = self.state.lock();
        if written.is_err() {
            state.unwritten = Some((former, renewed.clone()));
        } else if let Some(folder) = &self.settings.state {
            state.written = Vault::version(folder, &self.name);
            state.version = state.written;
        }
        written.map(|()| renewed)
    }
}

/// Time between two looks at the sign-in in the vault.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt;

    use super::*;
    use crate::oauth::account::stopping;
    use crate::oauth::account::tests::{TOKEN_URL, issue, open, sent, token};
    use crate::oauth::testing::{Script, settings};
    use crate::oauth::vault::tests::record;
    use crate::oauth::{AccessToken, BearerChallenge, ClientCredential, Grant, Settings};
    use crate::timestamp::unix_time;

    /// Account of a user whose vault is in this folder.
    fn of_user(state: &tempfile::TempDir) -> (Arc<Account>, Arc<Script>) {
        open(Settings {
            grant: Grant::AuthorizationCode { client: None },
            state: Some(state.path().into()),
            ..settings()
        })
    }

    /// Signs in as another process, such as `weir login`, does.
    async fn keep(state: &tempfile::TempDir, record: &SignInRecord) -> Vault {
        let vault = Vault::open(state.path()).expect("a vault");
        let lock = vault.lock("hub").await.expect("locked");
        vault.write("hub", record, &lock).expect("written");
        vault
    }

    fn fresh() -> SignInRecord {
        SignInRecord { expires: Some(unix_time().as_secs() + 1_000), ..record() }
    }

    async fn renew(account: &Arc<Account>, token: &AccessToken) -> Result<String, OAuthError> {
        let renewed = account.renew(Some(token), BearerChallenge::default()).await;
        renewed.as_ref().map(sent).map_err(Clone::clone)
    }

    #[tokio::test(start_paused = true)]
    async fn a_sign_in_is_used_and_renewed_and_what_is_renewed_is_kept() {
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
        let lock = vault.lock("hub").await.expect("locked");
        let expires = Some(unix_time().as_secs() + 1_000);
        let signed_in = SignInRecord { expires, ..record() };
        vault.write("hub", &signed_in, &lock).expect("written");
        drop(lock);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(token(&account).await, Ok(Some("Bearer hunter2".into())));
        assert_eq!(account.sign_in_needed(), None);
        assert!(script.requests().is_empty());

        // Its token is refused: the refresh token is replaced, or stays.
        let response = r#"{"access_token":"second","token_type":"Bearer","expires_in":1000,"refresh_token":"next"}"#;
        script.document(TOKEN_URL, response);
        let first = account.token().await.expect("there").expect("a token");
        let second = account.renew(Some(&first), BearerChallenge::default()).await.expect("issued");
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
        let renewed = vault.read("hub").expect("readable").expect("a record");
        assert_eq!(renewed.refresh_token, Some("next".into()));
        // Another process uses what this one has renewed.
        let (other, other_script) = open_account();
        assert_eq!(token(&other).await, Ok(Some("Bearer second".into())));
        assert!(other_script.requests().is_empty());

        // A server that fails does not end the sign-in; one that refuses the refresh token does.
        script.fail(TOKEN_URL);
        let failed = account.renew(Some(&second), BearerChallenge::default()).await;
        assert!(matches!(failed, Err(OAuthError::Unavailable(_))), "{failed:?}");
        assert!(vault.read("hub").expect("readable").is_some());
        tokio::time::advance(Duration::from_secs(75)).await;
        script.respond(TOKEN_URL, 400, r#"{"error":"invalid_grant"}"#);
        let failed = account.renew(Some(&second), BearerChallenge::default()).await;
        assert_eq!(
            failed.map(|token| sent(&token)),
            needed().map(|_: Option<String>| String::new())
        );
        assert_eq!(vault.read("hub"), Ok(None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refresh_that_has_begun_is_kept_although_weir_stops() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        let lock = vault.lock("hub").await.expect("locked");
        vault.write("hub", &record(), &lock).expect("written");
        drop(lock);
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
        account.stop.cancel();
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
    async fn a_user_signs_in_again_for_more_scopes_and_requests_have_the_new_token_then() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        let write = async |record: &SignInRecord| {
            let lock = vault.lock("hub").await.expect("locked");
            vault.write("hub", record, &lock).expect("written");
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
            let refused = account.renew(Some(&first), demand.clone()).await;
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
        let wider = account.renew(Some(&first), demand.clone()).await.expect("there");
        assert_eq!(sent(&wider), "Bearer wider");
        let refused = account.reject(&wider, &demand).await;
        assert!(matches!(&refused, OAuthError::Refused(text) if text.contains("was requested")));
        assert!(script.requests().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_sign_in_for_another_url_or_issuer_is_not_used() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = Vault::open(state.path()).expect("a vault");
        let lock = vault.lock("hub").await.expect("locked");
        let elsewhere = [
            SignInRecord { upstream: "https://mcp.test/other".into(), ..record() },
            SignInRecord { issuer: "https://evil.test".into(), ..record() },
            SignInRecord { client_id: "other".into(), ..record() },
        ];
        drop(lock);
        for signed_in in elsewhere {
            let lock = vault.lock("hub").await.expect("locked");
            vault.write("hub", &signed_in, &lock).expect("written");
            drop(lock);
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
        let vault = keep(&state, &fresh()).await;
        let (account, script) = of_user(&state);
        assert_eq!(token(&account).await, Ok(Some("Bearer hunter2".into())));
        let other = SignInRecord { access_token: "other".into(), ..fresh() };
        keep(&state, &other).await;
        tokio::time::advance(LOOK_INTERVAL).await;
        assert_eq!(token(&account).await, Ok(Some("Bearer other".into())));
        // A change that leaves the token leaves it here, too.
        keep(&state, &SignInRecord { scope: Some("a".into()), ..other }).await;
        tokio::time::advance(LOOK_INTERVAL).await;
        assert_eq!(token(&account).await, Ok(Some("Bearer other".into())));
        let lock = vault.lock("hub").await.expect("locked");
        vault.remove("hub", &lock).expect("removed");
        drop(lock);
        tokio::time::advance(LOOK_INTERVAL).await;
        assert!(matches!(token(&account).await, Err(OAuthError::SignInNeeded(_))));
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
            tokio::time::advance(LOOK_INTERVAL).await;
        }
        assert_eq!(script.requests().len(), 1);
        let mut made = std::pin::pin!(account.sign_in_made());
        assert!(futures::poll!(&mut made).is_pending());
        tokio::time::advance(LOOK_INTERVAL).await;
        assert!(futures::poll!(&mut made).is_pending());
        keep(&state, &SignInRecord { access_token: "new".into(), ..fresh() }).await;
        made.await;
        assert_eq!(token(&account).await, Ok(Some("Bearer new".into())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_sign_in_that_cannot_be_written_is_not_lost() {
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
        assert_eq!(
            (kept.access_token.expose(), kept.refresh_token),
            ("hunter2", Some("r2".into()))
        );
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

    #[tokio::test(start_paused = true)]
    async fn a_token_that_is_accepted_again_needs_no_sign_in() {
        let state = tempfile::tempdir().expect("a folder");
        keep(&state, &SignInRecord { refresh_token: None, expires: None, ..record() }).await;
        let (account, script) = of_user(&state);
        let first = account.token().await.expect("there").expect("a token");
        account.accept(&first);
        assert!(matches!(renew(&account, &first).await, Err(OAuthError::SignInNeeded(_))));
        assert!(account.sign_in_needed().is_some());
        // The upstream refuses one request, and accepts others.
        let first = account.token().await.expect("there").expect("a token");
        account.accept(&first);
        assert_eq!(account.sign_in_needed(), None);
        assert!(script.requests().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_cannot_be_renewed_is_good_until_it_expires_or_is_refused() {
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
            assert!(matches!(*account.outcomes().borrow(), crate::oauth::TokenOutcome::Failed(_)));
            assert_eq!(account.sign_in_needed(), None);
            if is_refused {
                assert!(matches!(renew(&account, &due).await, Err(OAuthError::SignInNeeded(_))));
            } else {
                tokio::time::advance(Duration::from_secs(200)).await;
                assert!(matches!(token(&account).await, Err(OAuthError::SignInNeeded(_))));
            }
            assert!(account.sign_in_needed().is_some());
            assert!(script.requests().is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_can_be_waited_for() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = keep(&state, &record()).await;
        let (account, script) = of_user(&state);
        account.renewal_ended().await;
        issue(&script, "second", 1_000);
        assert!(account.token().now_or_never().is_none(), "its caller has gone");
        account.renewal_ended().await;
        let kept = vault.read("hub").expect("readable").expect("a record");
        assert_eq!(kept.access_token.expose(), "second");
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
}
