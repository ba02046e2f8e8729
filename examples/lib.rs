//! Example MCP servers, one for each era of the protocol.
//!
#![doc = include_str!("README.md")]
