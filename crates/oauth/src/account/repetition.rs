//! Secrets of the account that a server repeats.

use super::Account;
use crate::access_token::token_finders;
use crate::{OAuthError, RegisteredClient};
use weir_base::secrets::secret::Secret;

impl Account {
    /// Returns whether a text of the upstream repeats a token, or the secret of the client.
    pub fn is_repeated_in(&self, text: &str) -> bool {
        let secret = token_finders(self.client_secret().map(Secret::expose));
        self.finders.borrow().are_in(text.as_bytes()) || secret.are_in(text.as_bytes())
    }

    /// Returns an error without secrets that a server may have repeated, in metadata for example.
    pub(super) fn without_secrets(&self, error: OAuthError) -> OAuthError {
        error.without(self.client_secret()).redact(&self.finders.borrow())
    }

    fn client_secret(&self) -> Option<&Secret> {
        self.settings.grant.client().and_then(RegisteredClient::secret)
    }
}
