//! What it costs to count a request, and to know which one a line of the log is about.

use std::future::ready;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use futures::FutureExt;
use weir::gateway::{End, Meters};
use weir::request_scope::{self, Trail};

fn counting(c: &mut Criterion) {
    let meters = Arc::new(Meters::default());
    for method in ["tools/call", "tasks/cancel", "no/such/method"] {
        c.bench_function(&format!("count {method}"), |b| {
            b.iter(|| meters.begin(black_box(method)).end(End::Good));
        });
    }
}

fn trails(c: &mut Criterion) {
    let client: Arc<str> = "ann".into();
    c.bench_function("walk a trail", |b| {
        b.iter(|| {
            let work = async {
                request_scope::leave(|known| known.client = Some(Arc::clone(&client)));
                ready(()).await;
            };
            Trail::begin().walk(work).now_or_never()
        });
    });
}

criterion_group!(benches, counting, trails);
criterion_main!(benches);
