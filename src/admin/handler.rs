//! Routes, access checks and responses of the admin listener.
//!
//! Invariant: the checks come in this order: Host and Origin (403), path (404), method (405), token
//! (401).

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Body;
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, ORIGIN, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use tokio::sync::Mutex;

use super::reload::ReloadReport;
use super::remaining_quota::decode_query;
use super::status::Status;
use super::{Admin, health, logs, metrics, remaining_quota, users};
use weir_base::secrets::secret::Secret;
use weir_downstream::host_check::{self, HostRejection};

/// Routes, each with its own path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Liveness of the process.
    Healthz,
    /// Readiness for clients.
    Readyz,
    /// Metrics for Prometheus.
    Metrics,
    /// Status document.
    Status,
    /// Remaining quota of one client for one item.
    Limits,
    /// Role of one user of an identity provider.
    Users,
    /// Log of one upstream.
    Logs,
    /// Reload of the configuration.
    Reload,
    /// Restart of an upstream.
    Restart,
}

impl Route {
    /// All routes.
    pub const ALL: [Self; 9] = [
        Self::Healthz,
        Self::Readyz,
        Self::Metrics,
        Self::Status,
        Self::Limits,
        Self::Users,
        Self::Logs,
        Self::Reload,
        Self::Restart,
    ];

    /// Returns the path.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Healthz => "/healthz",
            Self::Readyz => "/readyz",
            Self::Metrics => "/metrics",
            Self::Status => "/status",
            Self::Limits => "/limits",
            Self::Users => "/users",
            Self::Logs => "/logs",
            Self::Reload => "/reload",
            Self::Restart => "/restart",
        }
    }

    /// Returns the allowed methods; others get 405.
    pub const fn methods(self) -> &'static [Method] {
        match self {
            Self::Healthz
            | Self::Readyz
            | Self::Metrics
            | Self::Status
            | Self::Limits
            | Self::Users
            | Self::Logs => &[Method::GET, Method::HEAD],
            Self::Reload | Self::Restart => &[Method::POST],
        }
    }

    /// Returns whether the route requires the token. Liveness and readiness are public, because the
    /// probes of a cluster have no token.
    fn needs_token(self, loopback: bool, verbose: bool) -> bool {
        match self {
            Self::Healthz => false,
            Self::Readyz => verbose && !loopback,
            Self::Metrics => !loopback,
            Self::Status
            | Self::Limits
            | Self::Users
            | Self::Logs
            | Self::Reload
            | Self::Restart => true,
        }
    }
}

type AdminResponse = Response<Full<Bytes>>;

/// Processes a request, whose body is ignored. Long work is done while `work` is locked. A trusted
/// request is one with the token, or over the socket of this user.
pub(super) async fn respond<B: Body>(
    admin: &Arc<Admin>,
    request: Request<B>,
    is_trusted: bool,
    work: &Mutex<()>,
) -> AdminResponse {
    if !is_trusted && !is_ours(admin, &request) {
        return text(StatusCode::FORBIDDEN, "this Host or Origin is not served here\n");
    }
    let path = request.uri().path();
    let Some(route) = Route::ALL.into_iter().find(|route| route.path() == path) else {
        return text(StatusCode::NOT_FOUND, "nothing is served at this path\n");
    };
    if !route.methods().contains(request.method()) {
        let methods: Vec<_> = route.methods().iter().map(Method::as_str).collect();
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "this method is not served here\n");
        let allow = HeaderValue::from_str(&methods.join(", "));
        response.headers_mut().insert(ALLOW, allow.expect("methods are visible ASCII"));
        return response;
    }
    let query = request.uri().query().unwrap_or_default();
    let verbose = query.split('&').any(|it| it == "verbose" || it.starts_with("verbose="));
    if !is_trusted && route.needs_token(admin.settings.loopback, verbose) {
        let mut response = text(StatusCode::UNAUTHORIZED, TOKEN_NEEDED);
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return response;
    }
    match route {
        Route::Healthz => text(StatusCode::OK, "ok\n"),
        Route::Readyz => {
            let health = health::Health::of(admin);
            let status = match health.is_ready() {
                true => StatusCode::OK,
                false => StatusCode::SERVICE_UNAVAILABLE,
            };
            text(status, &health.to_text(verbose))
        }
        Route::Metrics => response(StatusCode::OK, metrics::CONTENT_TYPE, metrics::text(admin)),
        Route::Status => json(StatusCode::OK, &Status::of(admin)),
        Route::Limits => match remaining_quota::respond(admin, query) {
            Some(left) => json(StatusCode::OK, &left),
            None => text(StatusCode::NOT_FOUND, "unknown client, or malformed query\n"),
        },
        Route::Users => match users::respond(admin, query) {
            Some(user) => json(StatusCode::OK, &user),
            None => text(StatusCode::NOT_FOUND, "malformed query\n"),
        },
        Route::Logs => match logs::respond(admin, query).await {
            Ok(lines) => response(StatusCode::OK, logs::CONTENT_TYPE, lines),
            Err(why) => text(StatusCode::NOT_FOUND, &why),
        },
        Route::Reload => {
            let _working = work.lock().await;
            outcome(&(admin.actions.reload)().await)
        }
        Route::Restart => match decode_query(query) {
            Some(restart) => {
                let _working = work.lock().await;
                outcome(&(admin.actions.restart)(restart).await)
            }
            None => text(StatusCode::NOT_FOUND, "malformed query\n"),
        },
    }
}

