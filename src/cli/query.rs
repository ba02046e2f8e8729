//! Commands that send one request through a gateway of their own: `list`, `get`, `call`, `read`,
//! `complete`.

pub(crate) mod arguments;
pub(crate) mod call;
pub(crate) mod complete;
pub(crate) mod first_pages;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod oneshot;
pub(crate) mod read;
pub(crate) mod request;
pub(crate) mod required_upstreams;
