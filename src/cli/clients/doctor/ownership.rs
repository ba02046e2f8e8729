//! Files that other users could change, and with them the programs that a client or Weir starts.

use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::geteuid;

use super::finding::DoctorFinding;
use weir_base::text::shell_word::ShellWord;

/// Reports a file that another user could change, or replace in its folder.
pub(super) fn check(path: &Path) -> Option<DoctorFinding> {
    let about = metadata(path).ok()?;
    let (user, name) = (geteuid().as_raw(), path.display().to_string());
    if about.mode() & WRITABLE_BY_ALL != 0 {
        let what = "all users of this machine can change it, and with it the programs that start";
        let fix = format!("chmod o-w {}", ShellWord(&name));
        return Some(DoctorFinding::warning(what, fix));
    }
    // With `sudo`, files of the user are no fault.
    if user != 0 && ![user, 0].contains(&about.uid()) {
        let what = format!("it belongs to another user ({}), who can change it", about.uid());
        let fix = format!("chown {user} {}", ShellWord(&name));
        return Some(DoctorFinding::warning(what, fix));
    }
    let folder = path.parent()?;
    let mode = metadata(folder).ok()?.mode();
    // In a sticky folder like /tmp only the owner of a file can replace it.
    (mode & WRITABLE_BY_ALL != 0 && mode & STICKY == 0).then(|| {
        let what = "all users of this machine can replace it in its folder";
        let fix = format!("chmod o-w {}", ShellWord(&folder.display().to_string()));
        DoctorFinding::warning(what, fix)
    })
}

const WRITABLE_BY_ALL: u32 = 0o002;
const STICKY: u32 = 0o1000;