fn outcome(report: &ReloadReport) -> AdminResponse {
    let status = match report {
        ReloadReport::Applied { .. } | ReloadReport::Unchanged => StatusCode::OK,
        ReloadReport::Refused { .. } => StatusCode::UNPROCESSABLE_ENTITY,
    };
    json(status, report)
}

/// Returns whether a request has the token.
pub(super) fn is_trusted<B>(admin: &Admin, request: &Request<B>) -> bool {
    let presented = host_check::single_value(request.headers(), &AUTHORIZATION);
    let presented = presented.and_then(|it| it.strip_prefix("Bearer ")).map(Secret::from);
    // `Secret` compares in constant time.
    presented.is_some() && presented == admin.settings.token
}

/// Returns whether a request is addressed to this listener and does not come from a foreign web
/// page. An IP address as Host is accepted where other machines may connect: DNS rebinding needs a
/// name.
fn is_ours<B>(admin: &Admin, request: &Request<B>) -> bool {
    let headers = request.headers();
    let host = host_check::single_value(headers, &HOST).unwrap_or_default();
    let by_address = !admin.settings.loopback && !headers.contains_key(ORIGIN) && is_address(host);
    let check = || host_check::check(&admin.hosts, request.uri(), headers);
    let warn_once = |rejection: &HostRejection| {
        // No key accepts an Origin here.
        if *rejection != HostRejection::Origin {
            admin.server_state.now().refused_values().warn_once(*rejection, headers);
        }
    };
    by_address || check().inspect_err(warn_once).is_ok()
}

/// Returns whether a Host is an IP address, with or without a port.
fn is_address(host: &str) -> bool {
    let is_ip = |text: &str| text.parse::<IpAddr>().is_ok();
    let in_brackets = |text: &str| {
        text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).is_some_and(is_ip)
    };
    let without_port = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    in_brackets(without_port) || without_port.parse::<std::net::Ipv4Addr>().is_ok()
}

fn text(status: StatusCode, text: &str) -> AdminResponse {
    response(status, "text/plain; charset=utf-8", text.to_owned())
}

fn json(status: StatusCode, document: &impl Serialize) -> AdminResponse {
    // Encoding cannot fail: every member has a JSON form.
    let text = serde_json::to_string(document).unwrap_or_default();
    response(status, "application/json", text)
}

fn response(status: StatusCode, kind: &'static str, text: String) -> AdminResponse {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Response to a request without the token, by which `weir status` knows a Weir.
pub(crate) const TOKEN_NEEDED: &str =
    "send the token of [admin] as `Authorization: Bearer <token>`\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_no_name() {
        for (host, expected) in [
            ("10.0.0.7:9464", true),
            ("10.0.0.7", true),
            ("[fd00::1]:9464", true),
            ("[fd00::1]", true),
            ("10.0.0.7.nip.io", false),
            ("weir.example.com", false),
            ("fd00::1", false),
            ("2130706433", false),
            ("", false),
        ] {
            assert_eq!(is_address(host), expected, "{host}");
        }
    }
}
