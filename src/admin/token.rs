//! Generated token of the admin listener, for configurations without one, stored for its owner
//! only.
//!
//! Invariants: the token has 256 random bits; processes that start at the same moment use the same
//! one; it is never displayed.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use zeroize::Zeroizing;

use crate::regular_file;
use crate::secret::{self, Secret};

/// Returns the path of the token in the state folder.
pub fn path(state: &Path) -> PathBuf {
    state.join("admin-token")
}

/// Reads the token, or creates one.
pub fn load_or_create(state: &Path) -> io::Result<Secret> {
    match read(state) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        read => return read,
    }
    DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    // The file is only accessible to its owner from the first byte on, and appears completely or
    // not at all.
    let mut file = NamedTempFile::new_in(state)?;
    writeln!(file, "{}", secret::random_token())?;
    match file.persist_noclobber(path(state)) {
        Ok(_) => {}
        // Another process has created it in the meantime.
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.error),
    }
    read(state)
}

/// Reads the token.
pub fn read(state: &Path) -> io::Result<Secret> {
    let path = path(state);
    let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let file = regular_file::open(&path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        return Err(bad(
            "others than its owner may read it; remove the file, and Weir creates another",
        ));
    }
    let text = Zeroizing::new(regular_file::read_all(file, MAX_BYTES)?);
    let token = std::str::from_utf8(&text).unwrap_or_default().trim();
    let is_whole = token.len() >= MIN_LENGTH && token.bytes().all(|byte| byte.is_ascii_graphic());
    match is_whole {
        true => Ok(Secret::from(token)),
        false => Err(bad("it contains no token; remove the file, and Weir creates another")),
    }
}

/// Largest file; Weir writes no longer one.
const MAX_BYTES: u64 = 1_024;
/// Shortest accepted token.
const MIN_LENGTH: usize = 32;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

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
