//! Documentation of a key, taken from a doc comment.

/// Documentation of a key or a table, as Markdown. Each paragraph is one line.
#[derive(Clone, Default)]
pub(crate) struct Documentation {
    /// First paragraph.
    pub(crate) description: String,
    /// Further paragraphs, for the page only.
    pub(crate) details: String,
    /// Example, as lines of TOML: the last block of the comment. Lines that are disabled in
    /// config.example.toml begin with `#` and no space.
    pub(crate) example: String,
}

impl Documentation {
    /// Takes the lines of a doc comment apart.
    pub(super) fn new(lines: &[&str]) -> Self {
        let text = paragraphs(lines);
        let (text, example) = match text.strip_suffix("\n```").map(|it| it.rsplit_once("```")) {
            Some(Some((text, block))) if block.starts_with("toml\n") => {
                (text.trim_end().to_owned(), block["toml\n".len()..].to_owned())
            }
            _ => (text, String::new()),
        };
        let (description, details) = text.split_once("\n\n").unwrap_or((&text, ""));
        Self { description: description.to_owned(), details: details.to_owned(), example }
    }
}

/// Joins the lines of each paragraph; blocks of code stay as they are.
fn paragraphs(lines: &[&str]) -> String {
    let (mut text, mut is_code) = (String::new(), false);
    for line in lines {
        let line = line.strip_prefix(' ').unwrap_or(line);
        let is_fence = line.starts_with("```");
        let separator = match () {
            () if text.is_empty() || text.ends_with("\n\n") => "",
            () if is_code || is_fence => "\n",
            () if line.is_empty() => "\n\n",
            () => " ",
        };
        text += separator;
        text += line;
        is_code ^= is_fence;
    }
    text
}

/// Enables the disabled lines of an example.
pub(crate) fn enabled(example: &str) -> String {
    let enabled = |line: &str| match line.strip_prefix('#') {
        Some(off) if off.starts_with(|c: char| c == '[' || c.is_ascii_lowercase()) => {
            off.to_owned()
        }
        _ => line.to_owned(),
    };
    example.lines().map(enabled).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::Documentation;

    #[test]
    fn a_comment_is_a_description_with_details_and_an_example() {
        let lines =
            [" One", " two.", "", " More", " of it:", "", " ```sh", " a", " ```", "", " ```toml"];
        let lines = [&lines[..], &["", " b = 1", " ```"]].concat();
        let Documentation { description, details, example } = Documentation::new(&lines);
        assert_eq!((description.as_str(), example.as_str()), ("One two.", "\nb = 1"));
        assert_eq!(details, "More of it:\n\n```sh\na\n```");
        let Documentation { description, details, example } = Documentation::new(&[" `a` b."]);
        assert_eq!([description, details, example], ["`a` b.", "", ""]);
    }
}
