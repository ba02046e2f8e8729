//! Commands that query or control a running instance: `health`, `reload`, `status`, `top`.

pub(crate) mod admin_client;
pub(crate) mod health;
pub(crate) mod reload;
pub(crate) mod status;
pub(crate) mod top;
