//! Reference parser for JSON by RFC 8259, slow and simple, which shares no code with Weir's parser.

/// Members of an object in order: the decoded key, and the raw text of the value.
pub(super) type Members = Vec<(String, String)>;

/// Parses an object and returns its members and depth; `None` if the text is not a JSON object.
pub(super) fn object(text: &str) -> Option<(Members, usize)> {
    let mut reader = Reader { bytes: text.as_bytes(), at: 0, deepest: 0 };
    reader.space();
    let mut members = Vec::new();
    reader.object(1, &mut |key, value| members.push((key, value)))?;
    reader.space();
    (reader.at == text.len()).then_some((members, reader.deepest))
}

/// Decodes a JSON string.
pub(super) fn string(raw: &str) -> Option<String> {
    let mut reader = Reader { bytes: raw.as_bytes(), at: 0, deepest: 0 };
    let text = reader.string()?;
    (reader.at == raw.len()).then_some(text).flatten()
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    deepest: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn object(&mut self, depth: usize, found: &mut dyn FnMut(String, String)) -> Option<()> {
        self.deepest = self.deepest.max(depth);
        self.take(b'{')?;
        self.space();
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            self.space();
            let key = self.string()?;
            self.space();
            self.take(b':')?;
            self.space();
            let begin = self.at;
            self.value(depth)?;
            let value = String::from_utf8(self.bytes[begin..self.at].to_vec()).ok()?;
            // A key with an unpaired surrogate is not valid text.
            found(key?, value);
            self.space();
            if self.take(b'}').is_some() {
                return Some(());
            }
            self.take(b',')?;
        }
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        // Limits the recursion of this parser, above the depth that Weir accepts.
        if depth > 200 {
            self.deepest = usize::MAX;
            return None;
        }
        match self.peek()? {
            b'{' => self.object(depth + 1, &mut |_, _| {}),
            b'[' => self.array(depth + 1),
            b'"' => self.string().map(|_| ()),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number(),
        }
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        self.deepest = self.deepest.max(depth);
        self.take(b'[')?;
        self.space();
        if self.take(b']').is_some() {
            return Some(());
        }
        loop {
            self.space();
            self.value(depth)?;
            self.space();
            if self.take(b']').is_some() {
                return Some(());
            }
            self.take(b',')?;
        }
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.bytes[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn digits(&mut self) -> Option<()> {
        let begin = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > begin).then_some(())
    }

    fn number(&mut self) -> Option<()> {
        let _ = self.take(b'-');
        if self.take(b'0').is_none() {
            self.digits()?;
        }
        if self.take(b'.').is_some() {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    /// Parses a string; `Some(None)` if it is valid JSON with an unpaired surrogate.
    fn string(&mut self) -> Option<Option<String>> {
        self.take(b'"')?;
        let (mut units, mut plain) = (Vec::new(), Vec::new());
        let mut text = Some(String::new());
        loop {
            let byte = self.peek()?;
            self.at += 1;
            if byte != b'\\' || self.peek() != Some(b'u') {
                Self::end_units(&mut units, &mut text);
            }
            match byte {
                b'"' => {
                    Self::end_plain(&mut plain, &mut text)?;
                    return Some(text);
                }
                0..0x20 => return None,
                b'\\' => {
                    let escape = self.peek()?;
                    self.at += 1;
                    let short = match escape {
                        b'"' | b'\\' | b'/' => escape,
                        b'b' => 8,
                        b'f' => 12,
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'u' => {
                            Self::end_plain(&mut plain, &mut text)?;
                            let hex = self.bytes.get(self.at..self.at + 4)?;
                            let is_hex = hex.iter().all(u8::is_ascii_hexdigit);
                            let hex = std::str::from_utf8(hex).ok().filter(|_| is_hex)?;
                            units.push(u16::from_str_radix(hex, 16).ok()?);
                            self.at += 4;
                            continue;
                        }
                        _ => return None,
                    };
                    plain.push(short);
                }
                byte => plain.push(byte),
            }
        }
    }

    fn end_plain(plain: &mut Vec<u8>, text: &mut Option<String>) -> Option<()> {
        let part = String::from_utf8(std::mem::take(plain)).ok()?;
        if let Some(text) = text {
            text.push_str(&part);
        }
        Some(())
    }

    fn end_units(units: &mut Vec<u16>, text: &mut Option<String>) {
        let part = String::from_utf16(&std::mem::take(units));
        match (part, &mut *text) {
            (Ok(part), Some(text)) => text.push_str(&part),
            _ => *text = None,
        }
    }
}
