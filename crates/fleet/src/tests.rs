//! Tests of several replicas in one process.

mod heartbeat;
mod limits;
mod simulation;
