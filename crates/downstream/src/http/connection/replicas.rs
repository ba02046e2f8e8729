//! Connections of other replicas: on most of them each request has a client of its own; the others
//! belong to an upstream that only this replica runs.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_util::task::TaskTracker;

use super::tls::Tls;
use crate::ServerStateCell;
use weir_access::policy::Certificate;
use weir_base::tasks::sync::Mutex;
use weir_fleet::Fleet;
use weir_upstream::connect::Deadline;

/// Sender of the requests on a connection.
pub(crate) enum RequestOrigin {
    /// A client.
    Client,
    /// Another replica, on whose connection each request has a client of its own.
    Listener(ReplicaListener),
    /// A client of the replica of this name, which has forwarded the request.
    Replica(Arc<str>, ForwardPurpose),
}

/// Purpose for which a replica forwards a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForwardPurpose {
    /// It is served as if it had come from the client itself.
    Serve,
    /// It is delivered to the call in progress that it concerns, if that runs at the other replica.
    Deliver,
    /// The other replica is asked whether the client has calls in progress there.
    Ask,
}

/// Listener for other replicas.
#[derive(Clone)]
pub struct ReplicaListener {
    /// This replica.
    pub fleet: Arc<Fleet>,
    /// TLS of the listener for clients, which verifies their certificates.
    pub client_tls: Option<Arc<Tls>>,
    /// Upstreams that only this replica runs.
    pub running: Arc<RunningUpstreams>,
}

/// Upstreams that this replica runs for all replicas, by their names. Bounded by the configuration.
#[derive(Default)]
pub struct RunningUpstreams(Mutex<HashMap<String, RunningUpstream>>);

/// An upstream that this replica runs for all replicas.
#[derive(Clone)]
pub struct RunningUpstream {
    /// Server that serves this upstream alone.
    pub server: Arc<ServerStateCell>,
    /// Tracker of its connections.
    pub connections: TaskTracker,
    /// Time until which this replica may run it.
    pub deadline: Arc<Deadline>,
}

impl RunningUpstreams {
    /// Adds an upstream that this replica runs from now on.
    pub fn insert(&self, name: &str, upstream: RunningUpstream) {
        self.0.lock().insert(name.to_owned(), upstream);
    }

    /// Removes an upstream that this replica runs no more.
    pub fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// Returns an upstream that this replica runs and still may run.
    pub fn find(&self, name: &str) -> Option<RunningUpstream> {
        self.0.lock().get(name).filter(|it| !it.deadline.has_passed()).cloned()
    }
}

impl ReplicaListener {
    /// Verifies the certificate of a client whose request another replica has forwarded: DER in
    /// base64, the certificate first, separated by commas.
    pub(crate) fn verify(&self, chain: &str) -> Option<Arc<Certificate>> {
        let decode = |part: &str| Some(CertificateDer::from(STANDARD.decode(part).ok()?));
        let chain: Vec<_> = chain.split(',').map(decode).collect::<Option<_>>()?;
        self.client_tls.as_ref()?.verify_forwarded(&chain)
    }
}
