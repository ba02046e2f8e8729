//! The load: as little of a client as it takes to check every reply.
//!
//! A request is rendered once; of each sending only the id is new, ten digits at a known place. The first reply to each
//! request is read in full: it has to be an answer to that id, no error, with exactly the content that the fixture has
//! for that item. From then on a reply that is the same byte for byte, but for the id, is right without being parsed; any other
//! is read in full again.
//!
//! Promises: no reply is counted that was not checked; a connection asks again only when it was answered (closed
//! loop). Knows nothing of: who answers.

pub(crate) mod connection;
pub(crate) mod drive;
pub(crate) mod exchange;
pub(crate) mod peer;
#[cfg(test)]
mod tests;
