//! Single hot paths for callgrind: `paths NAME` prepares one and runs it a hundred times inside
//! [`counted_path`].
//!
//! `./dev counts` counts the instructions in that one function with valgrind, divides, and compares
//! with `counts.txt`. A path runs some times before, so that one-time initialization is not
//! counted.
//!
//! `paths serve ARGUMENTS` is `weir serve ARGUMENTS`, and likewise with `login`, so that
//! `weir-bench count` can count calls through real sockets without another optimized build.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use weir_access::catalog::{Catalog, ExportRules, Filter, ListSnapshot, RoleView, Settings};
use weir_access::policy::role::Role;
use weir_base::json::MemberExtractor;
use weir_base::text::sse::{self, SseDecoder};
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::definition::item::Item;
use weir_mcp::jsonrpc::{Id, Message, write_result};
use weir_mcp::kind::Kind;
use weir_mcp::name::{Naming, UpstreamName};
use weir_mcp::pattern::AllowDeny;

use bytes::Bytes;

/// The allocator of Weir's optimized builds.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    if ["serve", "login"].contains(&&*name) {
        return weir::cli::run();
    }
    let mut path = path(&name);
    for _ in 0..10 {
        path();
    }
    counted_path(&mut *path);
    ExitCode::SUCCESS
}

/// Runs a path a hundred times; callgrind counts this function only.
#[inline(never)]
fn counted_path(path: &mut dyn FnMut()) {
    for _ in 0..100 {
        path();
    }
}

/// Returns a path by its name.
fn path(name: &str) -> Box<dyn FnMut()> {
    match name {
        "page_cut" => {
            let view = view();
            let second = view.page(Kind::Tool, None, DefinitionForm::Newest).next;
            Box::new(move || {
                drop(black_box(view.page(Kind::Tool, second.as_ref(), DefinitionForm::Newest)));
            })
        }
        "resolve" => {
            let view = view();
            Box::new(move || {
                drop(black_box(view.resolve(Kind::Tool, black_box("up7__tool_number_00042"))));
            })
        }
        "decode" => {
            let head = r#"{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"name":"up7__tool_number_00042","arguments":{"query":""#;
            let request = filled(head, "\"}}}");
            Box::new(move || {
                drop(black_box(Message::parse(black_box(request.clone())).expect("a request")));
            })
        }
        "splice" => {
            let head = r#"{"jsonrpc":"2.0","id":42,"result":{"content":[{"type":"text","text":""#;
            let reply = filled(head, "\"}]}}");
            Box::new(move || {
                let mut extractor = MemberExtractor::new("result", 1_024);
                drop(black_box(extractor.feed(black_box(&reply)).expect("a reply")));
            })
        }
        "encode" => {
            let (id, result) = (Id::from(42), result());
            Box::new(move || drop(black_box(write_result(&id, black_box(&result)))))
        }
        "event_written" => {
            let result = result();
            Box::new(move || drop(black_box(sse::write_message(black_box(&result)))))
        }
        "event_read" => {
            let event = sse::write_message(&result());
            let mut decoder = SseDecoder::new(1 << 20);
            Box::new(move || drop(black_box(decoder.feed(black_box(&event)).expect("small"))))
        }
        other => panic!("no path is called '{other}'"),
    }
}

/// A kilobyte between two ends.
fn filled(head: &str, tail: &str) -> Bytes {
    let rest = "r".repeat(1_024 - head.len() - tail.len());
    format!("{head}{rest}{tail}").into()
}

fn result() -> Bytes {
    filled(r#"{"content":[{"type":"text","text":""#, "\"}]}")
}

/// View of all tools of ten servers with a hundred each, for a role with a rule.
fn view() -> Arc<RoleView> {
    let names: Vec<UpstreamName> =
        (0..10).map(|number| format!("up{number}").parse().expect("a name")).collect();
    let export_rules = |name: &UpstreamName| ExportRules {
        name: name.clone(),
        prefix: name.clone(),
        prompts: AllowDeny::everything(),
        tools: AllowDeny::everything(),
        resources: AllowDeny::everything(),
        rename: Vec::new(),
    };
    let catalog = Catalog::new(Settings {
        naming: Naming::default(),
        exports: names.iter().map(export_rules).collect(),
        page_items: 200,
        page_bytes: 1 << 20,
        instructions: true,
    });
    let tool = |number: usize| {
        let text = format!(
            r#"{{"name":"tool_number_{number:05}","description":"{}","inputSchema":{{"type":"object"}}}}"#,
            "x".repeat(100)
        );
        Item::parse(Kind::Tool, text.into()).expect("a tool")
    };
    for name in &names {
        let items = (0..100).map(tool).collect();
        catalog.publish(
            name,
            Kind::Tool,
            ListSnapshot { items, fresh_until: None, is_private: false, cut: None },
        );
    }
    let tools = AllowDeny::new(&["*"], &["hub/secret_*"]);
    let role: Arc<dyn Filter> = Arc::new(Role { tools, ..Role::default() });
    catalog.view("role", &role).borrow().clone()
}
