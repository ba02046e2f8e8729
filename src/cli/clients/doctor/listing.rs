//! First lists of all servers of a configuration: servers that are down, slow ones, and tools that
//! a client does not take.

use std::collections::BTreeSet;
use std::path::Path;

use super::config_file::CheckedConfig;
use super::entry::ConfigUse;
use super::finding::{DoctorFinding, DoctorReport};
use crate::cli::check::survey::{ConfigSurvey, ListedTool, SurveyedUpstream};
use crate::cli::clients::connect::LISTING_TIMEOUT;
use crate::cli::clients::connect::connect_command::ConnectCommand;
use crate::cli::clients::places::Scope;
use crate::cli::loading::ConfigArgs;
use weir_base::text::shell_word::ShellWord;
use weir_config::NamingMode;

/// Lists all servers of a configuration, and reports what clients miss.
pub(super) async fn check(
    path: &Path,
    uses: &[&ConfigUse],
    checked: &CheckedConfig,
    keeps_lists: bool,
    report: &mut DoctorReport,
) {
    let clients: BTreeSet<_> = uses.iter().map(|used| used.as_client.clone()).collect();
    let args = ConfigArgs::of_file(path.to_owned());
    let survey = match ConfigSurvey::take(&args, &clients, LISTING_TIMEOUT).await {
        Ok(survey) => survey,
        Err(failure) => {
            report.add(DoctorFinding::of_failure(&failure).at(path, None));
            return;
        }
    };
    for upstream in &survey.upstreams {
        check_upstream(upstream, path, checked, keeps_lists, report);
    }
    for used in uses {
        let tools = survey.tools.get(&used.as_client).map(Vec::as_slice).unwrap_or_default();
        check_names(used, tools, checked, report);
        check_amount(used, tools, report);
    }
}

fn check_upstream(
    upstream: &SurveyedUpstream,
    path: &Path,
    checked: &CheckedConfig,
    keeps_lists: bool,
    report: &mut DoctorReport,
) {
    let name = &upstream.name;
    let location = checked.config.rule_locations.of(&["upstreams", name, "command"]);
    let location = location.or(checked.config.rule_locations.of(&["upstreams", name, "url"]));
    let path = path.display().to_string();
    let at = |finding: DoctorFinding| finding.at_location(location);
    match (&upstream.fault, upstream.took) {
        // The cause has been reported.
        (Some(_), _) if checked.faulty.contains(name) => {}
        (Some(fault), _) if upstream.needs_sign_in => {
            let fix = format!("weir login {name} --config {}", ShellWord(&path));
            report.add(at(DoctorFinding::warning(format!("upstreams.{name}: {fault}"), fix)));
        }
        (Some(fault), _) => {
            let start = fault.strip_prefix("it cannot be started: ");
            let (what, fix) = match start.and_then(|start| start.split_once("; ")) {
                Some((what, fix)) => (what, fix.to_owned()),
                None => {
                    let place = ShellWord(&path);
                    (&**fault, format!("correct it; weir check --config {place} tries it"))
                }
            };
            report.add(at(DoctorFinding::warning(format!("upstreams.{name}: {what}"), fix)));
        }
        (None, Some(took)) if took > checked.config.protocol.list_wait => {
            let took = took.as_secs();
            let what = format!("upstreams.{name}: it takes {took} s to start");
            report.add(at(match keeps_lists {
                true => DoctorFinding::note(format!("{what}; its last lists serve meanwhile")),
                false => {
                    let what = format!("{what}, and clients that list once miss it");
                    DoctorFinding::warning(what, "set catalog = true, and dir, under [state]")
                }
            }));
        }
        (None, _) => {}
    }
}

/// Reports names of tools that are too long for a client.
fn check_names(
    used: &ConfigUse,
    tools: &[ListedTool],
    checked: &CheckedConfig,
    report: &mut DoctorReport,
) {
    let max = used.client.limits.max_name(&used.entry);
    let long: Vec<_> = tools.iter().filter(|tool| tool.name.chars().count() > max).collect();
    let Some(first) = long.first() else { return };
    let more = match long.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = format!(
        "{} takes names of at most {max} characters with the entry `{}`: {}{more}",
        used.client.title, used.entry, first.name
    );
    let is_naming_possible =
        max >= MIN_NAME_LENGTH && checked.config.naming.mode == NamingMode::Always;
    let fix = match is_naming_possible {
        true => format!("set max_length = {max} under [naming] in {}", used.path.display()),
        false => {
            let command = ConnectCommand {
                client: used.client,
                entry: "weir",
                scope: Scope::User,
                action: "--write",
                config: Some(&used.path),
                is_stdio: false,
            };
            format!("give the entry a shorter name: {command}")
        }
    };
    report.add(DoctorFinding::warning(what, fix).of(used.client));
}

