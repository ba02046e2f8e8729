//! The files for several replicas: load balancers, Compose and Kubernetes.

use super::deploy;

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
