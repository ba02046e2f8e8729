//! Readings of a canonical URI: the texts that remain for readers that ignore a part of it.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;

use super::{DecodedChar, NotCanonical, UriParts, host};

/// Rejects segments that some reader resolves or drops: empty ones except the last, those of dots
/// and spaces, and in paths of files those with a colon that does not belong to the first drive.
pub(super) fn check_segments(
    parts: &UriParts<'_>,
    letters: &[DecodedChar],
) -> Result<(), NotCanonical> {
    let tail_start = parts.path_start + parts.path.len();
    let tail = letters.partition_point(|letter| letter.at < tail_start);
    let (path, tail) = letters.split_at(tail);
    let body = path.partition_point(|letter| letter.at < parts.path_start);
    let (authority, path) = path.split_at(body);
    // A reader that takes `db://../x` for a path after `db://` takes the host for a segment.
    if !authority.is_empty() && vanishes(authority) {
        return Err(NotCanonical::Segment);
    }
    // If a reader decodes the URI before it splits it, the host ends elsewhere. The colon of a
    // port is not escaped.
    let port = host::split(parts.authority.unwrap_or_default()).1;
    let host_end = parts.path_start - port.len();
    let is_address = parts.authority.is_some_and(|authority| authority.starts_with('['));
    let ends_a_host = |c: char| matches!(c, ':' | '@' | '?' | '#' | '[' | ']');
    let mut host = authority.iter().filter(|letter| letter.at < host_end && !is_address);
    if host.any(|letter| folds_to(letter.c, ends_a_host)) {
        return Err(NotCanonical::Authority);
    }
    if parts.scheme == "file" {
        check_colons(parts, path.iter().chain(tail))?;
    }
    let path = match path {
        [DecodedChar { c: '/', .. }, rest @ ..] => rest,
        rest => rest,
    };
    let mut segments = path.split(|letter| letter.c == '/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        if !(is_last && segment.is_empty()) && vanishes(segment) {
            return Err(NotCanonical::Segment);
        }
    }
    // Some readers have no notion of a query: for them it is part of the path.
    let separates = |c: char| matches!(c, '/' | '?' | '#' | '&' | '=' | ';');
    let mut pieces = tail.split(|letter| folds_to(letter.c, separates));
    if pieces.any(|piece| !piece.is_empty() && vanishes(piece)) {
        return Err(NotCanonical::Segment);
    }
    Ok(())
}

/// Rejects every colon in the URI of a file except that of the first drive: Windows drops the text
/// before a drive, and the text after another colon is a stream of NTFS.
fn check_colons<'a>(
    parts: &UriParts<'_>,
    mut behind_host: impl Iterator<Item = &'a DecodedChar>,
) -> Result<(), NotCanonical> {
    let has_drive = matches!(
        parts.path.as_bytes(),
        [b'/', letter, b':'] | [b'/', letter, b':', b'/', ..] if letter.is_ascii_alphabetic()
    );
    let drive = has_drive.then_some(parts.path_start + 2);
    let is_refused =
        |it: &&DecodedChar| folds_to(it.c, |c| matches!(c, ':' | '|')) && Some(it.at) != drive;
    match behind_host.find(is_refused) {
        Some(colon) => Err(NotCanonical::Ambiguous(colon.c)),
        None => Ok(()),
    }
}

/// Whether a segment consists of dots, spaces and parameters only.
fn vanishes(segment: &[DecodedChar]) -> bool {
    // Parameters begin at `;`. If a reader decodes the path before it splits it, the path ends at
    // the other two.
    let ends = |c: char| matches!(c, ';' | '?' | '#');
    let end = segment.iter().position(|letter| folds_to(letter.c, ends));
    let name = segment[..end.unwrap_or(segment.len())].iter().map(|letter| letter.c);
    name.nfkc().all(|c| c == '.' || c.is_whitespace() || super::loose::is_ignored(c))
}

