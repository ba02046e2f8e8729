//! Example MCP servers, one for each era of the protocol, and a server with fault injection.
//!
#![doc = include_str!("README.md")]
