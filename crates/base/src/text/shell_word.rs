//! Arguments of commands that users copy into a shell.

use std::fmt;

/// Argument of a command, written as a shell reads it: quoted if it has to be.
#[derive(Clone, Copy, Debug)]
pub struct ShellWord<'a>(pub &'a str);

impl fmt::Display for ShellWord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.-:=+,@%".contains(c);
        match !self.0.is_empty() && self.0.chars().all(is_plain) {
            true => f.write_str(self.0),
            false => write!(f, "'{}'", self.0.replace('\'', r"'\''")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_quoted_unless_it_is_plain() {
        for (text, word) in [
            ("/home/ada/weir.toml", "/home/ada/weir.toml"),
            ("my file", "'my file'"),
            ("it's", r"'it'\''s'"),
            ("~", "'~'"),
            ("", "''"),
            ("$(id)", "'$(id)'"),
        ] {
            assert_eq!(ShellWord(text).to_string(), word);
        }
    }
}
