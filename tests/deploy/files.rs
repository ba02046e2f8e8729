//! The files of `deploy/` agree with Weir's defaults, with its command line, and with each other.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use weir::admin::Route;
use weir_config::{Config, Options, ServerConfig};

use super::{VARIABLES, deploy, folder, weir, yaml};

fn server() -> ServerConfig {
    Config::default().server
}

/// Maximum duration of a shutdown in seconds: the drain, then the upstreams.
fn longest_stop() -> u64 {
    server().shutdown_grace.as_secs() + 5
}

/// Returns the rest of the line that starts with `word`.
fn after<'a>(text: &'a str, word: &str) -> &'a str {
    text.lines().find_map(|line| line.trim().strip_prefix(word)).expect(word).trim()
}

/// Folder for secrets in containers.
const SECRETS: &str = "/run/secrets";

/// Values for all secrets of the files.
pub(super) const GOOD: [(&str, &str); 4] = [
    ("wiki_token", "hunter2"),
    ("fleet_keys", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
    ("valkey_password", "hunter3"),
    ("admin_token", "a-token-of-the-admin-listener"),
];

/// Writes a configuration with these secrets into a folder, and returns its path.
pub(super) fn write(folder: &Path, text: &str, secrets: &[(&str, &str)]) -> PathBuf {
    for (name, value) in secrets {
        let secret = folder.join(name);
        std::fs::write(&secret, value).expect("written");
        std::fs::set_permissions(&secret, Permissions::from_mode(0o400)).expect("closed");
    }
    let file = folder.join("weir.toml");
    let here = folder.to_str().expect("a plain name");
    std::fs::write(&file, text.replace(SECRETS, here)).expect("written");
    file
}

/// Runs `weir check` on this configuration, with these secrets.
fn check(text: &str, secrets: &[(&str, &str)]) -> (Option<i32>, String) {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = write(folder.path(), text, secrets);
    weir(&["check", "--offline", "--config", file.to_str().expect("a plain name")])
}

/// Reads a configuration with good secrets.
pub(super) fn parse(text: &str) -> Config {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = write(folder.path(), text, &GOOD);
    let options = Options { environment: VARIABLES.into_iter().collect(), ..Options::default() };
    Config::load(&file, &options).expect("it is good")
}

/// The configuration of the pods, with the hash of a client's key.
pub(super) fn configuration_of_pods() -> String {
    let map = yaml("kubernetes/configmap.yaml");
    let text = map["data"]["weir.toml"].as_str().expect("a configuration");
    text.replace("replace-me", &"5f".repeat(32))
}

#[test]
fn every_configuration_is_good() {
    for entry in folder().join("config").read_dir().expect("a folder") {
        let path = entry.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("a text");
        let (code, output) = check(&text, &GOOD);
        let path = path.display();
        // Folders under /etc/weir do not exist here. Other warnings are failures.
        let elsewhere = output.matches(": there is no folder /etc/weir/").count();
        assert_eq!(
            (code, output.matches("warning").count()),
            (Some(0), elsewhere),
            "{path}: {output}"
        );
        assert!(output.ends_with("the configuration is valid\n"), "{path}: {output}");
    }
}

#[test]
fn the_pods_placeholders_are_refused_until_each_is_filled_in() {
    let map = yaml("kubernetes/configmap.yaml");
    let text = map["data"]["weir.toml"].as_str().expect("a configuration");
    let secret = yaml("kubernetes/secret.yaml");
    let placeholders: Vec<_> = GOOD
        .iter()
        .map(|(name, _)| (*name, secret["stringData"][name].as_str().expect("a text")))
        .collect();

    let (code, output) = check(text, &GOOD);
    assert_eq!((code, output.matches(": ").count()), (Some(78), 2), "{output}");
    assert!(output.contains("clients.ann.key_sha256"), "{output}");
    let (code, output) = check(&configuration_of_pods(), &placeholders);
    assert_eq!(code, Some(78), "{output}");
    for key in ["upstreams.wiki.auth.token", "fleet.keys", "admin.token"] {
        assert!(output.contains(key), "{key}: {output}");
    }
    let good = (Some(0), "the configuration is valid\n".to_owned());
    assert_eq!(check(&configuration_of_pods(), &GOOD), good);
}

#[test]
fn containers_find_what_their_configuration_names() {
    let named = GOOD.map(|(name, _)| format!("file = \"{SECRETS}/{name}\""));
    let pod = &yaml("kubernetes/deployment.yaml")["spec"]["template"]["spec"];
    assert_eq!(
        pod["containers"][0]["volumeMounts"],
        json!([
            { "name": "config", "mountPath": "/etc/weir", "readOnly": true },
            { "name": "secrets", "mountPath": SECRETS, "readOnly": true },
            { "name": "tmp", "mountPath": "/tmp" },
        ])
    );
    let map = yaml("kubernetes/configmap.yaml");
    let secret = yaml("kubernetes/secret.yaml");
    assert_eq!(pod["volumes"][0]["configMap"]["name"], map["metadata"]["name"]);
    assert_eq!(pod["volumes"][1]["secret"]["secretName"], secret["metadata"]["name"]);
    let text = map["data"]["weir.toml"].as_str().expect("a configuration");
    assert!(named.iter().all(|name| text.contains(name)));
    // Weir refuses a secret that other users may read. (This YAML 1.2 parser reads 0440 as a
    // decimal.)
    assert!(deploy("kubernetes/deployment.yaml").contains("defaultMode: 0440 }"));

    let text = deploy("docker/compose.yaml");
    let compose = yaml("docker/compose.yaml");
    let weir = &compose["services"]["weir-1"];
    let config = json!([{ "source": "weir_toml", "target": "/etc/weir/weir.toml" }]);
    // The admin listener of these containers is on their loopback address, without a token.
    let named = &named[..3];
    let secrets = json!(GOOD[..3].iter().map(|(name, _)| name).collect::<Vec<_>>());
    assert_eq!((&weir["configs"], &weir["secrets"]), (&config, &secrets));
    let text_of_replicas = deploy("config/replicas.toml");
    assert!(named.iter().all(|name| text_of_replicas.contains(name)));
    assert!(deploy("config/container.toml").contains(&named[0]));
    // The header of the file lists the files that users have to create; nothing else is mounted.
    let (top, _) = text.split_once("services:").expect("services");
    let made = ["configs", "secrets"].map(|kind| compose[kind].as_object().expect("files"));
    for file in made.into_iter().flat_map(|files| files.values()) {
        let file = file["file"].as_str().and_then(|file| file.strip_prefix("./"));
        assert!(top.contains(&format!("#   {} ", file.expect("a file beside"))), "{file:?}");
    }
    assert_eq!(weir["volumes"], json!(null));
    for service in ["nginx", "caddy", "valkey"] {
        let volumes = compose["services"][service]["volumes"].as_array().expect("files");
        let files = volumes.iter().filter_map(|it| it.as_str()?.strip_suffix(":ro"));
        let files: Vec<_> = files.map(|it| it.split(':').next().expect("a path")).collect();
        assert!(!files.is_empty(), "{service}");
        for file in files {
            assert!(folder().join("docker").join(file).exists(), "{file}");
        }
    }
}

#[test]
fn every_command_line_is_one_that_weir_takes() {
    let unit = deploy("systemd/weir.service");
    let unit: Vec<_> = after(&unit, "ExecStart=/usr/local/bin/weir ").split(' ').collect();
    let reload = deploy("systemd/weir.service");
    let reload: Vec<_> = after(&reload, "ExecReload=/usr/local/bin/weir ").split(' ').collect();
    assert_eq!((reload[0], &reload[1..]), ("reload", &unit[1..]));
    let (code, output) = weir(&reload);
    assert!(code == Some(78) && output.contains("/etc/weir/weir.toml"), "{output}");
    let pod = &yaml("kubernetes/deployment.yaml")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(pod["args"], json!(unit));
    for file in ["docker/Dockerfile", "docker/Dockerfile.tools"] {
        let image: serde_json::Value =
            serde_json::from_str(after(&deploy(file), "CMD ")).expect("a list");
        assert_eq!(image, json!(unit));
    }
    // The health checks use the same configuration. They fail here, because the file does not
    // exist.
    let config = &unit[1..];
    for (file, program) in
        [("docker/Dockerfile", "/weir"), ("docker/Dockerfile.tools", "/usr/local/bin/weir")]
    {
        let text = deploy(file);
        let (_, check) = after(&text, "HEALTHCHECK ").split_once(" CMD ").expect("a command");
        let check: Vec<String> = serde_json::from_str(check).expect("a list");
        let (first, arguments) = check.split_first().expect("a program");
        assert_eq!(
            (first.as_str(), &arguments[..2]),
            (program, &["health", "--live"].map(String::from)[..])
        );
        assert_eq!(&arguments[2..], config);
        assert!(after(&text, "ENTRYPOINT ").contains(&format!("\"{program}\"")));
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let (code, output) = weir(&arguments);
        assert!(code == Some(78) && output.contains("/etc/weir/weir.toml"), "{output}");
    }
    let compose = yaml("docker/compose.yaml");
    let check = &compose["services"]["weir-1"]["healthcheck"]["test"];
    assert_eq!(*check, json!([&["CMD", "/weir", "health"][..], config].concat()));
    for proxy in ["nginx", "caddy"] {
        let waits = &compose["services"][proxy]["depends_on"]["weir-1"]["condition"];
        assert_eq!(waits, "service_healthy", "{proxy}");
    }
    // The configuration file does not exist here.
    let (code, output) = weir(&unit);
    assert_eq!(code, Some(78), "{output}");
    assert!(output.contains("/etc/weir/weir.toml"), "{output}");
}

#[test]
fn an_init_is_pid_1_where_children_are_started() {
    let tools = deploy("docker/Dockerfile.tools");
    assert!(after(&tools, "ENTRYPOINT ").starts_with("[\"/usr/bin/tini\", \"--\","));
    assert_eq!(yaml("docker/compose.yaml")["services"]["weir-1"]["init"], true);
}

#[test]
fn everybodys_patience_outlasts_the_drain() {
    let unit: u64 = after(&deploy("systemd/weir.service"), "TimeoutStopSec=").parse().expect("s");
    let pod = &yaml("kubernetes/deployment.yaml")["spec"]["template"]["spec"];
    let pod = pod["terminationGracePeriodSeconds"].as_u64().expect("a number");
    let compose = yaml("docker/compose.yaml");
    let compose = compose["services"]["weir-1"]["stop_grace_period"].as_str().expect("a text");
    let compose: u64 = compose.trim_end_matches('s').parse().expect("seconds");
    for (seconds, text) in
        [(pod, configuration_of_pods()), (compose, deploy("config/replicas.toml"))]
    {
        let delay = parse(&text).server.shutdown_delay.expect("it is set").as_secs();
        assert!(seconds > delay + longest_stop(), "{seconds}");
        assert!(unit > delay + longest_stop(), "{unit}");
    }
}

#[test]
fn everybody_names_the_default_address_path_and_size() {
    let ServerConfig { listen, path, max_body, .. } = server();
    let port = listen.port();
    assert_eq!((path.as_str(), max_body), ("/mcp", 4 << 20));

    assert_eq!(after(&deploy("systemd/weir.socket"), "ListenStream="), listen.to_string());
    let files: usize =
        after(&deploy("systemd/weir.service"), "LimitNOFILE=").parse().expect("a number");
    assert!(files >= 2 * server().max_connections, "{files}");

    assert!(deploy("nginx/weir.conf").contains(&format!("server {listen} ")));
    let nginx = deploy("nginx/weir-locations.conf");
    assert!(nginx.contains(
        r"location ~ ^/(mcp|sse|messages|\.well-known/oauth-protected-resource(/mcp)?)$ {"
    ));
    assert!(nginx.contains("client_max_body_size 4m;"));
    let caddy = deploy("caddy/Caddyfile");
    assert!(caddy.contains(&format!(":{listen}}} {{\n")));
    assert!(caddy.contains("@mcp path /mcp /sse /messages"));
    assert!(caddy.contains("max_size 4MiB"));

    let compose = &yaml("docker/compose.yaml")["services"];
    assert_eq!(compose["nginx"]["ports"], json!([format!("127.0.0.1:{port}:{port}")]));
    for file in ["docker/Dockerfile", "docker/Dockerfile.tools"] {
        assert_eq!(after(&deploy(file), "EXPOSE "), port.to_string());
    }
    let container =
        &yaml("kubernetes/deployment.yaml")["spec"]["template"]["spec"]["containers"][0];
    let admin = Config::default().admin.address().port();
    let ports = json!([
        { "name": "http", "containerPort": port },
        { "name": "fleet", "containerPort": 8643 },
        { "name": "admin", "containerPort": admin },
    ]);
    assert_eq!(container["ports"], ports);
    let map = yaml("kubernetes/configmap.yaml");
    let map = map["data"]["weir.toml"].as_str().expect("a configuration");
    assert!(map.contains(&format!("listen = \"0.0.0.0:{admin}\"")));
    for (probe, path) in [("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")] {
        assert_eq!(container[probe]["httpGet"], json!({ "path": path, "port": "admin" }));
        assert!(Route::ALL.iter().any(|route| route.path() == path));
    }
    let scrape = yaml("prometheus/scrape.yml");
    let scrape = &scrape["scrape_configs"][0];
    assert_eq!(scrape["static_configs"][0]["targets"], json!([format!("127.0.0.1:{admin}")]));
    assert_eq!(yaml("kubernetes/service.yaml")["spec"]["ports"][0]["port"], port);
    let policy = yaml("kubernetes/networkpolicy.yaml");
    assert_eq!(policy["spec"]["ingress"][0]["ports"][0]["port"], port);
    assert_eq!(policy["spec"]["ingress"][2]["ports"][0]["port"], admin);

    let monitor = yaml("prometheus/servicemonitor.yaml");
    let (monitor, endpoint) = (&monitor["spec"], &monitor["spec"]["endpoints"][0]);
    let service = yaml("kubernetes/service.yaml");
    assert_eq!(monitor["selector"]["matchLabels"], service["metadata"]["labels"]);
    assert_eq!(endpoint["port"], service["spec"]["ports"][1]["name"]);
    assert_eq!(service["spec"]["ports"][1]["port"], admin);
    let secret = yaml("kubernetes/secret.yaml");
    let credentials = &endpoint["authorization"]["credentials"];
    assert_eq!(credentials["name"], secret["metadata"]["name"]);
    let token = credentials["key"].as_str().expect("a key");
    assert!(secret["stringData"][token].is_string() && map.contains(token));
    let ingress = yaml("kubernetes/ingress.yaml");
    assert_eq!(ingress["spec"]["rules"][0]["http"]["paths"][0]["path"], path);
    let annotations = &ingress["metadata"]["annotations"];
    assert_eq!(annotations["nginx.ingress.kubernetes.io/proxy-body-size"], "4m");
    assert_eq!(annotations["nginx.ingress.kubernetes.io/proxy-buffering"], "off");
}

#[test]
fn everybody_waits_longer_than_a_silent_stream_is_silent() {
    let silent = Config::default().protocol.sse_keepalive.as_secs();
    assert!(
        deploy("nginx/weir-locations.conf").contains("proxy_read_timeout 10m;") && silent < 600
    );
    let ingress = yaml("kubernetes/ingress.yaml");
    let annotations = &ingress["metadata"]["annotations"];
    assert_eq!(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"], "600");
}

#[test]
fn no_container_runs_as_root_or_may_become_it() {
    for file in ["docker/Dockerfile", "docker/Dockerfile.tools"] {
        assert!(after(&deploy(file), "USER ").starts_with("65532:"));
    }
    for (file, user) in [("deployment", 65532), ("valkey-statefulset", 999)] {
        let pod = &yaml(&format!("kubernetes/{file}.yaml"))["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsUser"], user);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        let container = &pod["containers"][0]["securityContext"];
        assert_eq!(container["allowPrivilegeEscalation"], false);
        assert_eq!(container["readOnlyRootFilesystem"], true);
        assert_eq!(container["capabilities"], json!({ "drop": ["ALL"] }));
    }
    let compose = yaml("docker/compose.yaml");
    for (name, service) in compose["services"].as_object().expect("services") {
        assert_eq!(service["cap_drop"], json!(["ALL"]), "{name}");
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(service["security_opt"], json!(["no-new-privileges:true"]), "{name}");
    }
}

#[test]
fn the_kustomization_holds_every_manifest() {
    let listed = &yaml("kubernetes/kustomization.yaml")["resources"];
    let mut listed: Vec<_> = listed.as_array().expect("a list").iter().collect();
    listed.sort_by_key(|name| name.as_str());
    let files = folder().join("kubernetes").read_dir().expect("a folder");
    let mut files: Vec<_> =
        files.map(|file| file.expect("a file").file_name().into_string().expect("plain")).collect();
    files.retain(|name| name != "kustomization.yaml");
    files.sort();
    assert_eq!(
        listed,
        files.iter().map(|name| json!(name)).collect::<Vec<_>>().iter().collect::<Vec<_>>()
    );
}

#[test]
fn the_image_is_built_with_the_pinned_toolchain() {
    let pinned = include_str!("../../rust-toolchain.toml");
    let version = after(pinned, "channel = ").trim_matches('"').to_owned();
    let text = deploy("docker/Dockerfile");
    assert!(text.contains(&format!("RUSTUP_TOOLCHAIN={version}")), "{version}");
    let minor = version.rsplit_once('.').expect("three parts").0;
    assert!(text.contains(&format!("FROM rust:{minor}-alpine")), "{minor}");
}

/// The build context contains only the files that `.dockerignore` allows, and cargo needs the
/// manifests of all members.
#[test]
fn the_images_build_context_holds_every_package_of_the_workspace() {
    let repository = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let ignored = std::fs::read_to_string(repository.join(".dockerignore")).expect("a text");
    let context = tempfile::TempDir::new().expect("a folder");
    for name in ignored.lines().filter_map(|line| line.strip_prefix('!')) {
        let copied = std::process::Command::new("cp")
            .arg("-R")
            .args([repository.join(name), context.path().join(name)])
            .status();
        assert!(copied.expect("cp runs").success(), "{name}");
    }
    let metadata = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(context.path())
        .output()
        .expect("cargo runs");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
}
