//! In-process gateway of one command: opened with the upstreams that the command needs, queried,
//! and closed.

use std::sync::Arc;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::admin::status::{CUT, held_back};
use crate::app::{self, App};
use crate::cli::exit::Failure;
use crate::cli::loading::{
    ConfigArgs, ConfigSource, ReportArgs, check_client, options, print_warnings, unknown_client,
};
use crate::cli::output::progress;
use crate::cli::output::render::sanitize_line;
use crate::cli::output::trace::{self, TraceArgs};
use crate::cli::query::required_upstreams::{self, UpstreamSelection};
use weir_access::catalog::{ExportedItem, RoleView};
use weir_base::json::Object;
use weir_config::{Config, Options, Warning, nearest};
use weir_gateway::ClientContext;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;
use weir_mcp::uri::CanonicalUri;
use weir_upstream::connect::system::System;
use weir_upstream::{ConnectionInfo, ConnectionStatus, Upstream};

/// Options of every command that queries the gateway.
#[derive(Debug, clap::Args)]
pub(crate) struct QueryArgs {
    /// Acts as this client, under its policy, instead of as the operator, who sees everything.
    #[arg(long = "as", value_name = "CLIENT", value_hint = clap::ValueHint::Other)]
    pub(crate) client: Option<String>,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Gateway that lives as long as one command.
pub(crate) struct OneShotGateway {
    /// Configuration, with only the selected upstreams.
    pub(crate) config: Config,
    pub(crate) source: ConfigSource,
    pub(crate) app: App,
    /// Context of the client that the command acts as.
    pub(crate) client_context: ClientContext,
    /// Context of the operator, who sees everything.
    pub(crate) operator_context: ClientContext,
    /// Output is JSON.
    pub(crate) json: bool,
}

impl OneShotGateway {
    /// Opens a gateway, runs `work` with it, and closes it. The policy is that of the client in
    /// `args`; without one everything is visible.
    pub(crate) async fn run(
        args: &QueryArgs,
        selection: UpstreamSelection<'_>,
        work: impl AsyncFnOnce(&Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        crate::cli::server::log::start_errors_only();
        let QueryArgs { client, trace, report: ReportArgs { json, config } } = args;
        trace.apply();
        let (client, options) = (client.as_deref(), options(true));
        let oneshot = Self::open(config, *json, client, selection, options, |_| {}).await?;
        let done = work(&oneshot).await;
        oneshot.close().await;
        done
    }

    /// Opens a gateway with the selected upstreams and waits until each of them has been listed or
    /// has failed, or until the requested item is visible. `change` changes the configuration
    /// before its use.
    pub(crate) async fn open(
        args: &ConfigArgs,
        json: bool,
        client: Option<&str>,
        selection: UpstreamSelection<'_>,
        options: Options,
        change: impl FnOnce(&mut Config),
    ) -> Result<Self, Failure> {
        let patience = match selection {
            UpstreamSelection::Matching(..) => EXPLAIN_TIMEOUT,
            UpstreamSelection::OwnersOf(..) | UpstreamSelection::Named(_) => Duration::MAX,
        };
        Self::open_within(args, json, client, selection, options, change, patience).await
    }

    /// Opens a gateway as [`Self::open`] does, and waits no longer than `patience`.
    pub(crate) async fn open_within(
        args: &ConfigArgs,
        json: bool,
        client: Option<&str>,
        selection: UpstreamSelection<'_>,
        options: Options,
        change: impl FnOnce(&mut Config),
        patience: Duration,
    ) -> Result<Self, Failure> {
        let source = args.find().await?;
        // First without upstreams: the file decides which ones are needed, and only their secrets
        // are fetched in a second read.
        let only = (!selection.is_all()).then(Vec::new);
        let mut options = Options { only, ..options };
        let mut config = source.read(&options).await?;
        if let Some(client) = client {
            check_client(&config, client)?;
        }
        if !selection.is_all() {
            options.only = Some(required_upstreams::resolve(&config, selection)?);
            config = source.read(&options).await?;
        }
        change(&mut config);
        for upstream in &mut config.upstreams {
            // A command reports the current state, not a cached catalog, and leaves it to others.
            upstream.settings.reads_list_cache = false;
        }
        if !json {
            // What an upstream lacks is the reason that the command shows.
            let is_of_upstream =
                |it: &&Warning| it.is_missing_value && it.key.starts_with("upstreams.");
            let others = config.warnings.iter().filter(|it| !is_of_upstream(it)).cloned();
            print_warnings(&others.collect::<Vec<_>>());
        }
        let state = config.state.dir.as_deref();
        let connector = System::for_program().with_login_shell(state, true);
        let connector = connector.with_trace_sink(trace::sink(&config));
        let app = App::open(&config, Arc::new(connector));
        let operator_context = app.gateway().operator();
        let client_context = match client {
            None => operator_context.clone(),
            Some(name) => {
                app.gateway().named_client(name).ok_or_else(|| unknown_client(&config, name))?
            }
        };
        let ready = async {
            let listed = app.gateway().wait_until_listed();
            match selection {
                UpstreamSelection::OwnersOf(kind, key) => tokio::select! {
                    () = listed => {}
                    () = client_context.wait_until_visible(kind, key) => {}
                },
                UpstreamSelection::Named(_) | UpstreamSelection::Matching(..) => listed.await,
            }
        };
        // After the timeout the command reports the upstreams that are missing.
        let _ = progress::show_startup(json, app.gateway(), tokio::time::timeout(patience, ready))
            .await;
        Ok(Self { config, source, app, client_context, operator_context, json })
    }

    /// Finds the upstream of a name in the configuration.
    pub(crate) fn find_upstream(&self, name: &str) -> Option<Upstream> {
        let upstreams = self.app.gateway().upstreams();
        upstreams.into_iter().find(|upstream| upstream.name().as_str() == name)
    }

    /// Finds the item of a public name or URI, or of a name as in rules, `<upstream>/<original
    /// name>`; the failure tells the owner of the configuration why there is none.
    pub(crate) fn find_item(&self, kind: Kind, key: &str) -> Result<Arc<ExportedItem>, Failure> {
        let resolve = |view: &RoleView| match kind {
            Kind::Resource => view.resolve_uri(key),
            _ => view.resolve(kind, key).or_else(|| find_by_own_name(view, kind, key)),
        };
        let view = self.client_context.view();
        if let Some(target) = resolve(&view) {
            return Ok(target);
        }
        if resolve(&self.operator_context.view()).is_some() {
            let text = format!("the policy hides the {kind} `{key}` from this client");
            return Err(Failure::Denied(text));
        }
        if let Some(held_back) = self.describe_held_back(kind, key) {
            return Err(Failure::Denied(format!("the {kind} `{key}` {held_back}")));
        }
        // The reader owns the configuration, so upstreams that the client cannot use count as well.
        if let Some(describe_unlisted) = self.describe_unlisted(&self.operator_context, kind) {
            let text = format!("no {kind} `{key}`, but {describe_unlisted}");
            return Err(Failure::Unreachable(text));
        }
        if kind == Kind::Resource
            && let Err(why) = CanonicalUri::parse(key)
        {
            let text = format!(
                "no {kind} `{key}` is listed, and a URI that is not listed must be in normal \
                 form: {why}"
            );
            return Err(Failure::Usage(text));
        }
        let listed = view.items(kind).iter().map(|target| &*target.key);
        let hint = match nearest(key, listed) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("`weir list {}` shows what there is", kind_argument(kind)),
        };
        Err(Failure::Usage(format!("no {kind} `{key}`; {hint}")))
    }