fn folds_to(c: char, is_meant: impl Fn(char) -> bool) -> bool {
    if c.is_ascii() { is_meant(c) } else { std::iter::once(c).nfkc().any(is_meant) }
}

/// All readings, and the further spellings that only deny rules are compared with: the readings
/// without the port, and with and without the path `/`.
pub(super) fn of<'a>(
    text: &'a str,
    parts: &UriParts<'_>,
    letters: &[DecodedChar],
) -> (Vec<Cow<'a, str>>, Vec<String>) {
    let first = |is_meant: fn(char) -> bool| {
        let found = letters.iter().find(|letter| folds_to(letter.c, is_meant));
        found.map_or(text.len(), |letter| letter.at)
    };
    // The ends as written, and the ends for a reader that decodes the text before it splits it.
    let fragment = text.len() - parts.fragment.len();
    let query = fragment - parts.query.len();
    let ends =
        [text.len(), fragment, first(|c| c == '#'), query, first(|c| matches!(c, '?' | '#'))];
    let mut readings = Vec::with_capacity(2);
    let mut add = |reading: Cow<'a, str>| {
        if !readings.contains(&reading) {
            readings.push(reading);
        }
    };
    for end in ends {
        let bare = without_parameters(&text[..end], letters);
        for reading in [Cow::Borrowed(&text[..end])].into_iter().chain(bare.map(Cow::Owned)) {
            // `s://host/` is not `s://host`.
            let remaining = reading.trim_end_matches('/').len().max(parts.path_start + 1);
            let shorter = (remaining < reading.len()).then(|| reading[..remaining].to_owned());
            add(reading);
            shorter.into_iter().for_each(|shorter| add(shorter.into()));
        }
    }
    let (host, port) = host::split(parts.authority.unwrap_or_default());
    let port_start = parts.scheme.len() + 3 + host.len();
    let drop_port = |reading: &Cow<'_, str>| {
        let rest = reading.get(port_start + port.len()..)?;
        Some([&reading[..port_start], rest].concat())
    };
    // `s://host` is `s://host/` for readers that know no empty path.
    let other_root = |reading: &Cow<'_, str>| {
        let host = parts.scheme.len() + 3;
        let rest = reading.get(host..).filter(|_| parts.authority.is_some())?;
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let head = &reading[..host + authority.len()];
        let other = match path.strip_prefix('/') {
            None => [head, "/", path].concat(),
            Some(tail) if tail.is_empty() || tail.starts_with(['?', '#']) => [head, tail].concat(),
            Some(_) => return None,
        };
        Some(Cow::from(other))
    };
    let rooted: Vec<Cow<'_, str>> = readings.iter().filter_map(other_root).collect();
    let with_port = readings.iter().chain(&rooted).filter(|_| !port.is_empty());
    let mut others: Vec<_> = with_port.filter_map(drop_port).collect();
    others.extend(rooted.into_iter().map(Cow::into_owned));
    (readings, others)
}

/// The URI without the parameters of its segments, which begin at a `;` and for some readers are
/// not part of the name; `None` if there are none.
fn without_parameters(text: &str, letters: &[DecodedChar]) -> Option<String> {
    let included = letters.iter().take_while(|letter| letter.at < text.len());
    let ends = |letter: &DecodedChar| folds_to(letter.c, |c| c == ';');
    included.clone().any(ends).then(|| {
        let first = letters.first().map_or(text.len(), |letter| letter.at);
        let mut remaining = text[..first].to_owned();
        let mut is_dropped = false;
        let mut included = included.peekable();
        while let Some(letter) = included.next() {
            let next = included.peek().map_or(text.len(), |next| next.at);
            is_dropped = !matches!(letter.c, '/' | '?' | '#') && (is_dropped || ends(letter));
            if !is_dropped {
                remaining.push_str(&text[letter.at..next]);
            }
        }
        remaining
    })
}
