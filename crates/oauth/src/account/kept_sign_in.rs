//! User's sign-in of an account, which the vault keeps and other processes use, too.
//!
//! Invariants: a refreshed sign-in is written before its tokens are used; one that cannot be written
//! is kept in memory until it can. A sign-in that was removed or replaced is not used for longer
//! than [`LOOK_INTERVAL`], and what a refresh of it has obtained is revoked. One that cannot be
//! read is not used.

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Account, AccountState, RefreshFailure, sign_in_replaced, stopping};
use crate::access_token::authorization;
use crate::token_request::{IssuedToken, TokenGrant, TokenRequest};
use crate::url_rules::OAuthClient;
use crate::vault::{
    FileLock, RecordChange, RecordVersion, ReservedSpace, SignInNumber, SignInRecord, Vault,
};
use crate::{Exchange, OAuthError, RegisteredClient};

impl Account {
    /// Waits until a user has signed in, if the account needs that; otherwise for ever.
    pub async fn sign_in_made(&self) {
        loop {
            sleep(LOOK_INTERVAL).await;
            let mut state = self.state.lock();
            self.look(&mut state, Instant::now());
            let is_new = match &state.failure {
                Some(
                    RefreshFailure { error: OAuthError::Unavailable(_), .. }
                    | RefreshFailure { is_over: true, .. },
                )
                | None => false,
                Some(failure) => {
                    failure.version != state.version
                        && state.version.is_some_and(RecordVersion::has_record)
                }
            };
            if is_new {
                return;
            }
        }
    }

    /// Returns the sign-in whose tokens are used; `None` if no user is signed in.
    pub fn sign_in(&self) -> Option<SignInNumber> {
        self.look(&mut self.state.lock(), Instant::now());
        *self.sign_in.borrow()
    }

