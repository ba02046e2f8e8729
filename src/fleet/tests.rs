//! Tests of several replicas in one process.

mod simulation;
