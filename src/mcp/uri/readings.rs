//! What is left of a canonical URI for readers that ignore a part of it.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;

use super::{Letter, NotCanonical, Parts, host};

/// Refuses segments that some reader resolves or drops: empty ones but for the last, those of dots and spaces, and in files'
/// paths those with a colon that is not the first drive's.
pub(super) fn check_segments(parts: &Parts<'_>, letters: &[Letter]) -> Result<(), NotCanonical> {
    let tail_start = parts.path_start + parts.path.len();
    let tail = letters.partition_point(|letter| letter.at < tail_start);
    let (path, tail) = letters.split_at(tail);
    let body = path.partition_point(|letter| letter.at < parts.path_start);
    let (authority, path) = path.split_at(body);
    // What reads `db://../x` as a path after `db://` takes the host for a segment.
    if !authority.is_empty() && vanishes(authority) {
        return Err(NotCanonical::Segment);
    }
    // Decoded before it is split, the host would end elsewhere. A port's colon stands there as itself.
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
        [Letter { c: '/', .. }, rest @ ..] => rest,
        rest => rest,
    };
    let mut segments = path.split(|letter| letter.c == '/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        if !(is_last && segment.is_empty()) && vanishes(segment) {
            return Err(NotCanonical::Segment);
        }
    }
    // Some readers know no query: for them it is more of the path.
    let separates = |c: char| matches!(c, '/' | '?' | '#' | '&' | '=' | ';');
    let mut pieces = tail.split(|letter| folds_to(letter.c, separates));
    if pieces.any(|piece| !piece.is_empty() && vanishes(piece)) {
        return Err(NotCanonical::Segment);
    }
    Ok(())
}

/// Refuses every colon of a file's URI but the first drive's: Windows drops what stands before a drive, and what follows
/// another colon is a stream of NTFS.
fn check_colons<'a>(
    parts: &Parts<'_>,
    mut behind_host: impl Iterator<Item = &'a Letter>,
) -> Result<(), NotCanonical> {
    let has_drive = matches!(
        parts.path.as_bytes(),
        [b'/', letter, b':'] | [b'/', letter, b':', b'/', ..] if letter.is_ascii_alphabetic()
    );
    let drive = has_drive.then_some(parts.path_start + 2);
    let is_refused =
        |it: &&Letter| folds_to(it.c, |c| matches!(c, ':' | '|')) && Some(it.at) != drive;
    match behind_host.find(is_refused) {
        Some(colon) => Err(NotCanonical::Ambiguous(colon.c)),
        None => Ok(()),
    }
}

/// Whether nothing of a segment is left but dots, spaces and parameters.
fn vanishes(segment: &[Letter]) -> bool {
    // Parameters begin at the first; decoded before it is split, a path ends at the others.
    let ends = |c: char| matches!(c, ';' | '?' | '#');
    let end = segment.iter().position(|letter| folds_to(letter.c, ends));
    let name = segment[..end.unwrap_or(segment.len())].iter().map(|letter| letter.c);
    name.nfkc().all(|c| c == '.' || c.is_whitespace() || super::loose::is_ignored(c))
}

fn folds_to(c: char, is_meant: impl Fn(char) -> bool) -> bool {
    if c.is_ascii() { is_meant(c) } else { std::iter::once(c).nfkc().any(is_meant) }
}

/// All readings, and what only rules that deny are compared with: all without the port, and with and without the path `/`.
pub(super) fn of<'a>(
    text: &'a str,
    parts: &Parts<'_>,
    letters: &[Letter],
) -> (Vec<Cow<'a, str>>, Vec<String>) {
    let first = |is_meant: fn(char) -> bool| {
        let found = letters.iter().find(|letter| folds_to(letter.c, is_meant));
        found.map_or(text.len(), |letter| letter.at)
    };
    // As they stand, and where the text is decoded before it is split.
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
            let kept = reading.trim_end_matches('/').len().max(parts.path_start + 1);
            let shorter = (kept < reading.len()).then(|| reading[..kept].to_owned());
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

/// The URI without its segments' parameters, which begin at a `;` and are no part of the name for some readers; `None`
/// where there are none.
fn without_parameters(text: &str, letters: &[Letter]) -> Option<String> {
    let shown = letters.iter().take_while(|letter| letter.at < text.len());
    let ends = |letter: &Letter| folds_to(letter.c, |c| c == ';');
    shown.clone().any(ends).then(|| {
        let first = letters.first().map_or(text.len(), |letter| letter.at);
        let mut kept = text[..first].to_owned();
        let mut is_dropped = false;
        let mut shown = shown.peekable();
        while let Some(letter) = shown.next() {
            let next = shown.peek().map_or(text.len(), |next| next.at);
            is_dropped = !matches!(letter.c, '/' | '?' | '#') && (is_dropped || ends(letter));
            if !is_dropped {
                kept.push_str(&text[letter.at..next]);
            }
        }
        kept
    })
}
