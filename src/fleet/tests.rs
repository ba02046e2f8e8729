//! Tests of several replicas in one process.

mod bucket_contents;
mod limits;
pub(super) mod simulation;
