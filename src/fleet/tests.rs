//! Tests of several replicas in one process.

pub(super) mod simulation;
