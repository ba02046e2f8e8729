//! One request of an operator's: what there is, for whom, and what is answered.
//!
//! The order is the promise: whom it is addressed to (403), what it wants (404), how (405), who asks (401).
//!
//! Knows nothing of: where the numbers come from.

use std::net::IpAddr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Body;
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN,
    WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::Mutex;

use super::reload::Reloaded;
use super::{Ops, health, metrics, remaining_quota};
use crate::downstream::host_check;
use crate::secret::Secret;

/// What there is, each at a path of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Whether the process lives.
    Healthz,
    /// Whether clients should be sent here.
    Readyz,
    /// Numbers for Prometheus.
    Metrics,
    /// How everything is doing.
    Status,
    /// What is left of the limits for one client and one item.
    Limits,
    /// Has the configuration read again.
    Reload,
}

impl Route {
    /// All there are.
    pub const ALL: [Self; 6] =
        [Self::Healthz, Self::Readyz, Self::Metrics, Self::Status, Self::Limits, Self::Reload];

    /// Where it is.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Healthz => "/healthz",
            Self::Readyz => "/readyz",
            Self::Metrics => "/metrics",
            Self::Status => "/status",
            Self::Limits => "/limits",
            Self::Reload => "/reload",
        }
    }

    /// The methods that it takes; each other gets 405.
    pub const fn methods(self) -> &'static [Method] {
        match self {
            Self::Healthz | Self::Readyz | Self::Metrics | Self::Status | Self::Limits => {
                &[Method::GET, Method::HEAD]
            }
            Self::Reload => &[Method::POST],
        }
    }

    /// Whether it is for whoever shows the token only. What is one bit is for everybody: a cluster's probes have
    /// no token to show.
    fn needs_token(self, loopback: bool, verbose: bool) -> bool {
        match self {
            Self::Healthz => false,
            Self::Readyz => verbose && !loopback,
            Self::Metrics => !loopback,
            Self::Status | Self::Limits | Self::Reload => true,
        }
    }
}

type Reply = Response<Full<Bytes>>;

/// Answers a request, whose body is not looked at. What may take its time is done while `work` is held.
pub(super) async fn answer<B: Body>(ops: &Ops, request: Request<B>, work: &Mutex<()>) -> Reply {
    let is_trusted = is_trusted(ops, &request);
    if !is_trusted && !is_ours(ops, &request) {
        return text(StatusCode::FORBIDDEN, "this Host or Origin is not served here\n");
    }
    let path = request.uri().path();
    let Some(route) = Route::ALL.into_iter().find(|route| route.path() == path) else {
        return text(StatusCode::NOT_FOUND, "there is nothing at this path\n");
    };
    if !route.methods().contains(request.method()) {
        let methods: Vec<_> = route.methods().iter().map(Method::as_str).collect();
        let mut reply = text(StatusCode::METHOD_NOT_ALLOWED, "this method is not taken here\n");
        let allow = HeaderValue::from_str(&methods.join(", "));
        reply.headers_mut().insert(ALLOW, allow.expect("methods are visible ASCII"));
        return reply;
    }
    let query = request.uri().query().unwrap_or_default();
    let verbose = query.split('&').any(|it| it == "verbose" || it.starts_with("verbose="));
    if !is_trusted && route.needs_token(ops.settings.loopback, verbose) {
        let mut reply = text(StatusCode::UNAUTHORIZED, "show the token of [admin]\n");
        reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return reply;
    }
    match route {
        Route::Healthz => text(StatusCode::OK, "ok\n"),
        Route::Readyz => {
            let health = health::Health::of(ops);
            let status = match health.is_ready() {
                true => StatusCode::OK,
                false => StatusCode::SERVICE_UNAVAILABLE,
            };
            text(status, &health.to_text(verbose))
        }
        Route::Metrics => reply(StatusCode::OK, metrics::CONTENT_TYPE, metrics::text(ops)),
        Route::Status => {
            reply(StatusCode::OK, "application/json", super::status::Status::of(ops).to_json())
        }
        Route::Limits => match remaining_quota::answer(ops, query) {
            Some(left) => reply(StatusCode::OK, "application/json", left),
            None => text(StatusCode::NOT_FOUND, "no such client, or nothing that is asked\n"),
        },
        Route::Reload => {
            let _working = work.lock().await;
            let reloaded = (ops.reload)().await;
            let status = match &reloaded {
                Reloaded::Applied { .. } | Reloaded::Unchanged => StatusCode::OK,
                Reloaded::Refused { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            };
            reply(status, "application/json", reloaded.to_json())
        }
    }
}

/// Whether a request shows the token.
pub(super) fn is_trusted<B>(ops: &Ops, request: &Request<B>) -> bool {
    shows_token(request.headers(), ops.settings.token.as_ref())
}

/// Whether a request is addressed to this listener and comes from no strange page. An address instead of a name is
/// good where others on the network may connect: it is by names that a page is made to look like ours.
fn is_ours<B>(ops: &Ops, request: &Request<B>) -> bool {
    let headers = request.headers();
    let host = host_check::only(headers, &HOST).unwrap_or_default();
    let by_address = !ops.settings.loopback && !headers.contains_key(ORIGIN) && is_address(host);
    by_address || host_check::check(&ops.hosts, request.uri(), headers).is_ok()
}

/// Whether a Host is an address, perhaps with a port.
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

fn shows_token(headers: &HeaderMap, token: Option<&Secret>) -> bool {
    let shown = host_check::only(headers, &AUTHORIZATION);
    let shown = shown.and_then(|it| it.strip_prefix("Bearer ")).map(Secret::from);
    // Compared in the same time wherever the two differ.
    shown.is_some() && shown.as_ref() == token
}

fn text(status: StatusCode, text: &str) -> Reply {
    reply(status, "text/plain; charset=utf-8", text.to_owned())
}

fn reply(status: StatusCode, kind: &'static str, text: String) -> Reply {
    let mut reply = Response::new(Full::from(text));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    reply
}

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
