//! Weir.

// pub mod app;
pub mod catalog;
pub mod config;
pub mod event_stream;
pub mod gateway;
pub mod json;
pub mod line;
pub mod mcp;
pub mod policy;
pub mod rpc;
pub mod upstream;
