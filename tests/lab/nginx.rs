//! nginx as the load balancer of several replicas.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::store::free_port;

/// nginx with the file of `deploy/`, in front of several replicas; it ends when this is dropped.
pub(crate) struct Nginx {
    folder: TempDir,
    /// `127.0.0.1:port`
    pub(crate) address: String,
}

impl Nginx {
    /// Starts nginx in front of the replicas at these addresses.
    pub(crate) fn start(replicas: &[String]) -> Self {
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
