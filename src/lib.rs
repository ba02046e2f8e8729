//! Weir: one MCP endpoint in front of many MCP servers.
//!
//! A module uses modules of lower layers only; ARCHITECTURE.md describes them, section 3.
//!
//! | layer | modules |
//! | --- | --- |
//! | 6 | [`config`] the configuration, [`app`] builds the components, [`cli`] the commands |
//! | 5 | [`downstream`] MCP toward clients, [`admin`] the listener for operators |
//! | 4 | [`gateway`] authenticates, resolves, inspects and calls |
//! | 3 | [`audit`] the audit log, [`catalog`] one view per role, [`guard`] checks of content |
//! | 3 | [`pins`] approved definitions, [`policy`] credentials to roles |
//! | 3 | [`upstream`] live servers, their sessions and transports |
//! | 2 | [`mcp`] the protocol, common to both eras; [`fleet`] several replicas |
//! | 2 | [`oauth`] access tokens for upstreams |
//! | 1 | [`jsonrpc`] messages, ids, pending requests; ended sessions |
//! | 0 | [`json`], [`sse`], [`line_codec`], [`hex`], [`sha256`], [`timestamp`], [`secret`] |
//! | 0 | [`memory_budget`], [`fairness`], [`cpu_bound`], [`metrics`], [`backoff`] |
//! | 0 | [`rate_limit`], [`jitter`], [`sync`], quotas, queues, HTTP/1.1 connections |
//! | 0 | [`request_scope`], [`invisible_chars`], [`regular_file`], [`folder_watch`] |
//! | 0 | [`allowed_addresses`] of URLs from outside, quotes of texts from outside |
//! | 0 | [`private_file`], [`sealing`] texts that clients keep |

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tasks of a test end with its runtime, and a test may read any file"
    )
)]

pub mod admin;
pub mod allowed_addresses;
pub mod app;
pub mod audit;
pub mod backoff;
mod boot_clock;
pub mod catalog;
pub mod cli;
mod coalescing_queue;
pub mod config;
pub mod cpu_bound;
pub mod downstream;
mod ended_sessions;
pub mod fairness;
pub mod fleet;
pub mod folder_watch;
pub mod gateway;
pub mod guard;
pub mod hex;
mod http_connection;
pub mod invisible_chars;
pub mod jitter;
pub mod json;
pub mod jsonrpc;
pub mod line_codec;
pub mod mcp;
pub mod memory_budget;
pub mod metrics;
pub mod oauth;
mod pem;
pub mod pins;
pub mod policy;
pub mod private_file;
mod quota;
mod quote;
pub mod rate_limit;
pub mod regular_file;
pub mod request_scope;
pub mod sealing;
pub mod secret;
pub mod sha256;
pub mod sse;
pub mod suppressible_waker;
pub mod sync;
pub mod timestamp;
pub mod upstream;
