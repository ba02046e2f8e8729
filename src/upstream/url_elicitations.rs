//! The visits of URLs that one connection's server has asked for, and whom it asked.
//!
//! A legacy server says when such a visit is done with, perhaps long after the call that it was asked in
//! (spec 2025-11-25, elicitation, completion notifications). It names the visit by the id that it gave it, which
//! Weir passes on as it is: one that Weir had to mint the server cannot know.
//!
//! Promises: the end of a visit is told to whoever was asked for it, once, and to nobody else; an id that nobody
//! was asked for is nobody's. No more than [`MAX_VISITS`] are remembered; beyond that the oldest are forgotten.
//!
//! Knows nothing of: how anybody is told.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::json::Object;
use crate::mcp::call_notifications::Notes;
use crate::mcp::code;
use crate::mcp::input_request::ELICITATION_ID;
use crate::upstream::session::connection::error_code;

/// How many visits of one connection are remembered, and how long the ids of those may be.
const MAX_VISITS: usize = 256;
const MAX_ID_BYTES: usize = 1024;
/// How many one error may ask for.
const MAX_IN_ERROR: usize = 64;

/// The visits that are not done with, the oldest first, and where the news of each goes.
#[derive(Debug, Default)]
pub(super) struct Visits {
    asked: Mutex<VecDeque<(Box<str>, Notes)>>,
}

impl Visits {
    /// Whoever hears these notes is asked for a visit with these parameters.
    pub(super) fn begin(&self, params: &Object, notes: &Notes) {
        let id = params.get_string(ELICITATION_ID).filter(|id| id.len() <= MAX_ID_BYTES);
        let Some(id) = id.filter(|_| notes.hears_visits()) else { return };
        let mut asked = self.lock();
        if asked.len() >= MAX_VISITS {
            asked.pop_front();
        }
        asked.push_back((id.into(), notes.clone()));
    }

    /// The same with each visit that an error wants to be made first (spec 2025-11-25, elicitation, error
    /// handling).
    pub(super) fn begin_all(&self, error: &Bytes, notes: &Notes) {
        if error_code(error) != Some(code::URL_ELICITATION_REQUIRED) {
            return;
        }
        let error = Object::parse_within(error.clone(), usize::MAX).ok();
        let data = error.and_then(|error| error.get_object("data"));
        let visits = data.and_then(|data| data.get_elements("elicitations"));
        for visit in visits.unwrap_or_default().take(MAX_IN_ERROR) {
            if let Ok(params) = Object::parse_again(visit) {
                self.begin(&params, notes);
            }
        }
    }

    /// The server says that a visit is done with.
    pub(super) fn done(&self, params: &Object) {
        let Some(id) = params.get_string(ELICITATION_ID) else { return };
        let mut told = Vec::new();
        self.lock().retain(|(asked, notes)| {
            let is_it = **asked == *id;
            told.extend(is_it.then(|| notes.clone()));
            !is_it
        });
        told.iter().for_each(|notes| notes.visited(params));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Box<str>, Notes)>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::call_notifications::{Note, NoteStream};
    use crate::mcp::log_level::Wanted;

    fn params(id: &str) -> Object {
        Object::parse(format!(r#"{{"mode":"url","elicitationId":"{id}"}}"#)).expect("an object")
    }

    fn client() -> (Notes, NoteStream, crate::mcp::elicitation_complete::Visits) {
        let (notes, stream) = Notes::open(false, Wanted::nothing());
        let visits = crate::mcp::elicitation_complete::Visits::default();
        notes.tell_visits(&visits);
        (notes, stream, visits)
    }

    #[tokio::test]
    async fn the_end_of_a_visit_is_told_once_to_whoever_was_asked() {
        let visits = Visits::default();
        let ((ann, anns, _), (bob, bobs, later)) = (client(), client());
        visits.begin(&params("of-ann"), &ann);
        visits.begin(&params("of-bob"), &bob);
        visits.begin(&params("of-nobody"), &Notes::unheard());
        drop(bobs);
        for id in ["of-ann", "of-ann", "unknown", "of-nobody", "of-bob"] {
            visits.done(&params(id));
        }
        assert_eq!(anns.rest(), [Note::Visited(params("of-ann").to_bytes())]);
        assert_eq!(later.next().await, params("of-bob").to_bytes());
        assert!(visits.lock().is_empty());
    }

    #[test]
    fn what_an_error_asks_for_counts_and_what_is_remembered_is_bounded() {
        let visits = Visits::default();
        let (notes, _stream, _) = client();
        let error = |code: i64| {
            let one = r#"{"mode":"url","elicitationId":"e","url":"https://x.test/","message":"m"}"#;
            let data = format!(r#"{{"elicitations":[7,{one},{{}}]}}"#);
            format!(r#"{{"code":{code},"message":"m","data":{data}}}"#).into()
        };
        visits.begin_all(&error(-32603), &notes);
        assert_eq!(visits.lock().len(), 0);
        visits.begin_all(&error(-32042), &notes);
        assert_eq!(visits.lock().len(), 1);
        visits.begin(&params(&"x".repeat(MAX_ID_BYTES + 1)), &notes);
        assert_eq!(visits.lock().len(), 1);
        (0..2 * MAX_VISITS).for_each(|number| visits.begin(&params(&number.to_string()), &notes));
        assert_eq!(visits.lock().len(), MAX_VISITS);
    }
}
