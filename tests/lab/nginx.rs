//! nginx in front of one or more replicas, with the files of `deploy/`.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::ports::free_port;

/// Running nginx; it ends when this is dropped.
pub(crate) struct Nginx {
    folder: TempDir,
    pub(crate) port: u16,
    /// `127.0.0.1:port`
    pub(crate) address: String,
}

impl Nginx {
    /// Starts nginx with the site for a network, without TLS.
    pub(crate) fn start(replicas: &[String]) -> Self {
        Self::start_site(replicas, false)
    }

    /// Starts nginx with the site for a network, and a certificate for any name.
    pub(crate) fn start_with_tls(replicas: &[String]) -> Self {
        Self::start_site(replicas, true)
    }

    fn start_site(replicas: &[String], has_tls: bool) -> Self {
        let (folder, port) = prepare();
        let at = |name: &str| path_in(&folder, name);
        let site = with_servers(&deploy("nginx/weir.conf"), replicas);
        let site = site.replace("/etc/nginx/weir", &at("weir"));
        let site = if has_tls {
            make_certificate(&at("weir.key"), &at("weir.crt"));
            site.replace("listen 443", &format!("listen 127.0.0.1:{port}"))
        } else {
            let without_tls = site.lines().filter(|line| !line.trim().starts_with("ssl_"));
            let site = without_tls.collect::<Vec<_>>().join("\n");
            site.replace("listen 443 ssl", &format!("listen 127.0.0.1:{port}"))
        };
        std::fs::write(at("weir.conf"), site).expect("written");
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {};\n", at(kind)))
            .concat();
        // nginx ignores X-Accel-Buffering of Weir, so that tests cover the settings of the file.
        let whole = format!(
            "pid {};\nerror_log {};\nevents {{}}\nhttp {{\naccess_log off;\n\
             proxy_ignore_headers X-Accel-Buffering;\n{temporary}include {};\n}}\n",
            at("nginx.pid"),
            at("log"),
            at("weir.conf")
        );
        Self::start_whole(folder, port, &whole)
    }

    /// Starts nginx with the file for containers.
    pub(crate) fn start_for_containers(replicas: &[String]) -> Self {
        let (folder, port) = prepare();
        let whole = with_servers(&deploy("docker/nginx.conf"), replicas)
            .replace("/tmp/", &path_in(&folder, ""))
            .replace("/etc/nginx/weir", &path_in(&folder, "weir"))
            .replace("error_log stderr", &format!("error_log {}", path_in(&folder, "log")))
            .replace("listen 8642", &format!("listen 127.0.0.1:{port}"));
        Self::start_whole(folder, port, &whole)
    }

    fn start_whole(folder: TempDir, port: u16, whole: &str) -> Self {
        let at = |name: &str| path_in(&folder, name);
        std::fs::write(at("nginx.conf"), whole).expect("written");
        std::fs::write(at("weir-locations.conf"), deploy("nginx/weir-locations.conf"))
            .expect("written");
        let nginx = || {
            let mut nginx = part("bin/nginx");
            nginx.args(["-p", &at(""), "-e", &at("log"), "-c", &at("nginx.conf")]);
            nginx
        };
        let checked = nginx().arg("-t").output().expect("it runs");
        let output = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success() && !output.contains("[warn]"), "{output}");
        // It goes into the background when its sockets are open.
        let started = nginx().stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(started.expect("it runs").success(), "{:?}", std::fs::read_to_string(at("log")));
        Self { folder, port, address: format!("127.0.0.1:{port}") }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        end(&self.folder.path().join("nginx.pid"));
    }
}

/// Ends the process of a PID file.
pub(super) fn end(pid_file: &Path) {
    let process = std::fs::read_to_string(pid_file).ok();
    let process = process.and_then(|id| Pid::from_raw(id.trim().parse().ok()?));
    let _ = process.map(|process| kill_process(process, Signal::TERM));
}

fn prepare() -> (TempDir, u16) {
    (TempDir::new().expect("a folder"), free_port())
}

pub(super) fn path_in(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().expect("text").to_owned()
}

/// Text of a file of `deploy/`.
pub(super) fn deploy(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name);
    std::fs::read_to_string(path).expect("there")
}

/// Command for a program that `./dev prepare` installs.
pub(super) fn part(name: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/interop").join(name);
    assert!(path.exists(), "{} is missing: run `./dev prepare`", path.display());
    Command::new(path)
}

/// Replaces the servers of a file by these replicas.
fn with_servers(text: &str, replicas: &[String]) -> String {
    let mut replicas = Some(replicas);
    let mut lines = Vec::new();
    for line in text.lines() {
        let server = line.trim().strip_prefix("server ").and_then(|rest| rest.split_once(' '));
        match server {
            Some((_, options)) if options.ends_with(';') => {
                let all = replicas.take().unwrap_or_default();
                lines.extend(all.iter().map(|address| format!("server {address} {options}")));
            }
            _ => lines.push(line.to_owned()),
        }
    }
    assert!(replicas.is_none(), "{text}");
    lines.join("\n")
}

fn make_certificate(key: &str, certificate: &str) {
    let mut openssl = part("bin/openssl");
    openssl
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=weir"])
        .args(["-keyout", key, "-out", certificate]);
    let made = openssl.output().expect("it runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
