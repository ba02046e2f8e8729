//! Binding of an account to its authorization server.

use std::sync::Arc;

use crate::challenge::BearerChallenge;
use crate::discovery::Discovered;
use crate::vault::BoundClient;

/// Authorization server of an account, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct ServerBinding {
    /// Last challenge of the upstream, with which the server is discovered.
    pub(super) challenge: Option<BearerChallenge>,
    /// Result of the discovery since that challenge.
    pub(super) discovered: Option<Arc<Discovered>>,
    /// Issuers to which the credentials of clients belong.
    pub(super) issuers: Vec<BoundClient>,
}

impl ServerBinding {
    /// Creates the binding of an account that replaces the one with this binding.
    pub(super) fn succeed(before: &Self) -> Self {
        Self { issuers: before.issuers.clone(), ..Self::default() }
    }

    /// Records a challenge. The server is discovered anew.
    pub(super) fn on_challenge(&mut self, challenge: BearerChallenge) {
        self.challenge = Some(challenge);
        self.discovered = None;
    }

    /// Records to which issuer the credentials of a client belong.
    pub(super) fn bind(&mut self, client: BoundClient) {
        client.keep_in(&mut self.issuers);
    }
}
