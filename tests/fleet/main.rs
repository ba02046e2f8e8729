//! Several replicas with a real store (Valkey or Redis): replicas and the store are killed, stopped
//! and replaced under clients, and a record at the upstream says what was executed, and how often.

#![allow(clippy::disallowed_types, reason = "a test reads what others typed")]
#![cfg(target_os = "linux")]

#[path = "../lab/mod.rs"]
mod lab;

mod access;
mod answers;
mod away;
mod balancers;
mod commands;
mod crowd;
mod ends;
mod endurance;
mod failover;
mod limits;
mod links;
mod lost;
mod once;
mod own;
mod questions;
mod replicas;
mod rolling;
mod sessions;
mod stillness;
mod strangers;
mod streams;
mod tasks;
