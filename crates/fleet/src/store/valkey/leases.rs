//! Leases in the store.

use std::sync::LazyLock;

use futures::FutureExt;
use futures::future::BoxFuture;
use redis::Script;

use super::{ValkeyStore, millis};
use crate::store::{LeaseReply, LeaseRequest, LeaseStore, StoreError};

impl LeaseStore for ValkeyStore {
    fn lease(&self, request: LeaseRequest) -> BoxFuture<'_, Result<LeaseReply, StoreError>> {
        async move {
            let mut call = LEASE.key(self.key(&format!("lease:{}", request.lease)));
            let life = if request.life.is_zero() { 0 } else { millis(request.life) };
            call.arg(request.holder).arg(life);
            let (is_held, number, was_released): (bool, u64, bool) = self.run(&call).await?;
            Ok(match is_held {
                true => LeaseReply::Held { number, was_released },
                false => LeaseReply::Taken,
            })
        }
        .boxed()
    }
}

static LEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../lease.lua")));
