//! Questions whose answer many requests wait for at a time, asked one after the other for each
//! subject.
//!
//! Invariants: an answer counts only for requests that came before the question was asked, so it is
//! never outdated; a subject has at most one open question, however many requests wait for it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use tokio::time::Instant;

use weir_base::tasks::sync::Mutex;

/// Open questions, by their subjects.
pub(crate) struct SharedQuestions<K> {
    by_subject: Mutex<HashMap<K, Arc<tokio::sync::Mutex<Option<LastAnswer>>>>>,
}

struct LastAnswer {
    asked_at: Instant,
    answer: bool,
}

impl<K: Eq + Hash> SharedQuestions<K> {
    /// Asks a question, or waits for the answer to one about this subject that is asked after this
    /// moment.
    pub(crate) async fn ask(&self, subject: K, question: impl Future<Output = bool>) -> bool {
        let came_at = Instant::now();
        let last = {
            let mut by_subject = self.by_subject.lock();
            if by_subject.len() >= MAX_IDLE {
                by_subject.retain(|_, last| Arc::strong_count(last) > 1);
            }
            Arc::clone(by_subject.entry(subject).or_default())
        };
        let mut last = last.lock().await;
        if let Some(LastAnswer { asked_at, answer }) = *last
            && asked_at >= came_at
        {
            return answer;
        }
        let asked_at = Instant::now();
        let answer = question.await;
        *last = Some(LastAnswer { asked_at, answer });
        answer
    }
}

impl<K> Default for SharedQuestions<K> {
    fn default() -> Self {
        Self { by_subject: Mutex::default() }
    }
}

/// Largest number of subjects without a question.
const MAX_IDLE: usize = 1_000;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::future::join_all;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_that_wait_share_the_next_answer_and_later_ones_ask_again() {
        let (questions, asked) = (SharedQuestions::default(), AtomicUsize::new(0));
        let ask = |subject: &'static str| {
            questions.ask(subject, async {
                let number = asked.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(10)).await;
                number % 2 == 1
            })
        };
        // The first question was asked at the time at which all came.
        assert_eq!(join_all((0..5).map(|_| ask("a"))).await, [false; 5]);
        let late = async {
            sleep(Duration::from_millis(1)).await;
            join_all((0..5).map(|_| ask("a"))).await
        };
        assert_eq!(tokio::join!(ask("a"), late), (true, vec![false; 5]));
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        assert!(ask("b").await, "another subject");
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_is_given_up_is_asked_by_the_next_one_and_subjects_are_bounded() {
        let questions = SharedQuestions::default();
        let given_up = questions.ask(0, std::future::pending());
        assert!(tokio::time::timeout(Duration::from_secs(1), given_up).await.is_err());
        for subject in 0..=MAX_IDLE {
            assert!(questions.ask(subject, std::future::ready(true)).await);
        }
        assert!(questions.by_subject.lock().len() <= MAX_IDLE);
    }
}
