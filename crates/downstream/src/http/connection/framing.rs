//! Request framing of a connection: the first and the last byte of each request.
//!
//! hyper gets the bytes of one request, and those of the next one only after that has been
//! answered. So each head passes here before it is parsed, and none can hide in a body.
//!
//! Invariant: a line of a head, or of the trailers of a chunked body, that ends with a line feed
//! alone is never parsed as a line: the line feed becomes a NUL, which hyper refuses with 400. RFC
//! 9112, 2.2 lets a recipient accept such lines; then two recipients in a row can disagree about
//! the end of a head, which allows request smuggling.

/// Tracks the request boundaries in the bytes of one connection.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    state: State,
    lines: HeaderLines,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    /// Remaining bytes of a body, or of a chunk and its line end; then [`AfterBytes`] follows.
    Bytes(u64, AfterBytes),
    /// Size of a chunk, as far as its hexadecimal digits have arrived.
    Size(u64),
    /// After the digits of a chunk size.
    AfterSize(u64),
    Trailers,
    /// Invalid chunked encoding: hyper detects the error and ends the connection.
    Broken,
    /// End of the request, or of its head while the length of the body is not known yet.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterBytes {
    End,
    Size,
}

/// Line parser for a head or trailers, whose bytes may be split anywhere.
#[derive(Debug, Default)]
struct HeaderLines {
    /// True once a line that is not empty has arrived.
    has_begun: bool,
    /// Bytes of the current line that have arrived.
    length: usize,
    ends_with_return: bool,
}

impl Framing {
    /// Records the body of the parsed head: its length, or `None` for chunked.
    pub(crate) fn begin_body(&mut self, bytes: Option<u64>) {
        self.state = match bytes {
            Some(0) => State::End,
            Some(bytes) => State::Bytes(bytes, AfterBytes::End),
            None => State::Size(0),
        };
    }

    /// Expects the next request.
    pub(crate) fn begin_head(&mut self) {
        if self.state == State::End {
            *self = Self::default();
        }
    }

    /// True if all bytes of the request have passed.
    pub(crate) fn is_at_end(&self) -> bool {
        self.state == State::End
    }

    /// Returns how many of the next bytes belong to the request; at least one unless it [is at its
    /// end](Self::is_at_end).
    pub(crate) fn take(&mut self, bytes: &mut [u8]) -> usize {
        let mut taken = 0;
        while let Some(rest) = bytes.get_mut(taken..).filter(|rest| !rest.is_empty()) {
            let first = rest[0];
            taken += match self.state {
                State::End => break,
                State::Broken => rest.len(),
                State::Head | State::Trailers => {
                    let is_head = self.state == State::Head;
                    let (count, is_over) = self.lines.take(rest, is_head);
                    if is_over {
                        self.state = State::End;
                    }
                    count
                }
                State::Bytes(left, next) => {
                    let count =
                        usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
                    self.state = match (left - count as u64, next) {
                        (0, AfterBytes::End) => State::End,
                        (0, AfterBytes::Size) => State::Size(0),
                        (left, next) => State::Bytes(left, next),
                    };
                    count
                }
                State::Size(size) => {
                    let digit = char::from(first).to_digit(16).map(u64::from);
                    self.state = match (digit, first) {
                        (Some(digit), _) => size
                            .checked_mul(16)
                            .and_then(|size| size.checked_add(digit))
                            .map_or(State::Broken, State::Size),
                        (None, b'\n') => State::Broken,
                        (None, _) => State::AfterSize(size),
                    };
                    1
                }
                // Chunk extensions are passed on.
                State::AfterSize(size) => {
                    self.state = match (first, size) {
                        (b'\n', 0) => {
                            self.lines = HeaderLines::default();
                            State::Trailers
                        }
                        (b'\n', _) => match size.checked_add(2) {
                            Some(bytes) => State::Bytes(bytes, AfterBytes::Size),
                            None => State::Broken,
                        },
                        _ => State::AfterSize(size),
                    };
                    1
                }
            };
        }
        taken
    }
}

