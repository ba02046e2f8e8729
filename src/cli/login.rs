//! `weir login` and `weir logout`: sign-ins of a user at the authorization servers of upstreams.

mod browser;
mod redirect;

use std::io::Write;
use std::path::Path;
use std::slice;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::TryFutureExt;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use serde::Serialize;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::cli::exit::Failure;
use crate::cli::loading::{ReportArgs, options, print_warnings};
use crate::cli::output;
use crate::cli::output::render::sanitize_line;
use crate::cli::server::signals::Signals;
use crate::cli::server::{audit_log, log};
use redirect::RedirectListener;
use weir_base::net::http_send::HttpSend;
use weir_base::time::timestamp::format_rfc3339;
use weir_config::{Config, Options, Warning};
use weir_oauth::{BearerChallenge, Exchange, OAuthError, Settings, SignIn, SignInRecord, Vault};
use weir_record::audit::{Audit, SignInEvent, Writer};
use weir_upstream::UpstreamSource;
use weir_upstream::connect::HttpRequests;
use weir_upstream::connect::system::System;

/// Arguments of `weir login`.
#[derive(Debug, clap::Args)]
pub(super) struct LoginArgs {
    /// The upstream to sign in to; without one, those are named to which users sign in.
    #[arg(value_name = "UPSTREAM")]
    upstream: Option<String>,
    /// Shows the upstreams that users sign in to, and whether one has.
    #[arg(long, conflicts_with_all = ["upstream", "no_browser", "port"])]
    list: bool,
    /// Seals all sign-ins with a new key, and removes the former one.
    #[arg(long, conflicts_with_all = ["upstream", "list", "no_browser", "port"])]
    rekey: bool,
    /// Opens no browser: the URL is only printed. The address at which the browser ends can be
    /// pasted, if it runs on another machine.
    #[arg(long)]
    no_browser: bool,
    /// The port of this machine to which the browser comes back, for an authorization server where
    /// the redirect URI is registered with its port. Without it a free one is chosen.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    #[command(flatten)]
    report: ReportArgs,
}

/// Arguments of `weir logout`.
#[derive(Debug, clap::Args)]
pub(super) struct LogoutArgs {
    /// The upstream whose sign-in is removed; without one, those are named to which users sign in.
    #[arg(value_name = "UPSTREAM")]
    upstream: Option<String>,
    #[command(flatten)]
    report: ReportArgs,
}

/// Sign-in of one upstream.
#[derive(Serialize)]
struct SignInRow<'a> {
    upstream: &'a str,
    signed_in: bool,
    issuer: Option<String>,
    /// Time at which the access token expires.
    expires: Option<String>,
    /// Whether Weir renews the access token.
    renewable: bool,
    /// Why the sign-in cannot be used, or was not revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl<'a> SignInRow<'a> {
    fn new(upstream: &'a str, record: Option<&SignInRecord>) -> Self {
        let expires = record.and_then(SignInRecord::expires).map(Duration::from_secs);
        Self {
            upstream,
            signed_in: record.is_some(),
            issuer: record.map(|record| sanitize_line(record.issuer())),
            expires: expires.map(|it| format_rfc3339(SystemTime::UNIX_EPOCH + it)),
            renewable: record.is_some_and(SignInRecord::is_refreshable),
            problem: None,
        }
    }

    fn to_line(&self) -> String {
        if let Some(problem) = &self.problem {
            return format!("{}: {problem}", self.upstream);
        }
        let Some(issuer) = &self.issuer else { return format!("{}: not signed in", self.upstream) };
        let until = match (&self.expires, self.renewable) {
            (Some(expires), false) => format!(", until {expires}"),
            _ => String::new(),
        };
        format!("{}: signed in at {issuer}{until}", self.upstream)
    }
}

/// Result of a change of keys.
#[derive(Serialize)]
struct Rekeyed {
    /// Number of sign-ins.
    sealed: usize,
}

