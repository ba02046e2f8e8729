//! Demand of an upstream for scopes that the account's token does not have.

use super::Account;
use super::watches::TokenOutcome;
use crate::OAuthError;
use crate::access_token::{AccessToken, TokenNumber, authorization};
use crate::challenge::BearerChallenge;
use crate::url_rules::MAX_SHOWN_CHARS;
use crate::vault::{RecordChange, SignInRecord, Vault};
use weir_base::text::quote::quote;
use weir_base::time::timestamp::unix_time;

/// Follows a demand for scopes: the next token has them. Returns one that another request with the
/// same demand has obtained meanwhile.
pub(super) async fn follow(
    account: &Account,
    refused: Option<TokenNumber>,
    challenge: &BearerChallenge,
) -> Result<Option<AccessToken>, OAuthError> {
    let other = || account.state.lock().tokens.other_than(refused);
    if let Some(token) = other() {
        return Ok(Some(token));
    }
    // A refresh that runs may be without these scopes.
    let running = account.state.lock().running.clone();
    if let Some(running) = running {
        let _ = running.await;
    }
    let demanded = record(account, challenge).await;
    if (account.is_of_user() || demanded.is_err())
        && let Some(token) = other()
    {
        return Ok(Some(token));
    }
    if let Err(error) = &demanded {
        account.watches.publish(TokenOutcome::Failed(error.clone()));
    }
    demanded.map(|()| None)
}

/// Records the upstream's demand for scopes: the next token has them.
///
/// # Errors
///
/// The demand cannot be followed, or the user has to sign in again for that.
pub(super) async fn record(
    account: &Account,
    challenge: &BearerChallenge,
) -> Result<(), OAuthError> {
    let client = &account.client;
    let demanded = challenge.scope.as_deref().unwrap_or_default();
    let (name, settings, now) = (&*client.name, &client.settings, unix_time());
    if !client.is_of_user() {
        return account.state.lock().scopes.demand(demanded, settings, now);
    }
    if account.sign_in().is_none() {
        return Err(client.no_sign_in());
    }
    let last = account.state.lock().tokens.last().map(|token| token.header().clone());
    // Returns the record, if the demand changes it; `None` if there is another token.
    let follow = |present: Option<SignInRecord>| {
        let record = present.filter(|record| record.is_of(settings));
        let mut record = record.ok_or_else(|| client.no_sign_in())?;
        if last != Some(authorization(&record.access_token)?) {
            return Ok(None);
        }
        let before = record.step_up.clone();
        record.step_up.demand(demanded, record.scope.as_deref(), settings, now)?;
        Ok(Some((record.step_up != before).then_some(record)))
    };
    let demand = |present: Result<_, OAuthError>| match present.and_then(follow) {
        Ok(Some(Some(record))) => (RecordChange::Write(Box::new(record)), Ok(Some(true))),
        Ok(Some(None)) => (RecordChange::None, Ok(Some(false))),
        Ok(None) => (RecordChange::None, Ok(None)),
        Err(error) => (RecordChange::None, Err(error)),
    };
    let followed = Vault::change(client.folder()?, name, None, demand).await??;
    let Some(is_new) = followed else { return Ok(()) };
    let demanded = quote(demanded, MAX_SHOWN_CHARS);
    if is_new {
        tracing::warn!(upstream = name, scope = demanded, "more scopes demanded");
    }
    let text = format!("the upstream demands {demanded}: sign in again with `weir login {name}`");
    Err(OAuthError::SignInNeeded(text))
}
