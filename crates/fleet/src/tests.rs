//! Tests of several replicas in one process.

mod limits;
mod simulation;
