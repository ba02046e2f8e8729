//! One run: a fixture, Weir in front of it or nothing, and the verdicts about it.

use std::fmt;
use std::process::Stdio;
use std::time::SystemTime;

use tokio::process::Command;

use crate::fleet::Fleet;
use crate::lab::nginx::Nginx;
use crate::lab::ports::free_port;
use crate::lab::store::TestStore;
use crate::lab::weir::Weir;
use crate::parts::{Started, announced, part};
use crate::suite::{self, Leg, Verdicts};
use crate::unreached;
use crate::values;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

/// Path between a client and the fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// No gateway: whatever passes here can be reached.
    Direct,
    Weir,
    /// Three replicas behind nginx, which takes them in turn.
    Replicas,
}

/// One cell of the test.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) client: Era,
    pub(crate) upstream: Era,
    pub(crate) route: Route,
}

/// Weir as the client of the suite's own servers, for a client of this repository.
#[derive(Clone, Copy)]
pub(crate) struct AsClient {
    pub(crate) client: Era,
    pub(crate) servers: Era,
    pub(crate) leg: Leg,
}

impl Era {
    /// Revision whose requirements apply to its clients.
    pub(crate) fn revision(self) -> &'static str {
        match self {
            Self::Legacy => "2025-11-25",
            Self::Modern => "2026-07-28",
        }
    }
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        })
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.route {
            Route::Direct => write!(f, "{} fixture by itself", self.upstream),
            Route::Weir => write!(f, "{} client, {} upstream", self.client, self.upstream),
            Route::Replicas => {
                write!(f, "{} client, {} upstream, replicas", self.client, self.upstream)
            }
        }
    }
}

impl fmt::Display for AsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.leg == Leg::SignIn { "sign-in at" } else { "client of" };
        write!(f, "{what} {} servers for a {} client", self.servers, self.client)
    }
}

impl AsClient {
    /// Fails unless exactly the listed rows are unreached.
    pub(crate) async fn judge(self) {
        let verdicts = suite::of_client(self.servers.revision(), self.leg, self.client).await;
        unreached::compare(&self.to_string(), &verdicts);
    }
}

impl Run {
    /// Fails unless exactly the listed rows are unreached.
    pub(crate) async fn judge(self) {
        let nonce = nonce();
        let fixture = fixture(self.upstream, &nonce).await;
        let verdicts = match self.route {
            Route::Direct => self.collect_verdicts(&fixture.url, &nonce).await,
            Route::Weir => {
                let gateway = Gateway::before(&fixture.url, "").await;
                let endpoint = gateway.served.endpoint();
                let verdicts = self.collect_verdicts(&endpoint, &nonce).await;
                gateway.stop().await;
                verdicts
            }
            Route::Replicas => self.judge_replicas(&fixture.url, &nonce).await,
        };
        unreached::compare(&self.to_string(), &verdicts);
    }

    async fn judge_replicas(self, url: &str, nonce: &str) -> Verdicts {
        let store = TestStore::start().await;
        let gateways = Gateway::replicas(url, &store).await;
        let nginx = Nginx::start(&gateways.each_ref().map(|it| it.served.address.clone()));
        let endpoint = format!("http://{}/mcp", nginx.address);
        let verdicts = self.collect_verdicts(&endpoint, nonce).await;
        for gateway in gateways {
            gateway.stop().await;
        }
        verdicts
    }

    /// One after the other, because the walk counts the changes that the suite makes, too.
    async fn collect_verdicts(self, url: &str, nonce: &str) -> Verdicts {
        let mut verdicts = values::of_server(url, self.client, nonce).await;
        verdicts.extend(suite::of_server(url, self.client.revision()).await);
        verdicts
    }
}

/// Fixture server of an era, on a port of its own.
pub(crate) async fn fixture(era: Era, nonce: &str) -> Started {
    let mut command = Command::new(part("bin/node"));
    command.arg(suite::script(&format!("fixtures/{era}.mjs")));
    // The fixture ends with its stdin, even if this process is killed.
    announced(command.env("NONCE", nonce).stdin(Stdio::piped())).await
}

/// Random text that only the fixture and the test of this run know.
fn nonce() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    format!("tide {}", now.as_nanos())
}

/// Weir in front of one upstream, without any change by a role or a name.
struct Gateway {
    served: Weir,
    _fleet: Fleet,
}

impl Gateway {
    async fn before(url: &str, more: &str) -> Self {
        let fleet = Fleet::plain(&format!(
            "[naming]\nmode = \"none\"\n[protocol]\nresumable = true\n[upstreams.fixture]\nurl = {url:?}\n{more}"
        ));
        let mut served = fleet.serve().await;
        served.log.logged("upstream listed", "fixture").await;
        Self { served, _fleet: fleet }
    }

    /// Starts three replicas, and waits until they know each other.
    async fn replicas(url: &str, store: &TestStore) -> [Self; 3] {
        let key = "A".repeat(43);
        let fleet = || {
            let port = free_port();
            format!(
                "[fleet]\nstore = {}\nkeys = \"{key}\"\nlisten = \"127.0.0.1:{port}\"\n",
                store.table_with_timeout("5s")
            )
        };
        let [one, two, three] = [fleet(), fleet(), fleet()];
        let replicas = [
            Self::before(url, &one).await,
            Self::before(url, &two).await,
            Self::before(url, &three).await,
        ];
        store.wait_for_members(3).await;
        replicas
    }

    /// Stops Weir, after showing its log if the test fails.
    async fn stop(self) {
        println!("{}", self.served.log().join("\n"));
        self.served.stop().await;
    }
}
