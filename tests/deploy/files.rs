//! The files of `deploy/` agree with Weir's defaults, with its command line, and with each other.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use weir::admin::Route;
use weir::config::{Config, ServerConfig};

use super::{deploy, folder, weir, yaml};

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

/// Runs `weir check` on this configuration, with this token as its only secret.
fn check(text: &str, token: &str) -> (Option<i32>, String) {
    let folder = tempfile::TempDir::new().expect("a folder");
    let secrets = folder.path().to_str().expect("a plain name");
    let secret = folder.path().join("wiki_token");
    std::fs::write(&secret, token).expect("written");
    std::fs::set_permissions(&secret, Permissions::from_mode(0o400)).expect("closed");
    let file = folder.path().join("weir.toml");
    std::fs::write(&file, text.replace(SECRETS, secrets)).expect("written");
    weir(&["check", "--offline", "--config", file.to_str().expect("a plain name")])
}

#[test]
fn every_configuration_is_good() {
    for entry in folder().join("config").read_dir().expect("a folder") {
        let path = entry.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("a text");
        let (code, output) = check(&text, "hunter2\n");
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
    let filled = text.replace("replace-me", &"5f".repeat(32));
    let secret = yaml("kubernetes/secret.yaml");
    let token = secret["stringData"]["wiki_token"].as_str().expect("a text");

    let (code, output) = check(text, "hunter2");
    assert_eq!((code, output.matches(": ").count()), (Some(78), 2), "{output}");
    assert!(output.contains("clients.ann.key_sha256"), "{output}");
    let (code, output) = check(&filled, token);
    assert_eq!(code, Some(78), "{output}");
    assert!(output.contains("upstreams.wiki.auth.token"), "{output}");
    let good = (Some(0), "the configuration is valid\n".to_owned());
    assert_eq!(check(&filled, "hunter2"), good);
}

#[test]
fn containers_find_what_their_configuration_names() {
    let named = format!("file = \"{SECRETS}/wiki_token\"");
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
    assert!(map["data"]["weir.toml"].as_str().expect("a configuration").contains(&named));
    // Weir refuses a secret that other users may read. (This YAML 1.2 parser reads 0440 as a
    // decimal.)
    assert!(deploy("kubernetes/deployment.yaml").contains("defaultMode: 0440 }"));

    let text = deploy("docker/compose.yaml");
    let compose = yaml("docker/compose.yaml");
    let weir = &compose["services"]["weir"];
    let config = json!([{ "source": "weir_toml", "target": "/etc/weir/weir.toml" }]);
    assert_eq!((&weir["configs"], &weir["secrets"]), (&config, &json!(["wiki_token"])));
    assert!(deploy("config/container.toml").contains(&named));
    // The header of the file lists the files that users have to create; nothing else is mounted.
    let (top, _) = text.split_once("services:").expect("services");
    for (made, at) in [("configs", "weir_toml"), ("secrets", "wiki_token")] {
        let file = compose[made][at]["file"].as_str().and_then(|file| file.strip_prefix("./"));
        assert!(top.contains(&format!("#   {} ", file.expect("a file beside"))), "{at}");
    }
    assert_eq!(weir["volumes"], json!(null));
    let caddy = compose["services"]["caddy"]["volumes"][0].as_str().expect("a file");
    assert!(folder().join("docker").join(caddy.split(':').next().expect("a path")).exists());
}

#[test]
fn every_command_line_is_one_that_weir_takes() {
    let unit = deploy("systemd/weir.service");
    let unit: Vec<_> = after(&unit, "ExecStart=/usr/local/bin/weir ").split(' ').collect();
    let reload = deploy("systemd/weir.service");
    let reload: Vec<_> = after(&reload, "ExecReload=/usr/local/bin/weir ").split(' ').collect();
    assert_eq!((reload[0], &reload[1..]), ("reload", &unit[1..]));
    let (code, output) = weir(&reload);
    assert!(code == Some(1) && output.contains("/etc/weir/weir.toml"), "{output}");
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
    let check = &compose["services"]["weir"]["healthcheck"]["test"];
    assert_eq!(*check, json!([&["CMD", "/weir", "health"][..], config].concat()));
    let waits = &compose["services"]["caddy"]["depends_on"]["weir"]["condition"];
    assert_eq!(waits, "service_healthy");
    // The configuration file does not exist here.
    let (code, output) = weir(&unit);
    assert_eq!(code, Some(78), "{output}");
    assert!(output.contains("/etc/weir/weir.toml"), "{output}");
}

#[test]
fn an_init_is_pid_1_where_children_are_started() {
    let tools = deploy("docker/Dockerfile.tools");
    assert!(after(&tools, "ENTRYPOINT ").starts_with("[\"/usr/bin/tini\", \"--\","));
    assert_eq!(yaml("docker/compose.yaml")["services"]["weir"]["init"], true);
}

#[test]
fn everybodys_patience_outlasts_the_drain() {
    let unit: u64 = after(&deploy("systemd/weir.service"), "TimeoutStopSec=").parse().expect("s");
    let pod = &yaml("kubernetes/deployment.yaml")["spec"]["template"]["spec"];
    let pod = pod["terminationGracePeriodSeconds"].as_u64().expect("a number");
    let compose = yaml("docker/compose.yaml");
    let compose = compose["services"]["weir"]["stop_grace_period"].as_str().expect("a text");
    let compose: u64 = compose.trim_end_matches('s').parse().expect("seconds");
    for seconds in [unit, pod, compose] {
        assert!(seconds > longest_stop(), "{seconds}");
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
    assert_eq!(compose["weir"]["ports"], json!([format!("127.0.0.1:{port}:{port}")]));
    assert_eq!(compose["caddy"]["environment"]["WEIR_UPSTREAM"], format!("weir:{port}"));
    for file in ["docker/Dockerfile", "docker/Dockerfile.tools"] {
        assert_eq!(after(&deploy(file), "EXPOSE "), port.to_string());
    }
    let container =
        &yaml("kubernetes/deployment.yaml")["spec"]["template"]["spec"]["containers"][0];
    let admin = Config::default().admin.address().port();
    let ports = json!([
        { "name": "http", "containerPort": port },
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
    let service = yaml("kubernetes/service.yaml");
    let affinity = &service["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
    assert!(affinity.as_u64() > Some(Config::default().protocol.session_ttl.as_secs()));
}

#[test]
fn no_container_runs_as_root_or_may_become_it() {
    for file in ["docker/Dockerfile", "docker/Dockerfile.tools"] {
        assert!(after(&deploy(file), "USER ").starts_with("65532:"));
    }
    let pod = &yaml("kubernetes/deployment.yaml")["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsUser"], 65532);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let container = &pod["containers"][0]["securityContext"];
    assert_eq!(container["allowPrivilegeEscalation"], false);
    assert_eq!(container["readOnlyRootFilesystem"], true);
    assert_eq!(container["capabilities"], json!({ "drop": ["ALL"] }));
    let compose = &yaml("docker/compose.yaml")["services"]["weir"];
    assert_eq!(compose["cap_drop"], json!(["ALL"]));
    assert_eq!(compose["read_only"], true);
    assert_eq!(compose["security_opt"], json!(["no-new-privileges:true"]));
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
