//! The elements of a JSON array, found one after the other.
//!
//! An array of a few megabytes may have millions of elements, and each of them costs more to keep than to send. So they
//! are not collected here: [`Elements`] is an iterator that remembers one place in the text. A caller that collects them
//! first says how many it takes.

use bytes::Bytes;

use super::scan::Scan;

/// The raw texts of an array's elements, each sharing the array's memory.
#[derive(Debug, Clone)]
pub struct Elements {
    array: Bytes,
    /// Where the next element begins.
    at: usize,
    is_over: bool,
}

/// The elements of the array that `text` is; `None` if it is no array, or not valid JSON up to its end.
pub fn elements(text: &Bytes) -> Option<Elements> {
    std::str::from_utf8(text).ok()?;
    Scan::begin(text, usize::MAX).array().ok()?;
    elements_again(text)
}

/// The elements of the array that `text` is; `None` if it is no array. The text was read before as JSON, or is a part of
/// one that was: it is not checked again. Of any other text nothing is promised.
pub fn elements_again(text: &Bytes) -> Option<Elements> {
    let mut scan = Scan::again(text);
    let has_any = scan.enter_array().ok()?;
    Some(Elements { array: text.clone(), at: scan.place(), is_over: !has_any })
}

impl Iterator for Elements {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let mut scan = Scan::again_from(&self.array, self.at);
        let element = scan.element();
        self.at = scan.place();
        self.is_over = !matches!(element, Ok((_, true)));
        element.ok().map(|(place, _)| self.array.slice(place))
    }
}

impl Default for Elements {
    /// No elements.
    fn default() -> Self {
        Self { array: Bytes::new(), at: 0, is_over: true }
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
        let again: Vec<_> = elements_again(&array.into()).expect("an array").collect();
        assert_eq!(again, expected);
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
