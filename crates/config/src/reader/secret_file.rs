//! Content of a secret's file, and the rules for such files: a regular file that nobody else can
//! read, of a bounded size, with text.
//!
//! Invariants: no error contains the content; a named pipe or a device is never waited for.

use std::borrow::Cow;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::geteuid;
use zeroize::Zeroizing;

use crate::reader::report::ValueError;
use weir_base::files::regular_file;
use weir_base::secrets::secret::Secret;

/// Reads a secret's file. Errors name it as it is `written`.
pub(crate) fn read(path: &Path, written: &str) -> Result<Secret, ValueError> {
    let unreadable = |error: std::io::Error| {
        let what = format!("{written} cannot be read: {error}");
        ValueError::new(
            what,
            "check the path, which starts from the folder of this file, and its permissions",
        )
    };
    let file = regular_file::open(path).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => ValueError::new(
            format!("{written} is not a file"),
            "name the file that holds the secret",
        ),
        ErrorKind::NotFound => unreadable(error).missing("make it, or correct the path"),
        _ => unreadable(error),
    })?;
    let about = file.metadata().map_err(unreadable)?;
    let is_ours = about.uid() == geteuid().as_raw();
    if let Some((whom, mode)) = excess_access(about.mode(), is_ours) {
        let what = format!("{written} is open to {whom}");
        return Err(ValueError::new(what, format!("chmod {mode} {written}")));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_BYTES + SPARE_BYTES));
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    to_secret(&bytes).map_err(|refusal| refusal.about(written))
}

/// Returns who can access a secret's file but should not, and the mode that the file should have. A
/// file of Weir's user needs no access for its group. A file of another user is accessible through
/// its group only (systemd's credentials, secrets in a pod), which may read it: mode 600 would lock
/// Weir out.
fn excess_access(mode: u32, is_ours: bool) -> Option<(&'static str, &'static str)> {
    let (not_for_others, whom, right) = match is_ours {
        true => (0o077, "its group or to others", "600"),
        false => (0o037, "others, or to be changed by its group", "440"),
    };
    (mode & not_for_others != 0).then_some((whom, right))
}

/// Makes a secret of a file's contents, or of a command's output, without one newline at the end.
pub(crate) fn to_secret(bytes: &[u8]) -> Result<Secret, SecretError> {
    let not_text = |what| SecretError::new(what, "check that it gives the secret alone, as text");
    if bytes.len() > MAX_BYTES {
        return Err(TOO_LARGE);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| not_text("does not give UTF-8"))?;
    if text.contains('\0') {
        return Err(not_text("gives a NUL"));
    }
    let text = match text.strip_suffix('\n') {
        Some(text) => text.strip_suffix('\r').unwrap_or(text),
        None => text,
    };
    Ok(Secret::from(text))
}

// === SecretError ===

/// Reason why a program or a file yields no secret, as a text that follows its name.
pub(crate) struct SecretError {
    pub(crate) what: Cow<'static, str>,
    pub(crate) remedy: &'static str,
    /// Whether there is no secret, and not a wrong one.
    pub(crate) is_missing: bool,
}

impl SecretError {
    pub(crate) fn new(what: impl Into<Cow<'static, str>>, remedy: &'static str) -> Self {
        Self { what: what.into(), remedy, is_missing: false }
    }

    /// Makes an error about a secret that could not be had.
    pub(crate) fn missing(what: impl Into<Cow<'static, str>>, remedy: &'static str) -> Self {
        Self { is_missing: true, ..Self::new(what, remedy) }
    }

    /// Makes an error about a program or a file, by its name in the configuration.
    pub(crate) fn about(&self, name: &str) -> ValueError {
        let error = ValueError::new(format!("{name} {}", self.what), self.remedy);
        if self.is_missing { error.missing(self.remedy) } else { error }
    }
}

/// Error for a file or an output that is too large.
pub(crate) const TOO_LARGE: SecretError = SecretError {
    what: Cow::Borrowed("gives more than 64 KiB"),
    remedy: "check that it gives the secret alone",
    is_missing: false,
};

/// Maximum size of a secret: a certificate chain fits, and a file of another kind is detected.
pub(crate) const MAX_BYTES: usize = 64 * 1024;

/// Spare capacity: reading to the end tries to read past the last byte, and a full buffer would be
/// reallocated, which leaves a copy of the secret in memory.
const SPARE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::excess_access;

    #[test]
    fn a_group_may_read_what_somebody_else_owns_and_nothing_of_ours() {
        for (mode, ours, others) in [
            (0o100_400, None, None),
            (0o100_600, None, None),
            (0o100_440, Some("600"), None),
            (0o100_640, Some("600"), None),
            (0o100_460, Some("600"), Some("440")),
            (0o100_444, Some("600"), Some("440")),
            (0o100_604, Some("600"), Some("440")),
            (0o100_601, Some("600"), Some("440")),
        ] {
            let right = |is_ours| excess_access(mode, is_ours).map(|(_, right)| right);
            assert_eq!((right(true), right(false)), (ours, others), "{mode:o}");
        }
    }
}
