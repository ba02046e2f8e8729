//! Demand of an upstream for scopes that the account's token does not have.

use super::{Account, AccountState, TokenOutcome};
use crate::oauth::OAuthError;
use crate::oauth::access_token::AccessToken;
use crate::oauth::challenge::BearerChallenge;
use crate::oauth::url_rules::MAX_SHOWN_CHARS;
use crate::quote::quote;
use crate::timestamp::unix_time;

impl Account {
    /// Follows a demand for scopes: the next token has them. Returns one that another request with
    /// the same demand has obtained meanwhile.
    pub(super) async fn follow(
        &self,
        refused: Option<&AccessToken>,
        challenge: &BearerChallenge,
    ) -> Result<Option<AccessToken>, OAuthError> {
        // A renewal that runs may be without these scopes.
        let running = self.state.lock().renewal.clone();
        if let Some(running) = running {
            let _ = running.await;
        }
        let demanded = self.step_up(challenge).await;
        if self.settings.grant.is_of_user() || demanded.is_err() {
            let token = self.state.lock().token_other_than(refused);
            if token.is_some() {
                return Ok(token);
            }
        }
        if let Err(error) = &demanded {
            self.publish(TokenOutcome::Failed(error.clone()));
        }
        demanded.map(|()| None)
    }

    /// Records the upstream's demand for scopes: the next token has them.
    ///
    /// # Errors
    ///
    /// The demand cannot be followed, or the user has to sign in again for that.
    pub(super) async fn step_up(&self, challenge: &BearerChallenge) -> Result<(), OAuthError> {
        let demanded = challenge.scope.as_deref().unwrap_or_default();
        let (name, settings, now) = (&*self.name, &self.settings, unix_time());
        if !self.settings.grant.is_of_user() {
            let mut state = self.state.lock();
            let AccountState { scope, step_up, .. } = &mut *state;
            return step_up.demand(demanded, scope.as_deref(), settings, now);
        }
        let (vault, lock, mut record) = self.sign_in().await?;
        if self.is_new(&record)? {
            return Ok(());
        }
        let before = record.step_up.clone();
        record.step_up.demand(demanded, record.scope.as_deref(), settings, now)?;
        let demanded = quote(demanded, MAX_SHOWN_CHARS);
        if record.step_up != before {
            vault.write(name, &record, &lock)?;
            tracing::warn!(upstream = name, scope = demanded, "more scopes demanded");
        }
        let text =
            format!("the upstream demands {demanded}: sign in again with `weir login {name}`");
        Err(OAuthError::SignInNeeded(text))
    }
}
