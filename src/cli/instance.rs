//! Commands that query or control a running instance: `health`, `logs`, `reload`, `restart`,
//! `status`, `top`; and `fleet`, which queries all replicas.

pub(crate) mod admin_client;
pub(crate) mod fleet;
pub(crate) mod health;
pub(crate) mod logs;
pub(crate) mod reload;
pub(crate) mod restart;
pub(crate) mod status;
pub(crate) mod top;