    /// Describes that an item waits for its approval, if it is listed by an upstream.
    fn describe_held_back(&self, kind: Kind, key: &str) -> Option<String> {
        let naming = app::naming(&self.config.naming);
        let withheld = self.app.gateway().awaiting_approval();
        withheld.iter().filter(|(_, of, _)| *of == Some(kind)).find_map(|(name, _, own)| {
            let upstream = self.config.upstreams.iter().find(|it| it.settings.name == *name)?;
            let public = upstream.exports.public_key(&naming, kind, own);
            (*public == *key).then(|| sanitize_line(&held_back(name, Some(own))))
        })
    }

    /// Finds the definition of an item, like [`Self::find_item`], and its public name.
    pub(crate) fn find_definition(
        &self,
        kind: Kind,
        key: &str,
    ) -> Result<(String, Object), Failure> {
        let item = self.find_item(kind, key)?;
        Ok((item.key.to_string(), Object::parse(item.json.clone()).unwrap_or_default()))
    }

    /// Describes which upstreams that are visible to a client could not be listed, and why.
    pub(crate) fn describe_unlisted(&self, viewer: &ClientContext, kind: Kind) -> Option<String> {
        let reasons = self.unlisted_reasons(viewer, kind);
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Describes each upstream that is visible to a client and could not be listed.
    pub(crate) fn unlisted_reasons(&self, viewer: &ClientContext, kind: Kind) -> Vec<String> {
        let view = viewer.view();
        let problems = self.app.gateway().problems();
        let why = |name: &UpstreamName| {
            let mut mine = problems.iter().filter(|(of, its, _)| of == name && *its == kind);
            if let Some(by) = mine.find_map(|(.., problems)| problems.cut.as_ref()) {
                return format!("upstream `{name}` {CUT}: {by} of {}", kind.list_method());
            }
            let upstream = self.find_upstream(name.as_str());
            let reason = match upstream.map(|upstream| upstream.status().borrow().clone()) {
                Some(ConnectionStatus::Down { reason, .. }) => sanitize_line(&reason),
                _ => format!("no response to `{}`", kind.list_method()),
            };
            format!("upstream `{name}` could not be listed: {reason}")
        };
        view.missing(kind).iter().map(why).collect()
    }

    /// Closes the gateway and kills upstreams that do not end by themselves.
    pub(crate) async fn close(self) {
        // A child process gets 5 s to end in steps, and a shell prompt should not wait longer. An
        // upstream that was not needed for the result is no reason to wait at all.
        let all_were_needed = self.app.gateway().pending_upstreams().is_empty();
        let patience = Duration::from_millis(if all_were_needed { 6_000 } else { 500 });
        let close = tokio::time::timeout(patience, self.app.close());
        let about = || "waiting for upstreams to end".into();
        let _ = progress::show_while(self.json, about, close).await;
    }
}

/// Finds an item by its upstream and its name there.
fn find_by_own_name(view: &RoleView, kind: Kind, name: &str) -> Option<Arc<ExportedItem>> {
    let (upstream, own) = name.split_once('/')?;
    let is_it = |it: &&Arc<ExportedItem>| it.upstream.as_str() == upstream && *it.own == *own;
    view.items(kind).iter().filter(|_| kind.has_name()).find(is_it).cloned()
}

/// Time limit for the upstreams of `weir explain`, so that it reports within ten seconds.
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(8);

/// Describes the connection of an upstream.
pub(crate) fn describe_connection(about: &ConnectionInfo) -> String {
    match about.transport {
        // It has no protocol revision.
        "library" => "library".to_owned(),
        transport => format!("{transport} {}", about.revision),
    }
}

/// Parser of arguments that name a kind.
pub(crate) fn plural_kind() -> impl TypedValueParser<Value = Kind> {
    let words = Kind::ALL.map(kind_argument);
    PossibleValuesParser::new(words).map(|word| {
        let named = Kind::ALL.into_iter().find(|kind| kind_argument(*kind) == word);
        named.expect("it is one of these words")
    })
}

/// Word for the items of a kind in arguments.
pub(crate) fn kind_argument(kind: Kind) -> &'static str {
    match kind {
        Kind::Prompt => "prompts",
        Kind::Tool => "tools",
        Kind::Resource => "resources",
        Kind::Template => "templates",
    }
}
