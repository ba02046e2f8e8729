//! The image, started by buildah in a changed root, as the deployment starts it.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::made::artefact;
use super::{root, succeed, version};
use crate::lab::http::post;
use crate::lab::lines::Lines;
use crate::lab::ports::free_port;

/// A container of the image.
struct Container {
    storage: TempDir,
    name: String,
}

impl Container {
    fn new() -> Self {
        let storage = TempDir::new().expect("a folder");
        let image = format!("oci-archive:{}", artefact("weir-", "-image.tar").display());
        let mut from = buildah(&storage);
        let name = succeed(from.args(["from", "--quiet", &image]).stderr(Stdio::null()));
        let name = name.lines().last().expect("a name").to_owned();
        Self { storage, name }
    }

    /// Command in the container, with options of buildah.
    fn command(&self, options: &[&str], arguments: &[&str]) -> Command {
        let mut command = buildah(&self.storage);
        command.args(["run", "--isolation=chroot"]).args(options);
        command.args([&self.name, "--"]).args(arguments);
        command
    }
}

fn buildah(storage: &TempDir) -> Command {
    let mut command = Command::new("buildah");
    command.arg("--storage-driver=vfs");
    command.arg("--root").arg(storage.path().join("storage"));
    command.arg("--runroot").arg(storage.path().join("run"));
    command
}

#[test]
fn the_image_runs_as_a_user_without_a_shell() {
    let container = Container::new();
    let shown = succeed(&mut container.command(&[], &["/weir", "version"]));
    assert!(shown.starts_with(&version()), "{shown}");
    let mut inspect = buildah(&container.storage);
    let about: Value =
        serde_json::from_str(&succeed(inspect.args(["inspect", &container.name]))).expect("JSON");
    let config = &about["OCIv1"]["config"];
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Entrypoint"], json!(["/weir"]));
    assert_eq!(config["Cmd"], json!(["serve", "--config", "/etc/weir/weir.toml"]));
    let label = &config["Labels"]["org.opencontainers.image.version"];
    assert_eq!(label, env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_image_serves_a_prompt_library() {
    let container = Container::new();
    let folder = TempDir::new().expect("a folder");
    let port = free_port();
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\n[admin]\nlisten = \"127.0.0.1:{}\"\n\
         [upstreams.house]\nprompts_dir = \"/etc/weir/prompts\"\n",
        free_port()
    );
    std::fs::write(folder.path().join("weir.toml"), config).expect("written");
    let mounts = [
        format!("--volume={}:/etc/weir/weir.toml:ro", folder.path().join("weir.toml").display()),
        format!("--volume={}:/etc/weir/prompts:ro", root().join("prompts/engineering").display()),
    ];
    let options = [mounts[0].as_str(), mounts[1].as_str()];
    let mut serve =
        container.command(&options, &["/weir", "serve", "--config", "/etc/weir/weir.toml"]);
    let mut running = serve.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut log = Lines::of(running.stderr.take().expect("piped"));
    log.wait_for("\"ready\"");
    let listed = post(&format!("127.0.0.1:{port}"), None, "prompts/list", json!({}));
    assert!(listed.contains("house__"), "{listed}");
    let health = ["/weir", "health", "--config", "/etc/weir/weir.toml"];
    succeed(&mut container.command(&options, &health));
    succeed(Command::new("kill").args(["-TERM", &running.id().to_string()]));
    assert!(running.wait().is_ok());
}