impl HeaderLines {
    /// Returns how many bytes belong to these lines, and whether the empty line that ends them was
    /// found. Empty lines before the first line of a head do not end it (RFC 9112, 2.2).
    fn take(&mut self, bytes: &mut [u8], is_head: bool) -> (usize, bool) {
        let mut start = 0;
        while let Some(at) = memchr::memchr(b'\n', &bytes[start..]).map(|at| start + at) {
            let ends_with_return = match at.checked_sub(1).filter(|before| *before >= start) {
                Some(before) => bytes[before] == b'\r',
                None => self.ends_with_return,
            };
            let length = self.length + (at - start);
            start = at + 1;
            self.ends_with_return = false;
            if !ends_with_return {
                bytes[at] = 0;
                self.length = length + 1;
                continue;
            }
            self.length = 0;
            // The line consists of the carriage return only.
            if length == 1 && (self.has_begun || !is_head) {
                return (start, true);
            }
            self.has_begun |= length > 1;
        }
        self.length += bytes.len() - start;
        if let Some(last) = bytes[start..].last() {
            self.ends_with_return = *last == b'\r';
        }
        (bytes.len(), false)
    }
}

#[cfg(test)]
mod tests {
    use crate::http::connection::framing::*;
    use proptest::prelude::*;

    /// Passes bytes on in pieces, as a connection would, and returns the requests as hyper gets
    /// them.
    fn passed(text: &[u8], bodies: &[Option<u64>], piece: usize) -> Vec<Vec<u8>> {
        let (mut framing, mut requests) = (Framing::default(), vec![Vec::new()]);
        let (mut bodies, mut is_head) = (bodies.iter(), true);
        let mut rest = text.to_vec();
        while !rest.is_empty() {
            let mut some: Vec<u8> = rest[..piece.min(rest.len())].to_vec();
            let count = framing.take(&mut some);
            requests.last_mut().expect("one").extend_from_slice(&some[..count]);
            rest.drain(..count);
            if framing.is_at_end() {
                if let Some(body) = is_head.then(|| bodies.next()).flatten() {
                    framing.begin_body(*body);
                }
                is_head = framing.is_at_end();
                if is_head {
                    framing.begin_head();
                    requests.push(Vec::new());
                }
            }
        }
        requests
    }

    const PLAIN: &str = "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const SIZED: &str = "POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\n\n\r\n\r\n\n";
    const CHUNKED: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nA;x=y\r\n\n\r\n\r\n0\r\n\r\n\r\n0\r\nT: 1\r\n\r\n";

    proptest! {
        #[test]
        fn requests_are_told_apart_over_any_cuts(
            order in prop::collection::vec(0_usize..3, 1..6),
            piece in 1_usize..40,
        ) {
            let kinds = [(PLAIN, Some(0)), (SIZED, Some(6)), (CHUNKED, None)];
            let (texts, bodies): (Vec<_>, Vec<_>) = order.iter().map(|at| kinds[*at]).unzip();
            let mut expected: Vec<_> = texts.iter().map(|it| it.as_bytes().to_vec()).collect();
            expected.push(Vec::new());
            prop_assert_eq!(passed(texts.concat().as_bytes(), &bodies, piece), expected);
        }

        #[test]
        fn bare_line_feeds_of_heads_and_trailers_become_nul_over_any_cuts(piece in 1_usize..40) {
            for (text, expected, body) in [
                ("GET / HTTP/1.1\nHost: a\r\n\r\n", "GET / HTTP/1.1\0Host: a\r\n\r\n", Some(0)),
                ("GET / HTTP/1.1\r\nHost: a\n\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\0\r\n\r\n", Some(0)),
                ("\nGET / HTTP/1.1\r\n\n\r\n\r\n", "\0GET / HTTP/1.1\r\n\0\r\n\r\n", Some(0)),
                ("P / H\r\n\r\n0\r\nT: 1\n\r\n\r\n", "P / H\r\n\r\n0\r\nT: 1\0\r\n\r\n", None),
            ] {
                let found = passed(text.as_bytes(), &[body], piece);
                prop_assert_eq!(&found[0], expected.as_bytes(), "{:?}", text);
            }
        }
    }
}
