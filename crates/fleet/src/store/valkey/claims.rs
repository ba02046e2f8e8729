//! Claims, ends and settings of sessions in the store.
//!
//! Claims and blocks of ended sessions are tables: hashes of names and texts, with the number of
//! the last change and the expiry of each entry, and a sum over all (see
//! [`crate::claim_table::table_reading`]).

use std::sync::LazyLock;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use redis::{Script, cmd};

use super::{CLAIMS, ENDED, ValkeyStore, millis};
use crate::store::{
    ClaimReply, ClaimRequest, ClaimStore, MAX_CLAIMS, MAX_ENDED_BLOCKS, StoreError, StoredEntry,
};
use weir_base::ended_sessions::{EndedBlock, SessionNumber};

impl ClaimStore for ValkeyStore {
    fn claim(&self, claim: ClaimRequest) -> BoxFuture<'_, Result<ClaimReply, StoreError>> {
        async move {
            let mut call = CLAIM.prepare_invoke();
            call.key(&self.keys_of(&CLAIMS)[..]).key(&self.keys_of(&ENDED)[..]);
            call.key(self.settings_key(&claim.session));
            let block = claim.number.map(|number| number.block().to_string()).unwrap_or_default();
            let (digit, bit) = claim.number.map(SessionNumber::digit).unwrap_or_default();
            let is_any = i32::from(claim.expected.is_none());
            call.arg(claim.session).arg(claim.expected.unwrap_or_default()).arg(is_any);
            call.arg(claim.text).arg(millis(claim.life)).arg(MAX_CLAIMS);
            call.arg(&block).arg(digit).arg(bit);
            let (replaced, number, text, settings): (i64, u64, String, Option<String>) =
                self.run(&call).await?;
            match replaced {
                -1 => Err(StoreError::Full),
                -2 => {
                    let ended = Some(StoredEntry { number, name: block, text });
                    Ok(ClaimReply { ended, ..ClaimReply::default() })
                }
                replaced => {
                    let (is_replaced, ended) = (replaced == 1, None);
                    Ok(ClaimReply { is_replaced, number, text, settings, ended })
                }
            }
        }
        .boxed()
    }

    fn end_sessions(
        &self,
        name: String,
        block: EndedBlock,
    ) -> BoxFuture<'_, Result<Option<StoredEntry>, StoreError>> {
        async move {
            let mut call = END_SESSIONS.prepare_invoke();
            call.key(&self.keys_of(&ENDED)[..]);
            call.arg(&name).arg(block.to_string()).arg(MAX_ENDED_BLOCKS);
            match self.run(&call).await? {
                (-1, _) => Err(StoreError::Full),
                (number, text) => {
                    let stored = |number| StoredEntry { number, name, text };
                    Ok(u64::try_from(number).ok().filter(|it| *it > 0).map(stored))
                }
            }
        }
        .boxed()
    }

    fn put_settings(
        &self,
        session: String,
        settings: String,
        life: Duration,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let mut set = cmd("SET");
            set.arg(self.settings_key(&session)).arg(settings).arg("PX").arg(millis(life));
            self.send(async |mut connection| set.query_async(&mut connection).await).await
        }
        .boxed()
    }

    fn drop_settings(&self, session: String) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            // It expires at once.
            let mut expire = cmd("PEXPIRE");
            expire.arg(self.settings_key(&session)).arg(0);
            self.send(async |mut connection| expire.query_async(&mut connection).await).await
        }
        .boxed()
    }
}

static CLAIM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("../tables.lua"), include_str!("../claim.lua")))
});

static END_SESSIONS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("../tables.lua"), include_str!("../end_sessions.lua")))
});
