//! Conformance tests: the official conformance suite, and clients that compare exact values.
//!
//! A run puts one of two fixture servers, which offer the same in either era (`fixtures/`), behind
//! Weir or nothing, and judges a client's view of it:
//!
//! - the suite's scenarios, each of which checks behavior and hardly any contents;
//! - `clients/`, which use everything that the fixture offers and have to receive the exact values
//!   that only the fixture can know (`values.json`).
//!
//! The suite's scenarios for clients judge Weir from the other side: its server is Weir's upstream.
//!
//! `unreached.toml` lists what does not pass, a row each, with its reason. A run fails on a row too
//! many and on a row too few. After a change:
//!
//! ```sh
//! cargo test --test conformance                           # lists the changed rows and reasons
//! WEIR_WRITE_UNREACHED=1 cargo test --test conformance    # rewrites rows; new ones have no reason
//! WEIR_NIGHTLY=1 cargo test --test conformance nightly    # after a change of the fixtures
//! ```
//!
//! Tests that end in `nightly` run by night only: those that judge the fixtures, which change with
//! this folder and the lock file of the suite, and sign-ins for a client of the servers' other era,
//! on which a sign-in does not depend.
//!
//! Real processes, real sockets, a real clock. `./dev prepare` installs the programs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_types, reason = "a test reads what others typed")]

#[allow(dead_code, reason = "shared with the interop tests, which use all of it")]
#[path = "../interop/fleet.rs"]
mod fleet;
#[path = "../lab/mod.rs"]
mod lab;
#[allow(dead_code, reason = "shared with the interop tests, which use all of it")]
#[path = "../interop/parts.rs"]
mod parts;

mod run;
mod suite;
mod unreached;
mod values;

use run::{AsClient, Era, Route, Run};
use suite::Leg;

/// The debug build of the nightly run includes these tests: they measure nothing.
fn is_night() -> bool {
    std::env::var_os("WEIR_NIGHTLY").is_some()
}

#[tokio::test]
async fn the_legacy_fixture_passes_by_itself_nightly() {
    if !is_night() {
        return;
    }
    Run { client: Era::Legacy, upstream: Era::Legacy, route: Route::Direct }.judge().await;
}

#[tokio::test]
async fn the_modern_fixture_passes_by_itself_nightly() {
    if !is_night() {
        return;
    }
    Run { client: Era::Modern, upstream: Era::Modern, route: Route::Direct }.judge().await;
}

/// Otherwise another server than the fixture could have responded.
#[tokio::test]
async fn a_reply_is_the_fixtures_own_nightly() {
    if !is_night() {
        return;
    }
    let fixture = run::fixture(Era::Modern, "the ebb").await;
    let different = values::of_server(&fixture.url, Era::Modern, "the flood").await;
    let alike = values::steps().into_iter().filter(|step| !different.contains_key(step));
    let shows_nothing = [
        "capabilities",
        "unknown tool",
        "unknown prompt",
        "unknown resource",
        "hear of an update",
        "hear of a change of tools",
        "hear of a change of prompts",
    ];
    assert_eq!(alike.collect::<Vec<_>>(), shows_nothing.map(|step| format!("values/{step}")));
}

#[tokio::test]
async fn a_legacy_client_has_a_legacy_upstream() {
    Run { client: Era::Legacy, upstream: Era::Legacy, route: Route::Weir }.judge().await;
}

#[tokio::test]
async fn c25_a_legacy_client_has_three_replicas_in_turn() {
    Run { client: Era::Legacy, upstream: Era::Legacy, route: Route::Replicas }.judge().await;
}

#[tokio::test]
async fn a_legacy_client_has_a_modern_upstream() {
    Run { client: Era::Legacy, upstream: Era::Modern, route: Route::Weir }.judge().await;
}

#[tokio::test]
async fn a_modern_client_has_a_legacy_upstream() {
    Run { client: Era::Modern, upstream: Era::Legacy, route: Route::Weir }.judge().await;
}

#[tokio::test]
async fn a_modern_client_has_a_modern_upstream() {
    Run { client: Era::Modern, upstream: Era::Modern, route: Route::Weir }.judge().await;
}

#[tokio::test]
async fn weir_is_a_client_of_legacy_servers_for_a_legacy_client() {
    AsClient { client: Era::Legacy, servers: Era::Legacy, leg: Leg::Client }.judge().await;
}

#[tokio::test]
async fn weir_is_a_client_of_legacy_servers_for_a_modern_client() {
    AsClient { client: Era::Modern, servers: Era::Legacy, leg: Leg::Client }.judge().await;
}

#[tokio::test]
async fn weir_is_a_client_of_modern_servers_for_a_legacy_client() {
    AsClient { client: Era::Legacy, servers: Era::Modern, leg: Leg::Client }.judge().await;
}

#[tokio::test]
async fn weir_is_a_client_of_modern_servers_for_a_modern_client() {
    AsClient { client: Era::Modern, servers: Era::Modern, leg: Leg::Client }.judge().await;
}

#[tokio::test]
async fn weir_signs_in_to_legacy_servers_for_a_legacy_client() {
    AsClient { client: Era::Legacy, servers: Era::Legacy, leg: Leg::SignIn }.judge().await;
}

#[tokio::test]
async fn weir_signs_in_to_modern_servers_for_a_modern_client() {
    AsClient { client: Era::Modern, servers: Era::Modern, leg: Leg::SignIn }.judge().await;
}

#[tokio::test]
async fn weir_signs_in_to_legacy_servers_for_a_modern_client_nightly() {
    if !is_night() {
        return;
    }
    AsClient { client: Era::Modern, servers: Era::Legacy, leg: Leg::SignIn }.judge().await;
}

#[tokio::test]
async fn weir_signs_in_to_modern_servers_for_a_legacy_client_nightly() {
    if !is_night() {
        return;
    }
    AsClient { client: Era::Legacy, servers: Era::Modern, leg: Leg::SignIn }.judge().await;
}

/// A row of an unknown run would never be checked.
#[test]
fn what_is_unreached_is_so_in_a_run_that_there_is() {
    let eras = [Era::Legacy, Era::Modern];
    let direct = |era| Run { client: era, upstream: era, route: Route::Direct };
    let mut runs = eras.map(|era| direct(era).to_string()).to_vec();
    let replicas = Run { client: Era::Legacy, upstream: Era::Legacy, route: Route::Replicas };
    runs.push(replicas.to_string());
    for (client, server) in eras.into_iter().flat_map(|era| eras.map(|other| (era, other))) {
        runs.push(Run { client, upstream: server, route: Route::Weir }.to_string());
        for leg in [Leg::Client, Leg::SignIn] {
            runs.push(AsClient { client, servers: server, leg }.to_string());
        }
    }
    let strange: Vec<_> = unreached::runs().into_iter().filter(|run| !runs.contains(run)).collect();
    assert!(strange.is_empty(), "unreached.toml has {strange:?}; there are {runs:?}");
}
