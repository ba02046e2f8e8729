//! Authentication of clients, and re-authentication under a new configuration.
//!
//! Invariants: every [`ClientContext`] is created here. A client that stays for longer than a
//! request is authenticated again under each configuration, with its original credential; one that
//! is no longer valid is rejected.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;

use super::config_snapshot::ConfigSnapshot;
use super::{ClientContext, Gateway};
use weir_access::catalog::{Filter, RoleView};
use weir_access::policy::role::Role;
use weir_access::policy::{
    AuthAttempt, AuthError, Certificate, Credentials, Principal, UserSearch, VerifiedCredential,
};
use weir_record::audit::AuditEvent;

/// Method by which a client was authenticated.
#[derive(Debug, Clone)]
pub(super) enum AuthMethod {
    /// By the credential that it presented to the server.
    Credential(VerifiedCredential),
    /// By the name of a configured client, for local commands.
    Named,
    /// By running on this machine, with a role, or with the configuration's role for local clients.
    Local(Option<Arc<str>>),
    /// By access to the program and its configuration.
    Operator,
}

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

/// Properties of a client's connection.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionOrigin {
    /// Remote address, if it comes over a network.
    pub(super) from: Option<IpAddr>,
    /// The client certificate that secures it. It need not be what identifies the client.
    pub(super) certificate: Option<Arc<Certificate>>,
}

impl Gateway {
    /// Authenticates a client under a given configuration.
    pub async fn authenticate_under(
        self: &Arc<Self>,
        config: &Arc<ConfigSnapshot>,
        attempt: AuthAttempt<'_>,
    ) -> Result<ClientContext, AuthError> {
        let (principal, pass) = config.policy.authenticate(attempt, SystemTime::now()).await?;
        let origin =
            ConnectionOrigin { from: attempt.from, certificate: attempt.certificate.cloned() };
        Ok(self.create_context(config, principal, AuthMethod::Credential(pass), origin))
    }

    /// The context of a configured client by its name, for local commands.
    pub fn named_client(self: &Arc<Self>, client: &str) -> Option<ClientContext> {
        let config = self.config();
        Some(self.create_context(
            &config,
            config.policy.principal(client)?,
            AuthMethod::Named,
            ConnectionOrigin::default(),
        ))
    }

    /// The context of a user of an identity provider with these roles, for local commands.
    pub fn client_with_roles(
        self: &Arc<Self>,
        name: &str,
        roles: &BTreeSet<Arc<str>>,
    ) -> ClientContext {
        let config = self.config();
        let principal = config.policy.principal_with(name, roles);
        self.create_context(&config, principal, AuthMethod::Named, ConnectionOrigin::default())
    }

    /// Finds a user of an identity provider by name, `<provider>/<user>`.
    pub fn find_user(&self, name: &str) -> UserSearch {
        self.config().policy.find_user(name)
    }

    /// The number of users without a role, by identity provider.
    pub fn users_without_role(&self) -> BTreeMap<String, usize> {
        self.config().policy.users_without_role()
    }

    /// The context of the client at the other end of `weir stdio`, with a role.
    pub fn local_client(self: &Arc<Self>, role: &str) -> ClientContext {
        let config = self.config();
        let role = (*role != **config.policy.local_role()).then(|| role.into());
        let principal = local_principal(&config, role.as_ref());
        self.create_context(
            &config,
            principal,
            AuthMethod::Local(role),
            ConnectionOrigin::default(),
        )
    }

    /// The context of the operator, from which nothing is hidden.
    pub fn operator(self: &Arc<Self>) -> ClientContext {
        self.operator_under(&self.config())
    }

    pub(super) fn operator_under(self: &Arc<Self>, config: &Arc<ConfigSnapshot>) -> ClientContext {
        // No role of the configuration can have this name.
        let principal = Principal::new("operator", "*");
        self.create_context(config, principal, AuthMethod::Operator, ConnectionOrigin::default())
    }

    fn create_context(
        self: &Arc<Self>,
        config: &Arc<ConfigSnapshot>,
        principal: Principal,
        auth_method: AuthMethod,
        origin: ConnectionOrigin,
    ) -> ClientContext {
        let policy = &config.policy;
        let anonymous = match auth_method {
            AuthMethod::Credential(VerifiedCredential::Nothing) | AuthMethod::Operator => true,
            AuthMethod::Local(_) => policy.allows_anonymous(),
            AuthMethod::Credential(_) | AuthMethod::Named => false,
        };
        let is_limited = !matches!(auth_method, AuthMethod::Operator);
        let (role, name) = match is_limited {
            true => policy.role_and_view(&principal),
            false => (Role::everything().into(), Arc::clone(&principal.role)),
        };
        let public = anonymous && role.allows_everything();
        let filter: Arc<dyn Filter> = role;
        let view = config.catalog.view(&name, &filter);
        ClientContext {
            gateway: Arc::clone(self),
            config: Arc::clone(config),
            principal,
            auth_method,
            origin,
            view,
            public,
            is_limited,
            audit_event: AuditEvent::off(),
        }
    }
}

impl ConfigSnapshot {
    /// The user that refused credentials name, of which nothing was verified.
    pub fn claimed_user(&self, credentials: Credentials<'_>) -> Option<String> {
        self.policy.claimed_user(credentials)
    }
}

impl ClientContext {
    /// The client's identity without the configuration.
    pub fn identity(&self) -> ClientIdentity {
        ClientIdentity {
            gateway: Arc::clone(&self.gateway),
            number: self.config.number,
            principal: self.principal.clone(),
            auth_method: self.auth_method.clone(),
            origin: self.origin.clone(),
            view: self.view.clone(),
        }
    }

    /// Whether the client was authenticated under this configuration.
    pub fn is_under(&self, config: &Arc<ConfigSnapshot>) -> bool {
        Arc::ptr_eq(&self.config, config)
    }

    /// The client certificate of the connection, if it has one.
    pub fn certificate(&self) -> Option<&Arc<Certificate>> {
        self.origin.certificate.as_ref()
    }

    /// Authenticates the client again, under this configuration.
    pub fn reauthenticate(&self, config: &Arc<ConfigSnapshot>) -> Result<Self, AuthError> {
        let client = self.identity().authenticate(config)?;
        Ok(client.with_audit_event(self.audit_event.clone()))
    }
}

impl ClientIdentity {
    /// Authenticates the client under a configuration, with whatever that allows it.
    pub(super) fn authenticate(
        &self,
        config: &Arc<ConfigSnapshot>,
    ) -> Result<ClientContext, AuthError> {
        let principal = self.principal_under(config)?;
        Ok(self.gateway.create_context(
            config,
            principal,
            self.auth_method.clone(),
            self.origin.clone(),
        ))
    }

    /// Waits until the client certificate of the connection has expired; forever if it has none.
    pub(super) async fn expired(&self) {
        Certificate::expired(self.origin.certificate.as_ref()).await;
    }

    /// Whether the client is still valid under the current configuration.
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

fn local_principal(config: &ConfigSnapshot, role: Option<&Arc<str>>) -> Principal {
    Principal::new("local", Arc::clone(role.unwrap_or(config.policy.local_role())))
}
