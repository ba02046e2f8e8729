//! Weir as the client that requests the tokens for one upstream. Accounts there can share it.

use std::path::Path;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::url_rules::OAuthClient;
use crate::vault::SignInRecord;
use crate::{Exchange, OAuthError, RegisteredClient, Settings};
use weir_base::net::http_send::HttpSend;
use weir_base::secrets::secret::Secret;

/// Client at the authorization server of one upstream.
pub(super) struct AccountClient {
    /// Name of the upstream, for the log.
    pub(super) name: String,
    pub(super) settings: Settings,
    pub(super) http: Arc<dyn HttpSend>,
    pub(super) tracker: TaskTracker,
    /// Runtime that lives as long as the program: a request may come from one that ends earlier.
    pub(super) runtime: Handle,
    pub(super) stop: CancellationToken,
}

impl AccountClient {
    pub(super) fn is_of_user(&self) -> bool {
        self.settings.grant.is_of_user()
    }

    /// Returns whether a token can be obtained before the upstream has been asked.
    pub(super) fn can_begin(&self) -> bool {
        self.is_of_user() || self.settings.token_url.is_some()
    }

    /// Returns the client for the requests of a refresh.
    pub(super) fn oauth(&self) -> OAuthClient<'_> {
        OAuthClient::new(&*self.http, &self.settings)
    }

    /// Returns the secret of the configuration, if the client has one.
    pub(super) fn secret(&self) -> Option<&Secret> {
        self.settings.grant.client().and_then(RegisteredClient::secret)
    }

    /// Returns the state folder with the user's sign-in.
    pub(super) fn folder(&self) -> Result<&Path, OAuthError> {
        self.settings.state.as_deref().ok_or_else(|| self.no_sign_in())
    }

    /// Runs `work` until Weir stops.
    pub(super) async fn unless_stopping<T>(
        &self,
        work: impl Future<Output = Result<T, OAuthError>>,
    ) -> Result<T, OAuthError> {
        self.stop.run_until_cancelled(work).await.unwrap_or_else(|| Err(stopping()))
    }

    /// Runs `work`, which Weir's stop ends only before the exchange has begun.
    pub(super) async fn unless_stopping_before<T>(
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

    /// Revokes the tokens of a sign-in that was removed or replaced by the present one, where that
    /// does not end the present one.
    pub(super) fn revoke_former(
        self: &Arc<Self>,
        record: SignInRecord,
        present: Option<&SignInRecord>,
    ) {
        if present.is_some_and(|present| !record.is_revocable_beside(present)) {
            return;
        }
        let client = Arc::clone(self);
        let exchange = Exchange::new(&self.name);
        let revocation = async move {
            let http = exchange.over(&*client.http);
            if let Err(error) = record.revoke(&http, &client.settings).await {
                tracing::debug!(%error, "tokens of a former sign-in not revoked");
            }
        };
        // The caller may be of a runtime that ends earlier than the program.
        self.tracker.spawn_on(revocation, &self.runtime);
    }

    // === Errors ===

    pub(super) fn no_sign_in(&self) -> OAuthError {
        OAuthError::SignInNeeded(format!("sign in with `weir login {}`", self.name))
    }

    /// Returns the error for a request that is refused with a token that is new.
    pub(super) fn token_refused(&self) -> OAuthError {
        let text = "the upstream refuses an access token that is new";
        match self.is_of_user() {
            true => {
                let name = &self.name;
                let text =
                    format!("{text}: if it stays so, sign in again with `weir login {name}`");
                OAuthError::Refused(text)
            }
            false => OAuthError::Refused(text.into()),
        }
    }
}

pub(super) fn sign_in_replaced() -> OAuthError {
    OAuthError::Unavailable("a user has signed in or out in the meantime".into())
}

pub(super) fn stopping() -> OAuthError {
    OAuthError::Unavailable("Weir is stopping".into())
}
