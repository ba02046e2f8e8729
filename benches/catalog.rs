//! Benchmark of the catalog: a page cut, a name resolved, a view rebuilt, a cursor written and
//! parsed.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use weir_access::catalog::{Catalog, Cursor, ExportRules, Filter, ListSnapshot, Settings};
use weir_access::policy::role::Role;
use weir_mcp::definition::downgrade::DefinitionForm;
use weir_mcp::definition::item::Item;
use weir_mcp::kind::Kind;
use weir_mcp::name::{Naming, UpstreamName};
use weir_mcp::pattern::AllowDeny;

/// A role with one rule, so that every item is matched against a pattern.
fn role() -> Arc<dyn Filter> {
    let rules = || AllowDeny::new(&["*"], &["hub/secret_*"]);
    Arc::new(Role { prompts: rules(), tools: rules(), resources: rules() })
}

fn name(text: &str) -> UpstreamName {
    text.parse().expect("a name")
}

fn catalog(upstreams: &[UpstreamName]) -> Catalog {
    let export = |name: &UpstreamName| ExportRules {
        name: name.clone(),
        prefix: name.clone(),
        prompts: AllowDeny::everything(),
        tools: AllowDeny::everything(),
        resources: AllowDeny::everything(),
        rename: Vec::new(),
    };
    Catalog::new(Settings {
        naming: Naming::default(),
        exports: upstreams.iter().map(export).collect(),
        page_items: 200,
        page_bytes: 1 << 20,
        instructions: true,
    })
}

/// Tools of about half a kilobyte; the first differs from round to round.
fn tools(count: usize, round: usize) -> ListSnapshot {
    let rest = "x".repeat(400);
    let tool = |n: usize| {
        let version = if n == 0 { round } else { 0 };
        let text = format!(
            r#"{{"name":"tool_number_{n:05}","v":{version},"description":"{rest}","inputSchema":{{"type":"object"}}}}"#
        );
        Item::parse(Kind::Tool, text.into()).expect("a tool")
    };
    ListSnapshot {
        items: (0..count).map(tool).collect(),
        fresh_until: None,
        is_private: false,
        cut: None,
    }
}

fn reading(criterion: &mut Criterion) {
    let upstreams: Vec<_> = (0..10).map(|n| name(&format!("up{n}"))).collect();
    let catalog = catalog(&upstreams);
    for upstream in &upstreams {
        catalog.publish(upstream, Kind::Tool, tools(100, 0));
    }
    let view = catalog.view("role", &role()).borrow().clone();
    let after = view
        .page(Kind::Tool, None, DefinitionForm::Newest)
        .next
        .expect("1 000 tools have several pages");
    criterion.bench_function("a page of 200 of 1 000", |bench| {
        bench.iter(|| view.page(Kind::Tool, black_box(Some(&after)), DefinitionForm::Newest));
    });
    criterion.bench_function("a name of 1 000 resolved", |bench| {
        bench.iter(|| view.resolve(Kind::Tool, black_box("up7__tool_number_00042")));
    });
    criterion.bench_function("an unknown name refused", |bench| {
        bench.iter(|| view.resolve(Kind::Tool, black_box("up7__tool_number_10042")));
    });
    let text = after.encode(Kind::Tool);
    criterion.bench_function("a cursor written", |bench| {
        bench.iter(|| black_box(&after).encode(Kind::Tool));
    });
    criterion.bench_function("a cursor read", |bench| {
        bench.iter(|| Cursor::parse(black_box(&text), Kind::Tool));
    });
}

fn publishing(criterion: &mut Criterion) {
    // One upstream of ten changes one tool.
    let upstreams: Vec<_> = (0..10).map(|n| name(&format!("up{n}"))).collect();
    let many = catalog(&upstreams);
    for upstream in &upstreams {
        many.publish(upstream, Kind::Tool, tools(1_000, 0));
    }
    let one = catalog(&upstreams[..1]);
    one.publish(&upstreams[0], Kind::Tool, tools(10_000, 0));

    for (what, catalog, count) in [
        ("a view of 10 × 1 000 rebuilt after one changed", &many, 1_000),
        ("a view of 1 × 10 000 rebuilt after one changed", &one, 10_000),
    ] {
        let _view = catalog.view("role", &role());
        let mut round = 0;
        criterion.bench_function(what, |bench| {
            let snapshot = || {
                round += 1;
                tools(count, round)
            };
            let publish = |snapshot| catalog.publish(&upstreams[0], Kind::Tool, snapshot);
            bench.iter_batched(snapshot, publish, BatchSize::PerIteration);
        });
    }
    criterion.bench_function("a list of 10 000 published again unchanged", |bench| {
        let publish = |snapshot| one.publish(&upstreams[0], Kind::Tool, snapshot);
        bench.iter_batched(|| tools(10_000, 0), publish, BatchSize::PerIteration);
    });
}

criterion_group!(benches, reading, publishing);
criterion_main!(benches);