    /// Waits until another sign-in than this one is used, and returns it.
    pub async fn sign_in_other_than(&self, known: Option<SignInNumber>) -> Option<SignInNumber> {
        let mut changes = self.sign_in.subscribe();
        loop {
            let present = self.sign_in();
            if present != known {
                return present;
            }
            match self.settings.grant.is_of_user() {
                true => tokio::select! {
                    _ = changes.changed() => {}
                    () = sleep(LOOK_INTERVAL) => {}
                },
                false => std::future::pending().await,
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
        let version = Some(Vault::version(folder, &self.name));
        if version == state.version {
            return;
        }
        let (record, ran_out) = match self.read(folder) {
            Ok(read) => read,
            // It is read again with the next look.
            Err(error) => {
                state.unreadable = Some(error);
                return;
            }
        };
        state.unreadable = None;
        state.version = version;
        let number = record.as_ref().map(SignInRecord::number).or(ran_out);
        let token = record.as_ref().and_then(|record| authorization(&record.access_token).ok());
        if state.token.is_some() && token != state.last {
            state.token = None;
        }
        if let Some(unwritten) = state.unwritten.take_if(|it| Some(it.0.number()) != number) {
            self.drop_tokens(unwritten.1, record.as_ref());
        }
        self.sign_in.send_if_modified(|present| std::mem::replace(present, number) != number);
    }

    /// Reads the user's sign-in, or else the number of the one that ran out.
    fn read(
        &self,
        folder: &Path,
    ) -> Result<(Option<SignInRecord>, Option<SignInNumber>), OAuthError> {
        let Some(vault) = Vault::open_existing(folder)? else { return Ok((None, None)) };
        match vault.read(&self.name)? {
            Some(record) => Ok((Some(record).filter(|it| it.is_of(&self.settings)), None)),
            None => Ok((None, vault.notes(&self.name)?.ran_out)),
        }
    }

    /// Returns the user's sign-in, when no other process refreshes it.
    async fn lock_sign_in(&self) -> Result<(Vault, FileLock, SignInRecord), OAuthError> {
        let (folder, name) = (self.folder()?, &*self.name);
        let opened = Vault::open_existing(folder)?.ok_or_else(|| self.no_sign_in())?;
        let lock = opened.lock_refresh(name).await?;
        // The keys may have been changed before the lock was there.
        let vault = Vault::open_existing(folder)?.ok_or_else(|| self.no_sign_in())?;
        let record = vault.read(name)?.filter(|record| record.is_of(&self.settings));
        Ok((vault, lock, record.ok_or_else(|| self.no_sign_in())?))
    }

    /// Returns the folder with the user's sign-in.
    pub(super) fn folder(&self) -> Result<&Path, OAuthError> {
        self.settings.state.as_deref().ok_or_else(|| self.no_sign_in())
    }

    pub(super) fn no_sign_in(&self) -> OAuthError {
        OAuthError::SignInNeeded(format!("sign in with `weir login {}`", self.name))
    }

    /// Returns whether a sign-in has another token than the last one.
    pub(super) fn is_new(&self, record: &SignInRecord) -> Result<bool, OAuthError> {
        let token = authorization(&record.access_token)?;
        Ok(self.state.lock().last.as_ref() != Some(&token))
    }

    /// Returns the token of the user's sign-in. If it is the last one, it is refreshed first: another
    /// process may have done that already.
    pub(super) async fn refresh_sign_in(
        &self,
        configured: Option<&RegisteredClient>,
    ) -> Result<(IssuedToken, SignInNumber), OAuthError> {
        // It ends when the refreshed sign-in is kept.
        let exchange = Exchange::new(&self.name);
        let http = exchange.over(&*self.http);
        let client = OAuthClient::new(&http, &self.settings);
        let (vault, _lock, mut record) = self.unless_stopping(self.lock_sign_in()).await?;
        let unwritten = self.state.lock().unwritten.take();
        if let Some(unwritten) = unwritten
            && unwritten.0.has_tokens_of(&record)
        {
            record = self.write(unwritten, None).await?;
        }
        if self.is_new(&record)? && record.is_fresh() {
            let (lifetime, token, number) = (record.rest(), Ok(record.access_token), record.number);
            return Ok((IssuedToken { token, refresh_token: None, lifetime }, number));
        }
        let refresh_token = record.refresh_token.clone().ok_or_else(|| self.no_sign_in())?;
        // Nothing is requested that could not be kept, because the disk is full for example.
        let space = vault.reserve_space()?;
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
        let issued = self.unless_stopping_before(&exchange, request.send(&client)).await;
        match issued.map_err(|error| error.without(record.secrets())) {
            Ok(issued) => {
                let mut refreshed = record.clone();
                refreshed.replace_tokens(&issued, &self.settings);
                let written = self.write(Box::new((record, refreshed)), Some(space)).await?;
                Ok((issued, written.number))
            }
            Err(OAuthError::SignInNeeded(text)) => Err(self.end(&record, &text).await?),
            Err(error) => Err(error),
        }
    }

    /// Runs `work`, which Weir's stop ends only before the exchange has begun.
    async fn unless_stopping_before<T>(
        &self,
        exchange: &Exchange,
        work: impl Future<Output = Result<T, OAuthError>>,
    ) -> Result<T, OAuthError> {
        let stopped = async {
            self.stop.cancelled().await;
            if exchange.has_begun() {
                std::future::pending().await
            }
        };
        tokio::select! {
            biased;
            () = stopped => Err(stopping()),
            done = work => done,
        }
    }

    /// Writes a refreshed sign-in in place of the one before. If that fails, it is kept in memory,
    /// and written later: the authorization server may have ended the former refresh token.
    async fn write(
        &self,
        refresh: Box<(SignInRecord, SignInRecord)>,
        space: Option<ReservedSpace>,
    ) -> Result<SignInRecord, OAuthError> {
        let (before, refreshed) = &*refresh;
        let replace = |present: Result<Option<SignInRecord>, OAuthError>| match present {
            Ok(Some(present)) if present.has_tokens_of(before) => {
                // The upstream may have demanded scopes in the meantime.
                let step_up = present.step_up;
                let record = SignInRecord { step_up, ..refreshed.clone() };
                (RecordChange::Write(Box::new(record.clone())), Ok(Ok(record)))
            }
            // Another process may have refreshed it, after this one had been stopped.
            Ok(present) => (RecordChange::None, Err(present.map(Box::new))),
            Err(error) => (RecordChange::None, Ok(Err(error))),
        };
        let written = Vault::change(self.folder()?, &self.name, space, replace).await;
        match written.unwrap_or_else(|error| Ok(Err(error))) {
            Ok(Ok(record)) => {
                self.state.lock().written = Some(Vault::version(self.folder()?, &self.name));
                Ok(record)
            }
            Ok(Err(error)) => {
                self.state.lock().unwritten = Some(refresh);
                Err(error)
            }
            Err(present) => {
                self.drop_tokens(refresh.1, present.as_deref());
                Err(sign_in_replaced())
            }
        }
    }

    /// Ends a sign-in whose refresh token the authorization server refuses, and returns the error
    /// for that; unless the sign-in has changed in the meantime.
    async fn end(&self, record: &SignInRecord, reason: &str) -> Result<OAuthError, OAuthError> {
        let end = |present: Result<Option<SignInRecord>, OAuthError>| match present {
            Ok(Some(present)) if present.has_tokens_of(record) => (RecordChange::RunOut, true),
            _ => (RecordChange::None, false),
        };
        if !Vault::change(self.folder()?, &self.name, None, end).await? {
            return Err(sign_in_replaced());
        }
        tracing::warn!(upstream = self.name, reason, "sign-in ended");
        Ok(self.no_sign_in())
    }

    /// Revokes the tokens of a sign-in that was removed or replaced by the present one, where that
    /// does not end the present one.
    fn drop_tokens(&self, record: SignInRecord, present: Option<&SignInRecord>) {
        if present.is_some_and(|present| !record.is_revocable_beside(present)) {
            return;
        }
        let (http, settings) = (self.http.clone(), self.settings.clone());
        let exchange = Exchange::new(&self.name);
        let revocation = async move {
            if let Err(error) = record.revoke(&exchange.over(&*http), &settings).await {
                tracing::debug!(%error, "tokens of a former sign-in not revoked");
            }
        };
        // A look may come from a runtime that ends earlier than the program.
        self.tracker.spawn_on(revocation, &self.runtime);
    }
}

/// Time between two looks at the sign-in in the vault.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::account::tests::{TOKEN_URL, issue, open, sent, token};
    use crate::testing::record;
    use crate::testing::{Script, settings};
    use crate::{AccessToken, BearerChallenge, ClientCredential, Grant, Settings};
    use weir_base::time::timestamp::unix_time;

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
        let _ = Vault::sign_in(state.path(), "hub", record.clone()).await.expect("written");
        Vault::open(state.path()).expect("a vault")
    }

