//! `weir explain`: the rule and its location for which an item is visible or not.

use std::path::Path;

use bytes::Bytes;
use insta::assert_snapshot;
use tempfile::TempDir;
use weir_base::json::{self, Object};

use super::{example, folder, script, shown, was_started, weir};

const LIBRARY_CONFIG: &str = r#"include = ["policy.toml"]

[upstreams.house]
prompts_dir = "prompts"

[upstreams.hub]
command = "sh"
args = ["hub.sh"]
tools.deny = ["drop_*"]
resources.allow = ["note:*", "todo:*"]
rename = { "tools/old" = "new", "tools/two" = "one" }

[upstreams.gone]
command = "/nonexistent/server"

[upstreams.attic]
command = "attic"
enabled = false
"#;

const POLICY: &str = r#"[roles.guest]
prompts.allow = ["house/*"]
prompts.deny = ["house/secret-*"]
resources.allow = [
    "hub/note:///public/*",
    "hub/note:///*/open",
]

[clients.visitor]
key_sha256 = ["1111111111111111111111111111111111111111111111111111111111111111"]
role = "guest"

[clients.ci]
key_sha256 = ["2222222222222222222222222222222222222222222222222222222222222222"]
tools.allow = ["hub/*"]
resources.allow = ["hub/*"]
resources.deny = ["hub/todo:private"]
"#;

/// Configuration with rules in a file of their own.
fn policy_folder() -> TempDir {
    let folder = folder(LIBRARY_CONFIG);
    std::fs::write(folder.path().join("policy.toml"), POLICY).expect("written");
    hub(folder.path());
    folder
}

fn hub(folder: &Path) {
    let answers = [
        (
            "tools/list",
            r#""result":{"tools":[{"name":"add","inputSchema":{"type":"object"}},{"name":"old","inputSchema":{"type":"object"}},{"name":"one","inputSchema":{"type":"object"}},{"name":"two","inputSchema":{"type":"object"}},{"name":"drop_all","inputSchema":{"type":"object"}}]}"#,
        ),
        (
            "resources/list",
            r#""result":{"resources":[{"name":"r","uri":"note:///1"},{"name":"s","uri":"todo:1"}]}"#,
        ),
        (
            "resources/templates/list",
            r#""result":{"resourceTemplates":[{"name":"t","uriTemplate":"note:///{space}/{id}"}]}"#,
        ),
    ];
    script(folder, "hub", &answers);
}

/// Output for each of these arguments.
fn output(folder: &TempDir, all: &[&[&str]]) -> String {
    let output = |arguments: &&[&str]| shown(folder.path(), &[&["explain"], *arguments].concat());
    all.iter().map(output).collect()
}

