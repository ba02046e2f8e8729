//! Task that requests a token for an account, by whatever grant it has.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::client::sign_in_replaced;
use super::client_refresh::request_token;
use super::sign_in_refresh::refresh_sign_in;
use super::token_state::Event;
use super::watches::TokenOutcome;
use super::{Account, AccountState};
use crate::access_token::AccessToken;
use crate::token_request::{IssuedToken, TokenGrant};
use crate::vault::{RecordVersion, SignInNumber};
use crate::{Grant, OAuthError};

/// Refresh of the token of one account.
pub(super) struct TokenRefresh {
    pub(super) account: Arc<Account>,
    /// Version of the sign-in record with which it began.
    pub(super) sign_in: Option<RecordVersion>,
}

impl TokenRefresh {
    /// Requests a token. When it returns, the account has the token, or a pause after the failure.
    pub(super) async fn run(self) -> Result<AccessToken, OAuthError> {
        let account = &*self.account;
        let issued = match account.is_of_user() {
            // It stops by itself, unless the server may have replaced the refresh token.
            true => self.request().await,
            false => account.client.unless_stopping(self.request()).await,
        };
        let issued = issued.map_err(|error| {
            account.watches.without_tokens(error.without(account.client.secret()))
        });
        let (mut state, now) = (account.state.lock(), Instant::now());
        state.running = None;
        // The user may have signed in or out in the meantime.
        state.sign_in.check_soon();
        account.check_sign_in(&mut state, now);
        let number = state.tokens.next_number();
        let token = issued.and_then(|(issued, sign_in)| match account.watches.sign_in() {
            Some(present) if present == sign_in => AccessToken::new(&issued, sign_in, number, now),
            _ => Err(sign_in_replaced()),
        });
        self.record(&mut state, token.clone(), now);
        account.has_failed.store(state.tokens.has_failed(), Ordering::Relaxed);
        token
    }

    /// Requests a token, and returns it with the sign-in to which it belongs.
    async fn request(&self) -> Result<(IssuedToken, SignInNumber), OAuthError> {
        let account = &*self.account;
        let (grant, registered) = match &account.client.settings.grant {
            Grant::AuthorizationCode { client: configured } => {
                return refresh_sign_in(account, configured.as_ref()).await;
            }
            Grant::ClientCredentials(client) => (TokenGrant::ClientCredentials, Some(client)),
            Grant::JwtBearer { assertion } => (TokenGrant::JwtBearer(assertion), None),
        };
        let issued = request_token(account, grant, registered).await?;
        Ok((issued, SignInNumber::default()))
    }

    fn record(
        &self,
        state: &mut AccountState,
        token: Result<AccessToken, OAuthError>,
        now: Instant,
    ) {
        let Account { client, watches, .. } = &*self.account;
        let sign_in = state.sign_in.take_written().or(self.sign_in);
        match token {
            Ok(token) => {
                tracing::debug!(upstream = client.name, "access token issued");
                watches.publish_tokens(&token, state.tokens.last());
                state.tokens.apply(Event::Issued(token), now);
                watches.publish(TokenOutcome::Issued);
            }
            Err(error) => {
                state.tokens.apply(Event::Failed { error: error.clone(), sign_in }, now);
                if watches.publish(TokenOutcome::Failed(error.clone())) {
                    let pause = state.tokens.pause(now);
                    tracing::warn!(upstream = client.name, %error, ?pause, "no access token");
                }
            }
        }
    }
}