/// Signs in, or lists the sign-ins. A signal ends it, and is recorded as the end of a sign-in.
pub(super) async fn login(args: LoginArgs) -> Result<(), Failure> {
    log::start_errors_only();
    let mut signals = Signals::of_command()?;
    let config = signals.run_until_signal(load(&args.report, args.upstream.clone())).await?;
    let state = state(&config)?;
    if args.rekey {
        let sealed = signals.run_until_signal(Vault::rekey(state).map_err(failure)).await?;
        let write = |out: &mut dyn Write| writeln!(out, "{sealed} sealed with a new key");
        return output::print_report(args.report.json, &Rekeyed { sealed }, write);
    }
    let Some(name) = &args.upstream else {
        return match args.list {
            true => list(&config, state, args.report.json),
            false => Err(which_upstream(&config, "login")),
        };
    };
    let target = find(&config, name, state)?;
    // Such as that its access tokens go to an http:// URL.
    let own = format!("upstreams.{name}.");
    let is_own = |warning: &&Warning| warning.key.starts_with(&own);
    print_warnings(&config.warnings.iter().filter(is_own).cloned().collect::<Vec<_>>());
    // The user signs in only if the result can be kept and recorded.
    Vault::open(state).map_err(|error| vault_failure(state, &error))?;
    let log = audit_log::open_for_command(&config)?;
    if !args.report.json {
        let of_folder = config.warnings.iter().filter(|warning| warning.key == "state.dir");
        of_folder.for_each(|warning| output::print_stderr(&warning.render(true)));
    }
    let (exchange, written) = (Exchange::new(name), OnceLock::new());
    let kept = async {
        let record = sign_in(name, &target, state, &args, &exchange).await?;
        keep(name, &target, state, record, &written).await
    };
    let announce = || output::print_waiting_for_answer(slice::from_ref(name), args.report.json);
    // A sign-in that a signal ends is recorded, too. A code that was sent is redeemed.
    let kept = signals.run_until_signal_or_answer(&exchange, announce, kept).await;
    let kept = match (kept, written.into_inner()) {
        // Only the revocation of the former sign-in has not ended.
        (Err(stopped @ Failure::Stopped(_)), Some(record)) => {
            print_not_revoked(&stopped.to_string());
            Ok(record)
        }
        (kept, _) => kept,
    };
    write_audit(log, SignInEvent::Login, name, kept.as_ref().err()).await;
    print(&args.report, &SignInRow::new(name, Some(&kept?)))
}

/// Signs a user in to an upstream.
async fn sign_in(
    name: &str,
    target: &SignInTarget<'_>,
    state: &Path,
    args: &LoginArgs,
    exchange: &Exchange,
) -> Result<SignInRecord, Failure> {
    let SignInTarget { url, headers, account, http } = target;
    let challenge = challenge(http, url, headers).await?;
    let listener = RedirectListener::bind(args.port).await.map_err(|error| {
        Failure::Unreachable(format!("no port for the browser's way back: {error}"))
    })?;
    // One that cannot be read is replaced.
    let vault = Vault::open_existing(state).unwrap_or_default();
    let earlier = vault.and_then(|vault| vault.read(name).unwrap_or_default());
    let (uri, earlier) = (listener.uri(), earlier.as_ref());
    let sign_in = SignIn::begin(http, name, account, &challenge, uri, earlier);
    let sign_in = sign_in.await.map_err(failure)?;
    let place = sanitize_line(&sign_in.place());
    output::print_stderr(&format!("Sign in at {place}:\n\n{}\n", sign_in.url()));
    // The page is there until the user has signed in.
    let _page = match args.no_browser {
        true => None,
        false => browser::open(sign_in.url(), &Vault::folder(state)),
    };
    let response = timeout(PATIENCE, listener.response(&sign_in, args.no_browser)).await;
    let response = response.map_err(|_| {
        Failure::Unauthenticated("no user has signed in within 10 min: start again".into())
    })?;
    let signed_in = sign_in.finish(&exchange.over(http), &response).await;
    if let (Err(OAuthError::Refused(_)), Some(_)) = (&signed_in, earlier) {
        // What the upstream demands beyond may be the reason: the next sign-in goes without it.
        Vault::forget_demands(state, name).await.map_err(failure)?;
    }
    signed_in.map_err(failure)
}

/// Keeps a sign-in in place of the earlier one, and sets `written`; then the tokens of the earlier
/// one are revoked. A sign-in that cannot be kept is revoked itself.
async fn keep(
    name: &str,
    target: &SignInTarget<'_>,
    state: &Path,
    record: SignInRecord,
    written: &OnceLock<SignInRecord>,
) -> Result<SignInRecord, Failure> {
    let former = match Vault::sign_in(state, name, record.clone()).await {
        Ok(former) => former,
        Err(error) => {
            return Err(failure(record.discard(&target.http, &target.account, &error).await));
        }
    };
    let _ = written.set(record.clone());
    let problem = match former {
        None => None,
        Some(former) if former.is_revocable_beside(&record) => target.revoke(&former).await,
        Some(_) => Some(format!(
            "the authorization server may count both as one; to revoke them, run \
             `weir logout {name}` before `weir login {name}`"
        )),
    };
    if let Some(problem) = problem {
        print_not_revoked(&problem);
    }
    Ok(record)
}

