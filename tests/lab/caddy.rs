//! Caddy in front of one or more replicas, with the file of `deploy/`.

use std::process::Stdio;

use tempfile::TempDir;

use super::nginx::{deploy, end, part, path_in};
use super::ports::free_port;

/// Running Caddy; it ends when this is dropped.
pub(crate) struct Caddy {
    folder: TempDir,
    pub(crate) port: u16,
    /// `127.0.0.1:port`
    pub(crate) address: String,
}

impl Caddy {
    /// Starts Caddy for this host over plain HTTP, without its admin listener.
    pub(crate) fn start(host: &str, replicas: &[String]) -> Self {
        let (folder, port) = (TempDir::new().expect("a folder"), free_port());
        let whole = format!("{{\n\tadmin off\n\tauto_https off\n}}\n{}", deploy("caddy/Caddyfile"));
        std::fs::write(path_in(&folder, "Caddyfile"), whole).expect("written");
        let caddy = |command: &str| {
            let mut caddy = part("deploy/bin/caddy");
            caddy.args([command, "--adapter", "caddyfile"]);
            caddy.args(["--config", &path_in(&folder, "Caddyfile")]);
            caddy.env("HOME", folder.path()).env("WEIR_SITE", format!("http://{host}:{port}"));
            caddy.env("WEIR_UPSTREAM", replicas.join(" "));
            caddy
        };
        let checked = caddy("validate").output().expect("it runs");
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        let mut start = caddy("start");
        start.args(["--pidfile", &path_in(&folder, "pid")]);
        // It goes into the background when it is ready.
        let started = start.stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(started.expect("it runs").success());
        Self { folder, port, address: format!("127.0.0.1:{port}") }
    }
}

impl Drop for Caddy {
    fn drop(&mut self) {
        end(&self.folder.path().join("pid"));
    }
}
