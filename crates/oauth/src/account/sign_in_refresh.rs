//! Refresh of a user's sign-in, whose tokens other processes use, too.
//!
//! Invariants: a refreshed record is written before its tokens are used; one that cannot be written
//! is kept in memory until it can. Of a sign-in that was removed or replaced meanwhile, the tokens
//! that the refresh has obtained are revoked.

use super::Account;
use super::client::{AccountClient, sign_in_replaced};
use super::sign_in_state::RecordReplacement;
use crate::access_token::{AccessToken, authorization};
use crate::token_request::{IssuedToken, TokenGrant, TokenRequest};
use crate::url_rules::OAuthClient;
use crate::vault::{FileLock, RecordChange, ReservedSpace, SignInNumber, SignInRecord, Vault};
use crate::{Exchange, OAuthError, RegisteredClient};

/// Returns the token of the user's sign-in. If it is the last one, it is refreshed first:
/// another process may have done that already.
pub(super) async fn refresh_sign_in(
    account: &Account,
    configured: Option<&RegisteredClient>,
) -> Result<(IssuedToken, SignInNumber), OAuthError> {
    let client = &account.client;
    // It ends when the refreshed sign-in is kept.
    let exchange = Exchange::new(&client.name);
    let http = exchange.over(&*client.http);
    let (vault, _lock, mut record) = client.unless_stopping(lock(client)).await?;
    let unwritten = account.state.lock().sign_in.take_unwritten();
    if let Some(unwritten) = unwritten
        && unwritten.before.has_tokens_of(&record)
    {
        record = write(account, unwritten, None).await?;
    }
    if is_new(account, &record)? && record.is_fresh() {
        let (lifetime, token, number) = (record.rest(), Ok(record.access_token), record.number);
        return Ok((IssuedToken { token, refresh_token: None, lifetime }, number));
    }
    let refresh_token = record.refresh_token.clone().ok_or_else(|| client.no_sign_in())?;
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
    let oauth = OAuthClient::new(&http, &client.settings);
    let issued = client.unless_stopping_before(&exchange, request.send(&oauth)).await;
    match issued.map_err(|error| error.without(record.secrets())) {
        Ok(issued) => {
            let mut after = record.clone();
            after.replace_tokens(&issued, &client.settings);
            let replacement = Box::new(RecordReplacement { before: record, after });
            let written = write(account, replacement, Some(space)).await?;
            Ok((issued, written.number))
        }
        Err(OAuthError::SignInNeeded(text)) => Err(end(client, &record, &text).await?),
        Err(error) => Err(error),
    }
}

/// Returns whether a record has another token than the last one.
fn is_new(account: &Account, record: &SignInRecord) -> Result<bool, OAuthError> {
    let token = authorization(&record.access_token)?;
    Ok(account.state.lock().tokens.last().map(AccessToken::header) != Some(&token))
}

/// Writes a refreshed record in place of the one before. If that fails, it is kept in memory,
/// and written later.
async fn write(
    account: &Account,
    replacement: Box<RecordReplacement>,
    space: Option<ReservedSpace>,
) -> Result<SignInRecord, OAuthError> {
    let client = &account.client;
    let RecordReplacement { before, after } = &*replacement;
    let replace = |present: Result<Option<SignInRecord>, OAuthError>| match present {
        Ok(Some(present)) if present.has_tokens_of(before) => {
            // The upstream may have demanded scopes in the meantime.
            let step_up = present.step_up;
            let record = SignInRecord { step_up, ..after.clone() };
            (RecordChange::Write(Box::new(record.clone())), Ok(Ok(record)))
        }
        // Another process may have refreshed it, after this one had been stopped.
        Ok(present) => (RecordChange::None, Err(present.map(Box::new))),
        Err(error) => (RecordChange::None, Ok(Err(error))),
    };
    let written = Vault::change(client.folder()?, &client.name, space, replace).await;
    match written.unwrap_or_else(|error| Ok(Err(error))) {
        Ok(Ok(record)) => {
            let version = Vault::version(client.folder()?, &client.name);
            account.state.lock().sign_in.on_written(version);
            Ok(record)
        }
        Ok(Err(error)) => {
            account.state.lock().sign_in.keep_unwritten(Some(replacement));
            Err(error)
        }
        Err(present) => {
            client.revoke_former(replacement.after, present.as_deref());
            Err(sign_in_replaced())
        }
    }
}

/// Returns the user's sign-in, when no other process refreshes it.
async fn lock(client: &AccountClient) -> Result<(Vault, FileLock, SignInRecord), OAuthError> {
    let (folder, name) = (client.folder()?, &*client.name);
    let opened = Vault::open_existing(folder)?.ok_or_else(|| client.no_sign_in())?;
    let lock = opened.lock_refresh(name).await?;
    // The keys may have been changed before the lock was there.
    let vault = Vault::open_existing(folder)?.ok_or_else(|| client.no_sign_in())?;
    let record = vault.read(name)?.filter(|record| record.is_of(&client.settings));
    Ok((vault, lock, record.ok_or_else(|| client.no_sign_in())?))
}

/// Ends a sign-in whose refresh token the authorization server refuses, and returns the error for
/// that; unless the sign-in has changed in the meantime.
async fn end(
    client: &AccountClient,
    record: &SignInRecord,
    reason: &str,
) -> Result<OAuthError, OAuthError> {
    let end = |present: Result<Option<SignInRecord>, OAuthError>| match present {
        Ok(Some(present)) if present.has_tokens_of(record) => (RecordChange::RunOut, true),
        _ => (RecordChange::None, false),
    };
    if !Vault::change(client.folder()?, &client.name, None, end).await? {
        return Err(sign_in_replaced());
    }
    tracing::warn!(upstream = client.name, reason, "sign-in ended");
    Ok(client.no_sign_in())
}
