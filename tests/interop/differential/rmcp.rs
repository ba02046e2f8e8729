//! Steps of a script with rmcp, in this process, as the programs in `parts/clients` take them.

#![allow(deprecated, reason = "servers go on asking what the newest revision has deprecated")]

use std::process::Stdio;
use std::sync::Arc;

use rmcp::model::{
    ClientConfig, ClientRequest, CreateMessageRequestParams, CreateMessageResult,
    ElicitRequestParams, ElicitResult, Implementation, ListRootsResult, ProgressNotificationParam,
    ResourceUpdatedNotificationParam, ServerNotification, ServerResult, SubscriptionFilter,
};
use rmcp::service::{
    ClientServiceExt, NotificationContext, PeerRequestOptions, RequestContext, RunningService,
    Subscription,
};
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientHandler, ErrorData, RoleClient, ServiceError};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::Notify;

use super::cells::Target;
use crate::clients::{legacy, modern};
use crate::fleet::{log_of, soon};
use crate::pipe::Era::{self, Legacy};

/// Takes the script's steps and returns the ending of each.
pub(crate) async fn run(
    era: Era,
    target: Target<'_>,
    upstream: Option<&str>,
    script: &Value,
) -> Vec<String> {
    let lifecycle = if era == Legacy { legacy() } else { modern() };
    let user = User {
        capabilities: script["capabilities"].clone(),
        progressed: Arc::default(),
        updated: Arc::default(),
    };
    let (client, mut log) = match target {
        Target::Url(url) => {
            // rmcp requires a TLS provider even for plain HTTP; an error means that one is
            // installed.
            let _ = tokio_rustls::rustls::crypto::aws_lc_rs::default_provider().install_default();
            let wire = StreamableHttpClientTransport::from_uri(url.to_owned());
            (soon(user.clone().serve_with_lifecycle(wire, lifecycle)).await, None)
        }
        Target::Command(line) => {
            let mut command = Command::new(&line[0]);
            command.args(&line[1..]);
            let wire = TokioChildProcess::builder(command).stderr(Stdio::piped()).spawn();
            let (wire, log) = wire.unwrap();
            let log = log_of(log);
            (soon(user.clone().serve_with_lifecycle(wire, lifecycle)).await, Some(log))
        }
    };
    let client = client.unwrap();
    if let Some((upstream, log)) = upstream.zip(log.as_mut()) {
        log.logged("upstream listed", upstream).await;
    }
    let mut steps = Steps { era, user, client, subscription: None };
    let mut endings = Vec::new();
    for step in script["steps"].as_array().unwrap() {
        let ending = match soon(steps.take(step)).await {
            Ok(()) => "done".to_owned(),
            Err(ServiceError::McpError(error)) => format!("refused: {}", error.code.0),
            Err(other) => panic!("{step}: {other}"),
        };
        endings.push(ending);
    }
    soon(steps.client.cancel()).await.unwrap();
    // The log ends when all processes that share it have ended.
    if let Some(log) = log {
        log.end().await;
    }
    endings
}

struct Steps {
    era: Era,
    user: User,
    client: RunningService<RoleClient, User>,
    subscription: Option<Subscription>,
}

impl Steps {
    async fn take(&mut self, step: &Value) -> Result<(), ServiceError> {
        let method = match step["do"].as_str().unwrap() {
            "ping" => "ping",
            "list" | "request" => step["method"].as_str().unwrap(),
            "get" => "prompts/get",
            "complete" => "completion/complete",
            "read" => "resources/read",
            // In the modern era, this responds to input requests, too.
            "call" | "call with progress" => {
                let params = serde_json::from_value(step["params"].clone()).unwrap();
                return self.client.call_tool(params).await.map(drop);
            }
            "cancel at progress" => return self.cancel_at_progress(&step["params"]).await,
            "log level" => {
                let params = json!({ "level": step["level"] });
                return self.send("logging/setLevel", &params).await;
            }
            "subscribe" => return self.subscribe(step["uri"].as_str().unwrap()).await,
            "hear of an update" => return self.wait_for_update().await,
            "unsubscribe" => {
                return match self.subscription.take() {
                    Some(mut subscription) => subscription.cancel().await,
                    None => {
                        let params = json!({ "uri": step["uri"] });
                        self.send("resources/unsubscribe", &params).await
                    }
                };
            }
            other => panic!("unknown step {other}"),
        };
        self.send(method, &step["params"]).await
    }

    async fn send(&self, method: &str, params: &Value) -> Result<(), ServiceError> {
        let _: ServerResult = self.client.send_request(request(method, params)).await?;
        Ok(())
    }

    async fn cancel_at_progress(&self, params: &Value) -> Result<(), ServiceError> {
        // Earlier progress is not of this call.
        let _ = futures::FutureExt::now_or_never(self.user.progressed.notified());
        let options = PeerRequestOptions::no_options();
        let call = self.client.send_cancellable_request(request("tools/call", params), options);
        let call = call.await?;
        self.user.progressed.notified().await;
        call.cancel(Some("enough".to_owned())).await
    }

    async fn subscribe(&mut self, uri: &str) -> Result<(), ServiceError> {
        if self.era == Legacy {
            return self.send("resources/subscribe", &json!({ "uri": uri })).await;
        }
        let filter = SubscriptionFilter::builder().resource_subscription(uri).build();
        self.subscription = Some(self.client.listen(filter).await?);
        Ok(())
    }

    async fn wait_for_update(&mut self) -> Result<(), ServiceError> {
        match &mut self.subscription {
            None => self.user.updated.notified().await,
            Some(subscription) => {
                let notification = subscription.next().await?;
                let is_update = matches!(
                    notification,
                    Some(ServerNotification::ResourceUpdatedNotification(_))
                );
                assert!(is_update, "{notification:?}");
            }
        }
        Ok(())
    }
}

fn request(method: &str, params: &Value) -> ClientRequest {
    serde_json::from_value(json!({ "method": method, "params": params })).unwrap()
}

/// Responds to server requests as the programs' `ANSWERS` do.
#[derive(Clone)]
struct User {
    capabilities: Value,
    progressed: Arc<Notify>,
    updated: Arc<Notify>,
}

impl ClientHandler for User {
    async fn create_message(
        &self,
        _params: CreateMessageRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let content = json!({ "type": "text", "text": "It holds water back." });
        let answer = json!({ "role": "assistant", "model": "none", "content": content });
        Ok(serde_json::from_value(answer).unwrap())
    }

    async fn list_roots(
        &self,
        _context: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        let roots = json!({ "roots": [{ "uri": "file:///weir", "name": "weir" }] });
        Ok(serde_json::from_value(roots).unwrap())
    }

    async fn create_elicitation(
        &self,
        _params: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let content = json!({ "name": "Ada", "confirmed": true });
        Ok(serde_json::from_value(json!({ "action": "accept", "content": content })).unwrap())
    }

    async fn on_progress(
        &self,
        _params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.progressed.notify_one();
    }

    async fn on_resource_updated(
        &self,
        _params: ResourceUpdatedNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.updated.notify_one();
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities = serde_json::from_value(self.capabilities.clone()).unwrap();
        ClientConfig::new(capabilities, Implementation::new("test", "0"))
    }
}
