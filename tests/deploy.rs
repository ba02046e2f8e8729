//! What `deploy/` holds is read by the programs that it is for.

use std::path::Path;
use std::process::Command;

fn deploy(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn weir(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    let command = command.args(arguments).current_dir(folder).env("WIKI_TOKEN", "hunter2");
    let output = command.output().expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).expect("it writes text"))
}

#[test]
fn the_teams_configuration_is_good() {
    let told = weir(&["check", "--offline", "--config", "config/team.toml"]);
    // Its prompts are where it will be used.
    let place = "config/team.toml:";
    let (code, told) = told;
    assert_eq!(
        (
            code,
            told.matches(place).count(),
            told.matches(": there is no folder /etc/weir/prompts").count()
        ),
        (Some(0), 1, 1),
        "{told}"
    );
    assert!(told.ends_with("\nthe configuration is good\n"), "{told}");
}

#[test]
fn the_units_command_line_is_one_that_weir_takes() {
    let unit = deploy("systemd/weir.service");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/weir "));
    let arguments: Vec<_> = line.expect("it starts weir").split(' ').collect();
    // Its configuration is not here: that is as far as it can get.
    let (code, told) = weir(&arguments);
    assert_eq!(code, Some(78), "{told}");
    assert!(told.contains("/etc/weir/weir.toml"), "{told}");
}

#[test]
fn the_units_patience_outlasts_the_drain() {
    let unit = deploy("systemd/weir.service");
    let seconds = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec="));
    let seconds: u64 = seconds.and_then(|text| text.parse().ok()).expect("a number of seconds");
    let grace = weir::config::Config::default().server.shutdown_grace;
    assert!(seconds > grace.as_secs() + 5);
}

#[test]
fn the_proxys_addresses_are_those_of_the_default_configuration() {
    let text = deploy("nginx/weir.conf");
    let server = weir::config::Config::default().server;
    assert!(text.contains(&format!("server {};", server.listen)));
    assert!(text.contains(&format!("location = {} {{", server.path)));
    assert!(text.contains("proxy_buffering off;"));
    assert_eq!(server.max_body, 4 << 20);
    assert!(text.contains("client_max_body_size 4m;"));
}