#[test]
fn what_a_rule_allows_or_denies_is_told_with_its_line() {
    let output = output(
        &policy_folder(),
        &[
            &["house__greeting", "--as", "visitor"],
            &["house__secret-plan", "--as", "visitor"],
            &["hub__add", "--as", "ci"],
            &["hub__add", "--as", "visitor"],
            &["note:///1", "--as", "visitor"],
        ],
    );
    assert_snapshot!(output, @r#"
    $ weir explain house__greeting --as visitor
    visible to visitor: prompt house__greeting
      upstream  house is up: library
      listed    house lists it as `house/greeting`
      exports   house exports it by `*` of prompts.allow (by default)
      client    visitor has the role guest (policy.toml:11)
      allowed   by `house/*` of prompts.allow (policy.toml:2)
    => 0
    $ weir explain house__secret-plan --as visitor
    not visible to visitor: prompt house__secret-plan
      upstream  house is up: library
      listed    house lists it as `house/secret-plan`
      exports   house exports it by `*` of prompts.allow (by default)
      client    visitor has the role guest (policy.toml:11)
      allowed   by `house/*` of prompts.allow (policy.toml:2)
      denied    by `house/secret-*` of prompts.deny (policy.toml:3)
    ! weir: `house__secret-plan` is not visible to visitor
    => 6
    $ weir explain hub__add --as ci
    visible to ci: tool hub__add
      upstream  hub is up: stdio 2025-06-18
      listed    hub lists it as `hub/add`
      exports   hub exports it by `*` of tools.allow (by default)
      client    ci has rules of its own
      allowed   by `hub/*` of tools.allow (policy.toml:15)
    => 0
    $ weir explain hub__add --as visitor
    not visible to visitor: tool hub__add
      upstream  hub is up: stdio 2025-06-18
      listed    hub lists it as `hub/add`
      exports   hub exports it by `*` of tools.allow (by default)
      client    visitor has the role guest (policy.toml:11)
      allowed   no rule allows `hub/add`: there is no tools.allow
    ! weir: `hub__add` is not visible to visitor
    => 6
    $ weir explain note:///1 --as visitor
    not visible to visitor: resource note:///1
      upstream  hub is up: stdio 2025-06-18
      listed    hub lists it as `hub/note:///1`
      exports   hub exports it by `note:*` of resources.allow (weir.toml:10)
      client    visitor has the role guest (policy.toml:11)
      allowed   no rule allows `hub/note:///1`: resources.allow has `hub/note:///public/*` (policy.toml:5), `hub/note:///*/open` (policy.toml:6)
    ! weir: `note:///1` is not visible to visitor
    => 6
    "#);
}

#[test]
fn without_a_client_each_role_is_told_of() {
    let output =
        output(&policy_folder(), &[&["house__greeting"], &["house/secret-plan"], &["todo:1"]]);
    assert_snapshot!(output, @r#"
    $ weir explain house__greeting
    visible to 2 of 3 roles: prompt house__greeting
      upstream  house is up: library
      listed    house lists it as `house/greeting`
      exports   house exports it by `*` of prompts.allow (by default)
      role      client:ci: not visible; no rule allows `house/greeting`: there is no prompts.allow
      role      guest: visible; allowed by `house/*` of prompts.allow (policy.toml:2)
      role      local: visible; allowed by `*` of prompts.allow (by default)
    => 0
    $ weir explain house/secret-plan
    visible to 1 of 3 roles: prompt house__secret-plan
      upstream  house is up: library
      listed    house lists it as `house/secret-plan`
      exports   house exports it by `*` of prompts.allow (by default)
      role      client:ci: not visible; no rule allows `house/secret-plan`: there is no prompts.allow
      role      guest: not visible; allowed by `house/*` of prompts.allow (policy.toml:2); denied by `house/secret-*` of prompts.deny (policy.toml:3)
      role      local: visible; allowed by `*` of prompts.allow (by default)
    => 0
    $ weir explain todo:1
    visible to 2 of 3 roles: resource todo:1
      upstream  hub is up: stdio 2025-06-18
      listed    hub lists it as `hub/todo:1`
      exports   hub exports it by `todo:*` of resources.allow (weir.toml:10)
      role      client:ci: visible; allowed by `hub/*` of resources.allow (policy.toml:16)
      role      guest: not visible; no rule allows `hub/todo:1`: resources.allow has `hub/note:///public/*` (policy.toml:5), `hub/note:///*/open` (policy.toml:6)
      role      local: visible; allowed by `*` of resources.allow (by default)
    => 0
    "#);
}

#[test]
fn what_leaves_no_list_is_told_before_any_role() {
    let output = output(
        &policy_folder(),
        &[
            &["hub__drop_all"],
            &["hub/drop_all", "--as", "ci"],
            &["hub__new", "--as", "ci"],
            &["hub/two"],
            &["hub__one", "--as", "ci"],
        ],
    );
    assert_snapshot!(output, @r#"
    $ weir explain hub__drop_all
    not visible: tool hub__drop_all
      upstream  hub is up: stdio 2025-06-18
      listed    hub lists it as `hub/drop_all`
      exports   hub does not export it by `drop_*` of tools.deny (weir.toml:9)
    ! weir: `hub__drop_all` is visible to no role
    => 6
    $ weir explain hub/drop_all --as ci
    not visible to ci: tool hub__drop_all
      upstream  hub is up: stdio 2025-06-18
      listed    hub lists it as `hub/drop_all`
      exports   hub does not export it by `drop_*` of tools.deny (weir.toml:9)
      client    ci has rules of its own
      allowed   by `hub/*` of tools.allow (policy.toml:15)
    ! weir: `hub/drop_all` is not visible to ci
    => 6
    $ weir explain hub__new --as ci
    visible to ci: tool hub__new
      upstream  hub is up: stdio 2025-06-18
      listed    hub lists it as `hub/old`
      exports   hub exports it by `*` of tools.allow (by default)
      client    ci has rules of its own
      allowed   by `hub/*` of tools.allow (policy.toml:15)
    => 0
    $ weir explain hub/two
    not visible: tool hub__one
      upstream  hub is up: stdio 2025-06-18
      listed    hub lists it as `hub/two`
      exports   hub exports it by `*` of tools.allow (by default)
      list      it is left out: "two" would be "hub__one" like another, rename one of them
    ! weir: `hub/two` is visible to no role
    => 2
    $ weir explain hub__one --as ci
    not visible to ci: tool hub__one
      upstream  hub is up: stdio 2025-06-18
      listed    hub lists it as `hub/one`
      exports   hub exports it by `*` of tools.allow (by default)
      list      it is left out: "one" would be "hub__one" like another, rename one of them
      client    ci has rules of its own
      allowed   by `hub/*` of tools.allow (policy.toml:15)

    not visible to ci: tool hub__one
      upstream  hub is up: stdio 2025-06-18
      listed    hub lists it as `hub/two`
      exports   hub exports it by `*` of tools.allow (by default)
      list      it is left out: "two" would be "hub__one" like another, rename one of them
      client    ci has rules of its own
      allowed   by `hub/*` of tools.allow (policy.toml:15)
    ! weir: `hub__one` is not visible to ci
    => 2
    "#);
}

#[test]
fn what_nobody_lists_is_told_with_what_is_like_it() {
    let folder = policy_folder();
    let output = output(
        &folder,
        &[
            &["house__greting", "--as", "visitor"],
            &["house/greting"],
            &["house/greeting", "--kind", "tools"],
            &["huose/greeting"],
            &["huose__greeting"],
            &["house", "--kind", "tools"],
            &["house__greeting", "--as", "nobody"],
        ],
    );
    assert_snapshot!(output, @r#"
    $ weir explain house__greting --as visitor
    not visible to visitor: house__greting
      listed    no upstream lists anything of this name; did you mean `house__greeting`?
    ! weir: `house__greting` is not visible to visitor
    => 2
    $ weir explain house/greting
    not visible: house/greting
      listed    no upstream lists anything of this name; did you mean `house/greeting`?
    ! weir: `house/greting` is visible to no role
    => 2
    $ weir explain house/greeting --kind tools
    not visible: tool house/greeting
      listed    no upstream lists a tool of this name
    ! weir: `house/greeting` is visible to no role
    => 2
    $ weir explain huose/greeting
    ! weir: no upstream `huose`; did you mean `house`? upstreams: house, hub, gone, attic (disabled)
    => 2
    $ weir explain huose__greeting
    ! weir: no item `huose__greeting`; did you mean `house__greeting`? upstreams: house, hub, gone, attic (disabled)
    => 2
    $ weir explain house --kind tools
    ! weir: no item `house`: names begin with the prefix of their upstream, as in `house__house`; upstreams: house, hub, gone, attic (disabled)
    => 2
    $ weir explain house__greeting --as nobody
    ! weir: no client `nobody` in the configuration, which has visitor, ci
    => 3
    "#);
    assert!(!was_started(folder.path(), "hub"), "nobody needs it");
}

#[test]
fn an_upstream_that_is_down_or_switched_off_is_told_of() {
    let output = output(
        &policy_folder(),
        &[&["gone__x", "--as", "visitor"], &["gone"], &["attic"], &["attic/x"]],
    );
    assert_snapshot!(output, @r#"
    $ weir explain gone__x --as visitor
    not visible to visitor: gone__x
      upstream  gone is down: it cannot be started: no such program: /nonexistent/server; install it, or correct `command`
    ! weir: `gone__x` is not visible to visitor
    => 4
    $ weir explain gone
    not visible: upstream gone
      upstream  gone is down: it cannot be started: no such program: /nonexistent/server; install it, or correct `command`
    ! weir: `gone` is visible to no role
    => 4
    $ weir explain attic
    not visible: upstream attic
      upstream  attic is disabled: `enabled = false` (weir.toml:18)
    ! weir: `attic` is visible to no role
    => 4
    $ weir explain attic/x
    not visible: attic/x
      upstream  attic is disabled: `enabled = false` (weir.toml:18)
    ! weir: `attic/x` is visible to no role
    => 4
    "#);
}

#[test]
fn a_uri_that_nobody_lists_is_told_with_its_way() {
    let output = output(
        &policy_folder(),
        &[
            &["note:///public/2", "--as", "ci"],
            &["note:///public/2"],
            &["todo:2", "--as", "ci"],
            &["todo:private", "--as", "ci"],
            &["todo:PRIVATE", "--as", "ci"],
            &["note:///public/../x", "--as", "ci"],
            &["file:///x", "--as", "ci"],
            &["hub/note:///public/2", "--as", "ci"],
        ],
    );
    assert_snapshot!(output, @r#"
    $ weir explain note:///public/2 --as ci
    visible to ci: resource note:///public/2
      listed    no upstream lists it
      client    ci has rules of its own
      exports   hub exports it by `note:*` of resources.allow (weir.toml:10)
      allowed   by `hub/*` of resources.allow (policy.toml:16)
      route     the template `note:///{space}/{id}` leads to hub
    => 0
    $ weir explain note:///public/2
    visible to 2 of 3 roles: resource note:///public/2
      listed    no upstream lists it
      role      client:ci: visible; allowed by `hub/*` of resources.allow (policy.toml:16); the template `note:///{space}/{id}` leads to hub
      role      guest: not visible; allowed by `hub/note:///public/*` of resources.allow (policy.toml:5); the template `note:///{space}/{id}` of hub would lead there, but is hidden
      role      local: visible; allowed by `*` of resources.allow (by default); the template `note:///{space}/{id}` leads to hub
    => 0
    $ weir explain todo:2 --as ci
    visible to ci: resource todo:2
      listed    no upstream lists it
      client    ci has rules of its own
      exports   hub exports it by `todo:*` of resources.allow (weir.toml:10)
      allowed   by `hub/*` of resources.allow (policy.toml:16)
      route     its scheme leads to hub, which alone lists such URIs
    => 0
    $ weir explain todo:private --as ci
    not visible to ci: resource todo:private
      listed    no upstream lists it
      client    ci has rules of its own
      exports   hub exports it by `todo:*` of resources.allow (weir.toml:10)
      allowed   by `hub/*` of resources.allow (policy.toml:16)
      denied    by `hub/todo:private` of resources.deny (policy.toml:17)
    ! weir: `todo:private` is not visible to ci
    => 6
    $ weir explain todo:PRIVATE --as ci
    not visible to ci: resource todo:PRIVATE
      listed    no upstream lists it
      client    ci has rules of its own
      exports   hub exports it by `todo:*` of resources.allow (weir.toml:10)
      allowed   by `hub/*` of resources.allow (policy.toml:16)
      denied    by `hub/todo:private` of resources.deny (policy.toml:17)
    ! weir: `todo:PRIVATE` is not visible to ci
    => 6
    $ weir explain note:///public/../x --as ci
    not visible to ci: resource note:///public/../x
      listed    no upstream lists it
      route     a URI that is not listed must be in normal form: its path has an empty segment, or one such as `.` or `..`
    ! weir: `note:///public/../x` is not visible to ci
    => 2
    $ weir explain file:///x --as ci
    not visible to ci: resource file:///x
      upstream  gone is down: it cannot be started: no such program: /nonexistent/server; install it, or correct `command`
      listed    no upstream lists anything of this name
      exports   hub does not export it: no rule allows `file:///x`: resources.allow has `note:*` (weir.toml:10), `todo:*` (weir.toml:10)
    ! weir: `file:///x` is not visible to ci
    => 4
    $ weir explain hub/note:///public/2 --as ci
    visible to ci: resource note:///public/2
      listed    no upstream lists it
      client    ci has rules of its own
      exports   hub exports it by `note:*` of resources.allow (weir.toml:10)
      allowed   by `hub/*` of resources.allow (policy.toml:16)
      route     the template `note:///{space}/{id}` leads to hub
    => 0
    "#);
}

#[test]
fn an_upstream_is_told_of_as_a_whole() {
    let output = output(
        &policy_folder(),
        &[&["house", "--as", "visitor"], &["house", "--as", "ci"], &["hub"]],
    );
    assert_snapshot!(output, @r#"
    $ weir explain house --as visitor
    visible to visitor: upstream house
      upstream  house is up: library
      client    visitor has the role guest (policy.toml:11)
      seen      1 of 2 prompts
      told      it has no instructions
    => 0
    $ weir explain house --as ci
    not visible to ci: upstream house
      upstream  house is up: library
      client    ci has rules of its own
      seen      0 of 2 prompts
      told      it has no instructions
    ! weir: `house` is not visible to ci
    => 6
    $ weir explain hub
    visible to 2 of 3 roles: upstream hub
      upstream  hub is up: stdio 2025-06-18
      role      client:ci: visible; 2 of 2 tools, 2 of 2 resources, 1 of 1 resource template; it has no instructions
      role      guest: not visible; 0 of 2 tools, 0 of 2 resources, 0 of 1 resource template; it has no instructions
      role      local: visible; 2 of 2 tools, 2 of 2 resources, 1 of 1 resource template; it has no instructions
    => 0
    "#);
}

#[test]
fn programs_are_told_the_same() {
    let output = output(
        &policy_folder(),
        &[
            &["house__secret-plan", "--as", "visitor", "--json"],
            &["house__greeting", "--json"],
            &["hub__drop_all", "--json"],
            &["attic", "--json"],
        ],
    );
    assert_snapshot!(output, @r#"
    $ weir explain house__secret-plan --as visitor --json
    {"name":"house__secret-plan","client":"visitor","visible":false,"findings":[{"kind":"prompt","upstream":"house","own":"secret-plan","key":"house__secret-plan","visible":false,"facts":[{"about":"upstream","good":true,"text":"house is up: library"},{"about":"listed","good":true,"text":"house lists it as `house/secret-plan`"},{"about":"exports","good":true,"text":"house exports it by `*` of prompts.allow (by default)","pattern":"*"}],"roles":[{"role":"guest","visible":false,"facts":[{"about":"client","good":true,"text":"visitor has the role guest (policy.toml:11)","place":"policy.toml:11"},{"about":"allowed","good":true,"text":"by `house/*` of prompts.allow (policy.toml:2)","pattern":"house/*","place":"policy.toml:2"},{"about":"denied","good":false,"text":"by `house/secret-*` of prompts.deny (policy.toml:3)","pattern":"house/secret-*","place":"policy.toml:3"}]}]}]}
    ! {"error":"`house__secret-plan` is not visible to visitor","exit_code":6}
    => 6
    $ weir explain house__greeting --json
    {"name":"house__greeting","visible":true,"findings":[{"kind":"prompt","upstream":"house","own":"greeting","key":"house__greeting","visible":true,"facts":[{"about":"upstream","good":true,"text":"house is up: library"},{"about":"listed","good":true,"text":"house lists it as `house/greeting`"},{"about":"exports","good":true,"text":"house exports it by `*` of prompts.allow (by default)","pattern":"*"}],"roles":[{"role":"client:ci","visible":false,"facts":[{"about":"allowed","good":false,"text":"no rule allows `house/greeting`: there is no prompts.allow"}]},{"role":"guest","visible":true,"facts":[{"about":"allowed","good":true,"text":"by `house/*` of prompts.allow (policy.toml:2)","pattern":"house/*","place":"policy.toml:2"}]},{"role":"local","visible":true,"facts":[{"about":"allowed","good":true,"text":"by `*` of prompts.allow (by default)","pattern":"*"}]}]}]}
    => 0
    $ weir explain hub__drop_all --json
    {"name":"hub__drop_all","visible":false,"findings":[{"kind":"tool","upstream":"hub","own":"drop_all","key":"hub__drop_all","visible":false,"facts":[{"about":"upstream","good":true,"text":"hub is up: stdio 2025-06-18"},{"about":"listed","good":true,"text":"hub lists it as `hub/drop_all`"},{"about":"exports","good":false,"text":"hub does not export it by `drop_*` of tools.deny (weir.toml:9)","pattern":"drop_*","place":"weir.toml:9"}],"roles":[]}]}
    ! {"error":"`hub__drop_all` is visible to no role","exit_code":6}
    => 6
    $ weir explain attic --json
    {"name":"attic","visible":false,"findings":[{"upstream":"attic","visible":false,"facts":[{"about":"upstream","good":false,"text":"attic is disabled: `enabled = false` (weir.toml:18)","place":"weir.toml:18"}],"roles":[]}]}
    ! {"error":"`attic` is visible to no role","exit_code":4}
    => 4
    "#);
}

#[test]
fn where_nothing_is_written_the_defaults_are_told() {
    let folder = folder("[upstreams.house]\nprompts_dir = \"prompts\"\n");
    let output = output(
        &folder,
        &[&["house__greeting", "--as", "anonymous"], &["house__greeting"], &["house/greeting"]],
    );
    assert_snapshot!(output, @r#"
    $ weir explain house__greeting --as anonymous
    visible to anonymous: prompt house__greeting
      upstream  house is up: library
      listed    house lists it as `house/greeting`
      exports   house exports it by `*` of prompts.allow (by default)
      client    anonymous has the role local (by default)
      allowed   by `*` of prompts.allow (by default)
    => 0
    $ weir explain house__greeting
    visible to 1 of 1 role: prompt house__greeting
      upstream  house is up: library
      listed    house lists it as `house/greeting`
      exports   house exports it by `*` of prompts.allow (by default)
      role      local: visible; allowed by `*` of prompts.allow (by default)
    => 0
    $ weir explain house/greeting
    visible to 1 of 1 role: prompt house__greeting
      upstream  house is up: library
      listed    house lists it as `house/greeting`
      exports   house exports it by `*` of prompts.allow (by default)
      role      local: visible; allowed by `*` of prompts.allow (by default)
    => 0
    "#);
}

#[test]
fn of_two_that_list_a_uri_the_first_is_seen() {
    let config = "[upstreams.a]\ncommand = \"sh\"\nargs = [\"hub.sh\"]\n\
                  [upstreams.b]\ncommand = \"sh\"\nargs = [\"hub.sh\"]\n\
                  [clients.second]\nresources.allow = [\"b/*\"]\n\
                  key_sha256 = [\"1111111111111111111111111111111111111111111111111111111111111111\"]\n";
    let folder = folder(config);
    hub(folder.path());
    let output = output(
        &folder,
        &[
            &["todo:1"],
            &["b/todo:1", "--kind", "resources"],
            &["todo:2"],
            &["note:///public/2"],
            &["b/note:///public/2"],
        ],
    );
    assert_snapshot!(output, @r#"
    $ weir explain todo:1
    visible to 1 of 2 roles: resource todo:1
      upstream  a is up: stdio 2025-06-18
      listed    a lists it as `a/todo:1`
      exports   a exports it by `*` of resources.allow (by default)
      role      client:second: not visible; no rule allows `a/todo:1`: resources.allow has `b/*` (weir.toml:8)
      role      local: visible; allowed by `*` of resources.allow (by default)

    visible to 1 of 2 roles: resource todo:1
      upstream  b is up: stdio 2025-06-18
      listed    b lists it as `b/todo:1`
      exports   b exports it by `*` of resources.allow (by default)
      list      a also lists it and comes first in the file
      role      client:second: visible; allowed by `b/*` of resources.allow (weir.toml:8)
      role      local: not visible; allowed by `*` of resources.allow (by default); the visible one is of a, which comes first
    => 0
    $ weir explain b/todo:1 --kind resources
    visible to 1 of 2 roles: resource todo:1
      upstream  b is up: stdio 2025-06-18
      listed    b lists it as `b/todo:1`
      exports   b exports it by `*` of resources.allow (by default)
      list      a also lists it and comes first in the file
      role      client:second: visible; allowed by `b/*` of resources.allow (weir.toml:8)
      role      local: not visible; allowed by `*` of resources.allow (by default); the visible one is of a, which comes first
    => 0
    $ weir explain todo:2
    visible to 2 of 2 roles: resource todo:2
      listed    no upstream lists it
      role      client:second: visible; allowed by `b/*` of resources.allow (weir.toml:8); its scheme leads to b, which alone lists such URIs
      role      local: visible; allowed by `*` of resources.allow (by default); its scheme leads to a, which alone lists such URIs
    => 0
    $ weir explain note:///public/2
    visible to 2 of 2 roles: resource note:///public/2
      listed    no upstream lists it
      role      client:second: visible; allowed by `b/*` of resources.allow (weir.toml:8); the template `note:///{space}/{id}` leads to b
      role      local: visible; allowed by `*` of resources.allow (by default); the template `note:///{space}/{id}` leads to a
    => 0
    $ weir explain b/note:///public/2
    visible to 1 of 2 roles: resource note:///public/2
      listed    no upstream lists it
      role      client:second: visible; allowed by `b/*` of resources.allow (weir.toml:8); the template `note:///{space}/{id}` leads to b
      role      local: not visible; allowed by `*` of resources.allow (by default); the template `note:///{space}/{id}` leads to a; so the request goes to a, not to b
    => 0
    "#);
}

#[test]
fn who_does_not_see_a_uri_listed_may_be_led_to_another() {
    let folder = folder(
        "[upstreams.a]\ncommand = \"sh\"\nargs = [\"a.sh\"]\nresources.deny = [\"todo:1\"]\n\
         [upstreams.b]\ncommand = \"sh\"\nargs = [\"b.sh\"]\n\
         [upstreams.c]\ncommand = \"sh\"\nargs = [\"c.sh\"]\n",
    );
    let list = r#""result":{"resources":[{"name":"s","uri":"todo:1"}]}"#;
    script(folder.path(), "a", &[("resources/list", list)]);
    let list = r#""result":{"resourceTemplates":[{"name":"t","uriTemplate":"todo:{id}"},{"name":"u","uriTemplate":"both:{id}"}]}"#;
    script(folder.path(), "b", &[("resources/templates/list", list)]);
    let list = r#""result":{"resourceTemplates":[{"name":"t","uriTemplate":"both:{+id}"}]}"#;
    script(folder.path(), "c", &[("resources/templates/list", list)]);
    let output = output(
        &folder,
        &[
            &["todo:1"],
            &["a/todo:1"],
            &["todo:1", "--as", "anonymous"],
            &["both:1"],
            &["todo:{id}", "--kind", "templates"],
        ],
    );
    assert_snapshot!(output, @r#"
    $ weir explain todo:1
    not visible: resource todo:1
      upstream  a is up: stdio 2025-06-18
      listed    a lists it as `a/todo:1`
      exports   a does not export it by `todo:1` of resources.deny (weir.toml:4)

    visible to 1 of 1 role: resource todo:1
      listed    clients that do not see it in a list may still read it
      role      local: visible; allowed by `*` of resources.allow (by default); the template `todo:{id}` leads to b
    => 0
    $ weir explain a/todo:1
    not visible: resource todo:1
      upstream  a is up: stdio 2025-06-18
      listed    a lists it as `a/todo:1`
      exports   a does not export it by `todo:1` of resources.deny (weir.toml:4)
    ! weir: `a/todo:1` is visible to no role
    => 6
    $ weir explain todo:1 --as anonymous
    not visible to anonymous: resource todo:1
      upstream  a is up: stdio 2025-06-18
      listed    a lists it as `a/todo:1`
      exports   a does not export it by `todo:1` of resources.deny (weir.toml:4)
      client    anonymous has the role local (by default)
      allowed   by `*` of resources.allow (by default)

    visible to anonymous: resource todo:1
      listed    clients that do not see it in a list may still read it
      client    anonymous has the role local (by default)
      exports   b exports it by `*` of resources.allow (by default)
      allowed   by `*` of resources.allow (by default)
      route     the template `todo:{id}` leads to b
    => 0
    $ weir explain both:1
    not visible to any role: resource both:1
      listed    no upstream lists it
      role      local: not visible; it could be of b or of c: no upstream receives the request
    ! weir: `both:1` is visible to no role
    => 2
    $ weir explain todo:{id} --kind templates
    visible to 1 of 1 role: resource template todo:{id}
      upstream  b is up: stdio 2025-06-18
      listed    b lists it as `b/todo:{id}`
      exports   b exports it by `*` of resources.allow (by default)
      role      local: visible; allowed by `*` of resources.allow (by default)
    => 0
    "#);
}

#[test]
fn instructions_are_told_of_whoever_sees_some_of_their_upstream() {
    let notes = example("legacy_stdio");
    let config = format!(
        "[upstreams.notes]\ncommand = \"{notes}\"\n\
         [clients.reader]\nresources.allow = [\"notes/*\"]\n\
         key_sha256 = [\"1111111111111111111111111111111111111111111111111111111111111111\"]\n\
         [clients.stranger]\ntools.allow = [\"notes/other\"]\n\
         key_sha256 = [\"2222222222222222222222222222222222222222222222222222222222222222\"]\n"
    );
    let folder = folder(&config);
    let all = output(&folder, &[&["notes"]]);
    std::fs::write(
        folder.path().join("weir.toml"),
        format!("{config}[protocol]\ninstructions = false\n"),
    )
    .expect("written");
    assert_snapshot!(all + &output(&folder, &[&["notes", "--as", "reader"]]), @r#"
    $ weir explain notes
    visible to 2 of 3 roles: upstream notes
      upstream  notes is up: stdio 2025-11-25
      role      client:reader: visible; 0 of 2 prompts, 0 of 5 tools, 4 of 4 resources, 1 of 1 resource template; its instructions are sent
      role      client:stranger: not visible; 0 of 2 prompts, 0 of 5 tools, 0 of 4 resources, 0 of 1 resource template; its instructions are not sent: none of its items is visible
      role      local: visible; 2 of 2 prompts, 5 of 5 tools, 4 of 4 resources, 1 of 1 resource template; its instructions are sent
    => 0
    $ weir explain notes --as reader
    visible to reader: upstream notes
      upstream  notes is up: stdio 2025-11-25
      client    reader has rules of its own
      seen      0 of 2 prompts, 0 of 5 tools, 4 of 4 resources, 1 of 1 resource template
      told      its instructions are not sent: [protocol] instructions = false
    => 0
    "#);
}

#[test]
fn what_is_told_agrees_with_what_is_listed() {
    let folder = policy_folder();
    for client in ["visitor", "ci"] {
        for kind in ["prompts", "tools", "resources"] {
            let (_, out, _) = weir(folder.path(), &["list", kind, "--as", client]);
            for name in ["house__greeting", "house__secret-plan", "hub__add", "note:///1", "todo:1"]
            {
                let is_listed = out.lines().any(|line| line.split(' ').next() == Some(name));
                let (code, ..) =
                    weir(folder.path(), &["explain", name, "--kind", kind, "--as", client]);
                assert_eq!(code == 0, is_listed, "{kind} {name} to {client}");
            }
        }
    }
}

#[test]
fn what_is_seen_has_nothing_against_it_and_what_is_not_has_a_reason() {
    let folder = policy_folder();
    let names = [
        "house",
        "hub",
        "house__greeting",
        "house/secret-plan",
        "hub__add",
        "hub__one",
        "hub/drop_all",
        "note:///1",
        "todo:1",
        "todo:2",
        "todo:private",
        "note:///public/2",
        "note:///public/open",
        "hub/note:///public/2",
        "note:///{space}/{id}",
        "file:///x",
    ];
    for name in names {
        let (_, out, _) = weir(folder.path(), &["explain", name, "--json"]);
        let story = Object::parse(Bytes::from(out)).expect(name);
        let list = |object: &Object, member: &str| -> Vec<Object> {
            let array = object.get(member).expect(member).to_owned();
            let elements = json::elements(&array.into()).expect(member);
            elements.into_iter().map(|it| Object::parse(it).expect(member)).collect()
        };
        let is_good = |fact: &Object| fact.get("good") == Some("true");
        let findings = list(&story, "findings");
        assert!(!findings.is_empty(), "{name}");
        for finding in findings {
            let is_open = list(&finding, "facts").iter().all(is_good);
            let roles = list(&finding, "roles");
            assert_eq!(is_open, roles.len() == 3, "{name}: {finding:?}");
            for role in roles {
                let is_free = list(&role, "facts").iter().all(is_good);
                let visible = role.get("visible") == Some("true");
                assert_eq!(visible, is_free, "{name}: {role:?}");
            }
        }
    }
}

#[test]
fn what_limits_the_use_of_an_item_is_told_with_its_place() {
    let folder = policy_folder();
    let limits = "
[[limits]]
per = \"client\"
rate = \"600/min\"
burst = 60
[[limits]]
per = \"global\"
method = \"tools/call\"
match = \"hub/drop*\"
concurrency = 1
[[limits]]
per = \"role\"
method = \"tools/call\"
match = \"hub/*\"
rate = \"1/s\"
concurrency = 4
";
    std::fs::write(folder.path().join("policy.toml"), POLICY.to_owned() + limits).expect("written");
    assert_snapshot!(shown(folder.path(), &["explain", "hub/add", "--as", "ci"]));
}
