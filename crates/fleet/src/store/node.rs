//! Node of the store: which server has the data of a fleet, and a connection to it.
//!
//! The URLs of the settings name the store itself, sentinels that know the address of its primary,
//! or nodes of a cluster. All URLs are tried at once. The first one that leads to a primary wins,
//! so that a URL that does not respond delays nothing.
//!
//! Invariant: a connection is open after [`CONNECT_TIMEOUT`], or there is an error that names each
//! server that was asked.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue,
    IntoConnectionInfo, RedisError, ServerErrorKind, TlsCertificates, Value, cmd,
};
use tokio::time::timeout;

use crate::store::StoreError;
use weir_base::files::regular_file;
use weir_base::secrets::secret::Secret;

/// Location of the store, and credentials for it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoreSettings {
    /// URLs with the scheme `redis` or `rediss`, without credentials; several with sentinels or a
    /// cluster only.
    pub urls: Vec<String>,
    /// Kind of the servers that the URLs name.
    pub kind: StoreKind,
    /// Credentials for the servers that have the data.
    pub login: StoreLogin,
    /// File with the CAs of the servers' certificates; without one those of the system.
    pub ca: Option<PathBuf>,
    /// Longest time that a replica waits for a reply.
    pub timeout: Duration,
}

/// Kind of the servers that the URLs of a store name.
#[derive(Debug, Clone, PartialEq)]
pub enum StoreKind {
    /// The store itself.
    Server,
    /// Sentinels, which know the primary of this name. They have credentials of their own.
    Sentinels(String, StoreLogin),
    /// Nodes of a cluster.
    Cluster,
}

/// User and password for a server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoreLogin {
    /// User of the access control list; without one the default user.
    pub username: Option<String>,
    /// Password of the user.
    pub password: Option<Secret>,
}

impl StoreSettings {
    /// Opens a connection to the server that has the keys of a fleet. `key` is one of them.
    pub(crate) async fn open(&self, key: &str) -> Result<MultiplexedConnection, StoreError> {
        let ca = self.ca.as_ref().map(|ca| {
            let read = regular_file::read(ca, MAX_CA_BYTES);
            read.map_err(|error| StoreError::Failed(format!("{}: {error}", ca.display())))
        });
        let connector = StoreConnector { settings: self, ca: ca.transpose()?, key };
        let mut attempts: FuturesUnordered<_> =
            self.urls.iter().map(|url| connector.open_in_time(url)).collect();
        let mut errors = BTreeSet::new();
        while let Some(opened) = attempts.next().await {
            match opened {
                Ok(connection) => return Ok(connection),
                Err(error) => errors.insert(error),
            };
        }
        Err(StoreError::Failed(Vec::from_iter(errors).join("; ")))
    }
}

/// Opens connections with the settings of a store.
struct StoreConnector<'a> {
    settings: &'a StoreSettings,
    /// CAs in PEM.
    ca: Option<Vec<u8>>,
    /// One of the keys of the fleet.
    key: &'a str,
}

/// Connection, or the reason why there is none, with the address that was tried.
type OpenedNode = Result<MultiplexedConnection, String>;

