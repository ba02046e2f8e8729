//! Benchmark of audit events: formatted as a line, linked to the previous one, and open during a
//! request.

use std::hint::black_box;
use std::time::SystemTime;

use criterion::{Criterion, criterion_group, criterion_main};
use weir_base::json::Object;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_mcp::revision::Revision;
use weir_record::audit::{
    Arguments, Audit, AuditDecision, AuditOutcome, AuditTarget, Chain, EventCompletion, OnError,
    Settings, TransportKind,
};

fn audit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("audit");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let _entered = runtime.as_ref().expect("a runtime").enter();
    let settings = Settings {
        target: AuditTarget::File("/dev/null".into()),
        arguments: Arguments::Names,
        chain: true,
        rotate_size: u64::MAX,
        rotate_keep: 1,
        on_error: OnError::Continue,
    };
    // No writer runs, so the queue is soon full, which costs as much.
    let (audit, _writer) = Audit::open(&settings).expect("a log");
    let params = Object::parse(r#"{"name":"hub__search","arguments":{"query":"x","limit":5}}"#);
    let params = params.expect("an object");
    let hub: UpstreamName = "hub".parse().expect("a name");
    let (client, role) = ("alice-laptop".into(), "developer".into());
    let request = |audit: &Audit| {
        let record = audit.begin(TransportKind::Http, Some([127, 0, 0, 1].into()));
        record.set_http_method("POST");
        record.set_client(&client, &role, None);
        record.set_bytes_in(1_024);
        record.set_request(Revision::NEWEST, "tools/call", &params);
        record.set_kind(Kind::Tool);
        record.set_public_name("hub__search");
        let item = (Kind::Tool, "hub__search");
        record.set_decision(item, AuditDecision::Allowed, Some((&hub, "search")), Some("hub/*"));
        record
    };
    let ending = EventCompletion {
        outcome: AuditOutcome::Ok,
        code: None,
        status: Some(200),
        bytes_out: Some(2_048),
    };
    group.bench_function("a record of a call, from its begin to the queue", |bench| {
        bench.iter(|| request(black_box(&audit)).end(ending));
    });
    group.bench_function("the same in a log that is off", |bench| {
        bench.iter(|| request(black_box(&Audit::off())).end(ending));
    });
    let line = request(&audit).current_entry().expect("a line");
    let mut chain = Chain::new();
    println!("a line: {} bytes", line.write(&chain, SystemTime::now(), true).len());
    group.bench_function("its line, written and linked", |bench| {
        bench.iter(|| {
            let text = line.write(&chain, SystemTime::now(), true);
            chain.push(black_box(&text));
        });
    });
    group.finish();
}

criterion_group!(benches, audit);
criterion_main!(benches);
