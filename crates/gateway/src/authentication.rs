//! Identity of a client, and its re-authentication under a new configuration.
//!
//! Invariant: a client that stays for longer than a request is authenticated again under each
//! configuration, with its original credential; one that is no longer valid is rejected.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;

use super::client_context::{AuthMethod, ConnectionOrigin};
use super::config_snapshot::ConfigSnapshot;
use super::{ClientContext, Gateway};
use weir_access::catalog::RoleView;
use weir_access::policy::{AuthError, Certificate, Principal};

/// Identity of a client, independent of the configuration, for re-authentication.
#[derive(Clone)]
pub struct ClientIdentity {
    pub(super) gateway: Arc<Gateway>,
    /// Number of the configuration that it was authenticated under last.
    pub(super) number: u64,
    pub(super) principal: Principal,
    auth_method: AuthMethod,
    origin: ConnectionOrigin,
    view: watch::Receiver<Arc<RoleView>>,
}

impl ClientIdentity {
    /// Returns the identity of a client, without its configuration.
    pub fn of(client: &ClientContext) -> Self {
        Self {
            gateway: Arc::clone(&client.gateway),
            number: client.config.number,
            principal: client.principal.clone(),
            auth_method: client.auth_method.clone(),
            origin: client.origin.clone(),
            view: client.view.clone(),
        }
    }

    /// Authenticates a client again, under this configuration. Its audit event is kept.
    pub fn reauthenticate(
        client: &ClientContext,
        config: &Arc<ConfigSnapshot>,
    ) -> Result<ClientContext, AuthError> {
        let again = Self::of(client).authenticate(config)?;
        Ok(again.with_audit_event(client.audit_event.clone()))
    }

    /// Authenticates the client under a configuration, with whatever that allows it.
    pub(super) fn authenticate(
        &self,
        config: &Arc<ConfigSnapshot>,
    ) -> Result<ClientContext, AuthError> {
        let principal = self.principal_under(config)?;
        let (method, origin) = (self.auth_method.clone(), self.origin.clone());
        Ok(ClientContext::new(&self.gateway, config, principal, method, origin))
    }

    /// Waits until the client certificate of the connection has expired; forever if it has none.
    pub(super) async fn expired(&self) {
        Certificate::expired(self.origin.certificate.as_ref()).await;
    }

    /// Returns whether the client is still valid under the current configuration.
    pub fn is_valid(&self) -> bool {
        self.principal_under(&self.gateway.config()).is_ok()
    }

    /// Waits until the client is no longer valid: under a later configuration, or because the
    /// client certificate of the connection has expired.
    pub async fn revoked(self) {
        let mut configs = self.gateway.current.subscribe();
        while self.is_valid() {
            tokio::select! {
                biased;
                replaced = configs.changed() => if replaced.is_err() {
                    // The gateway is gone; no change will follow.
                    return std::future::pending().await;
                },
                () = self.expired() => return,
            }
        }
    }

    /// The client's current view; `None` if it is no longer valid.
    pub(super) fn view(&self) -> Option<Arc<RoleView>> {
        let config = self.gateway.config();
        if config.number <= self.number {
            return Some(Arc::clone(&self.view.borrow()));
        }
        Some(self.authenticate(&config).ok()?.view())
    }

    fn principal_under(&self, config: &ConfigSnapshot) -> Result<Principal, AuthError> {
        let (policy, now) = (&config.policy, SystemTime::now());
        if !Certificate::is_valid(self.origin.certificate.as_ref(), now) {
            return Err(AuthError::Certificate);
        }
        match &self.auth_method {
            AuthMethod::Credential(pass) => policy.reauthenticate(pass, &self.principal, now),
            AuthMethod::Named => policy.principal(&self.principal.name).ok_or(AuthError::Unknown),
            AuthMethod::Local(Some(role)) if !policy.has_role(role) => Err(AuthError::Unknown),
            AuthMethod::Local(role) => Ok(local_principal(config, role.as_ref())),
            AuthMethod::Operator => Ok(self.principal.clone()),
        }
    }
}

/// The client at the other end of `weir stdio`, with a role, or with the role that the
/// configuration has for local clients.
pub(super) fn local_principal(config: &ConfigSnapshot, role: Option<&Arc<str>>) -> Principal {
    Principal::new("local", Arc::clone(role.unwrap_or(config.policy.local_role())))
}
