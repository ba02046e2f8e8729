//! Weir: one MCP endpoint in front of many MCP servers.
//!
//! The floor plan, from the ground up. A room uses rooms on lower floors only; ARCHITECTURE.md walks a
//! request through them.
//!
//! | floor | rooms |
//! | --- | --- |
//! | 6, the office | [`config`] what the operator wrote, [`app`] builds the rooms, [`cli`] the commands |
//! | 5, the doors | [`downstream`] clients of both eras, over HTTP and stdio; [`ops`] what operators see |
//! | 4 | [`gateway`] the request, in one screen |
//! | 3, siblings | [`audit`] who did what, [`catalog`] what each policy may see, [`policy`] who may what, [`upstream`] live servers |
//! | 2 | [`mcp`] the protocol, in no dialect |
//! | 1 | [`rpc`] JSON-RPC |
//! | 0, text | [`budget`], [`json`], [`line`], [`event_stream`], [`fairness`], [`hidden`], [`meter`], [`moment`], [`secret`], [`trail`], [`chance`]; files: [`regular_file`], [`folder_watch`] |

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "what a test spawns dies with its runtime, and it reads what it likes"
    )
)]

pub mod admin;
pub mod app;
pub mod audit;
pub mod catalog;
pub mod cli;
pub mod config;
pub mod cpu_bound;
pub mod downstream;
pub mod fairness;
pub mod folder_watch;
pub mod gateway;
pub mod guard;
pub mod hex;
pub mod invisible_chars;
pub mod jitter;
pub mod json;
pub mod jsonrpc;
pub mod line_codec;
pub mod mcp;
pub mod memory_budget;
pub mod metrics;
pub mod pins;
pub mod policy;
pub mod regular_file;
pub mod request_scope;
pub mod secret;
pub mod sha256;
pub mod sse;
pub mod timestamp;
pub mod upstream;
