//! `weir pins`: what is different from what was approved, and approving it.

use std::path::Path;

use insta::assert_snapshot;

use super::{GREETING, HOUSE, folder, shown};

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).expect("written");
}

#[test]
fn what_is_different_is_shown_and_approved() {
    let folder = folder(HOUSE);
    let folder = folder.path();
    let mut told = shown(folder, &["pins", "diff"]);
    told += &shown(folder, &["pins", "list"]);
    told += &shown(folder, &["pins", "approve"]);
    told += &shown(folder, &["pins", "diff"]);
    // One changes, one gets another name, one is new.
    write(folder, "prompts/greeting.md", &GREETING.replace("Greets", "Beats"));
    let plan = folder.join("prompts/secret-plan.md");
    std::fs::rename(plan, folder.join("prompts/open-plan.md")).expect("renamed");
    write(folder, "prompts/new.md", "---\ndescription: New.\n---\nHi.\n");
    told += &shown(folder, &["pins", "diff"]);
    told += &shown(folder, &["pins", "diff", "--json"]);
    told += &shown(folder, &["pins", "diff", "house/open-plan"]);
    told += &shown(folder, &["pins", "approve", "house/greeting"]);
    told += &shown(folder, &["pins", "approve", "house/nothing"]);
    told += &shown(folder, &["pins", "approve", "hose"]);
    told += &shown(folder, &["pins", "approve", "house"]);
    told += &shown(folder, &["pins", "diff"]);
    told += &shown(folder, &["pins", "list", "house/new"]);
    assert_snapshot!(told, @"");
    let lock = std::fs::read_to_string(folder.join("weir.lock")).expect("it is there");
    assert_snapshot!(lock, @"");
}

#[test]
fn what_is_locked_is_not_served_until_it_is_approved() {
    let folder = folder(&format!("{HOUSE}\n[guard]\npinning = \"locked\"\n"));
    let folder = folder.path();
    let mut told = shown(folder, &["list"]);
    told += &shown(folder, &["get", "house__greeting", "who=Ada"]);
    told += &shown(folder, &["pins", "approve", "house/greeting"]);
    told += &shown(folder, &["list"]);
    write(folder, "weir.lock", "version = 1\n[upstreams.house]\nprompts = 7\n");
    told += &shown(folder, &["list"]);
    assert_snapshot!(told, @"");
}

#[test]
fn an_upstream_that_is_not_there_is_not_approved() {
    let folder = folder(&format!("{HOUSE}\n[upstreams.gone]\ncommand = \"/nonexistent/server\"\n"));
    let folder = folder.path();
    let mut told = shown(folder, &["pins", "approve"]);
    told += &shown(folder, &["pins", "diff"]);
    told += &shown(folder, &["pins", "approve", "house"]);
    assert_snapshot!(told, @"");
}
