//! Filter of response bodies: an access token that a server repeats does not reach a client.
//!
//! Invariants: a token is hidden however the body is divided, and the length of the body stays.
//! Bytes are held back only while they may be the beginning of a token.

use bytes::{Bytes, BytesMut};
use memchr::{memchr, memchr_iter};
use tokio::sync::watch;

use crate::oauth::TokenFinders;

/// Filter of one body.
pub(crate) struct EchoFilter {
    /// Last tokens of the account: a body may outlive the token with which it was requested.
    current: watch::Receiver<TokenFinders>,
    finders: TokenFinders,
    held: Bytes,
}

impl EchoFilter {
    /// Creates the filter for a response to an account with these tokens.
    pub(crate) fn new(mut current: watch::Receiver<TokenFinders>) -> Self {
        let finders = current.borrow_and_update().clone();
        Self { current, finders, held: Bytes::new() }
    }

    /// Takes the next piece, and returns what can be passed on; it may be empty.
    pub(crate) fn push(&mut self, piece: Bytes) -> Bytes {
        let mut piece = match self.held.is_empty() {
            true => piece,
            false => [&*std::mem::take(&mut self.held), &*piece].concat().into(),
        };
        if self.current.has_changed().unwrap_or_default() {
            self.finders = self.current.borrow_and_update().clone();
        }
        let mut held = 0;
        for finder in &*self.finders {
            let token = finder.needle();
            if let Some(first) = finder.find(&piece) {
                let mut hidden = BytesMut::from(&*piece);
                let mut next = Some(first);
                // A token may consist of asterisks, so the search never goes back.
                while let Some(at) = next {
                    let end = at + token.len();
                    hidden[at..end].fill(b'*');
                    next = finder.find(&hidden[end..]).map(|found| end + found);
                }
                piece = hidden.freeze();
            }
            held = held.max(beginning_at_end(&piece, token));
        }
        self.held = piece.split_off(piece.len() - held);
        piece
    }

    /// Returns what was held back, at the end of the body.
    pub(crate) fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.held)
    }
}

/// Returns the length of the longest beginning of the token with which the piece ends.
fn beginning_at_end(piece: &[u8], token: &[u8]) -> usize {
    let (Some(last), Some(first)) = (piece.last(), token.first()) else { return 0 };
    // Most pieces end with a byte that no token has.
    let longest = token.len().min(MAX_BEGINNING) - 1;
    if memchr(*last, &token[..longest]).is_none() {
        return 0;
    }
    let tail = &piece[piece.len().saturating_sub(longest)..];
    let mut found = memchr_iter(*first, tail).map(|at| &tail[at..]);
    found.find(|rest| token.starts_with(rest)).map_or(0, <[u8]>::len)
}

/// Longest beginning of a token that is held back, so that the search takes a bounded time. Longer
/// tokens are hidden within a piece only.
const MAX_BEGINNING: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::oauth::token_finders;

    fn filter(token: &str) -> EchoFilter {
        EchoFilter::new(watch::Sender::new(token_finders([token])).subscribe())
    }

    fn pass(token: &str, pieces: &[&str]) -> String {
        let mut filter = filter(token);
        let mut passed = Vec::new();
        for piece in pieces {
            passed.extend_from_slice(&filter.push(Bytes::copy_from_slice(piece.as_bytes())));
        }
        passed.extend_from_slice(&filter.finish());
        String::from_utf8(passed).expect("text")
    }

    #[test]
    fn a_token_is_hidden_however_the_body_is_divided() {
        let (token, body) = ("abcabd-0123456789", "x abcabcabd-0123456789 abcabd-0123456789y abc");
        let expected = "x abc***************** *****************y abc";
        assert_eq!(pass(token, &[body]), expected);
        for first in 0..body.len() {
            for second in first..body.len() {
                let pieces = [&body[..first], &body[first..second], &body[second..]];
                assert_eq!(pass(token, &pieces), expected);
            }
        }
        let bytes: Vec<String> = body.chars().map(String::from).collect();
        let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
        assert_eq!(pass(token, &bytes), expected);
    }

    #[test]
    fn a_token_of_asterisks_ends_no_search() {
        let token = "*".repeat(16);
        assert_eq!(pass(&token, &["a", &token, &token, "b"]), format!("a{token}{token}b"));
        let token = format!("{}x", "*".repeat(15));
        let shown = pass(&token, &[&format!("{token}xxx")]);
        assert_eq!(shown, format!("{}xxx", "*".repeat(16)));
    }

    #[test]
    fn a_token_is_hidden_in_the_forms_that_it_has_in_json() {
        let token = "abcdefghijklmn/o+p==";
        let forms = [token, r"abcdefghijklmn\/o+p==", r"abcdefghijklmn/o\u002Bp=="];
        assert_eq!(
            pass(token, &forms.map(|form| format!("{form},")).each_ref().map(String::as_str)),
            forms.map(|form| "*".repeat(form.len()) + ",").concat()
        );
    }

    #[test]
    fn a_body_that_outlives_its_token_hides_the_next_one() {
        let [first, second] = ["first-0123456789", "second-0123456789"];
        let sender = watch::Sender::new(token_finders([first]));
        let mut filter = EchoFilter::new(sender.subscribe());
        let mut push = |text: &str| filter.push(Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(push(&format!("{first}.")), format!("{}.", "*".repeat(first.len())));
        sender.send_replace(token_finders([second, first]));
        let stars = "*".repeat(first.len() + second.len());
        assert_eq!(push(&format!("{second}{first}.")), format!("{stars}."));
    }

    #[test]
    fn a_piece_that_ends_as_messages_do_is_passed_at_once() {
        let mut filter = filter("eyJhbGciOiJFUzI1NiJ9.e30.AAAA");
        for piece in ["{\"result\":{\"e\":\"eyJ\"}}", "data: {}\n\n", "eyJhbGciOiJ "] {
            assert_eq!(filter.push(Bytes::from_static(piece.as_bytes())), piece);
        }
        assert_eq!(filter.push(Bytes::from_static(b"x eyJh")), "x ");
        assert_eq!(filter.finish(), "eyJh");
    }

    proptest! {
        #[test]
        fn nothing_else_is_changed(pieces in prop::collection::vec("[ab]{0,9}", 0..9)) {
            let token = "aabaabaabbaabaabaab";
            let body = pieces.concat();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let passed = pass(token, &pieces);
            prop_assert_eq!(passed.len(), body.len());
            prop_assert!(!passed.contains(token));
            if !body.contains(token) {
                prop_assert_eq!(passed, body);
            }
        }
    }
}
