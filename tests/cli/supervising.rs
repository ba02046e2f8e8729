//! Notifications to systemd: a service of `Type=notify` reports when it is ready, when it reloads
//! its configuration, and when it stops.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::folder;
use crate::lab::PATIENCE;
use crate::lab::blocking::wait_for_exit;

const CONFIG: &str = "[server]\nlisten = \"127.0.0.1:0\"\nwatch = false\n[admin]\nenabled = false\n\
                      [upstreams.house]\nprompts_dir = \"prompts\"\n";

/// Service manager that listens, and its service.
struct Service {
    weir: Child,
    notifications: UnixDatagram,
}

impl Service {
    fn start(folder: &Path) -> Self {
        let socket = folder.join("notify");
        let notifications = UnixDatagram::bind(&socket).expect("a socket");
        notifications.set_read_timeout(Some(PATIENCE)).expect("it takes one");
        let mut command = crate::program();
        command.arg("serve").current_dir(folder).env("NOTIFY_SOCKET", &socket);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self { weir: command.spawn().expect("it starts"), notifications }
    }

    /// Lines of the next notification.
    fn next(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let count = self.notifications.recv(&mut bytes).expect("it says something");
        let text = std::str::from_utf8(&bytes[..count]).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.weir), signal).expect("it runs");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.weir.kill();
        let _ = self.weir.wait();
    }
}

/// Microseconds of the clock that systemd compares with; it stands still while a machine sleeps.
fn monotonic() -> u64 {
    let uptime = std::fs::read_to_string("/proc/uptime").expect("it is there");
    let seconds: f64 = uptime.split(' ').next().expect("a word").parse().expect("a number");
    (seconds * 1e6) as u64
}

#[test]
fn systemd_hears_of_the_start_of_each_reload_good_or_bad_with_its_end_and_of_the_stop() {
    let folder = folder(CONFIG);
    let file = folder.path().join("weir.toml");
    let mut service = Service::start(folder.path());
    assert_eq!(service.next(), ["READY=1"]);
    let good = format!("{CONFIG}prompts.deny = [\"secret-*\"]\n");
    let mut last = 0;
    for text in [CONFIG, &good, "nonsense", &good] {
        std::fs::write(&file, text).expect("written");
        let before = monotonic();
        service.signal(Signal::HUP);
        let lines = service.next();
        let [reloading, since] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(reloading, "RELOADING=1", "{text}");
        let since = since.strip_prefix("MONOTONIC_USEC=").expect("since when");
        let since: u64 = since.parse().expect("a number");
        // The uptime has hundredths of a second.
        assert!(since > last && since + 20_000 >= before && since <= monotonic() + 20_000);
        last = since;
        assert_eq!(service.next(), ["READY=1"], "{text}");
    }
    service.signal(Signal::TERM);
    assert_eq!(service.next(), ["STOPPING=1"]);
    assert!(wait_for_exit(&mut service.weir).success());
}
