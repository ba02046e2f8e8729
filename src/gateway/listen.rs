//! Waiting for changes of what a guest can see. (API skeleton.)

use crate::mcp::kind::Topic;

pub struct Listen {}

impl Listen {
    /// The next topic whose lists this guest would see differ; not more often than once a second per
    /// topic. Cancel-safe. Never ends.
    pub async fn next(&mut self) -> Topic {
        unimplemented!()
    }
}