fn print_not_revoked(why: &str) {
    output::print_stderr(&format!("the tokens of the former sign-in were not revoked: {why}"));
}

/// Writes an event to the audit log, if there is one.
async fn write_audit(
    log: Option<(Audit, Writer)>,
    event: SignInEvent,
    upstream: &str,
    failure: Option<&Failure>,
) {
    let Some((audit, writer)) = log else { return };
    audit.record_sign_in(event, &Arc::from(upstream), failure.map(ToString::to_string));
    // The writer ends once it has written what is queued.
    let stop = CancellationToken::new();
    stop.cancel();
    writer.run(stop).await;
}

/// Removes a sign-in. A signal ends it, but once the sign-in is removed here, that is recorded.
pub(super) async fn logout(args: LogoutArgs) -> Result<(), Failure> {
    log::start_errors_only();
    let LogoutArgs { upstream, report } = &args;
    let mut signals = Signals::of_command()?;
    let config = signals.run_until_signal(load(report, upstream.clone())).await?;
    let Some(name) = upstream else { return Err(which_upstream(&config, "logout")) };
    let state = state(&config)?;
    let target = find(&config, name, state);
    let log = audit_log::open_for_command(&config)?;
    // One that cannot be read is removed all the same.
    let (was_signed_in, record) = Vault::sign_out(state, name).await.map_err(failure)?;
    if !was_signed_in {
        // The upstream may not even be one to which users sign in.
        target?;
        return Err(Failure::Usage(format!("no user is signed in to `{name}`")));
    }
    let exchange = Exchange::new(name);
    let revoked = async {
        let SignInTarget { account, http, .. } = target?;
        let record = record.ok_or_else(|| Failure::Usage("they cannot be read".into()))?;
        record.revoke(&exchange.over(&http), &account).await.map_err(failure)
    };
    let announce = || output::print_waiting_for_answer(slice::from_ref(name), report.json);
    let revoked = signals.run_until_signal_or_answer(&exchange, announce, revoked).await;
    let problem = match &revoked {
        Ok(true) => None,
        Ok(false) => Some("the authorization server does not support that".to_owned()),
        Err(failure) => Some(sanitize_line(&failure.to_string())),
    };
    let problem =
        problem.map(|why| format!("the tokens were removed here, and not revoked: {why}"));
    if let Some(problem) = problem.as_ref().filter(|_| !report.json) {
        output::print_stderr(problem);
    }
    write_audit(log, SignInEvent::Logout, name, None).await;
    if let Err(stopped @ Failure::Stopped(_)) = revoked {
        return Err(stopped);
    }
    let problem = problem.filter(|_| report.json);
    print(report, &SignInRow { problem, ..SignInRow::new(name, None) })
}

/// Failure of a command for one upstream that names none.
fn which_upstream(config: &Config, command: &str) -> Failure {
    let upstreams = config.upstreams.iter().filter(|it| it.is_signed_in_to());
    let names: Vec<_> = upstreams.map(|it| it.name()).collect();
    Failure::Usage(match names.first() {
        Some(first) => format!(
            "which upstream? users sign in to {}; for example `weir {command} {first}`",
            names.join(", ")
        ),
        None => NO_SIGN_INS.to_owned(),
    })
}

fn list(config: &Config, state: &Path, json: bool) -> Result<(), Failure> {
    let vault = Vault::open_existing(state).map_err(failure)?;
    let upstreams = config.upstreams.iter().filter(|it| it.is_signed_in_to());
    let mut rows = Vec::new();
    for upstream in upstreams {
        let record = vault.as_ref().map(|vault| vault.read(upstream.name())).transpose();
        let mut problem = record.as_ref().err().map(|error| sanitize_line(&error.to_string()));
        let record = record.unwrap_or_default().flatten();
        if let (Some(record), UpstreamSource::Http { account: Some(account), .. }) =
            (&record, &upstream.settings.source)
            && !record.is_of(account)
        {
            let text = "the sign-in is for another url, issuer, client or resource: sign in again";
            problem = Some(text.to_owned());
        }
        rows.push(SignInRow { problem, ..SignInRow::new(upstream.name(), record.as_ref()) });
    }
    let write =
        |out: &mut dyn Write| rows.iter().try_for_each(|row| writeln!(out, "{}", row.to_line()));
    output::print_report(json, &rows, write)?;
    if rows.is_empty() && !json {
        output::print_stderr(NO_SIGN_INS);
    }
    Ok(())
}

