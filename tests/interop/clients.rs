//! A third-party client, in each era and over each transport, with a mixed fleet.

use std::process::Stdio;
use std::sync::Arc;

use rmcp::model::{
    ArgumentInfo, CallToolRequestParams, ClientConfig, CompleteRequestParams,
    GetPromptRequestParams, Implementation, JsonObject, ProgressNotificationParam, ProtocolVersion,
    ReadResourceRequestParams, Reference, ServerNotification, SubscriptionFilter,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt, NotificationContext, RunningService, Subscription,
};
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::fleet::{Fleet, Shop, example, log_of, soon};
use crate::lab::lines::Lines;
use crate::lab::weir::Weir;

pub(crate) const GREETING: &str = "---
title: Greeting
arguments:
  - name: who
    required: true
    values: [Ada, Alan, Grace]
---
Hello, {{who}}!
";

/// Counts the notifications that a legacy client receives.
#[derive(Clone, Default)]
pub(crate) struct Listener {
    pub(crate) prompts_changed: Arc<Notify>,
    pub(crate) progressed: Arc<Notify>,
}

impl ClientHandler for Listener {
    async fn on_prompt_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.prompts_changed.notify_one();
    }

    async fn on_progress(
        &self,
        _params: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.progressed.notify_one();
    }

    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(Default::default(), Implementation::new("test", "0"))
    }
}

pub(crate) type Client = RunningService<RoleClient, Listener>;

pub(crate) fn legacy() -> ClientLifecycleMode {
    ClientLifecycleMode::Initialize
}

pub(crate) fn modern() -> ClientLifecycleMode {
    ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
}

pub(crate) async fn over_http(
    served: &Weir,
    lifecycle: ClientLifecycleMode,
    listener: &Listener,
) -> Client {
    // rmcp's client requires a TLS provider even for plain HTTP; an error means that one is
    // installed.
    let _ = tokio_rustls::rustls::crypto::aws_lc_rs::default_provider().install_default();
    let wire = StreamableHttpClientTransport::from_uri(served.endpoint().clone());
    soon(listener.clone().serve_with_lifecycle(wire, lifecycle)).await.unwrap()
}

async fn over_stdio(
    fleet: &Fleet,
    lifecycle: ClientLifecycleMode,
    listener: &Listener,
) -> (Client, Lines) {
    let command = fleet.command(&["stdio"]);
    let wire = TokioChildProcess::builder(command).stderr(Stdio::piped()).spawn();
    let (wire, log) = wire.unwrap();
    let client = soon(listener.clone().serve_with_lifecycle(wire, lifecycle)).await.unwrap();
    (client, log_of(log))
}

/// Upstreams of the fleet. A client that lists before they are listed gets a part of the items.
const UPSTREAMS: [&str; 3] = ["house", "notes", "shop"];

/// A library on a folder, a legacy server over stdio and a modern one over HTTP.
fn mixed_fleet(shop: &Shop) -> Fleet {
    let notes = example("legacy_stdio");
    let fleet = Fleet::new(&format!(
        "[upstreams.house]\nprompts_dir = \"prompts\"\n[upstreams.notes]\ncommand = {notes:?}\n\
         [upstreams.shop]\nurl = {:?}\n",
        shop.url
    ));
    std::fs::create_dir(fleet.folder().join("prompts")).unwrap();
    std::fs::write(fleet.folder().join("prompts/greeting.md"), GREETING).unwrap();
    fleet
}

pub(crate) fn object(value: Value) -> JsonObject {
    value.as_object().unwrap().clone()
}

/// Operations that every client supports, in every era and over every transport.
async fn walk(client: &Client) {
    let prompts = soon(client.list_all_prompts()).await.unwrap();
    let names: Vec<_> = prompts.iter().map(|prompt| prompt.name.as_str()).collect();
    let expected = [
        "house__greeting",
        "notes__daily-plan",
        "notes__summarize-notes",
        "shop__compare-products",
        "shop__describe-product",
    ];
    assert_eq!(names, expected);

    let arguments = object(json!({ "who": "Ada {{who}}" }));
    let get = GetPromptRequestParams::new("house__greeting").with_arguments(arguments);
    let greeting = serde_json::to_value(soon(client.get_prompt(get)).await.unwrap()).unwrap();
    assert_eq!(greeting["messages"][0]["content"]["text"], "Hello, Ada {{who}}!");
    for (prompt, arguments) in [
        ("notes__summarize-notes", json!({ "topic": "weirs" })),
        ("shop__describe-product", json!({ "product": "gauge" })),
    ] {
        let get = GetPromptRequestParams::new(prompt).with_arguments(object(arguments));
        let got = soon(client.get_prompt(get)).await.unwrap();
        assert!(!got.messages.is_empty(), "{prompt}");
    }

    let reference = Reference::for_prompt("house__greeting");
    let complete = CompleteRequestParams::new(reference, ArgumentInfo::new("who", "a"));
    let completed = soon(client.complete(complete)).await.unwrap();
    // Values with the typed prefix come before those that contain it elsewhere.
    assert_eq!(completed.completion.values, ["Ada", "Alan", "Grace"]);

    let tools = soon(client.list_all_tools()).await.unwrap();
    assert!(tools.iter().any(|tool| tool.name == "shop__search_products"));
    let echo = CallToolRequestParams::new("notes__echo");
    let echo = echo.with_arguments(object(json!({ "n": 1.5, "text": "ä" })));
    let echoed = soon(client.call_tool(echo)).await.unwrap();
    assert_eq!(echoed.structured_content, Some(json!({ "n": 1.5, "text": "ä" })));
    let count = CallToolRequestParams::new("shop__slow_count");
    let count = count.with_arguments(object(json!({ "to": 3, "delay_ms": 0 })));
    let counted = serde_json::to_value(soon(client.call_tool(count)).await.unwrap()).unwrap();
    assert_eq!(counted["content"][0]["text"], "counted to 3");

    let resources = soon(client.list_all_resources()).await.unwrap();
    assert!(resources.len() >= 8, "{resources:?}");
    for resource in [&resources[0], resources.last().unwrap()] {
        let read = ReadResourceRequestParams::new(resource.uri.clone());
        let read = serde_json::to_value(soon(client.read_resource(read)).await.unwrap()).unwrap();
        assert_eq!(read["contents"][0]["uri"], *resource.uri);
    }
    let templates = soon(client.list_all_resource_templates()).await.unwrap();
    let templates: Vec<_> =
        templates.iter().map(|template| template.uri_template.as_str()).collect();
    assert_eq!(templates, ["note:///{id}", "product:///{id}"]);
}

