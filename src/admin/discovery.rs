//! File with the admin address of the running process, in the state folder, one per configuration
//! file.
//!
//! The configuration has the address, too, but may have been edited since the start, and a change
//! of it needs a restart. An operator who wants a reload has just edited it.
//!
//! Invariants: a file exists completely or not at all, and only its owner can access it. A process
//! removes only its own file. A file that another user may have written is ignored, because the
//! token is sent to its address.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use weir_base::files::regular_file;
use weir_base::secrets::sha256::sha256;
use weir_base::text::hex::hex;

/// Address of the admin listener of a running process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminEndpointFile {
    /// Address of the listener.
    pub address: SocketAddr,
    /// Process id.
    pub process: u32,
}

/// Guard that removes the file when it is dropped.
#[derive(Debug)]
pub struct AdminEndpointFileGuard(PathBuf);

/// Writes the address on which this process listens for operators of a configuration.
pub fn publish(
    state: &Path,
    configuration: &str,
    address: SocketAddr,
) -> io::Result<AdminEndpointFileGuard> {
    DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    let about = AdminEndpointFile { address, process: std::process::id() };
    let mut file = NamedTempFile::new_in(state)?;
    serde_json::to_writer(&mut file, &about)?;
    let path = path(state, configuration);
    file.persist(&path).map_err(|error| error.error)?;
    Ok(AdminEndpointFileGuard(path))
}

/// Returns the last published address for a configuration.
pub fn find(state: &Path, configuration: &str) -> Option<AdminEndpointFile> {
    read(&path(state, configuration))
}

fn read(path: &Path) -> Option<AdminEndpointFile> {
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

impl Drop for AdminEndpointFileGuard {
    fn drop(&mut self) {
        // A process that took over has written its own file.
        if read(&self.0).is_some_and(|file| file.process == std::process::id()) {
            // A file that cannot be removed names a closed port.
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// Largest file; Weir writes no longer one.
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
        let published = publish(&state, "/a", address(1)).expect("published");
        let process = std::process::id();
        let at = |port| Some(AdminEndpointFile { address: address(port), process });
        assert_eq!((find(&state, "/a"), find(&state, "/b")), (at(1), None));
        let again = publish(&state, "/a", address(2)).expect("published");
        assert_eq!(find(&state, "/a"), at(2));
        drop((published, again));
        assert_eq!(find(&state, "/a"), None);

        let published = publish(&state, "/a", address(3)).expect("published");
        let path = path(&state, "/a");
        let other = r#"{"address":"127.0.0.1:4","process":1}"#;
        fs::write(&path, other).expect("written");
        drop(published);
        assert_eq!(find(&state, "/a").expect("it is another's").process, 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
        assert_eq!(find(&state, "/a"), None, "others may have written it");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
        fs::write(&path, "{").expect("written");
        assert_eq!(find(&state, "/a"), None);
    }
}
