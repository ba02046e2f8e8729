//! Lines about changes of policy: they are written before the change takes effect, and a mandatory
//! log that cannot be written refuses the change.

use std::path::Path;
use std::time::Duration;

use weir::app::ReloadOutcome;
use weir_base::json::Object;

use super::{AuditedGateway, ROLES};
use crate::cell::MODERN_STDIO;
use crate::world::{pass, with_pair};

/// Configuration of [`AuditedGateway`], with one more role.
fn with_role(folder: &Path, name: &str, more: &str) -> String {
    let dir = folder.display();
    let audit = format!("[audit]\nenabled = true\n{more}\n[state]\ndir = \"{dir}\"\n");
    with_pair(&format!("{ROLES}{audit}[roles.{name}]\n"))
}

/// Outcomes of the lines about configurations.
fn outcomes(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("a log");
    let lines = text.lines().map(|line| Object::parse(line.to_owned()).expect("JSON"));
    let configs = lines.filter(|line| line.get_string("event").as_deref() == Some("config"));
    configs.map(|line| line.get_string("outcome").expect("an outcome").into_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_change_that_a_mandatory_log_cannot_record_does_not_take_effect() {
    let more = "on_error = \"refuse\"";
    let audited = AuditedGateway::start(MODERN_STDIO, more).await;
    let (folder, path) = (audited.folder.path().to_owned(), audited.path());
    let world = &audited.world;
    let applied = world.reload(&with_role(&folder, "one", more)).await;
    assert!(matches!(applied, ReloadOutcome::Applied { .. }), "{applied:?}");
    // The line is there when the outcome is known.
    assert_eq!(outcomes(&path), ["ok"]);
    std::fs::rename(&path, folder.join("moved")).expect("moved");
    std::fs::create_dir(&path).expect("made");
    let refused = world.reload(&with_role(&folder, "two", more)).await;
    let ReloadOutcome::Failed(why) = refused else { panic!("{refused:?}") };
    assert!(why.contains("cannot be recorded in the audit log"), "{why}");
    std::fs::remove_dir(&path).expect("removed");
    pass(Duration::from_secs(2)).await;
    let applied = world.reload(&with_role(&folder, "two", more)).await;
    let ReloadOutcome::Applied { changes, .. } = applied else { panic!("{applied:?}") };
    assert!(changes.contains(&"role two added".to_owned()), "{changes:?}");
    audited.world.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_configuration_is_recorded_once_for_each_content() {
    let audited = AuditedGateway::start(MODERN_STDIO, "").await;
    let (folder, path) = (audited.folder.path().to_owned(), audited.path());
    let world = &audited.world;
    let good = with_role(&folder, "one", "");
    for bad in ["[naming]\nseparator = 7\n", "[naming]\nseparator = 8.5\n[log]\nx = 1\n"] {
        for _ in 0..3 {
            let outcome = world.reload(&format!("{good}{bad}")).await;
            assert!(matches!(outcome, ReloadOutcome::Refused(_)), "{outcome:?}");
        }
    }
    assert!(matches!(world.reload(&good).await, ReloadOutcome::Applied { .. }));
    assert_eq!(world.reload(&good).await, ReloadOutcome::Unchanged);
    // What was taken up in between makes the refusal new.
    let _ = world.reload(&format!("{good}[naming]\nseparator = 7\n")).await;
    audited.world.close().await;
    assert_eq!(outcomes(&path), ["refused", "refused", "ok", "refused"]);
}
