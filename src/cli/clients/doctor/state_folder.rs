//! Folders that Weir writes to: the state folder and the folder of its sockets.

use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::process::geteuid;

use super::finding::{DoctorFinding, DoctorReport};
use crate::admin::socket;
use crate::cli::admin::absolute_path;
use weir_base::text::shell_word::ShellWord;
use weir_config::Config;

/// Checks the state folder of a configuration; returns whether lists can be kept there.
pub(super) fn check(config: &Config, path: &Path, report: &mut DoctorReport) -> bool {
    let Some(folder) = &config.state.dir else {
        let what = "there is no state folder, so no list is kept for the next start: neither \
                    XDG_STATE_HOME nor HOME is set";
        report.add(DoctorFinding::warning(what, "set dir under [state]").at(path, None));
        return false;
    };
    let fault = fault(folder);
    let is_usable = fault.is_none();
    report.findings.extend(fault.map(|fault| fault.at(folder, None)));
    if is_usable && let Err(error) = socket::check(folder, &absolute_path(path)) {
        let run = folder.join("run");
        let run = run.display().to_string();
        let fix = match error.kind() {
            std::io::ErrorKind::InvalidFilename => "set a shorter dir under [state]".to_owned(),
            _ => format!("chmod go-w {}", ShellWord(&run)),
        };
        let what = format!("`weir status` and `weir restart` find no `weir stdio`: {error}");
        report.add(DoctorFinding::warning(what, fix).at(Path::new(&run), None));
    }
    is_usable && config.state.catalog
}

/// Returns the reason why a folder cannot be used, or is not safe.
fn fault(folder: &Path) -> Option<DoctorFinding> {
    let name = folder.display().to_string();
    let word = ShellWord(&name);
    let user = geteuid().as_raw();
    let Ok(about) = metadata(folder) else {
        // It is made with the first file.
        let parent = folder.ancestors().skip(1).find(|parent| parent.exists())?;
        let can_be_made = access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok();
        let what = format!("it is not there, and cannot be made in {}", parent.display());
        let fix = format!("mkdir -p {word}, as a user who may, and chown {user} {word}");
        return (!can_be_made).then(|| DoctorFinding::warning(what, fix));
    };
    let (what, fix) = if !about.is_dir() {
        ("it is no folder".to_owned(), format!("mv {word} {}", ShellWord(&format!("{name}.old"))))
    } else if about.mode() & 0o002 != 0 {
        let what = "all users of this machine can change it, and with it what Weir reads there";
        (what.to_owned(), format!("chmod o-w {word}"))
    } else if access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        match about.uid() == user {
            true => ("Weir cannot write there".to_owned(), format!("chmod u+rwx {word}")),
            false => {
                let owner = about.uid();
                let what = format!("it belongs to another user ({owner}): Weir cannot write there");
                (what, format!("chown -R {user} {word}"))
            }
        }
    } else {
        return None;
    };
    Some(DoctorFinding::warning(what, fix))
}