    fn fresh() -> SignInRecord {
        SignInRecord { expires: Some(unix_time().as_secs() + 1_000), ..record() }
    }

    async fn refresh(account: &Arc<Account>, token: &AccessToken) -> Result<String, OAuthError> {
        let refreshed = account.refresh(Some(token), BearerChallenge::default()).await;
        refreshed.as_ref().map(sent).map_err(Clone::clone)
    }

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
        assert_eq!(
            failed.map(|token| sent(&token)),
            needed().map(|_: Option<String>| String::new())
        );
        assert_eq!(vault.read("hub"), Ok(None));
    }

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
        let text =
            format!("{TOKEN_URL} refuses the request: slow: *** expired, you sent *** and ***");
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
        tokio::time::advance(LOOK_INTERVAL).await;
        assert_eq!(token(&account).await, Ok(Some("Bearer other".into())));
        // A change that leaves the token leaves it here, too.
        keep(&state, &SignInRecord { scope: Some("a".into()), ..other }).await;
        tokio::time::advance(LOOK_INTERVAL).await;
        assert_eq!(token(&account).await, Ok(Some("Bearer other".into())));
        let _ = Vault::sign_out(state.path(), "hub").await.expect("removed");
        tokio::time::advance(LOOK_INTERVAL).await;
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
    async fn a_sign_in_that_is_replaced_or_removed_in_a_refresh_stays_so_and_its_tokens_are_revoked()
     {
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
            account.tracker.close();
            account.tracker.wait().await;
            let requests = script.requests();
            assert_eq!(requests.iter().filter(|it| **it == REVOKED).count(), revoked);
            tokio::time::advance(Duration::from_secs(3)).await;
            assert_eq!(token(&account).await.is_ok(), after.is_some());
        }
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
            tokio::time::advance(LOOK_INTERVAL).await;
            token(&account).await.expect_err("not used");
            assert_eq!(account.sign_in(), number);
            let _ = std::fs::remove_dir(&record);
            std::fs::write(&record, &content).expect("written");
            std::fs::set_permissions(&record, PermissionsExt::from_mode(0o600)).expect("changed");
            tokio::time::advance(LOOK_INTERVAL).await;
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

    #[tokio::test(start_paused = true)]
    async fn a_refresh_that_waits_for_the_lock_or_has_no_connection_yet_ends_when_weir_stops() {
        let state = tempfile::tempdir().expect("a folder");
        let vault = keep(&state, &record()).await;
        let lock = vault.lock_refresh("hub").await.expect("locked");
        let (account, script) = of_user(&state);
        issue(&script, "second", 1_000);
        let mut request = std::pin::pin!(account.token());
        assert!(futures::poll!(&mut request).is_pending());
        account.stop.cancel();
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
        account.stop.cancel();
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
}
