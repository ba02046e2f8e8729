//! The target programs of the files, or their parsers, accept each file.

use std::process::Command;

use super::{deploy, folder, part, run};
use crate::lab::weir::Weir;

#[test]
fn the_dockerfiles_are_read_and_found_clean() {
    let files = ["docker/Dockerfile", "docker/Dockerfile.tools", "packages/image/Dockerfile"];
    assert_eq!(run(part("deploy/bin/hadolint").args(files)), (Some(0), String::new()));
}

#[test]
fn compose_understands_every_key() {
    let arguments = ["-f", "docker/compose.yaml", "--profile", "tls", "config", "--quiet"];
    let (code, output) = run(part("bin/docker-compose").args(arguments));
    assert_eq!(code, Some(0), "{output}");
}

#[test]
fn the_manifests_keep_to_the_schemas_of_kubernetes() {
    let mut files: Vec<_> = folder()
        .join("kubernetes")
        .read_dir()
        .expect("a folder")
        .map(|file| file.expect("a file").path())
        .collect();
    files.retain(|path| !path.ends_with("kustomization.yaml"));
    let mut command = part("deploy/bin/kubernetes-validate");
    let (code, output) = run(command.arg("--strict").args(&files));
    assert_eq!(code, Some(0), "{output}");
    assert_eq!(output.matches(" passed ").count(), files.len(), "{output}");
}

/// Copies the unit with an existing program and additional lines to a folder.
fn unit(more: &str) -> tempfile::TempDir {
    let text = deploy("systemd/weir.service");
    let text = text.replace("/usr/local/bin/weir", env!("CARGO_BIN_EXE_weir"));
    let folder = tempfile::TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("weir.service"), text).expect("written");
    let socket = folder.path().join("weir.socket");
    std::fs::write(socket, deploy("systemd/weir.socket")).expect("written");
    let drop_ins = folder.path().join("weir.service.d");
    std::fs::create_dir(&drop_ins).expect("made");
    std::fs::write(drop_ins.join("npx.conf"), more).expect("written");
    folder
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units_and_the_drop_in() {
    for more in [String::new(), deploy("systemd/weir.service.d/npx.conf")] {
        let folder = unit(&more);
        let mut command = part("bin/systemd-analyze");
        let units = ["weir.service", "weir.socket"].map(|unit| folder.path().join(unit));
        let (code, output) = run(command.arg("verify").args(units));
        assert_eq!(code, Some(0), "{output}");
        let stated = ["weir.service:", "weir.socket:", "npx.conf:"];
        assert!(!stated.iter().any(|unit| output.contains(unit)), "{output}");
    }
}

/// Exposure of the unit according to `systemd-analyze security`, in tenths.
fn exposure(more: &str) -> i32 {
    let folder = unit(more);
    let mut command = part("bin/systemd-analyze");
    command.args(["security", "--offline=true"]).env("SYSTEMD_COLORS", "0");
    let (code, output) = run(command.arg(folder.path().join("weir.service")));
    assert_eq!(code, Some(0), "{output}");
    tenths(output.split("weir.service: ").nth(1).expect("a level"))
}

fn tenths(text: &str) -> i32 {
    let figure = text.split([' ', ',', '\n']).next().expect("a word");
    figure.replace('.', "").parse().expect("a figure with one decimal")
}

#[test]
fn the_units_exposure_is_what_it_says() {
    let text = deploy("systemd/weir.service");
    let stated = |word| tenths(text.split(word).nth(1).expect("it says so"));
    let stated = [stated("of systemd 252: "), stated("npx.conf ")];
    let measured = [exposure(""), exposure(&deploy("systemd/weir.service.d/npx.conf"))];
    let (_, version) = run(part("bin/systemd-analyze").arg("--version"));
    // Other versions of systemd weigh some settings differently.
    let tolerance = if version.starts_with("systemd 252 ") { 0 } else { 3 };
    for (stated, measured) in stated.iter().zip(measured) {
        assert!((stated - measured).abs() <= tolerance, "{measured} is not {stated}");
    }
}

/// Folder of the unit, in the unit and in configurations.
const STATE: &str = "/var/lib/weir";

#[test]
fn commands_of_an_operator_find_the_weir_that_runs_with_the_environment_of_the_unit() {
    let unit = deploy("systemd/weir.service");
    let settings = |name: &str| {
        let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(settings("StateDirectory"), [STATE.rsplit('/').next().expect("a name")]);
    let folder = tempfile::TempDir::new().expect("a folder");
    let here = folder.path().join("state").display().to_string();
    let team: toml::Table = deploy("config/team.toml").parse().expect("TOML");
    let state = team["state"]["dir"].as_str().expect("a text").replace(STATE, &here);
    let config = folder.path().join("weir.toml");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [log]\nformat = \"json\"\n[audit]\nenabled = true\n[state]\ndir = \"{state}\"\n\
         [upstreams.prompts]\nprompts_dir = \"prompts\"\n"
    );
    std::fs::write(&config, text).expect("written");
    std::fs::create_dir(folder.path().join("prompts")).expect("made");
    std::fs::create_dir(&here).expect("made");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["serve", "--config"]).arg(&config).current_dir(&here).env_clear();
    for variable in settings("Environment") {
        let variable = variable.replace(STATE, &here);
        let (name, value) = variable.split_once('=').expect("a variable");
        command.env(name, value);
    }
    let _weir = Weir::serve(command);
    // The operator has another home.
    for arguments in [&["status"][..], &["reload"], &["audit", "tail", "--lines", "1"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(arguments).arg("--config").arg(&config);
        let (code, output) = run(command.env_clear().env("HOME", folder.path()));
        assert_eq!(code, Some(0), "{arguments:?}: {output}");
    }
}
