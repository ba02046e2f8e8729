//! Builds the rooms, owns their tasks and the token that stops them. (API skeleton: filled in once config has landed.)

use std::sync::Arc;

use crate::gateway::Gateway;
use crate::upstream::dial::Dial;

/// The running house without its doors.
pub struct App {}

impl App {
    /// Opens the rooms: connects upstreams in the background and returns at once.
    pub fn open(_config: &(), _dial: Arc<dyn Dial>) -> Self {
        unimplemented!()
    }
    /// What the doors lead to.
    pub fn gateway(&self) -> &Arc<Gateway> {
        unimplemented!()
    }
    /// Stops every upstream and waits for the last task.
    pub async fn close(self) {
        unimplemented!()
    }
}
