//! The hot paths one by one, for callgrind: `paths NAME` prepares one and takes it a hundred times inside [`counted_path`].
//!
//! `./dev counts` has valgrind count the instructions in that one function, divides, and compares with `counts.txt`. A path is
//! taken some times before, so that what is made once is not counted.
//!
//! Knows nothing of: figures, and what is good.

use std::hint::black_box;
use std::sync::Arc;

use weir::catalog::{Catalog, Filter, Outlet, Settings, Snapshot, View};
use weir::sse::{self, Reader};
use weir::json::Extract;
use weir::mcp::definition::item::Item;
use weir::mcp::kind::Kind;
use weir::mcp::name::{Naming, UpstreamName};
use weir::mcp::definition::downgrade::Form;
use weir::mcp::pattern::Rules;
use weir::mcp::uri::CanonicalUri;
use weir::jsonrpc::{Id, Message, write_result};

use bytes::Bytes;

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    let mut path = path(&name);
    for _ in 0..10 {
        path();
    }
    counted_path(&mut *path);
}

/// What callgrind counts: a hundred times.
#[inline(never)]
fn counted_path(path: &mut dyn FnMut()) {
    for _ in 0..100 {
        path();
    }
}

/// A path by its name.
fn path(name: &str) -> Box<dyn FnMut()> {
    match name {
        "page_cut" => {
            let view = view();
            let second = view.page(Kind::Tool, None, Form::Newest).next;
            Box::new(move || drop(black_box(view.page(Kind::Tool, second.as_ref(), Form::Newest))))
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
                let mut extract = Extract::new("result", 1_024);
                drop(black_box(extract.feed(black_box(&reply)).expect("a reply")));
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
            let mut reader = Reader::new(1 << 20);
            Box::new(move || drop(black_box(reader.feed(black_box(&event)).expect("small"))))
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

/// All tools of ten servers with a hundred each, for a role with a rule.
fn view() -> Arc<View> {
    let names: Vec<UpstreamName> =
        (0..10).map(|number| format!("up{number}").parse().expect("a name")).collect();
    let outlet = |name: &UpstreamName| Outlet {
        name: name.clone(),
        prefix: name.clone(),
        prompts: Rules::everything(),
        tools: Rules::everything(),
        resources: Rules::everything(),
        rename: Vec::new(),
    };
    let catalog = Catalog::new(Settings {
        naming: Naming::default(),
        outlets: names.iter().map(outlet).collect(),
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
            Snapshot { items, fresh_until: None, is_private: false, cut: None },
        );
    }
    let role: Arc<dyn Filter> = Arc::new(Role(Rules::new(&["*"], &["hub/secret_*"])));
    catalog.view("role", &role).borrow().clone()
}

/// A role with one rule.
struct Role(Rules);

impl Filter for Role {
    fn allows(&self, _kind: Kind, upstream: &UpstreamName, key: &str) -> bool {
        self.0.allow(&format!("{upstream}/{key}"))
    }

    fn allows_uri(&self, upstream: &UpstreamName, uri: &CanonicalUri<'_>) -> bool {
        self.0.decide_uri(&format!("{upstream}/"), uri).allows()
    }

    fn reaches(&self, _upstream: &UpstreamName) -> bool {
        true
    }
}
