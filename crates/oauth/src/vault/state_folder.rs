//! Checks of the state folder, and of the folder with the sign-ins in it: who can change and read
//! them, and whether Weir can write there.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, absolute};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Problem of a folder, as texts for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateFolderProblem {
    /// Path of the folder, and its fault.
    pub what: String,
    /// Person who has to act, and the action.
    pub remedy: String,
    /// Whether sign-ins are not used from there.
    pub(crate) is_refused: bool,
}

/// Returns the problems of a state folder and of its folder with sign-ins, as far as they exist.
/// The modes count for root, too, whom the system lets do anything.
pub(super) fn problems(state: &Path, sign_ins: &Path) -> Vec<StateFolderProblem> {
    // A group may write to the state folder: volumes of Kubernetes are like that.
    let folders = [(state, 0o002, "o"), (sign_ins, 0o022, "go")];
    let found = |(folder, foreign, others)| problem(folder, foreign, others);
    folders.into_iter().filter_map(found).collect()
}

/// Returns the problem of a folder, if it exists. With a permission to write that is in `foreign`
/// it is unsafe; `others` names those users for `chmod`.
fn problem(folder: &Path, foreign: u32, others: &str) -> Option<StateFolderProblem> {
    let about = fs::metadata(folder).ok()?;
    let (mode, owner) = (about.mode(), about.uid());
    let path = absolute(folder).ok()?;
    let path = path.display();
    let change = |mode: String| format!("as its owner, user {owner}, run `chmod {mode} {path}`");
    let writable = access(folder, Access::WRITE_OK | Access::EXEC_OK);
    let (is_refused, what, remedy) = if mode & foreign != 0 {
        let what = "can be changed by other users, who could replace sign-ins";
        (true, what, change(format!("{others}-w")))
    } else if writable == Err(Errno::ROFS) {
        (true, READ_ONLY, "mount it for writing, or set another `dir` under [state]".to_owned())
    } else if writable.is_err() && owner != geteuid().as_raw() {
        let what = "cannot be written by this user, so that no sign-in could be kept";
        (true, what, format!("run Weir as its owner, user {owner}"))
    } else if writable.is_err() || mode & 0o200 == 0 {
        (true, READ_ONLY, change("u+rwx".to_owned()))
    } else if mode & (foreign << 1) != 0 {
        // The permissions to read of the same users.
        (false, "can be listed by other users", change(format!("{others}-rx")))
    } else {
        return None;
    };
    Some(StateFolderProblem { what: format!("{path} {what}"), remedy, is_refused })
}

/// Returns whether what this user writes into a folder of `owner` could not be read by that owner.
/// Other users than root write there only if the folder was given to them.
pub(super) fn is_of_another(owner: u32, user: u32) -> bool {
    user == 0 && owner != 0
}

const READ_ONLY: &str = "is read-only, so that a renewed sign-in could not be kept";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::Vault;

    #[test]
    fn a_folder_that_others_can_change_or_that_is_read_only_is_refused() {
        let state = tempfile::tempdir().expect("a folder");
        Vault::open(state.path()).expect("a vault");
        let sign_ins = &*state.path().join("sign-in");
        let set = |folder: &Path, mode| {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).expect("changed");
        };
        let user = geteuid().as_raw();
        for (folder, mode, what, chmod) in [
            (state.path(), 0o702, "can be changed by other users, who could replace", "o-w"),
            (state.path(), 0o1777, "can be changed by other users, who could replace", "o-w"),
            (state.path(), 0o500, READ_ONLY, "u+rwx"),
            (sign_ins, 0o720, "can be changed by other users, who could replace", "go-w"),
            (sign_ins, 0o777, "can be changed by other users, who could replace", "go-w"),
            (sign_ins, 0o555, READ_ONLY, "u+rwx"),
        ] {
            set(folder, mode);
            let problems = Vault::folder_problems(state.path());
            let refused = Vault::open(state.path()).err().expect("refused").to_string();
            set(folder, 0o700);
            let path = folder.display();
            let [problem] = &problems[..] else { panic!("{problems:?}") };
            assert!(problem.is_refused && problem.what.starts_with(&format!("{path} {what}")));
            let remedy = format!("as its owner, user {user}, run `chmod {chmod} {path}`");
            assert_eq!(problem.remedy, remedy);
            assert_eq!(refused, format!("{}; {remedy}", problem.what));
        }
        Vault::open(state.path()).expect("a vault again");
    }

    #[test]
    fn a_folder_that_others_can_list_is_reported_and_used() {
        let state = tempfile::tempdir().expect("a folder");
        fs::set_permissions(state.path(), fs::Permissions::from_mode(0o700)).expect("changed");
        assert_eq!(Vault::folder_problems(&state.path().join("missing")), []);
        Vault::open(state.path()).expect("a vault");
        assert_eq!(Vault::folder_problems(state.path()), []);
        let sign_ins = &*state.path().join("sign-in");
        for (folder, mode, count) in [
            (state.path(), 0o755, 1),
            (state.path(), 0o2770, 0),
            (sign_ins, 0o755, 1),
            (sign_ins, 0o750, 1),
        ] {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).expect("changed");
            let problems = Vault::folder_problems(state.path());
            Vault::open(state.path()).expect("a vault");
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).expect("changed");
            assert_eq!(problems.len(), count, "{mode:o}: {problems:?}");
            assert!(problems.iter().all(|problem| !problem.is_refused), "{problems:?}");
        }
    }

    #[test]
    fn root_writes_nothing_into_the_folder_of_another_user() {
        assert!(is_of_another(1000, 0));
        assert!(!is_of_another(0, 0) && !is_of_another(1000, 1000));
        // A volume belongs to root, and a group may write to it.
        assert!(!is_of_another(0, 1000));
    }
}
