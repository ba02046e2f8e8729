//! Filter of response bodies: an access token that a server repeats does not reach a client.
//!
//! Invariants: a token is hidden however the body is divided and its characters are written, and
//! the length of the body stays. Bytes are held back only while they may be the beginning of a
//! token.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::sync::watch;

use weir_base::secrets::secret_search::{Repetition, SecretSearch};
use weir_oauth::TokenFinders;

/// Filter of one body.
pub(crate) struct EchoFilter {
    /// Last tokens of the account: a body may outlive the token with which it was requested.
    current: watch::Receiver<TokenFinders>,
    search: SecretSearch,
    held: VecDeque<u8>,
}

impl EchoFilter {
    /// Creates the filter for a response to an account with these tokens.
    pub(crate) fn new(mut current: watch::Receiver<TokenFinders>) -> Self {
        let search = SecretSearch::new(current.borrow_and_update().clone());
        Self { current, search, held: VecDeque::new() }
    }

    /// Takes the next piece, and returns what can be passed on; it may be empty.
    pub(crate) fn push(&mut self, mut piece: Bytes) -> Bytes {
        if self.current.has_changed().unwrap_or_default() {
            self.search = SecretSearch::new(self.current.borrow_and_update().clone());
            // Also what is held back may be the beginning of another token.
            self.held.extend(&piece);
            piece = std::mem::take(&mut self.held).into_iter().collect();
        }
        let found = self.search.read(&piece);
        let before = self.held.len();
        let passed = before + piece.len() - self.search.pending();
        if found.is_empty() && before == 0 {
            self.held.extend(piece.split_off(passed));
            return piece;
        }
        self.held.extend(&piece);
        for Repetition { end, length } in found {
            let end = before + end;
            self.held.range_mut(end - length..end).for_each(|byte| *byte = b'*');
        }
        self.held.drain(..passed).collect()
    }

    /// Returns what was held back, at the end of the body.
    pub(crate) fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use weir_oauth::token_finders;

    fn filter(token: &str) -> EchoFilter {
        EchoFilter::new(watch::Sender::new(token_finders([token])).subscribe())
    }

