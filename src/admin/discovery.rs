//! Where a Weir that runs can be asked, kept in the folder of the state under its configuration's file.
//!
//! The configuration says it, too, but may say something else by now, which is taken up with a restart: whoever wants a
//! reload has just edited it.
//!
//! Promises: a file is there as a whole or not at all, for its owner only; who ends removes its own and nobody else's.
//! What somebody else may write is not believed: a token is shown at this address.
//!
//! Knows nothing of: who asks.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::hex::hex;
use crate::regular_file;
use crate::sha256::sha256;

/// Where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whereabouts {
    /// Where it listens for operators.
    pub address: SocketAddr,
    /// The process.
    pub process: u32,
}

/// That it was told. Dropped, it is not told any more.
#[derive(Debug)]
pub struct Told(PathBuf);

/// Tells where this process listens for operators of a configuration.
pub fn tell(state: &Path, configuration: &str, address: SocketAddr) -> io::Result<Told> {
    DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    let about = Whereabouts { address, process: std::process::id() };
    let mut file = NamedTempFile::new_in(state)?;
    serde_json::to_writer(&mut file, &about)?;
    let path = path(state, configuration);
    file.persist(&path).map_err(|error| error.error)?;
    Ok(Told(path))
}

/// Where the one that runs with a configuration said last that it listens.
pub fn find(state: &Path, configuration: &str) -> Option<Whereabouts> {
    read(&path(state, configuration))
}

fn read(path: &Path) -> Option<Whereabouts> {
    let file = regular_file::open(path).ok()?;
    let about = file.metadata().ok()?;
    let is_ours = about.uid() == geteuid().as_raw() || geteuid().is_root();
    if !is_ours || about.mode() & 0o077 != 0 {
        return None;
    }
    serde_json::from_slice(&regular_file::read_all(file, MAX_BYTES).ok()?).ok()
}

fn path(state: &Path, configuration: &str) -> PathBuf {
    let hash = hex(&sha256(configuration));
    state.join(format!("running-{}.json", &hash[..32]))
}

impl Drop for Told {
    fn drop(&mut self) {
        // Who took over has told its own.
        if read(&self.0).is_some_and(|told| told.process == std::process::id()) {
            // What is left behind leads nowhere.
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// What is longer was not written here.
const MAX_BYTES: u64 = 1_024;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn each_configuration_has_its_own_until_its_process_ends_or_another_takes_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("state");
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(find(&state, "/a"), None);
        let told = tell(&state, "/a", address(1)).expect("told");
        let process = std::process::id();
        let at = |port| Some(Whereabouts { address: address(port), process });
        assert_eq!((find(&state, "/a"), find(&state, "/b")), (at(1), None));
        let again = tell(&state, "/a", address(2)).expect("told");
        assert_eq!(find(&state, "/a"), at(2));
        drop((told, again));
        assert_eq!(find(&state, "/a"), None);

        let told = tell(&state, "/a", address(3)).expect("told");
        let path = path(&state, "/a");
        let other = r#"{"address":"127.0.0.1:4","process":1}"#;
        fs::write(&path, other).expect("written");
        drop(told);
        assert_eq!(find(&state, "/a").expect("it is another's").process, 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
        assert_eq!(find(&state, "/a"), None, "others may have written it");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
        fs::write(&path, "{").expect("written");
        assert_eq!(find(&state, "/a"), None);
    }
}