fn print(report: &ReportArgs, row: &SignInRow<'_>) -> Result<(), Failure> {
    output::print_report(report.json, row, |out| writeln!(out, "{}", row.to_line()))
}

/// Reads the configuration with this upstream only, or with all.
async fn load(report: &ReportArgs, upstream: Option<String>) -> Result<Config, Failure> {
    let only = upstream.map(|upstream| vec![upstream]);
    // This process opens no listener, so anonymous access from the network does not matter.
    let loaded = report.config.load(&Options { only, ..options(true) }).await?;
    Ok(loaded.config)
}

fn state(config: &Config) -> Result<&Path, Failure> {
    config.state.dir.as_deref().ok_or_else(|| {
        let text = "there is no folder for sign-ins: set dir under [state], or the variable HOME";
        Failure::NoConfig(text.into())
    })
}

/// Upstream to which a user signs in.
struct SignInTarget<'a> {
    url: &'a Uri,
    headers: &'a HeaderMap,
    account: Settings,
    /// Client for requests to it and to its authorization server.
    http: HttpRequests,
}

impl SignInTarget<'_> {
    /// Revokes the tokens of a sign-in; returns why it cannot.
    async fn revoke(&self, record: &SignInRecord) -> Option<String> {
        match record.revoke(&self.http, &self.account).await {
            Ok(true) => None,
            Ok(false) => Some("the authorization server does not support that".to_owned()),
            Err(error) => Some(sanitize_line(&error.to_string())),
        }
    }
}

fn find<'a>(config: &'a Config, name: &str, state: &Path) -> Result<SignInTarget<'a>, Failure> {
    let found = config.upstreams.iter().find(|upstream| upstream.name() == name);
    let upstream = found.ok_or_else(|| {
        let name = sanitize_line(name);
        Failure::Usage(format!("the configuration has no enabled upstream `{name}`"))
    })?;
    match &upstream.settings.source {
        UpstreamSource::Http { url, headers, account: Some(account), egress, .. }
            if account.grant.is_of_user() =>
        {
            let connect = Arc::new(System::new());
            let http = HttpRequests { connect, egress: egress.clone() };
            let account = Settings { state: Some(state.to_owned()), ..(**account).clone() };
            Ok(SignInTarget { url, headers, account, http })
        }
        UpstreamSource::Unresolved { reason } => {
            Err(Failure::NoConfig(format!("upstream `{name}`: {}", sanitize_line(reason))))
        }
        _ => {
            let text = "users do not sign in to it: that needs auth = { type = \"oauth\" } without \
                        another grant";
            Err(Failure::Usage(format!("upstream `{name}`: {text}")))
        }
    }
}

/// Asks the upstream which authorization server it wants.
async fn challenge(
    http: &HttpRequests,
    url: &Uri,
    headers: &HeaderMap,
) -> Result<BearerChallenge, Failure> {
    let mut request = Request::post(url).body(Bytes::from_static(PING)).unwrap_or_default();
    request.headers_mut().extend(headers.clone());
    let own = request.headers_mut();
    own.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    own.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    // The head says it: some servers send a body without end.
    let response = http.send(request, 0, None);
    match timeout(CHALLENGE_TIMEOUT, response).await {
        Ok(Ok(response)) if response.status() == StatusCode::UNAUTHORIZED => {
            Ok(BearerChallenge::find(response.headers()).unwrap_or_default())
        }
        // Some servers require a token for a few requests only.
        Ok(_) => Ok(BearerChallenge::default()),
        Err(_) => Err(Failure::Unreachable("the upstream does not respond".into())),
    }
}

fn failure(error: OAuthError) -> Failure {
    match error {
        OAuthError::Unavailable(text) => Failure::Unreachable(text),
        OAuthError::Refused(text) | OAuthError::SignInNeeded(text) => {
            Failure::Unauthenticated(text)
        }
    }
}

fn vault_failure(state: &Path, error: &std::io::Error) -> Failure {
    Failure::NoConfig(format!("sign-ins cannot be kept in {}: {error}", state.display()))
}

/// Request that a server refuses without a token.
const PING: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
/// Message for a configuration without upstreams to which users sign in.
const NO_SIGN_INS: &str =
    "no upstream of the configuration has an `auth` with which a user signs in";
const CHALLENGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the user to sign in.
const PATIENCE: Duration = Duration::from_mins(10);
