//! Letting guests in, and letting them in again when another configuration holds.
//!
//! Promises: every guest comes in here. Who stays for longer than a request is judged again under each configuration,
//! by what it was let in with: what is no longer good lets nobody in.
//!
//! Knows nothing of: what guests do.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;

use super::config_snapshot::Generation;
use super::{Gateway, Guest};
use crate::audit::Record;
use crate::catalog::{Filter, View};
use crate::policy::role::Role;
use crate::policy::{Arrival, Certificate, Pass, Principal, Refusal};

/// How a guest came in.
#[derive(Debug, Clone)]
pub(super) enum Way {
    /// With what it has shown at a door.
    Shown(Pass),
    /// By its name.
    Named,
    /// From this machine, under a role, or under the one that the configuration gives to who comes so.
    Locally(Option<Arc<str>>),
    /// With the program and its configuration in hand.
    AsOperator,
}

/// A guest apart from any configuration: who it is, how it came in, and what it saw last.
#[derive(Clone)]
pub(crate) struct Standing {
    pub(super) gateway: Arc<Gateway>,
    /// The configuration that it saw last.
    number: u64,
    pub(super) principal: Principal,
    way: Way,
    origin: Origin,
    view: watch::Receiver<Arc<View>>,
}

/// Connection that a guest came in by.
#[derive(Debug, Clone, Default)]
pub(super) struct Origin {
    /// Where it comes from, if it comes over a network.
    pub(super) from: Option<IpAddr>,
    /// The client certificate that secures it. It need not be what identifies the client.
    pub(super) certificate: Option<Arc<Certificate>>,
}

impl Gateway {
    /// Lets a client in, before a byte of its request is read.
    pub async fn enter(self: &Arc<Self>, arrival: Arrival<'_>) -> Result<Guest, Refusal> {
        self.enter_under(&self.now(), arrival).await
    }

    /// The same under a configuration.
    pub async fn enter_under(
        self: &Arc<Self>,
        generation: &Arc<Generation>,
        arrival: Arrival<'_>,
    ) -> Result<Guest, Refusal> {
        let (principal, pass) = generation.policy.enter(arrival, SystemTime::now()).await?;
        let origin = Origin { from: arrival.from, certificate: arrival.certificate.cloned() };
        Ok(self.guest(generation, principal, Way::Shown(pass), origin))
    }

    /// Lets in a client by its name, for whoever holds the program and its configuration.
    pub fn enter_as(self: &Arc<Self>, client: &str) -> Option<Guest> {
        let now = self.now();
        Some(self.guest(&now, now.policy.principal(client)?, Way::Named, Origin::default()))
    }

    /// Lets in the client at the other end of `weir stdio`, under a role.
    pub fn enter_locally(self: &Arc<Self>, role: &str) -> Guest {
        let now = self.now();
        let role = (*role != **now.policy.local_role()).then(|| role.into());
        let principal = locally(&now, role.as_ref());
        self.guest(&now, principal, Way::Locally(role), Origin::default())
    }

    /// Lets in whoever holds the program and its configuration: nothing is hidden.
    pub fn enter_as_operator(self: &Arc<Self>) -> Guest {
        self.enter_as_operator_under(&self.now())
    }

    pub(super) fn enter_as_operator_under(self: &Arc<Self>, generation: &Arc<Generation>) -> Guest {
        // No role of the configuration can have this name.
        let principal = Principal::new("operator", "*");
        self.guest(generation, principal, Way::AsOperator, Origin::default())
    }

    fn guest(
        self: &Arc<Self>,
        generation: &Arc<Generation>,
        principal: Principal,
        way: Way,
        origin: Origin,
    ) -> Guest {
        let policy = &generation.policy;
        let anonymous = match way {
            Way::Shown(Pass::Nothing) | Way::AsOperator => true,
            Way::Locally(_) => policy.is_open(),
            Way::Shown(_) | Way::Named => false,
        };
        let is_limited = !matches!(way, Way::AsOperator);
        let (role, name) = match is_limited {
            true => policy.role_and_view(&principal),
            false => (Role::everything().into(), Arc::clone(&principal.role)),
        };
        let public = anonymous && role.allows_everything();
        let filter: Arc<dyn Filter> = role;
        let view = generation.catalog.view(&name, &filter);
        Guest {
            gateway: Arc::clone(self),
            generation: Arc::clone(generation),
            principal,
            way,
            origin,
            view,
            public,
            is_limited,
            record: Record::off(),
        }
    }
}

impl Guest {
    /// The guest apart from the configuration under which it entered.
    pub(crate) fn standing(&self) -> Standing {
        Standing {
            gateway: Arc::clone(&self.gateway),
            number: self.generation.number,
            principal: self.principal.clone(),
            way: self.way.clone(),
            origin: self.origin.clone(),
            view: self.view.clone(),
        }
    }

    /// Whether it is this configuration under which the guest entered.
    pub(crate) fn is_under(&self, generation: &Arc<Generation>) -> bool {
        Arc::ptr_eq(&self.generation, generation)
    }

    /// The client certificate of the guest's connection, if it has one.
    pub(crate) fn certificate(&self) -> Option<&Arc<Certificate>> {
        self.origin.certificate.as_ref()
    }

    /// The same guest under this configuration, if it may still come in.
    pub(crate) fn again(&self, generation: &Arc<Generation>) -> Result<Self, Refusal> {
        let guest = self.standing().enter(generation)?;
        Ok(guest.recorded(self.record.clone()))
    }
}

impl Standing {
    /// Lets the guest in under a configuration, whatever it may use there; or no more.
    pub(super) fn enter(&self, generation: &Arc<Generation>) -> Result<Guest, Refusal> {
        let principal = self.principal_under(generation)?;
        Ok(self.gateway.guest(generation, principal, self.way.clone(), self.origin.clone()))
    }

    /// Waits until the client certificate of the guest's connection is not valid any more; for ever if it has none.
    pub(super) async fn expired(&self) {
        Certificate::expired(self.origin.certificate.as_ref()).await;
    }

    /// Whether the guest may come in under the configuration that holds now.
    pub(crate) fn is_good(&self) -> bool {
        self.principal_under(&self.gateway.now()).is_ok()
    }

    /// What the guest sees now; nothing if it may not come in any more.
    pub(super) fn view(&self) -> Option<Arc<View>> {
        let now = self.gateway.now();
        if now.number <= self.number {
            return Some(Arc::clone(&self.view.borrow()));
        }
        Some(self.enter(&now).ok()?.view())
    }

    fn principal_under(&self, generation: &Generation) -> Result<Principal, Refusal> {
        let (policy, now) = (&generation.policy, SystemTime::now());
        if !Certificate::holds(self.origin.certificate.as_ref(), now) {
            return Err(Refusal::Certificate);
        }
        match &self.way {
            Way::Shown(pass) => policy.again(pass, &self.principal, now),
            Way::Named => policy.principal(&self.principal.name).ok_or(Refusal::Unknown),
            Way::Locally(Some(role)) if !policy.has_role(role) => Err(Refusal::Unknown),
            Way::Locally(role) => Ok(locally(generation, role.as_ref())),
            Way::AsOperator => Ok(self.principal.clone()),
        }
    }
}

fn locally(generation: &Generation, role: Option<&Arc<str>>) -> Principal {
    Principal::new("local", Arc::clone(role.unwrap_or(generation.policy.local_role())))
}
