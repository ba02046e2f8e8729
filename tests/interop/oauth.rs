//! Third-party clients log in at a third-party identity provider, and Weir accepts its tokens.
//!
//! Everything is discovered: Weir's 401 leads a client to the metadata, the metadata leads to the
//! provider, and the token comes back to Weir, which has discovered the provider's keys by itself.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::fleet::{Fleet, soon};
use crate::parts::{Started, announced, free_port, part, script};

/// Client secret of the program without a user.
const ROBOT_SECRET: &str = "the-secret-of-the-robot";

/// Starts a provider for tokens of this resource, signed in this way.
async fn provider(resource: &str, signed_with: &str) -> Started {
    let mut command = Command::new(part("bin/node"));
    part("oidc/node_modules/oidc-provider");
    command.arg(script("oidc_provider.mjs")).arg(resource);
    command.env("ROBOT_SECRET", ROBOT_SECRET).env("SIGNED_WITH", signed_with);
    announced(&mut command).await
}

/// Weir with two prompts; people may use both of them, robots one.
async fn gateway(endpoint_port: u16, issuer: &str) -> Fleet {
    let fleet = Fleet::plain("");
    let config = format!(
        r#"
        [server]
        listen = "127.0.0.1:{endpoint_port}"
        public_url = "http://127.0.0.1:{endpoint_port}"
        [log]
        format = "json"
        level = "debug"
        [upstreams.house]
        prompts_dir = "prompts"
        [roles.person]
        prompts.allow = ["house/*"]
        [roles.robot]
        prompts.allow = ["house/oil"]
        [auth.oidc.there]
        issuer = "{issuer}"
        audience = ["http://127.0.0.1:{endpoint_port}/mcp"]
        roles = {{ people = "person", robots = "robot" }}
        scopes_required = ["mcp:use"]
        "#
    );
    std::fs::write(fleet.folder().join("weir.toml"), config).unwrap();
    std::fs::create_dir(fleet.folder().join("prompts")).unwrap();
    for name in ["greet", "oil"] {
        let text = format!("---\ndescription: To {name}\n---\nPlease {name}.\n");
        std::fs::write(fleet.folder().join(format!("prompts/{name}.md")), text).unwrap();
    }
    fleet
}

/// Runs a client and returns its one line of output.
async fn run_client(command: &mut Command) -> Value {
    command.env("ROBOT_SECRET", ROBOT_SECRET).kill_on_drop(true);
    let output = command.stdin(Stdio::null()).output();
    let output = soon(output).await.unwrap();
    let (stdout, log) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{log}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}\n{log}"))
}

#[tokio::test]
async fn sdk_clients_log_in_at_a_real_provider() {
    for signed_with in ["RS256", "ES256", "EdDSA"] {
        let port = free_port().await;
        let endpoint = format!("http://127.0.0.1:{port}/mcp");
        let provider = provider(&endpoint, signed_with).await;
        let fleet = gateway(port, &provider.url).await;
        let mut served = fleet.serve().await;
        assert_eq!(served.endpoint, endpoint);
        served.logged("upstream listed", "house").await;

        for sdk in ["sdk1", "sdk2"] {
            let mut client = Command::new(part("bin/node"));
            client.arg(script("clients/oauth.mjs")).args([sdk, &endpoint]);
            let seen = run_client(&mut client).await;
            let expected = json!({ "prompts": ["house__greet", "house__oil"] });
            assert_eq!(seen, expected, "{sdk} with {signed_with}");
        }
        let mut client = Command::new(part("mcp2/bin/python"));
        client.arg(script("clients/oauth.py")).args([&endpoint, &provider.url]);
        let seen = run_client(&mut client).await;
        assert_eq!(seen, json!({ "prompts": ["house__oil"] }), "python with {signed_with}");
        let (well, log) = served.stop_with_log().await;
        assert!(well && log.contains("no credentials"), "{log}");
        // No part of a token is logged: all of them begin like this.
        assert!(!log.contains("eyJ") && !log.contains(ROBOT_SECRET), "{log}");
    }
}
