//! Many real servers of npm and PyPI, directly and through Weir: equal lists and results.
//!
//! By night (`WEIR_NIGHTLY`): only then `install.sh servers` installs them, 3 GB. By day this test
//! returns at once. Each server has a
//! home folder of its own, no program in its `PATH`, and a proxy that does not exist; no request of
//! the table needs a network or an account.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::direct::{Server, compare_all};
use crate::parts::part;
use crate::pipe::Era;

/// The servers and their requests; `{home}` is the folder of a server. `measure.py` beside it
/// measures the definitions of the same servers.
const TABLE: &str = include_str!("parts/servers/table.json");

/// Number of servers that are started at a time, each once directly and once by Weir.
const AT_ONCE: usize = 6;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: &'static str,
    /// Path of a script below `node_modules`.
    node: Option<&'static str>,
    /// Name of a program of the Python environment.
    python: Option<&'static str>,
    arguments: Vec<String>,
    env: std::collections::BTreeMap<&'static str, String>,
    /// Newest revision that the server speaks.
    revision: &'static str,
    #[serde(default)]
    left_out: Vec<(&'static str, &'static str)>,
    #[serde(default)]
    unlisted: Vec<&'static str>,
    requests: Vec<(&'static str, Value)>,
}

impl Row {
    fn server(self, home: &Path) -> Server {
        std::fs::create_dir_all(home.join("files")).unwrap();
        std::fs::write(home.join("files/a.txt"), "a weir holds water back\n").unwrap();
        let folder = Some(home.to_owned());
        let home = home.to_str().unwrap();
        let filled = |text: &str| text.replace("{home}", home);
        let mut arguments: Vec<_> = self.arguments.iter().map(|text| filled(text)).collect();
        let program = match (self.node, self.python) {
            (Some(script), None) => {
                let script = part(&format!("servers/node_modules/{script}"));
                arguments.insert(0, script.to_str().unwrap().to_owned());
                part("bin/node")
            }
            (None, Some(program)) => part(&format!("servers_python/bin/{program}")),
            _ => panic!("{}: either `node` or `python`", self.name),
        };
        let closed = [
            ("PATH", "/nonexistent"),
            ("HOME", home),
            ("HTTP_PROXY", "http://127.0.0.1:9"),
            ("HTTPS_PROXY", "http://127.0.0.1:9"),
            ("NODE_USE_ENV_PROXY", "1"),
            // Some servers list what a set contains, in the order of its hashes.
            ("PYTHONHASHSEED", "0"),
        ];
        let closed = closed.into_iter().map(|(name, value)| (name, value.to_owned()));
        let own = self.env.iter().map(|(&name, value)| (name, filled(value)));
        let environment = closed.chain(own).collect();
        let requests = self.requests.into_iter().map(|(method, params)| {
            (method, serde_json::from_str(&filled(&params.to_string())).unwrap())
        });
        Server {
            name: self.name,
            program,
            arguments,
            environment,
            folder,
            era: if self.revision == "2026-07-28" { Era::Modern } else { Era::Legacy },
            legacy_revision: self.revision,
            requests: requests.collect(),
            left_out: self.left_out,
            unlisted: self.unlisted,
        }
    }
}

#[tokio::test]
async fn forty_real_servers_list_and_answer_through_weir_what_they_do_directly_nightly() {
    if std::env::var_os("WEIR_NIGHTLY").is_none() {
        return;
    }
    let rows: Vec<Row> = serde_json::from_str(TABLE).unwrap();
    assert!(rows.len() >= 40, "{}", rows.len());
    let folder = TempDir::new().unwrap();
    let servers = rows.into_iter().map(|row| {
        let home = folder.path().join(row.name);
        row.server(&home)
    });
    let servers: Vec<_> = servers.collect();
    let everyone = async {
        let mut counts = [0; 4];
        for servers in servers.chunks(AT_ONCE) {
            println!("{:?}", servers.iter().map(|server| server.name).collect::<Vec<_>>());
            let more = compare_all(servers, "").await;
            counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
        println!("{counts:?} prompts, tools, resources and templates");
        assert!(!counts.contains(&0), "{counts:?}");
    };
    tokio::task::LocalSet::new().run_until(everyone).await;
}
