//! Benchmark of JSON-RPC envelopes: a request parsed, a response written.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use weir_mcp::jsonrpc::{Id, Message, write_result};

fn envelope(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("envelope");

    let head = r#"{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"name":"hub__search","arguments":{"query":""#;
    let request = Bytes::from(format!("{head}{}\"}}}}}}", "q".repeat(1_024 - head.len() - 4)));
    assert!(matches!(Message::parse(request.clone()), Ok(Message::Request(_))));
    group.throughput(Throughput::Bytes(request.len() as u64));
    group.bench_function("a tools/call of 1 KiB read", |bench| {
        bench.iter(|| Message::parse(black_box(request.clone())));
    });

    let head = r#"{"content":[{"type":"text","text":""#;
    let payload = Bytes::from(format!("{head}{}\"}}]}}", "r".repeat(1_024 - head.len() - 4)));
    let id = Id::from(42);
    group.throughput(Throughput::Bytes(payload.len() as u64));
    group.bench_function("a result of 1 KiB written", |bench| {
        bench.iter(|| write_result(&id, black_box(&payload)));
    });
    group.finish();
}

criterion_group!(benches, envelope);
criterion_main!(benches);