/// Notes more tools than a client takes, and definitions that fill much of a model's context.
fn check_amount(used: &ConfigUse, tools: &[ListedTool], report: &mut DoctorReport) {
    let (title, count) = (used.client.title, tools.len());
    if let Some(max) = used.client.limits.tools.filter(|max| count > *max) {
        let text =
            format!("{title} takes {max} tools, and Weir has {count}: a role with fewer helps");
        report.add(DoctorFinding::note(text).of(used.client));
    }
    let bytes: usize = tools.iter().map(|tool| tool.bytes).sum();
    if bytes > MANY_BYTES {
        let text = format!(
            "the definitions of {count} tools have {} KB, some {} tokens of a model's context: a \
             role with fewer helps",
            bytes / 1000,
            bytes / BYTES_PER_TOKEN
        );
        report.add(DoctorFinding::note(text).of(used.client));
    }
}

/// Smallest `naming.max_length`.
const MIN_NAME_LENGTH: usize = 32;

/// Usual number of bytes of a token.
const BYTES_PER_TOKEN: usize = 4;

/// Size of definitions that is noted: 25,000 tokens, from which on Claude Code warns of them.
const MANY_BYTES: usize = 25_000 * BYTES_PER_TOKEN;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cli::clients::McpClient;
    use crate::cli::output::wrapped_text::WrappedText;
    use weir_config::Config;

    /// Findings about tools of these names and sizes.
    fn findings(client: &str, entry: &str, tools: &[(String, usize)]) -> String {
        let client = McpClient::named(client).expect("a client");
        let used = ConfigUse {
            client,
            entry: entry.to_owned(),
            scope: Scope::User,
            path: PathBuf::from("/home/ada/weir.toml"),
            is_stdio: true,
            as_client: None,
            environment: Vec::new(),
            given: Vec::new(),
            startup: None,
            place: (PathBuf::from("/home/ada/.cursor/mcp.json"), None),
        };
        let tools: Vec<_> = tools
            .iter()
            .map(|(name, bytes)| ListedTool { name: name.clone(), bytes: *bytes })
            .collect();
        let checked = CheckedConfig::of(Config::default());
        let mut report = DoctorReport::default();
        check_names(&used, &tools, &checked, &mut report);
        check_amount(&used, &tools, &mut report);
        report.format(WrappedText::new(usize::MAX, false))
    }

    #[test]
    fn a_name_is_too_long_with_the_entry_or_for_the_client() {
        let tool = |length: usize| ("x".repeat(length), 1);
        let said = findings("cursor", "my-gateway", &[tool(53), tool(51), tool(50)]);
        let start = "warning  cursor  Cursor takes names of at most 50 characters with the entry \
                     `my-gateway`: xxx";
        assert!(said.starts_with(start), "{said}");
        let end = "xxx and 1 more\n                 fix: set max_length = 50 under [naming] in \
                   /home/ada/weir.toml\n";
        assert!(said.ends_with(end), "{said}");
        assert_eq!(findings("cursor", "weir", &[tool(53)]), "");
        assert_eq!(findings("claude-code", "weir", &[tool(53)]), "");
        let said = findings("claude-code", &"n".repeat(40), &[tool(53)]);
        let end = "fix: give the entry a shorter name: weir connect claude-code --write --config \
                   /home/ada/weir.toml\n";
        assert!(said.ends_with(end), "{said}");
    }

    #[test]
    fn many_tools_and_large_definitions_are_noted() {
        let tools = |count: usize, bytes| vec![("x".to_owned(), bytes); count];
        assert_eq!(findings("vscode", "weir", &tools(128, 100)), "");
        assert_eq!(
            findings("vscode", "weir", &tools(129, 1_000)),
            "note     vscode  VS Code takes 128 tools, and Weir has 129: a role with fewer helps\n\
             note     vscode  the definitions of 129 tools have 129 KB, some 32250 tokens of a \
             model's context: a role with fewer helps\n"
        );
        assert_eq!(findings("zed", "weir", &tools(100, 1_000)), "");
    }
}