    /// Passes pieces through the filter of these tokens.
    fn pass_all<'a>(tokens: &[&str], pieces: impl IntoIterator<Item = &'a [u8]>) -> String {
        let tokens = tokens.iter().copied();
        let mut filter = EchoFilter::new(watch::Sender::new(token_finders(tokens)).subscribe());
        let mut passed = Vec::new();
        for piece in pieces {
            passed.extend_from_slice(&filter.push(Bytes::copy_from_slice(piece)));
        }
        passed.extend_from_slice(&filter.finish());
        String::from_utf8(passed).expect("text")
    }

    fn pass(token: &str, pieces: &[&str]) -> String {
        pass_all(&[token], pieces.iter().map(|piece| piece.as_bytes()))
    }

    /// Passes a text through the filter, as a whole and in pieces of one byte.
    fn pass_divided(token: &str, body: &str) -> String {
        let whole = pass(token, &[body]);
        assert_eq!(pass_all(&[token], body.as_bytes().chunks(1)), whole, "{body}");
        whole
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
        assert_eq!(pass_divided(token, body), expected);
    }

    #[test]
    fn the_longest_token_that_is_accepted_is_hidden_however_the_body_is_divided() {
        let token = "0123456789abcdef".repeat(1024);
        let body = format!(r#"{{"a":"{token}","b":"{token}"}}"#);
        let escaped: String = token.bytes().map(|byte| format!("\\u{byte:04x}")).collect();
        let body = body + &escaped;
        let expected = body.replace(&token, &"*".repeat(token.len()));
        let expected = expected.replace(&escaped, &"*".repeat(escaped.len()));
        for length in [1, 7, 4096, 8192, 16_000, body.len()] {
            let shown = pass_all(&[&token], body.as_bytes().chunks(length));
            assert!(shown == expected, "{length}");
        }
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
    fn a_token_is_hidden_in_each_spelling_of_json_and_of_urls() {
        let token = "abcdefghijklmn/o+p==";
        for spelled in [
            token,
            r"abcdefghijklmn\/o+p==",
            r"abcdefghijklmn/o\u002Bp==",
            r"abcdefghijklmn\u002fo\u002bp\u003d=",
            r"\u0061bcdefghijklmn/o+p==",
            r"abcdefghijklmn/o+p=\u003D",
            r"\u0061\u0062cdefghij\u006B\u006cmn\/o+p==",
            // JSON within JSON, once and twice.
            r"abcdefghijklmn\\/o\\u002bp==",
            r"abcdefghijklmn\\\/o\\\\u002bp==",
            "abcdefghijklmn%2Fo%2Bp%3D%3D",
            "abcdefghijklmn%2fo+p%3d=",
            "%61%62cdefghijklmn%2fo%2bp==",
            "abcdefghijklmn%252Fo%252Bp%253D%253D",
            r"abcdefghijklmn\u00252Fo%2\u0042p==",
        ] {
            let stars = "*".repeat(spelled.len());
            let body = format!("{{\"a\":\"x {spelled}\",\"b\":[\"{spelled}\"]}}\n");
            let expected = format!("{{\"a\":\"x {stars}\",\"b\":[\"{stars}\"]}}\n");
            assert_eq!(pass_divided(token, &body), expected);
            // Without a character between, and beside escapes that are no part of it.
            let body = format!("x{spelled}{spelled}\\u0061{spelled}\\n{spelled}%4\\u006");
            let expected = format!("x{stars}{stars}\\u0061{stars}\\n{stars}%4\\u006");
            assert_eq!(pass_divided(token, &body), expected);
        }
    }

    #[test]
    fn a_text_that_is_no_spelling_of_the_token_stays_as_it_is() {
        let token = "nabcdefghijklmn/o+p==";
        for body in [
            r"\nabcdefghijklmn/o+p==",
            r"nabcdefghij\klmn/o+p==",
            r"nabcdefghijklmn\\",
            r"\u006eabcdefghijklmn\u002",
            r"\u006",
            "nabcdefghijklmn%2",
            "nabcdefghijklmn/o%2Cp==",
            r"nabcdefghijklmn\u012fo+p==",
        ] {
            assert_eq!(pass_divided(token, body), body);
        }
    }

    #[test]
    fn json_in_which_a_token_is_hidden_stays_json() {
        for (token, body) in [
            ("/abcdefghijklmnop", r#"["\/abcdefghijklmnop"]"#),
            ("/abcdefghijklmnop", r#"["\\\/abcdefghijklmnop"]"#),
            ("u0041bcdefghijklmnop", r#"["\\u0041bcdefghijklmnop"]"#),
            ("nabcdefghijklmnop", r#"["\nabcdefghijklmnop"]"#),
            ("41abcdefghijklmnop", r#"["\u0041abcdefghijklmnop"]"#),
            (r#"a"b\cdefghijklmnop"#, r#"["a\"b\\cdefghijklmnop"]"#),
            (r"abcdefghijklmnop\", r#"["abcdefghijklmnop\\","x"]"#),
        ] {
            let shown = pass_divided(token, body);
            let texts: Result<Vec<String>, _> = serde_json::from_str(&shown);
            let texts = texts.expect("JSON");
            assert!(!texts[0].contains(token), "{shown}");
            assert_eq!(shown.len(), body.len());
        }
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
        // One that has begun before the change.
        assert_eq!(push("fir"), "");
        sender.send_replace(token_finders([second, first]));
        assert_eq!(push("st-0123456789."), format!("{}.", "*".repeat(first.len())));
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

    #[test]
    fn what_is_held_back_has_a_bounded_length() {
        let token = format!("{}b", "a".repeat(16 * 1024 - 1));
        for beginning in ["a", "\\u0061", "%61", "\\\\\\u0061", "\\", "\\u00256\\u0031", "%25"] {
            let mut filter = filter(&token);
            let body = beginning.repeat(40_000);
            let mut passed = 0;
            for (at, piece) in body.as_bytes().chunks(1000).enumerate() {
                passed += filter.push(Bytes::copy_from_slice(piece)).len();
                let held = at * 1000 + piece.len() - passed;
                assert!(held <= 8 * token.len() + 64, "{beginning}: {held}");
            }
        }
    }

    /// A time that grows with the square of the length would be that of 10 000 000 000 steps.
    #[test]
    fn a_search_that_finds_many_beginnings_takes_a_time_that_is_linear_in_the_body() {
        let token = format!("{}b", "a".repeat(16 * 1024 - 1));
        for part in ["a", "a\\u0061", "\\", "\\u0061x", "%61 ", "\\/", "%", "\\u006"] {
            let body = part.repeat(100_000 / part.len());
            for length in [1, 10_000] {
                let shown = pass_all(&[&token], body.as_bytes().chunks(length));
                assert!(shown == body, "{part} {length}");
            }
        }
    }

    /// Spells a token in JSON; `choices` says how.
    fn spell(token: &str, choices: &[u8]) -> String {
        let spelled = token.bytes().zip(choices.iter().cycle()).map(|(byte, choice)| {
            let character = char::from(byte);
            match (choice % 8, character) {
                (0 | 1, '"' | '\\' | '/') => format!("\\{character}"),
                (0, _) => format!("\\u{byte:04x}"),
                (1, _) => format!("\\u{byte:04X}"),
                (_, '"' | '\\') => format!("\\{character}"),
                _ => character.to_string(),
            }
        });
        spelled.collect()
    }

    fn divide<'a>(body: &'a str, lengths: &[usize]) -> Vec<&'a [u8]> {
        let (mut rest, mut pieces) = (body.as_bytes(), Vec::new());
        for length in lengths {
            let (piece, others) = rest.split_at(rest.len().min(*length));
            pieces.push(piece);
            rest = others;
        }
        pieces.push(rest);
        pieces
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

        #[test]
        fn a_token_in_any_spelling_is_hidden_and_the_text_around_it_stays(
            token in "[!-~]{16,40}",
            choices in prop::collection::vec(any::<u8>(), 1..40),
            texts in prop::collection::vec("[ -~ä\n]{0,20}", 2..5),
            lengths in prop::collection::vec(0_usize..30, 0..20),
        ) {
            let quoted = |text: &String| {
                let quoted = serde_json::to_string(text).expect("JSON");
                quoted[1..quoted.len() - 1].to_owned()
            };
            let spelled = spell(&token, &choices);
            let texts: Vec<_> = texts.iter().map(quoted).collect();
            let body = format!("[\"{}\"]", texts.join(&spelled));
            let shown = pass_all(&[&token], divide(&body, &lengths));
            let expected = format!("[\"{}\"]", texts.join(&"*".repeat(spelled.len())));
            prop_assert_eq!(&shown, &expected, "{} in {}", token, body);
        }

        #[test]
        fn a_token_in_a_url_is_hidden_and_the_text_around_it_stays(
            token in "[G-Z][!-$&-\\[\\]-~]{15,39}",
            choices in prop::collection::vec(any::<u8>(), 1..40),
            lengths in prop::collection::vec(0_usize..30, 0..20),
        ) {
            let encoded = token.bytes().zip(choices.iter().cycle()).map(|(byte, choice)| {
                match choice % 4 {
                    0 => format!("%{byte:02x}"),
                    1 => format!("%{byte:02X}"),
                    2 => format!("\\u0025{byte:02x}"),
                    _ if byte == b'"' => "%22".to_owned(),
                    _ => char::from(byte).to_string(),
                }
            });
            let encoded: String = encoded.collect();
            let body = format!("[\"https://a.test/?t={encoded}&x=%20 {encoded}\"]");
            let shown = pass_all(&[&token], divide(&body, &lengths));
            prop_assert_eq!(&shown, &body.replace(&encoded, &"*".repeat(encoded.len())));
        }

        #[test]
        fn the_division_of_a_body_changes_nothing(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "a", "ab", "aab", "\\", "\\\\", "\\u", "\\u0061", "u0062", "0", "61", "%", "%61",
                    "%62", "%25", "/", "\\/", "\\\"", "\\n", " ", "é", "\\u00e9", "aabaab/aabaabaab",
                ]),
                0..60,
            ),
            lengths in prop::collection::vec(0_usize..12, 0..40),
        ) {
            for tokens in [
                &["aabaab/aabaabaab"][..],
                &["aaaaaaaaaaaaaaaa", "aabaab/aabaabaab"],
                &[r"aabaab\aabaab\\b", "ababab%61ababab%"],
            ] {
                let body = parts.concat();
                let whole = pass_all(tokens, [body.as_bytes()]);
                prop_assert_eq!(whole.len(), body.len());
                let divided = pass_all(tokens, divide(&body, &lengths));
                prop_assert_eq!(&divided, &whole, "{:?} in {}", tokens, body);
                let bytes = pass_all(tokens, body.as_bytes().chunks(1));
                prop_assert_eq!(&bytes, &whole, "{:?} in {}", tokens, body);
            }
        }
    }
}
