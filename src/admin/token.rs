//! Generated token of the admin listener, for configurations without one, stored for its owner
//! only.
//!
//! Invariants: the token has 256 random bits; processes that start at the same moment use the same
//! one; it is never displayed.

use std::io;
use std::path::{Path, PathBuf};

use weir_base::files::private_file;
use weir_base::secrets::secret::{self, Secret};

/// Returns the path of the token in the state folder.
pub fn path(state: &Path) -> PathBuf {
    state.join("admin-token")
}

/// Reads the token, or creates one.
pub fn load_or_create(state: &Path) -> io::Result<Secret> {
    let text = private_file::load_or_create(&path(state), MAX_BYTES, secret::random_token)?;
    parse(&text)
}

/// Reads the token.
pub fn read(state: &Path) -> io::Result<Secret> {
    parse(&private_file::read(&path(state), MAX_BYTES)?)
}

fn parse(text: &str) -> io::Result<Secret> {
    let token = text.trim();
    let is_whole = token.len() >= MIN_LENGTH && token.bytes().all(|byte| byte.is_ascii_graphic());
    is_whole.then(|| Secret::from(token)).ok_or_else(|| {
        let text = "it contains no token; remove the file, and Weir creates another";
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// Largest file; Weir writes no longer one.
const MAX_BYTES: u64 = 1_024;
/// Shortest accepted token.
const MIN_LENGTH: usize = 32;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_token_is_made_once_for_its_owner_only_and_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("a/state");
        assert_eq!(read(&state).expect_err("none").kind(), io::ErrorKind::NotFound);
        let made = load_or_create(&state).expect("made");
        assert!(made.expose().len() >= MIN_LENGTH);
        assert!(
            load_or_create(&state).expect("kept") == made && read(&state).expect("read") == made
        );
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!((mode(&state), mode(&path(&state))), (0o700, 0o600));
        fs::set_permissions(path(&state), fs::Permissions::from_mode(0o644)).expect("set");
        assert_eq!(read(&state).expect_err("open").kind(), io::ErrorKind::InvalidData);
        fs::write(path(&state), "").expect("written");
        fs::set_permissions(path(&state), fs::Permissions::from_mode(0o600)).expect("set");
        assert_eq!(load_or_create(&state).expect_err("empty").kind(), io::ErrorKind::InvalidData);
    }
}