impl StoreConnector<'_> {
    async fn open_in_time(&self, url: &str) -> OpenedNode {
        // The timeout of the library does not include the resolution of the name.
        let opened = timeout(CONNECT_TIMEOUT, self.open_through(url)).await;
        opened.unwrap_or_else(|_| Err(format!("{url}: {}", StoreError::Late)))
    }

    async fn open_through(&self, url: &str) -> OpenedNode {
        let info = url.into_connection_info().map_err(|error| at(url, &error))?;
        match &self.settings.kind {
            StoreKind::Server => self.connect(&info).await,
            StoreKind::Sentinels(name, login) => self.open_primary(info, name, login).await,
            StoreKind::Cluster => self.open_owner(info).await,
        }
    }

    /// Opens a connection to the primary that a sentinel names.
    async fn open_primary(
        &self,
        info: ConnectionInfo,
        name: &str,
        login: &StoreLogin,
    ) -> OpenedNode {
        let sentinel = info.addr().to_string();
        // A sentinel has no databases.
        let asked = info.clone().set_redis_settings(info.redis_settings().clone().set_db(0));
        let failed = |what: String| format!("sentinel {what}; check fleet.store.sentinel");
        let mut connection = self.connect_as(&asked, login).await.map_err(failed)?;
        let mut query = cmd("SENTINEL");
        query.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let primary: Option<(String, u16)> = query
            .query_async(&mut connection)
            .await
            .map_err(|error| failed(at(&sentinel, &error)))?;
        let Some((host, port)) = primary else {
            return Err(failed(format!("{sentinel} knows no primary with the name {name}")));
        };
        let primary = info.clone().set_addr(moved_to(info.addr(), host, port));
        let mut connection = self.connect(&primary).await?;
        // A sentinel that does not know of a failover yet names the server that was the primary.
        let role: Vec<Value> = cmd("ROLE")
            .query_async(&mut connection)
            .await
            .map_err(|error| at(&primary.addr().to_string(), &error))?;
        match role.into_iter().next().map(String::from_redis_value) {
            Some(Ok(role)) if role == "master" => Ok(connection),
            _ => Err(format!("{}, which {sentinel} names, is no primary", primary.addr())),
        }
    }

    /// Opens a connection to the node of a cluster that has the keys of the fleet. All of them are
    /// in one slot, and each node knows the owner of each slot.
    async fn open_owner(&self, info: ConnectionInfo) -> OpenedNode {
        let mut node = info;
        for _ in 0..MAX_REDIRECTIONS {
            let address = node.addr().to_string();
            let mut connection = self.connect(&node).await?;
            let query = cmd("HLEN").arg(self.key).query_async::<Value>(&mut connection).await;
            let Err(error) = query else { return Ok(connection) };
            let owner = error.redirect_node().and_then(|(owner, _)| owner.rsplit_once(':'));
            let owner = owner.and_then(|(host, port)| Some((host, port.parse().ok()?)));
            let Some((host, port)) = owner.filter(|_| error.kind() == MOVED) else {
                return Err(at(&address, &error));
            };
            // Without a host it is the one that was asked.
            let host = if host.is_empty() { host_of(node.addr()) } else { host };
            node = node.clone().set_addr(moved_to(node.addr(), host.to_owned(), port));
        }
        Err(format!("{}: the nodes of the cluster name each other as the owner", node.addr()))
    }

    /// Opens a connection to a server that has data.
    async fn connect(&self, info: &ConnectionInfo) -> OpenedNode {
        self.connect_as(info, &self.settings.login).await
    }

    async fn connect_as(&self, info: &ConnectionInfo, login: &StoreLogin) -> OpenedNode {
        let mut redis = info.redis_settings().clone().set_skip_set_lib_name();
        if let Some(username) = &login.username {
            redis = redis.set_username(username);
        }
        if let Some(password) = &login.password {
            redis = redis.set_password(password.expose());
        }
        let address = info.addr().to_string();
        let info = info.clone().set_redis_settings(redis);
        let client = match self.ca.clone() {
            None => Client::open(info),
            Some(root_cert) => {
                let root_cert = Some(root_cert);
                Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert })
            }
        };
        // A reply that is late is read nevertheless.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None);
        let client = client.map_err(|error| at(&address, &error))?;
        let connected = client.get_multiplexed_async_connection_with_config(&config).await;
        connected.map_err(|error| at(&address, &error))
    }
}

/// Describes an error of a server.
fn at(address: &str, error: &RedisError) -> String {
    format!("{address}: {}", described(error))
}

/// Describes an error without the values that a command contained.
pub(crate) fn described(error: &RedisError) -> String {
    let remedy = match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) => ": check username and password",
        (_, Some("NOAUTH")) => ": set password",
        (MOVED, _) => ": this is a node of a cluster, set fleet.store.cluster",
        (ErrorKind::Server(ServerErrorKind::ClusterDown), _) => {
            ": no node of the cluster serves the slot of the fleet"
        }
        (ErrorKind::Server(ServerErrorKind::ReadOnly), _) => ": it is no primary (any more)",
        _ => "",
    };
    format!("{error}{remedy}")
}

/// Returns an address with another host and port.
fn moved_to(address: &ConnectionAddr, host: String, port: u16) -> ConnectionAddr {
    match address {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            let (insecure, tls_params) = (*insecure, tls_params.clone());
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    }
}

fn host_of(address: &ConnectionAddr) -> &str {
    match address {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
        _ => "",
    }
}

const MOVED: ErrorKind = ErrorKind::Server(ServerErrorKind::Moved);
/// Longest time for a new connection, with the queries that find its server, its TLS handshake and
/// its authentication.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Most nodes of a cluster that name another one as the owner.
const MAX_REDIRECTIONS: usize = 4;
/// Largest file of CAs.
const MAX_CA_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_server_is_reached_with_the_tls_of_the_first() {
        let address = |url: &str| url.into_connection_info().expect("a URL").addr().clone();
        let [plain, tls] = [address("redis://a:1"), address("rediss://a:1/2")];
        assert_eq!(moved_to(&plain, "b".into(), 2), ConnectionAddr::Tcp("b".into(), 2));
        assert_eq!(moved_to(&tls, "b".into(), 2), address("rediss://b:2"));
        assert_eq!((host_of(&plain), host_of(&tls)), ("a", "a"));
    }
}
