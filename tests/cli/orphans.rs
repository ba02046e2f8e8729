//! Child processes after Weir's end: none is left, however it ends.
//!
//! Each child opens a named pipe for as long as it lives: the end of the pipe is the end of the
//! child.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::folder;
use crate::lab::PATIENCE;
use crate::lab::blocking::{make_pipe, wait_for_exit};
use crate::lab::night::bound;

/// Maximum wait for an end.
const SOON: Duration = PATIENCE;

/// Folder with upstreams that each run this script, and a named pipe for each.
fn folder_with_children(script: &str, names: &[&str]) -> TempDir {
    let tables = names.iter().map(|name| {
        format!("[upstreams.{name}]\ncommand = \"sh\"\nargs = [\"server.sh\", \"{name}\"]\n")
    });
    let config =
        format!("[server]\nlisten = \"127.0.0.1:0\"\n{}", tables.collect::<Vec<_>>().concat());
    let folder = folder(&config);
    std::fs::write(folder.path().join("server.sh"), script).expect("written");
    for name in names {
        make_pipe(&folder.path().join(name));
    }
    folder
}

fn serve(folder: &Path) -> Child {
    let mut command = crate::program();
    command.arg("serve").current_dir(folder).stderr(Stdio::null());
    command.spawn().expect("it starts")
}

/// Follows a named pipe: reports that its child lives, and later that no process has it open.
fn follow(pipe: PathBuf) -> mpsc::Receiver<String> {
    let (events, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut pipe = File::open(pipe).expect("a pipe");
        let (mut line, mut byte) = (String::new(), [0]);
        while pipe.read(&mut byte).expect("a pipe") == 1 {
            match byte[0] {
                b'\n' => drop(events.send(std::mem::take(&mut line))),
                byte => line.push(char::from(byte)),
            }
        }
        let _ = events.send("gone".into());
    });
    receiver
}

#[cfg(target_os = "linux")]
#[test]
fn f27_children_die_with_weir_even_if_it_is_killed() {
    // The child neither reads its standard input nor reacts to signals.
    let script = "exec 3> \"$1\"; echo lives >&3; trap '' TERM HUP INT; exec sleep 1000";
    let names = ["one", "two", "three"];
    let mut shortest = SOON;
    for _ in 0..3 {
        let folder = folder_with_children(script, &names);
        let pipes: Vec<_> = names.iter().map(|name| follow(folder.path().join(name))).collect();
        let mut weir = serve(folder.path());
        for pipe in &pipes {
            assert_eq!(pipe.recv_timeout(SOON).expect("it starts"), "lives");
        }
        kill_process(Pid::from_child(&weir), Signal::KILL).expect("it runs");
        let killed = Instant::now();
        for pipe in &pipes {
            assert_eq!(pipe.recv_timeout(SOON).expect("it ends"), "gone");
        }
        shortest = shortest.min(killed.elapsed());
        wait_for_exit(&mut weir);
    }
    // A wait recurs in each round, a stall of the machine does not.
    assert!(shortest < bound(20_000, 2_000), "{shortest:?}");
}

#[test]
fn f20_f25_nothing_is_left_of_children_that_fork_and_end_again_and_again() {
    // Each leaves a process behind that has the pipe open; the next child can only write when the
    // pipe is read.
    let script = "exec 3> \"$1\"; echo lives >&3; sleep 1000 & (sleep 1000 &) ; exit 1";
    let config =
        "[defaults]\nera = \"modern\"\nretry = { backoff = \"1ms\", max_backoff = \"2ms\" }\n";
    let folder = folder_with_children(script, &["one"]);
    let path = folder.path().join("weir.toml");
    let whole = std::fs::read_to_string(&path).expect("written") + config;
    std::fs::write(&path, whole).expect("written");
    let mut weir = serve(folder.path());
    let mut left = 0;
    for _ in 0..CYCLES {
        let pipe = follow(folder.path().join("one"));
        let is_over = || pipe.recv_timeout(SOON).map(|line| line == "gone");
        let end = std::iter::repeat_with(is_over).find(|is_over| *is_over != Ok(false));
        left += usize::from(end != Some(Ok(true)));
    }
    assert_eq!(left, 0, "a process has a pipe open");
    kill_process(Pid::from_child(&weir), Signal::TERM).expect("it runs");
    assert!(wait_for_exit(&mut weir).success());
}

/// Number of observed ends of a child, by day.
const CYCLES: usize = 50;

#[cfg(target_os = "linux")]
#[test]
fn a_child_gets_three_pipes_and_nothing_that_weir_was_started_with() {
    let script = "echo $(ls /proc/self/fd) > \"$1\"; exec sleep 1000";
    let folder = folder_with_children(script, &["one"]);
    let pipe = follow(folder.path().join("one"));
    let mut command = Command::new("sh");
    let weir = env!("CARGO_BIN_EXE_weir");
    command.args(["-c", &format!("exec 7< weir.toml 9< weir.toml; exec {weir} serve")]);
    let command = command.current_dir(folder.path()).stderr(Stdio::null());
    let mut weir = command.spawn().expect("it starts");
    // The last descriptor is the folder that `ls` reads.
    assert_eq!(pipe.recv_timeout(SOON).expect("it starts"), "0 1 2 3");
    kill_process(Pid::from_child(&weir), Signal::KILL).expect("it runs");
    wait_for_exit(&mut weir);
}
