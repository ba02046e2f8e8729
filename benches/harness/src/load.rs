//! The load: a minimal client that checks every response.
//!
//! A request is rendered once; each sending replaces only the id, ten digits at a known place. The
//! first response to each request is parsed: it must be a response to that id, no error, with
//! exactly the content that the fixture has for that item. From then on a response that is equal
//! byte for byte, except for the id, is right without being parsed; any other is parsed again.
//!
//! Invariants: no response is counted that was not checked; a connection sends its next request
//! only after the response (closed loop).

pub(crate) mod connection;
pub(crate) mod drive;
pub(crate) mod exchange;
pub(crate) mod peer;
#[cfg(test)]
mod tests;