/// Prompt of a file that a test writes.
const FAREWELL: &str = "house__farewell";

/// Edits a file and waits until the client is notified, in the way of its era.
async fn wait_for_change(client: &Client, listener: &Listener, fleet: &Fleet, is_modern: bool) {
    let file = fleet.folder().join("prompts/farewell.md");
    let write = || std::fs::write(&file, "---\ntitle: Farewell\n---\nGoodbye!\n").unwrap();
    let prompts = soon(client.list_all_prompts()).await.unwrap();
    assert!(prompts.iter().all(|prompt| prompt.name != FAREWELL));
    if is_modern {
        let filter = SubscriptionFilter::builder().prompts_list_changed().build();
        let mut changes = soon(client.listen(filter)).await.unwrap();
        write();
        until_heard(client, FAREWELL, async || notified(&mut changes).await).await;
    } else {
        write();
        until_heard(client, FAREWELL, async || listener.prompts_changed.notified().await).await;
    }
    std::fs::remove_file(&file).unwrap();
}

/// Waits until the client is notified and lists this prompt then. Upstreams that have just
/// connected may be announced, too.
pub(crate) async fn until_heard(client: &Client, prompt: &str, mut notified: impl AsyncFnMut()) {
    loop {
        soon(notified()).await;
        let prompts = soon(client.list_all_prompts()).await.unwrap();
        if prompts.iter().any(|listed| listed.name == prompt) {
            return;
        }
    }
}

/// Waits for the next notification of a subscription to prompts.
pub(crate) async fn notified(changes: &mut Subscription) {
    let change = changes.next().await.unwrap();
    let expected = matches!(change, Some(ServerNotification::PromptListChangedNotification(_)));
    assert!(expected, "{change:?}");
}

#[tokio::test]
async fn rmcp_of_either_era_works_over_http() {
    let shop = Shop::open().await;
    for is_modern in [false, true] {
        let fleet = mixed_fleet(&shop);
        let mut served = fleet.serve().await;
        for upstream in UPSTREAMS {
            served.log.logged("upstream listed", upstream).await;
        }
        let listener = Listener::default();
        let lifecycle = if is_modern { modern() } else { legacy() };
        let client = over_http(&served, lifecycle, &listener).await;
        walk(&client).await;
        wait_for_change(&client, &listener, &fleet, is_modern).await;
        soon(client.cancel()).await.unwrap();
        served.stop().await;
    }
}

#[tokio::test]
async fn rmcp_of_either_era_works_over_stdio() {
    let shop = Shop::open().await;
    for is_modern in [false, true] {
        let fleet = mixed_fleet(&shop);
        let listener = Listener::default();
        let lifecycle = if is_modern { modern() } else { legacy() };
        let (client, mut log) = over_stdio(&fleet, lifecycle, &listener).await;
        for upstream in UPSTREAMS {
            log.logged("upstream listed", upstream).await;
        }
        walk(&client).await;
        wait_for_change(&client, &listener, &fleet, is_modern).await;
        soon(client.cancel()).await.unwrap();
    }
}

#[tokio::test]
async fn clients_of_both_eras_share_one_endpoint_and_each_hears_of_the_change() {
    let shop = Shop::open().await;
    let fleet = mixed_fleet(&shop);
    let mut served = fleet.serve().await;
    for upstream in UPSTREAMS {
        served.log.logged("upstream listed", upstream).await;
    }
    let (old_listener, new_listener) = (Listener::default(), Listener::default());
    let old = over_http(&served, legacy(), &old_listener).await;
    let new = over_http(&served, modern(), &new_listener).await;
    let filter = SubscriptionFilter::builder().prompts_list_changed().build();
    let mut changes = soon(new.listen(filter)).await.unwrap();
    soon(old.list_all_prompts()).await.unwrap();

    // The change comes from an upstream over stdio, made by a call through Weir itself.
    let add = CallToolRequestParams::new("notes__add_prompt");
    let add = add.with_arguments(object(json!({ "name": "fresh", "text": "New." })));
    soon(new.call_tool(add)).await.unwrap();

    until_heard(&old, "notes__fresh", async || old_listener.prompts_changed.notified().await).await;
    until_heard(&new, "notes__fresh", async || notified(&mut changes).await).await;
    served.stop().await;
}
