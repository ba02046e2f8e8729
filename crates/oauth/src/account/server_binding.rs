//! Binding of an account to its authorization server.

use std::sync::Arc;

use crate::challenge::BearerChallenge;
use crate::discovery::Discovered;
use crate::vault::BoundClient;

/// Authorization server of an account, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct ServerBinding {
    /// Last challenge of the upstream, with which the server is discovered.
    challenge: Option<BearerChallenge>,
    /// Result of the discovery since that challenge.
    discovered: Option<Arc<Discovered>>,
    /// Issuers to which the credentials of clients belong.
    issuers: Vec<BoundClient>,
}

impl ServerBinding {
    /// Creates the binding of an account that replaces another one, from which it knows the
    /// issuers.
    pub(super) fn after(&self) -> Self {
        Self { issuers: self.issuers.clone(), ..Self::default() }
    }

    /// Returns the challenge of the upstream; `None` if it has not sent one.
    pub(super) fn challenge(&self) -> Option<&BearerChallenge> {
        self.challenge.as_ref()
    }

    /// Records a challenge. The server is discovered anew.
    pub(super) fn on_challenge(&mut self, challenge: BearerChallenge) {
        self.challenge = Some(challenge);
        self.discovered = None;
    }

    pub(super) fn discovered(&self) -> Option<&Arc<Discovered>> {
        self.discovered.as_ref()
    }

    pub(super) fn on_discovered(&mut self, discovered: Arc<Discovered>) {
        self.discovered = Some(discovered);
    }

    /// Forgets the server, which may have moved.
    pub(super) fn forget_discovered(&mut self) {
        self.discovered = None;
    }

    pub(super) fn issuers(&self) -> &[BoundClient] {
        &self.issuers
    }

    /// Records to which issuer the credentials of a client belong.
    pub(super) fn bind(&mut self, client: BoundClient) {
        client.keep_in(&mut self.issuers);
    }
}
