//! Browser of the user, which is opened at a page that leads to the authorization server.
//!
//! Invariants: the page is a file that only Weir's user can read, because all users of a machine
//! can read the arguments of its processes, and the URL of a sign-in is for one user. The browser
//! gets no other variables of Weir than those that it needs, and outlives Weir.
//!
//! Decision: docs/decisions/0039-sign-in-to-upstreams.md

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf, absolute};
use std::process::Stdio;

use rustix::process::geteuid;
use tempfile::NamedTempFile;
use tokio::process::Command;
use tokio_util::task::TaskTracker;

use weir_upstream::process::search_path::find_program;

/// Opens a URL in a browser, if there is one. The page that leads there is removed when the
/// returned file is dropped; it is in the user's home, or else in `folder`.
pub(super) fn open(url: &str, folder: &Path) -> Option<NamedTempFile> {
    let page = write_page(url, folder).ok()?;
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let path = env::var("PATH").ok();
    let Ok(program) = find_program(program, path.as_deref(), Path::new("")) else {
        return Some(page);
    };
    let mut browser = Command::new(program);
    browser.arg(page.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let passed = |(name, _): &(OsString, _)| name.to_str().is_some_and(is_passed);
    browser.env_clear().envs(env::vars_os().filter(passed));
    // The terminal sends Ctrl-C to the group of Weir.
    browser.process_group(0);
    if let Ok(mut browser) = browser.spawn() {
        TaskTracker::new().spawn(async move { browser.wait().await });
    }
    Some(page)
}

/// Writes the page.
fn write_page(url: &str, folder: &Path) -> io::Result<NamedTempFile> {
    let write = |folder: &Path| {
        let mut builder = tempfile::Builder::new();
        let mut file =
            builder.prefix("weir-sign-in-").suffix(".html").tempfile_in(absolute(folder)?)?;
        file.write_all(page(url).as_bytes())?;
        Ok(file)
    };
    // Browsers in a sandbox read no hidden folders, and have a /tmp and a /run of their own.
    let home = env::var_os("HOME").map(PathBuf::from).filter(|home| is_own(home));
    home.map_or_else(|| write(folder), |home| write(&home).or_else(|_| write(folder)))
}

/// Returns whether only this user can replace a file in a folder.
fn is_own(folder: &Path) -> bool {
    let about = fs::metadata(folder);
    let is_own =
        |about: fs::Metadata| about.uid() == geteuid().as_raw() && about.mode() & 0o022 == 0;
    folder.is_absolute() && about.is_ok_and(is_own)
}

/// Makes a page that leads to a URL at once, and loads nothing.
fn page(url: &str) -> String {
    let mut escaped = String::with_capacity(url.len());
    for c in url.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>Weir</title>\n\
         <meta http-equiv=\"content-security-policy\" content=\"default-src 'none'\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta http-equiv=\"refresh\" content=\"0; url={escaped}\">\n\
         <p><a href=\"{escaped}\">Sign in</a></p>\n"
    )
}

/// Returns whether the browser gets a variable of Weir's environment.
fn is_passed(name: &str) -> bool {
    PASSED.contains(&name) || name.starts_with("LC_") || name.starts_with("XDG_")
}

/// Variables that programs need to find the user, the desktop and the browser.
const PASSED: [&str; 26] = [
    "BROWSER",
    "DBUS_SESSION_BUS_ADDRESS",
    "DESKTOP_SESSION",
    "DISPLAY",
    "GNOME_DESKTOP_SESSION_ID",
    "HOME",
    "KDE_FULL_SESSION",
    "KDE_SESSION_UID",
    "KDE_SESSION_VERSION",
    "LANG",
    "LANGUAGE",
    "LOGNAME",
    "MATE_DESKTOP_SESSION_ID",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "WAYLAND_DISPLAY",
    // Windows Subsystem for Linux.
    "WSLENV",
    "WSL_DISTRO_NAME",
    "WSL_INTEROP",
    "XAUTHORITY",
    // macOS.
    "__CFBundleIdentifier",
    "__CF_USER_TEXT_ENCODING",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_leads_to_its_url_whatever_the_url_contains() {
        let folder = tempfile::tempdir().expect("a folder");
        let page = write_page("https://id.test/?a=b&c=\"'<x>", folder.path()).expect("written");
        let text = fs::read_to_string(page.path()).expect("text");
        let url = "https://id.test/?a=b&amp;c=&quot;&#39;&lt;x&gt;";
        assert!(text.contains(&format!("content=\"0; url={url}\"")), "{text}");
        assert!(text.contains(&format!("<a href=\"{url}\">")), "{text}");
        let mode = fs::metadata(page.path()).expect("there").mode();
        assert_eq!(mode & 0o777, 0o600);
        let path = page.path().to_owned();
        drop(page);
        assert!(!path.exists());
    }

    #[test]
    fn a_browser_gets_the_variables_of_the_desktop_and_no_others() {
        for name in ["HOME", "PATH", "DISPLAY", "XDG_RUNTIME_DIR", "LC_ALL", "BROWSER"] {
            assert!(is_passed(name), "{name}");
        }
        for name in ["WEIR_KEY", "PROXY_PASSWORD", "HTTPS_PROXY", "OPENAI_API_KEY", "XDG", ""] {
            assert!(!is_passed(name), "{name}");
        }
    }
}
