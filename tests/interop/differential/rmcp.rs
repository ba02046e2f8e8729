//! The steps of a script with rmcp, in this process: what the programs in `parts/clients` do.

use std::process::Stdio;

use rmcp::model::{ClientRequest, ServerResult};
use rmcp::service::{ClientServiceExt, PeerRequestOptions};
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use serde_json::{Value, json};
use tokio::process::Command;

use super::cells::Target;
use crate::clients::{Client, Listener, legacy, modern};
use crate::fleet::{Log, soon};
use crate::pipe::Era::{self, Legacy};

pub(crate) async fn run(
    era: Era,
    target: Target<'_>,
    upstream: Option<&str>,
    script: &Value,
) -> Vec<String> {
    let lifecycle = if era == Legacy { legacy() } else { modern() };
    let listener = Listener::default();
    let (client, log) = match target {
        Target::Url(url) => {
            // It wants a TLS provider even for plain HTTP; an error means that one is there.
            let _ = tokio_rustls::rustls::crypto::aws_lc_rs::default_provider().install_default();
            let wire = StreamableHttpClientTransport::from_uri(url.to_owned());
            (listener.clone().serve_with_lifecycle(wire, lifecycle).await, None)
        }
        Target::Command(line) => {
            let mut command = Command::new(&line[0]);
            command.args(&line[1..]);
            let wire = TokioChildProcess::builder(command).stderr(Stdio::piped()).spawn();
            let (wire, log) = wire.unwrap();
            let log = Log::of(log.unwrap());
            (listener.clone().serve_with_lifecycle(wire, lifecycle).await, Some(log))
        }
    };
    let (client, mut log) = (client.unwrap(), log);
    if let Some((upstream, log)) = upstream.zip(log.as_mut()) {
        log.logged("listed", upstream).await;
    }
    let mut endings = Vec::new();
    for step in script["steps"].as_array().unwrap() {
        let ending = match soon(take(&client, &listener, step)).await {
            Ok(()) => "done".to_owned(),
            Err(rmcp::ServiceError::McpError(error)) => format!("refused: {}", error.code.0),
            Err(other) => panic!("{step}: {other}"),
        };
        endings.push(ending);
    }
    soon(client.cancel()).await.unwrap();
    if let Some(log) = log {
        soon(log.rest()).await;
    }
    endings
}

async fn take(client: &Client, listener: &Listener, step: &Value) -> Result<(), rmcp::ServiceError> {
    let what = step["do"].as_str().unwrap();
    let method = match what {
        "ping" => "ping",
        "list" | "request" => step["method"].as_str().unwrap(),
        "get" => "prompts/get",
        "complete" => "completion/complete",
        "read" => "resources/read",
        "call" | "call with progress" | "cancel at progress" => "tools/call",
        other => panic!("rmcp does not {other}"),
    };
    let request = json!({ "method": method, "params": step["params"] });
    let request: ClientRequest = serde_json::from_value(request).unwrap();
    if what == "cancel at progress" {
        // What came earlier is no sign of this one's.
        let _ = futures::FutureExt::now_or_never(listener.progressed.notified());
        let options = PeerRequestOptions::no_options();
        let handle = client.send_cancellable_request(request, options).await?;
        listener.progressed.notified().await;
        return handle.cancel(Some("enough".to_owned())).await;
    }
    let _: ServerResult = client.send_request(request).await?;
    Ok(())
}
