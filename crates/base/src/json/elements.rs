//! Lazy iterator over the elements of a JSON array.
//!
//! An array of a few megabytes may have millions of elements, and storing an element costs more
//! than sending it. Therefore [`Elements`] stores one position in the text only. A caller that
//! collects elements bounds their number first.

use bytes::Bytes;

use super::scan::{Scan, TextFacts};
use super::{Object, ParseError, read};

/// Raw texts of an array's elements, each sharing the array's memory.
#[derive(Debug, Clone)]
pub struct Elements {
    array: Bytes,
    /// Start of the next element.
    at: usize,
    is_over: bool,
    facts: TextFacts,
}

/// Returns the elements of the array in `text`; `None` if it is not an array, or not valid JSON up
/// to its end.
pub fn elements(text: &Bytes) -> Option<Elements> {
    std::str::from_utf8(text).ok()?;
    Scan::begin(text, usize::MAX).array().ok()?;
    trusted_elements(text)
}

/// Returns the elements of the array in `text`; `None` if it is not an array. The text was
/// validated as JSON before, or is a part of one that was; for any other text the result is
/// unspecified.
pub fn trusted_elements(text: &Bytes) -> Option<Elements> {
    Elements::of(text.clone(), TextFacts::default())
}

impl Elements {
    /// Returns the elements of a trusted array, of which these facts are known.
    pub(super) fn of(array: Bytes, facts: TextFacts) -> Option<Self> {
        let mut scan = Scan::trusted(&array, 0, facts);
        let is_over = !scan.enter_array().ok()?;
        let at = scan.position();
        Some(Self { array, at, is_over, facts })
    }

    /// Parses the elements as objects in the pass that finds them, with the members `nested` as in
    /// [`Object::parse_with_nested`]. An element that is not an object is an error, and the last.
    pub fn objects(
        mut self,
        nested: &[&[&[u8]]],
    ) -> impl Iterator<Item = Result<Object, ParseError>> {
        std::iter::from_fn(move || {
            if self.is_over {
                return None;
            }
            let read = read::element(&self.array, self.at, self.facts, nested);
            self.is_over = !matches!(read, Ok((_, _, true)));
            Some(read.map(|(object, at, _)| {
                self.at = at;
                object
            }))
        })
    }
}

impl Iterator for Elements {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let mut scan = Scan::trusted(&self.array, self.at, self.facts);
        let element = scan.element();
        self.at = scan.position();
        self.is_over = !matches!(element, Ok((_, true)));
        element.ok().map(|(position, _)| self.array.slice(position))
    }
}

impl Default for Elements {
    /// Returns an iterator without elements.
    fn default() -> Self {
        Self { array: Bytes::new(), at: 0, is_over: true, facts: TextFacts::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(array: &'static str) -> Option<Vec<Bytes>> {
        elements(&Bytes::from_static(array.as_bytes())).map(Iterator::collect)
    }

    #[test]
    fn elements_come_in_their_order_and_as_they_are_written() {
        let expected: [&str; 5] = ["1e400", r#""a,]""#, "[ 1,[2] ]", r#"{"b":[3]}"#, "null"];
        let array = r#" [ 1e400 ,"a,]", [ 1,[2] ],{"b":[3]} , null ] "#;
        assert_eq!(texts(array).expect("an array"), expected);
        let trusted: Vec<_> = trusted_elements(&array.into()).expect("an array").collect();
        assert_eq!(trusted, expected);
        assert_eq!(texts(" [ ] ").expect("an array").len(), 0);
        assert_eq!(Elements::default().next(), None);
    }

    #[test]
    fn an_array_that_is_broken_anywhere_has_no_elements() {
        for text in ["[1,2", "[1,]", "[1,,2]", "[1]]", "[1] 2", "{}", "7", "", "[\"\u{1}\"]"] {
            assert_eq!(texts(text), None, "{text}");
        }
        assert!(elements(&Bytes::from_static(b"[\"\xff\"]")).is_none());
    }
}
