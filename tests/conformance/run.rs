//! One run: a fixture, Weir before it or nothing, and what the judges say of it.

use std::fmt;
use std::process::Stdio;
use std::time::SystemTime;

use tokio::process::Command;

use crate::fleet::{Fleet, Served};
use crate::parts::{Started, announced, part};
use crate::suite::{self, Verdicts};
use crate::unreached;
use crate::values;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Modern,
}

/// What lies between a client and the fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Nothing: what passes here is what can be reached.
    Direct,
    Weir,
}

/// One cell of the judgement.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) client: Era,
    pub(crate) upstream: Era,
    pub(crate) way: Way,
}

/// Weir as the client of the suite's own servers, for a client of ours.
#[derive(Clone, Copy)]
pub(crate) struct AsClient {
    pub(crate) client: Era,
    pub(crate) servers: Era,
}

impl Era {
    /// The revision whose requirements its clients judge by.
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
        match self.way {
            Way::Direct => write!(f, "{} fixture by itself", self.upstream),
            Way::Weir => write!(f, "{} client, {} upstream", self.client, self.upstream),
        }
    }
}

impl fmt::Display for AsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client of {} servers for a {} client", self.servers, self.client)
    }
}

impl AsClient {
    /// Fails unless exactly the rows that are listed as unreached are.
    pub(crate) async fn judge(self) {
        let verdicts = suite::of_client(self.servers.revision(), self.client).await;
        unreached::compare(&self.to_string(), &verdicts);
    }
}

impl Run {
    /// Fails unless exactly the rows that are listed as unreached are.
    pub(crate) async fn judge(self) {
        let nonce = nonce();
        let fixture = fixture(self.upstream, &nonce).await;
        let verdicts = match self.way {
            Way::Direct => self.ask(&fixture.url, &nonce).await,
            Way::Weir => {
                let mut house = House::before(&fixture.url).await;
                let endpoint = house.served.endpoint.clone();
                let verdicts = house.during(self.ask(&endpoint, &nonce)).await;
                assert!(house.served.stop().await, "{self}: Weir ends badly");
                verdicts
            }
        };
        unreached::compare(&self.to_string(), &verdicts);
    }

    /// One after the other: the walk counts the changes that the suite makes, too.
    async fn ask(self, url: &str, nonce: &str) -> Verdicts {
        let mut verdicts = values::of_server(url, self.client, nonce).await;
        verdicts.extend(suite::of_server(url, self.client.revision()).await);
        verdicts
    }
}

/// The fixture server of an era, on a port of its own.
pub(crate) async fn fixture(era: Era, nonce: &str) -> Started {
    let mut command = Command::new(part("bin/node"));
    command.arg(suite::script(&format!("fixtures/{era}.mjs")));
    // It ends with its stdin, even if this process is killed.
    announced(command.env("NONCE", nonce).stdin(Stdio::piped())).await
}

/// What only the fixture and the test of this run know.
fn nonce() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    format!("tide {}", now.as_nanos())
}

/// Weir before one upstream, with nothing between them that a role or a name would change.
struct House {
    served: Served,
    _fleet: Fleet,
}

impl House {
    async fn before(url: &str) -> Self {
        let fleet = Fleet::plain(&format!(
            "[naming]\nmode = \"none\"\n[protocol]\nresumable = true\n[upstreams.fixture]\nurl = {url:?}\n"
        ));
        let mut served = fleet.serve().await;
        served.logged("listed", "fixture").await;
        Self { served, _fleet: fleet }
    }

    /// Reads Weir's log while something else goes on, so that its pipe never fills. What Weir
    /// said is shown if the test fails.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let log = &mut self.served.log;
        let reading = async {
            while let Some(line) = log.lines.next_line().await.unwrap() {
                println!("{line}");
            }
            panic!("Weir ended by itself");
        };
        tokio::select! {
            done = work => done,
            () = reading => unreachable!("it reads on"),
        }
    }
}
