//! Benchmark of request metrics and of the log context of a request.

use std::future::ready;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use futures::FutureExt;
use weir_base::tasks::request_scope::{self, RequestScope};
use weir_gateway::{GatewayMetrics, RequestStatus};

fn counting(c: &mut Criterion) {
    let meters = Arc::new(GatewayMetrics::default());
    for method in ["tools/call", "tasks/cancel", "no/such/method"] {
        c.bench_function(&format!("count {method}"), |b| {
            b.iter(|| meters.begin(black_box(method)).end(RequestStatus::Success));
        });
    }
}

fn trails(c: &mut Criterion) {
    let client: Arc<str> = "ann".into();
    c.bench_function("walk a trail", |b| {
        b.iter(|| {
            let work = async {
                request_scope::record(|known| known.client = Some(Arc::clone(&client)));
                ready(()).await;
            };
            RequestScope::begin().run(work).now_or_never()
        });
    });
}

criterion_group!(benches, counting, trails);
criterion_main!(benches);
