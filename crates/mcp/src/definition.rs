//! Definitions of prompts, tools, resources and resource templates, as upstreams list them and as
//! clients receive them.

pub mod arguments;
pub mod downgrade;
pub mod item;
pub mod param_headers;
pub mod shape;
