//! Ends of lines of an edited text, where the former text has `\r\n`.

/// Gives each line of `new`, which ends its lines with `\n`, the end that it has in `old`; a new
/// line gets the end of the first line of `old`.
pub(super) fn restore(old: &str, new: &str) -> String {
    if !old.contains("\r\n") {
        return new.to_owned();
    }
    let old: Vec<&str> = old.split_inclusive('\n').collect();
    let new: Vec<&str> = new.split_inclusive('\n').collect();
    let usual = if old.first().is_some_and(|line| line.ends_with("\r\n")) { "\r\n" } else { "\n" };
    let is_same = |(old, new): &(&&str, &&str)| content(old) == content(new);
    let head = old.iter().zip(&new).take_while(is_same).count();
    let (old_rest, new_rest) = (&old[head..], &new[head..]);
    let tail = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(is_same).count();
    let (old_middle, new_middle) =
        (&old_rest[..old_rest.len() - tail], &new_rest[..new_rest.len() - tail]);
    let mut unused = old_middle.iter();
    let middle = new_middle.iter().map(|line| {
        let mut ahead = unused.clone();
        let former = ahead.find(|old| content(old) == content(line));
        if former.is_some() {
            unused = ahead;
        }
        (former, line)
    });
    let head_lines = old[..head].iter().map(Some).zip(&new[..head]);
    let tail_lines =
        old_rest[old_rest.len() - tail..].iter().map(Some).zip(&new_rest[new_rest.len() - tail..]);
    let all = head_lines.chain(middle).chain(tail_lines);
    all.map(|(former, line)| match former {
        Some(former) if former.ends_with('\n') == line.ends_with('\n') => (*former).to_owned(),
        _ if line.ends_with('\n') => format!("{}{usual}", content(line)),
        _ => (*line).to_owned(),
    })
    .collect()
}

/// Line without its end.
fn content(line: &str) -> &str {
    let line = line.strip_suffix('\n').unwrap_or(line);
    line.strip_suffix('\r').unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::restore;

    #[test]
    fn each_line_keeps_its_own_end() {
        for (old, new, expected) in [
            ("a\nb\n", "a\nc\n", "a\nc\n"),
            ("a\r\nb\r\n", "a\nx\nb\n", "a\r\nx\r\nb\r\n"),
            ("a\r\nb\nc\r\nd\n", "a\nb\nx\nc\nd\n", "a\r\nb\nx\r\nc\r\nd\n"),
            ("a\nb\r\nc\nd\r\n", "a\nc\n", "a\nc\n"),
            ("a\r\nb\nc\r\nd\ne\n", "b\nd\ne\n", "b\nd\ne\n"),
            ("a\r\nb", "a\nb\nc\n", "a\r\nb\r\nc\r\n"),
            ("a\r\nb\r\n", "", ""),
        ] {
            assert_eq!(restore(old, new), expected, "{old:?} {new:?}");
        }
    }
}
