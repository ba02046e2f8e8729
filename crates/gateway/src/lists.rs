//! Lists of the upstreams: when they are read again, and the cache on disk.

mod hidden_secrets;
pub(crate) mod list_cache;
pub(crate) mod list_refresher;
mod refresh_schedule;
pub(crate) mod stable_list;
