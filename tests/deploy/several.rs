//! The files for several replicas: load balancers, Compose and Kubernetes.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::files::{configuration_of_pods, parse};
use super::{deploy, yaml};
#[cfg(target_os = "linux")]
use super::{
    files::{GOOD, write},
    part, run, weir,
};
#[cfg(target_os = "linux")]
use crate::lab::{ports::free_port, store::TestStore};

/// Statements of a file without its comments, with single spaces.
fn statements(path: &str) -> Vec<String> {
    let text = deploy(path);
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// Fails unless each of these statements is there once, and none contains one of these words.
fn check_statements(all: &[String], wanted: &[&str], unwanted: &[&str]) {
    for statement in wanted {
        assert_eq!(all.iter().filter(|it| it == statement).count(), 1, "{statement}: {all:?}");
    }
    for word in unwanted {
        assert!(!all.iter().any(|it| it.contains(word)), "{word}: {all:?}");
    }
}

#[test]
fn balancers_give_each_replica_its_turn_and_repeat_no_call_that_they_have_sent() {
    for upstream in ["nginx/weir.conf", "docker/nginx.conf"] {
        let all = [statements(upstream), statements("nginx/weir-locations.conf")].concat();
        check_statements(
            &all,
            &[
                "keepalive 64;",
                "proxy_http_version 1.1;",
                "proxy_set_header Connection \"\";",
                "proxy_buffering off;",
                "proxy_next_upstream error timeout;",
                "proxy_connect_timeout 2s;",
            ],
            &["non_idempotent", "ip_hash", "hash ", "sticky", "least_", "random", "backup"],
        );
        let mut servers: Vec<_> = all.iter().filter(|it| it.starts_with("server ")).collect();
        servers.retain(|it| it.ends_with(';'));
        assert!(servers.iter().all(|it| it.ends_with(" max_fails=1 fail_timeout=2s;")));
    }
    check_statements(
        &statements("caddy/Caddyfile"),
        &[
            "lb_policy round_robin",
            "lb_try_duration 5s",
            "max_fails 1",
            "fail_duration 2s",
            "dial_timeout 2s",
            "keepalive 20s",
        ],
        // Retries of POST requests, sticky sessions, and buffers.
        &["lb_retry_match", "cookie", "hash", "buffers", "keepalive off"],
    );
}

/// Port of a replica for the others.
const FLEET_PORT: u16 = 8643;

#[test]
fn the_pods_reach_each_other_and_the_store_and_nobody_else_does() {
    let config = parse(&configuration_of_pods());
    let fleet = config.fleet.as_ref().expect("there");
    assert_eq!(fleet.listen.port(), FLEET_PORT);
    assert_eq!(fleet.settings.address, format!("10.1.2.3:{FLEET_PORT}"));
    let deployment = yaml("kubernetes/deployment.yaml");
    let pod = &deployment["spec"]["template"]["spec"];
    let address = json!({ "fieldRef": { "fieldPath": "status.podIP" } });
    assert_eq!(pod["containers"][0]["env"], json!([{ "name": "POD_IP", "valueFrom": address }]));

    let service = yaml("kubernetes/valkey-service.yaml");
    let port = &service["spec"]["ports"][0]["port"];
    let name = service["metadata"]["name"].as_str().expect("a name");
    assert_eq!(fleet.settings.store.urls, [format!("redis://{name}:{port}")]);
    let store = yaml("kubernetes/valkey-statefulset.yaml");
    assert_eq!(store["spec"]["serviceName"], name);
    let container = &store["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["ports"], json!([{ "name": "store", "containerPort": port }]));
    assert_eq!(service["spec"]["ports"][0]["targetPort"], "store");

    let labels = |of: &Value| of["spec"]["template"]["metadata"]["labels"].clone();
    let (replica, store) = (labels(&deployment), labels(&store));
    assert_eq!(service["spec"]["selector"], store);
    let of = |labels: &Value| json!([{ "podSelector": { "matchLabels": labels } }]);
    let at = |port: &Value| json!([{ "protocol": "TCP", "port": port }]);
    let policy = &yaml("kubernetes/networkpolicy.yaml")["spec"];
    assert_eq!(policy["podSelector"]["matchLabels"], replica);
    let fleet_port = at(&json!(FLEET_PORT));
    let rules = policy["ingress"].as_array().expect("rules");
    let fleet_rules: Vec<_> = rules.iter().filter(|rule| rule["ports"] == fleet_port).collect();
    assert_eq!(fleet_rules, [&json!({ "from": of(&replica), "ports": fleet_port })]);
    assert_eq!(rules.len(), 3, "and the clients, and Prometheus");
    let leaving = policy["egress"].as_array().expect("rules");
    assert!(leaving.contains(&json!({ "to": of(&replica), "ports": fleet_port })));
    assert!(leaving.contains(&json!({ "to": of(&store), "ports": at(port) })));
    let policy = &yaml("kubernetes/valkey-networkpolicy.yaml")["spec"];
    assert_eq!(policy["podSelector"]["matchLabels"], store);
    assert_eq!(policy["ingress"], json!([{ "from": of(&replica), "ports": at(port) }]));
    assert_eq!((&policy["policyTypes"][1], &policy["egress"]), (&json!("Egress"), &json!(null)));
}

#[test]
fn an_update_of_the_pods_leaves_as_many_as_before_and_each_drains() {
    let deployment = yaml("kubernetes/deployment.yaml");
    let (spec, pod) = (&deployment["spec"], &deployment["spec"]["template"]["spec"]);
    assert_eq!(spec["replicas"], 3);
    let update = &spec["strategy"]["rollingUpdate"];
    assert_eq!(*update, json!({ "maxSurge": 1, "maxUnavailable": 0 }));
    let labels = &spec["template"]["metadata"]["labels"];
    let apart = &pod["affinity"]["podAntiAffinity"];
    let apart = &apart["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"];
    assert_eq!(apart["labelSelector"]["matchLabels"], *labels);
    assert_eq!(apart["topologyKey"], "kubernetes.io/hostname");
    let budget = &yaml("kubernetes/poddisruptionbudget.yaml")["spec"];
    assert_eq!(
        (&budget["maxUnavailable"], &budget["selector"]["matchLabels"]),
        (&json!(1), labels)
    );

    // A draining replica is noticed while it still accepts requests.
    let delay = parse(&configuration_of_pods()).server.shutdown_delay.expect("it is set");
    let probe = &pod["containers"][0]["readinessProbe"];
    let number = |key: &str| probe[key].as_u64().expect("a number");
    assert!(number("periodSeconds") * number("failureThreshold") < delay.as_secs());

    let annotations = &yaml("kubernetes/ingress.yaml")["metadata"]["annotations"];
    let next = &annotations["nginx.ingress.kubernetes.io/proxy-next-upstream"];
    assert_eq!(next, "error timeout");
    for file in ["ingress.yaml", "service.yaml"] {
        let text = statements(&format!("kubernetes/{file}")).join("\n");
        assert!(!text.to_lowercase().contains("affinity"), "{file}");
    }
}

#[test]
fn the_containers_reach_each_other_and_the_proxies_all_of_them() {
    let compose = yaml("docker/compose.yaml");
    let address = |service: &str| {
        let networks = &compose["services"][service]["networks"];
        networks["inside"]["ipv4_address"].as_str().expect("an address").to_owned()
    };
    let config = parse(&deploy("config/replicas.toml"));
    let replicas = ["weir-1", "weir-2", "weir-3"];
    let port = config.server.listen.port();
    let addresses = replicas.map(|replica| format!("{}:{port}", address(replica)));
    let servers =
        addresses.each_ref().map(|it| format!("server {it} max_fails=1 fail_timeout=2s;"));
    let nginx = statements("docker/nginx.conf");
    let named: Vec<_> = nginx.iter().filter(|it| it.contains("max_fails")).collect();
    assert_eq!(named, servers.each_ref());
    assert!(nginx.contains(&format!("listen {port};")));
    let caddy = &compose["services"]["caddy"]["environment"]["WEIR_UPSTREAM"];
    assert_eq!(*caddy, addresses.join(" "));
    let proxies = ["nginx", "caddy"].map(|proxy| format!("{}/32", address(proxy)));
    let trusted: Vec<_> = config.server.trusted_proxies.iter().map(ToString::to_string).collect();
    assert_eq!(trusted, proxies);
    // Addresses without a service of their own are in another range.
    let range = &compose["networks"]["inside"]["ipam"]["config"][0]["ip_range"];
    let range: ipnet::IpNet = range.as_str().expect("a range").parse().expect("a network");
    let mut all = replicas.to_vec();
    all.extend(["nginx", "caddy"]);
    assert!(all.iter().all(|it| !range.contains(&address(it).parse::<IpAddr>().expect("one"))));

    let fleet = config.fleet.as_ref().expect("there");
    assert_eq!(fleet.settings.address, format!("weir-1:{}", fleet.listen.port()));
    assert_eq!(fleet.settings.store.urls, ["redis://valkey:6379"]);
    let services = compose["services"].as_object().expect("services");
    assert_eq!(services.len(), 6);
    assert!(services.contains_key("valkey"));
    for replica in replicas {
        let mut service = services[replica].clone();
        assert_eq!(service["environment"], json!({ "REPLICA": replica }));
        // All else is equal.
        for key in ["environment", "networks"] {
            service[key] = services["weir-1"][key].clone();
        }
        assert_eq!(service, services["weir-1"], "{replica}");
    }
}

/// Configuration and users of the store: a volume of secrets has them where the former names them.
#[test]
fn the_store_is_configured_alike_in_pods_and_containers() {
    let conf = |text: &str| {
        let lines = text.lines().skip_while(|line| line.starts_with('#') || line.is_empty());
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let map = yaml("kubernetes/valkey-configmap.yaml");
    let text = map["data"]["valkey.conf"].as_str().expect("a text");
    assert_eq!(conf(text), conf(&deploy("valkey/valkey.conf")));
    let users = yaml("kubernetes/valkey-secret.yaml");
    assert_eq!(users["stringData"], json!({ "valkey_users": deploy("valkey/users.acl") }));
    assert!(text.contains("\naclfile /run/secrets/valkey_users\n"), "{text}");

    let pod = &yaml("kubernetes/valkey-statefulset.yaml")["spec"]["template"]["spec"];
    let service = &yaml("docker/compose.yaml")["services"]["valkey"];
    assert_eq!(pod["containers"][0]["command"], service["command"]);
    assert_eq!(service["command"], json!(["valkey-server", "/etc/valkey/valkey.conf"]));
    assert_eq!(service["secrets"], json!(["valkey_users"]));
    assert_eq!(pod["containers"][0]["image"], service["image"]);
    assert_eq!(pod["volumes"][0]["configMap"]["name"], map["metadata"]["name"]);
    assert_eq!(pod["volumes"][1]["secret"]["secretName"], users["metadata"]["name"]);
    assert!(deploy("kubernetes/valkey-statefulset.yaml").contains("defaultMode: 0440 }"));
    let mounts = json!([
        { "name": "config", "mountPath": "/etc/valkey", "readOnly": true },
        { "name": "users", "mountPath": "/run/secrets", "readOnly": true },
        { "name": "data", "mountPath": "/data" },
    ]);
    assert_eq!(pod["containers"][0]["volumeMounts"], mounts);

    // The page for operators lists the same rights.
    let page =
        include_str!("../../docs/replicas.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let acl = deploy("valkey/users.acl");
    let rights = acl.split_whitespace().filter_map(|it| it.strip_prefix('+'));
    for right in rights {
        assert!(page.contains(&format!("`{right}`")), "{right}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn weir_finds_the_store_good_and_the_store_refuses_a_placeholder() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a plain name").to_owned();
    let conf = deploy("valkey/valkey.conf")
        .replace("dir /data", &format!("dir {}", folder.path().display()))
        .replace("/run/secrets", &folder.path().display().to_string());
    std::fs::write(at("valkey.conf"), conf).expect("written");
    let acl = deploy("valkey/users.acl");
    std::fs::write(at("valkey_users"), &acl).expect("written");
    let (code, output) = run(part("bin/redis-server").args([
        &at("valkey.conf"),
        "--port",
        &free_port().to_string(),
    ]));
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("password hash must be exactly 64 characters"), "{output}");

    // Of the password in `GOOD`.
    let hash = "fb8c2e2b85ca81eb4350199faddd983cb26af3064614e737ea9f479621cfa57a";
    std::fs::write(at("valkey_users"), acl.replace("replace-me", hash)).expect("written");
    let store = TestStore::start_with_file(&at("valkey.conf")).await;
    let text = deploy("config/replicas.toml")
        .replace("valkey:6379", &format!("127.0.0.1:{}", store.port))
        .replace("url  = \"https://wiki.example.com/mcp\"", "prompts_dir = \"prompts\"");
    let without_token = text.lines().filter(|line| !line.starts_with("auth = "));
    let text = without_token.collect::<Vec<_>>().join("\n");
    std::fs::create_dir(at("prompts")).expect("made");
    let file = write(folder.path(), &text, &GOOD);
    let (code, output) = weir(&["check", "--config", file.to_str().expect("a plain name")]);
    assert!(code == Some(0) && !output.contains("warning"), "{output}");
}
