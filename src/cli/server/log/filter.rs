//! Filter of log events by target and level, in the syntax of `tracing_subscriber::EnvFilter`.
//!
//! The target of an event is the path of its module. Before Weir was divided into crates, each path
//! began with `weir::`: such a target in a filter is translated, so that filters keep their effect.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Parses a filter.
///
/// # Errors
///
/// A directive is malformed.
pub(crate) fn parse(text: &str) -> Result<EnvFilter, ParseError> {
    let directives: Vec<_> = text.split(',').map(translate).collect();
    EnvFilter::builder().parse(directives.join(","))
}

/// Translates the target of a directive, such as `weir::upstream::session=trace`.
fn translate(directive: &str) -> String {
    for (former, target) in TARGETS {
        let rest = directive.trim_start().strip_prefix(former);
        // Whole names only: `weir::audit` is no part of `weir::auditors`.
        let is_whole = |rest: &&str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        if let Some(rest) = rest.filter(is_whole) {
            return format!("{target}{rest}");
        }
    }
    directive.to_owned()
}

/// Former target of each module that has become a crate or a part of one, and the present one. The
/// modules of the program itself have kept theirs.
const TARGETS: [(&str, &str); 16] = [
    ("weir::audit", "weir_record::audit"),
    ("weir::catalog", "weir_access::catalog"),
    ("weir::config", "weir_config"),
    ("weir::downstream", "weir_downstream"),
    ("weir::fleet", "weir_fleet"),
    ("weir::folder_watch", "weir_base::files::folder_watch"),
    ("weir::gateway", "weir_gateway"),
    ("weir::guard", "weir_access::guard"),
    ("weir::http_connection", "weir_base::net::http_connection"),
    ("weir::jsonrpc", "weir_mcp::jsonrpc"),
    ("weir::mcp", "weir_mcp"),
    ("weir::oauth", "weir_oauth"),
    ("weir::pins", "weir_access::pins"),
    ("weir::policy", "weir_access::policy"),
    // Before the module that it was a part of.
    ("weir::upstream::library", "weir_prompts"),
    ("weir::upstream", "weir_upstream"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_targets_are_translated_to_those_of_each_crate() {
        for (former, present) in [
            ("weir=debug", "weir=debug"),
            ("weir::cli::server=trace", "weir::cli::server=trace"),
            ("weir::folder_watch=trace", "weir_base::files::folder_watch=trace"),
            ("weir::mcp=trace", "weir_mcp=trace"),
            ("weir::jsonrpc=trace", "weir_mcp::jsonrpc=trace"),
            ("weir::upstream::library::watch=off", "weir_prompts::watch=off"),
            ("weir::oauth=info", "weir_oauth=info"),
            ("weir::fleet", "weir_fleet"),
            ("weir::audit=warn", "weir_record::audit=warn"),
            ("weir::policy::tokens=debug", "weir_access::policy::tokens=debug"),
            ("weir::upstream=trace", "weir_upstream=trace"),
            ("weir::gateway[{request=7}]=debug", "weir_gateway[{request=7}]=debug"),
            ("weir::downstream::http=debug", "weir_downstream::http=debug"),
            ("weir::config=debug", "weir_config=debug"),
            ("weir::auditors=debug", "weir::auditors=debug"),
            ("weir_upstream=trace", "weir_upstream=trace"),
            ("info", "info"),
        ] {
            assert_eq!(translate(former), present);
            assert!(parse(former).is_ok(), "{former}");
        }
        let several = parse("weir=error, weir::upstream=trace,warn").expect("it is a filter");
        let several = several.to_string();
        assert!(several.contains("weir_upstream=trace"), "{several}");
        assert!(parse("weir::upstream=much").is_err());
    }

    #[test]
    fn weir_alone_stands_for_all_crates() {
        use tracing::{Level, enabled};

        let filter = parse("weir=debug,weir::upstream=trace").expect("it is a filter");
        let logger = tracing_subscriber::fmt().with_env_filter(filter).finish();
        tracing::subscriber::with_default(logger, || {
            assert!(enabled!(target: "weir_gateway::lists", Level::DEBUG));
            assert!(!enabled!(target: "weir_gateway::lists", Level::TRACE));
            assert!(enabled!(target: "weir_upstream::session", Level::TRACE));
            assert!(!enabled!(target: "hyper", Level::ERROR));
        });
    }

    /// Each present target begins with the name of a crate.
    #[test]
    fn present_targets_belong_to_crates() {
        let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/crates");
        for (_, target) in TARGETS {
            let name = target.split("::").next().and_then(|name| name.strip_prefix("weir_"));
            let folder = std::path::Path::new(crates).join(name.expect("a crate"));
            let file =
                target.split("::").skip(1).fold(folder.join("src"), |at, name| at.join(name));
            assert!(file.is_dir() || file.with_extension("rs").exists(), "{target}");
        }
    }
}
