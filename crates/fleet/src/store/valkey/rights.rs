//! Commands that the store has to allow, tried out on each new connection.

use std::sync::LazyLock;

use redis::{RedisError, Script};

use super::{StoreConnection, ValkeyStore};
use crate::store::StoreError;

/// Fails if the store does not allow a command that Weir needs. Returns the number of its process.
pub(super) async fn check(
    store: &ValkeyStore,
    connection: &StoreConnection,
) -> Result<String, StoreError> {
    let mut call = RIGHTS.prepare_invoke();
    for kind in ["text", "hash", "set"] {
        call.key(store.key(&format!("rights-{kind}")));
    }
    let tried = store.run_on::<(String, Vec<String>)>(connection, call);
    let (process, forbidden) = store.in_time(store.beat_timeout(), tried).await?;
    match forbidden.is_empty() {
        true => Ok(process),
        false => Err(StoreError::Forbidden(forbidden.join(", "))),
    }
}

/// Returns the commands that an error says not to be allowed, or not to exist.
pub(super) fn forbidden_by(error: &RedisError) -> Option<String> {
    let text = error.to_string().to_lowercase();
    let is_forbidden = error.code() == Some("NOPERM")
        || text.contains("unknown command")
        || text.contains("unknown redis command")
        || text.contains("can't run this command")
        || text.contains("acl failure in script");
    is_forbidden.then(|| match text.contains("evalsha") {
        true => "evalsha".to_owned(),
        false => format!("a command ({error})"),
    })
}

static RIGHTS: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../rights.lua")));
