//! What a record costs: written as a line, linked to the one before, and kept while a request runs.

use std::hint::black_box;
use std::time::SystemTime;

use criterion::{Criterion, criterion_group, criterion_main};
use weir::audit::{
    Arguments, Audit, Chain, Decision, Ending, OnError, Outcome, Settings, Target, Wire,
};
use weir::json::Object;
use weir::mcp::kind::Kind;
use weir::mcp::name::UpstreamName;
use weir::mcp::revision::Revision;

fn audit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("audit");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let _entered = runtime.as_ref().expect("a runtime").enter();
    let settings = Settings {
        target: Target::File("/dev/null".into()),
        arguments: Arguments::Names,
        chain: true,
        rotate_size: u64::MAX,
        rotate_keep: 1,
        on_error: OnError::Continue,
    };
    // Nobody writes: the queue is full soon, which costs as much.
    let (audit, _writer) = Audit::open(&settings).expect("a log");
    let params = Object::parse(r#"{"name":"hub__search","arguments":{"query":"x","limit":5}}"#);
    let params = params.expect("an object");
    let hub: UpstreamName = "hub".parse().expect("a name");
    let (client, role) = ("alice-laptop".into(), "developer".into());
    let request = |audit: &Audit| {
        let record = audit.begin(Wire::Http, Some([127, 0, 0, 1].into()));
        record.over_http("POST");
        record.by(&client, &role, None);
        record.took(1_024);
        record.asks(Revision::NEWEST, "tools/call", &params);
        record.about(Kind::Tool);
        record.named("hub__search");
        let item = (Kind::Tool, "hub__search");
        record.decided(item, Decision::Allowed, Some((&hub, "search")), Some("hub/*"));
        record
    };
    let ending =
        Ending { outcome: Outcome::Ok, code: None, status: Some(200), bytes_out: Some(2_048) };
    group.bench_function("a record of a call, from its begin to the queue", |bench| {
        bench.iter(|| request(black_box(&audit)).end(ending));
    });
    group.bench_function("the same in a log that is off", |bench| {
        bench.iter(|| request(black_box(&Audit::off())).end(ending));
    });
    let line = request(&audit).line().expect("a line");
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
