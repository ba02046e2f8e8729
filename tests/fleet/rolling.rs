//! Replicas are replaced one after the other, under clients of both eras.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::RwLock;

use crate::lab::by_night;
use crate::lab::client::{Client, Revision};
use crate::replicas::{HUB, Replicas};
use crate::store::free_port;

/// nginx with the file of `deploy/`, in front of several replicas; it ends when this is dropped.
struct Nginx {
    folder: TempDir,
    address: String,
}

impl Nginx {
    fn start(replicas: &[String]) -> Self {
        let (folder, port) = (TempDir::new().expect("a folder"), free_port());
        let at = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let site = std::fs::read_to_string(root.join("deploy/nginx/weir.conf")).expect("there");
        assert!(site.contains("proxy_next_upstream error timeout;"), "{site}");
        let (server, options) = ("    server 127.0.0.1:8642", " max_fails=1 fail_timeout=2s;\n");
        assert!(site.contains(&format!("{server}{options}")), "{site}");
        let servers = replicas.iter().map(|address| format!("    server {address}{options}"));
        let site = site
            .replace(&format!("{server}{options}"), &servers.collect::<String>())
            .replace("listen 443 ssl", &format!("listen 127.0.0.1:{port}"));
        let without_tls = site.lines().filter(|line| !line.trim().starts_with("ssl_"));
        std::fs::write(at("weir.conf"), without_tls.collect::<Vec<_>>().join("\n"))
            .expect("written");
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {};\n", at(kind)))
            .concat();
        let whole = format!(
            "pid {};\nerror_log {};\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}include {};\n}}\n",
            at("pid"),
            at("log"),
            at("weir.conf")
        );
        std::fs::write(at("nginx.conf"), whole).expect("written");
        let mut nginx = Command::new(root.join(".cache/interop/bin/nginx"));
        nginx.args(["-p", &at(""), "-e", &at("log"), "-c", &at("nginx.conf")]);
        // It goes into the background when its sockets are open.
        let started = nginx.stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(started.expect("it runs").success(), "{:?}", std::fs::read_to_string(at("log")));
        Self { folder, address: format!("127.0.0.1:{port}") }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let process = std::fs::read_to_string(self.folder.path().join("pid")).ok();
        let process = process.and_then(|id| Pid::from_raw(id.trim().parse().ok()?));
        let _ = process.map(|process| kill_process(process, Signal::TERM));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_replicas_that_are_restarted_one_after_the_other_fail_no_request() {
    replace_all(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_behind_nginx_they_fail_none_either() {
    replace_all(true).await;
}

/// Replaces three replicas, one after the other, under clients in front of a balancer that takes
/// those out that are not ready, or of nginx, which knows nothing of that.
async fn replace_all(behind_nginx: bool) {
    let clients = if by_night() { 200 } else { 20 };
    let config = "[auth]\nmode = \"anonymous\"\n";
    let mut replicas = Replicas::start_with(3, config, "").await;
    // Addresses of the replicas that take new requests, as a balancer knows them.
    let addresses: Vec<_> = (0..3).map(|number| replicas[number].address.clone()).collect();
    let nginx = behind_nginx.then(|| Nginx::start(&addresses));
    let through = nginx.as_ref().map(|nginx| nginx.address.clone());
    let ready = Arc::new(RwLock::new(addresses));
    let (over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut running = tokio::task::JoinSet::new();
    for number in 0..clients {
        let revision = if number % 2 == 0 { Revision::LEGACY } else { Revision::MODERN };
        let through = through.clone();
        let first = through.clone().unwrap_or(ready.read().await[number % 3].clone());
        let mut client = Client::http(&first, revision, None).await;
        let (ready, over, calls) = (Arc::clone(&ready), Arc::clone(&over), Arc::clone(&calls));
        running.spawn(async move {
            let mut turn = number;
            while !over.load(Ordering::Relaxed) {
                turn += 1;
                let to = match &through {
                    Some(nginx) => nginx.clone(),
                    None => {
                        let ready = ready.read().await;
                        ready[turn % ready.len()].clone()
                    }
                };
                client.move_to(&to);
                let nonce = format!("{number}-{turn}");
                let outcome = client.call(HUB, json!({ "nonce": nonce })).await;
                assert!(outcome.is_result(), "{nonce} at {to}: {outcome:?}");
                calls.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
    for number in 0..3 {
        let mut weir = replicas.take(number);
        weir.signal(Signal::TERM);
        // A balancer notices it in its readiness.
        ready.write().await.retain(|address| *address != weir.address);
        assert_eq!(weir.ended().await, Some(0), "{}", weir.log().join("\n"));
        replicas.restart_at(number, &weir.address).await;
        ready.write().await.push(replicas[number].address.clone());
    }
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = running.join_next().await {
        ended.expect("no request failed");
    }
    let calls = calls.load(Ordering::Relaxed);
    let executions = replicas.lab.evil(HUB).executions();
    assert!(executions.values().all(|times| *times == 1), "{executions:?}");
    assert_eq!(executions.len(), calls);
    eprintln!("case 6, nginx {behind_nginx}: {calls} calls of {clients} clients, none failed");
}
