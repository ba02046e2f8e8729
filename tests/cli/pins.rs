//! `weir pins`: differences to the approved definitions, and their approval.

use std::path::Path;

use insta::assert_snapshot;

use super::{GREETING, LIBRARY_CONFIG, folder, shown};

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).expect("written");
}

#[test]
fn what_is_different_is_shown_and_approved() {
    let folder = folder(LIBRARY_CONFIG);
    let folder = folder.path();
    let mut output = shown(folder, &["pins", "diff"]);
    output += &shown(folder, &["pins", "list"]);
    output += &shown(folder, &["pins", "approve"]);
    output += &shown(folder, &["pins", "diff"]);
    // One item changes, one is renamed, one is new.
    write(folder, "prompts/greeting.md", &GREETING.replace("Greets", "Beats"));
    let plan = folder.join("prompts/secret-plan.md");
    std::fs::rename(plan, folder.join("prompts/open-plan.md")).expect("renamed");
    write(folder, "prompts/new.md", "---\ndescription: New.\n---\nHi.\n");
    output += &shown(folder, &["pins", "diff"]);
    output += &shown(folder, &["pins", "diff", "--json"]);
    output += &shown(folder, &["pins", "diff", "house/open-plan"]);
    output += &shown(folder, &["pins", "approve", "house/greeting"]);
    output += &shown(folder, &["pins", "approve", "house/nothing"]);
    output += &shown(folder, &["pins", "approve", "hose"]);
    output += &shown(folder, &["pins", "diff", "house/greeting"]);
    output += &shown(folder, &["pins", "approve", "house"]);
    output += &shown(folder, &["pins", "diff"]);
    output += &shown(folder, &["pins", "list", "house/new"]);
    assert_snapshot!(output, @r#"
    $ weir pins diff
    new      house/greeting (prompt)
    new      house/secret-plan (prompt)
    ! weir: 2 different from what was approved; `weir pins approve` accepts it
    => 1
    $ weir pins list
    => 0
    $ weir pins approve
    new      house/greeting (prompt)
    new      house/secret-plan (prompt)
    => 0
    $ weir pins diff
    => 0
    $ weir pins diff
    changed  house/greeting (prompt)
    new      house/new (prompt)
    renamed  house/open-plan (prompt), was secret-plan
    ! weir: 3 different from what was approved; `weir pins approve` accepts it
    => 1
    $ weir pins diff --json
    {"differences":[{"upstream":"house","kind":"prompt","item":"greeting","change":"changed"},{"upstream":"house","kind":"prompt","item":"new","change":"new"},{"upstream":"house","kind":"prompt","item":"open-plan","change":"renamed","was":"secret-plan"}]}
    ! {"error":"3 different from what was approved; `weir pins approve` accepts it","exit_code":1}
    => 1
    $ weir pins diff house/open-plan
    renamed  house/open-plan (prompt), was secret-plan
    ! weir: 1 different from what was approved; `weir pins approve` accepts it
    => 1
    $ weir pins approve house/greeting
    changed  house/greeting (prompt)
    => 0
    $ weir pins approve house/nothing
    ! weir: `house` lists no `nothing`, and none was approved
    => 2
    $ weir pins approve hose
    ! weir: no upstream `hose`; did you mean `house`? upstreams: house
    => 2
    $ weir pins diff house/greeting
    => 0
    $ weir pins approve house
    new      house/new (prompt)
    renamed  house/open-plan (prompt), was secret-plan
    => 0
    $ weir pins diff
    => 0
    $ weir pins list house/new
    v1:2ffdbe1d98321a897d43270874fb8098a322ee919eaee1fcfb019e44c3fefc17  house/new (prompt)
    => 0
    "#);
    let lock = std::fs::read_to_string(folder.join("weir.lock")).expect("it is there");
    assert_snapshot!(lock, @r#"
    # The definitions that were approved, each by the hash of all that its server says of it.
    # Written by Weir. `weir pins diff` shows what is different now, `weir pins approve` accepts it.
    version = 1

    [upstreams.house]
    instructions = "none"

    [upstreams.house.prompts]
    "greeting" = "v1:515fa51ff02e7a540f600d5596d57272d718db6c66853aa7fb375d3a024314dd"
    "new" = "v1:2ffdbe1d98321a897d43270874fb8098a322ee919eaee1fcfb019e44c3fefc17"
    "open-plan" = "v1:17fdb88ae782f16f344b4707e341ee6040bc5ed9e884432e1e78cd1d76353261"

    [upstreams.house.tools]

    [upstreams.house.templates]
    "#);
}

#[test]
fn what_is_locked_is_not_served_until_it_is_approved() {
    let folder = folder(&format!("{LIBRARY_CONFIG}\n[guard]\npinning = \"locked\"\n"));
    let folder = folder.path();
    let mut output = shown(folder, &["list"]);
    output += &shown(folder, &["get", "house__greeting", "who=Ada"]);
    output += &shown(folder, &["pins", "approve", "house/greeting"]);
    output += &shown(folder, &["list"]);
    write(folder, "weir.lock", "version = 1\n[upstreams.house]\nprompts = 7\n");
    output += &shown(folder, &["list"]);
    assert_snapshot!(output, @r"
    $ weir list
    ! warning: upstreams.house.guard: the lock file approves nothing of this upstream, so nothing is served
     --> weir.toml:2:12
      |
    2 | [upstreams.house]
      |            ^^^^^ look at it with `weir pins diff`, then `weir pins approve house`
    => 0
    $ weir get house__greeting who=Ada
    ! warning: upstreams.house.guard: the lock file approves nothing of this upstream, so nothing is served
     --> weir.toml:2:12
      |
    2 | [upstreams.house]
      |            ^^^^^ look at it with `weir pins diff`, then `weir pins approve house`
    weir: no prompt `house__greeting`; `weir list prompts` shows what there is
    => 2
    $ weir pins approve house/greeting
    new      house/greeting (prompt)
    ! warning: upstreams.house.guard: the lock file approves nothing of this upstream, so nothing is served
     --> weir.toml:2:12
      |
    2 | [upstreams.house]
      |            ^^^^^ look at it with `weir pins diff`, then `weir pins approve house`
    => 0
    $ weir list
    house__greeting  Greets somebody.
    => 0
    $ weir list
    ! error: guard.lock_file: the lock file cannot be used: `upstreams.house` is malformed
      --> weir.toml:13:2
       |
    13 | [guard]
       |  ^^^^^ restore it from version control, or remove it and run `weir pins approve`
    => 78
    ");
}

#[test]
fn an_upstream_that_is_not_there_is_not_approved() {
    let folder =
        folder(&format!("{LIBRARY_CONFIG}\n[upstreams.gone]\ncommand = \"/nonexistent/server\"\n"));
    let folder = folder.path();
    let mut output = shown(folder, &["pins", "approve"]);
    output += &shown(folder, &["pins", "diff"]);
    output += &shown(folder, &["pins", "approve", "house"]);
    assert_snapshot!(output, @r"
    $ weir pins approve
    ! weir: could not be listed, and was not compared: `gone`
    => 4
    $ weir pins diff
    new      house/greeting (prompt)
    new      house/secret-plan (prompt)
    ! weir: could not be listed, and was not compared: `gone`
    => 4
    $ weir pins approve house
    new      house/greeting (prompt)
    new      house/secret-plan (prompt)
    => 0
    ");
}
