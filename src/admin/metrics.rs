//! Metrics in the OpenMetrics format, for Prometheus.
//!
//! Metrics that the semantic conventions of OpenTelemetry define for MCP have those names, as
//! Prometheus writes them: dots become underscores, and the unit is the end of the name. All others
//! begin with `weir_`, except the usual ones of a process.
//!
//! Invariants: a series exists because of the configuration, a method, a code or a reason that Weir
//! knows, and never because of a name that a client sent. No client, item or URI is a label.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use tokio::runtime::Handle;

use super::Admin;
use super::process::Process;
use super::status::{Status, UpstreamStatus};
use weir_base::metrics::Histogram;

/// Content type of the exposition.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the current values of all metrics.
pub(super) fn text(admin: &Arc<Admin>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Arc::clone(admin)));
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

impl Collector for Admin {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = MetricsWriter(encoder);
        let (families, status) = (MetricFamilies { admin: self }, Status::of(self));
        families.write_mcp(&mut out)?;
        families.write_gateway(&mut out, &status)?;
        families.write_fleet(&mut out, &status)?;
        MetricFamilies::write_upstreams(&mut out, &status.upstreams)?;
        families.write_calls(&mut out)?;
        families.write_process(&mut out)
    }
}

/// Metric families of a process.
struct MetricFamilies<'a> {
    admin: &'a Admin,
}

impl MetricFamilies<'_> {
    fn write_mcp(&self, out: &mut MetricsWriter<'_>) -> fmt::Result {
        let metrics = self.admin.gateway.metrics();
        out.family(
            "mcp_server_operation_duration",
            "Duration of client requests, from arrival to the end of the response",
            Some(&Unit::Seconds),
            metrics.requests().map(|(label, error, cell)| (operation(label.name(), error), cell)),
        )?;
        let calls = metrics.calls.series();
        out.family(
            "mcp_client_operation_duration",
            "Duration of calls to upstreams, all upstreams together",
            Some(&Unit::Seconds),
            calls.map(|(method, error, cell)| (operation(method.as_str(), error), cell)),
        )?;
        let sessions: &Histogram = &metrics.sessions;
        out.family(
            "mcp_server_session_duration",
            "Duration of ended sessions of legacy clients",
            Some(&Unit::Seconds),
            [(vec![("network_transport", "tcp")], sessions)],
        )
    }

    fn write_gateway(&self, out: &mut MetricsWriter<'_>, status: &Status) -> fmt::Result {
        let version = Info::new([("version", status.version.clone())]);
        out.single("weir_build", "Version of Weir", None, version)?;
        let tasks = Handle::try_current().map_or(0, |it| it.metrics().num_alive_tasks())
            + self.admin.settings.workers.tasks();
        for (name, help, value) in [
            ("weir_ready", "Whether the process is ready for clients", u64::from(status.ready)),
            (
                "weir_config_refused",
                "Whether the last reload was refused, so that the previous configuration is active",
                u64::from(status.refused.is_some()),
            ),
            ("weir_draining", "Whether the process is draining", u64::from(status.draining)),
            ("weir_connections", "Open connections of clients", status.connections),
            ("weir_sessions", "Open sessions of legacy clients", status.sessions),
            ("weir_streams", "Open streams for notifications", status.streams),
            ("weir_tasks", "Tasks of the runtime that have not ended", tasks as u64),
        ] {
            out.single(name, help, None, gauge(value))?;
        }
        let refusals = status.refusals.iter();
        out.family(
            "weir_refusals",
            "Refused requests, by reason",
            None,
            refusals
                .map(|(reason, count)| (vec![("reason", &**reason)], ConstCounter::new(*count))),
        )?;
        let limits: Vec<_> =
            status.limits.iter().map(|it| (it.number.to_string(), it.refused)).collect();
        out.family(
            "weir_limit_refusals",
            "Requests refused by a limit, by its index in the configuration",
            None,
            limits.iter().map(|(limit, it)| (vec![("limit", &**limit)], ConstCounter::new(*it))),
        )?;
        self.write_access(out, status)?;
        let Some(audit) = &status.audit else { return Ok(()) };
        for (name, help, value) in [
            ("weir_audit_lost", "Audit entries that could not be written", audit.lost),
            (
                "weir_audit_left_out",
                "Refusals of unauthenticated clients that exceeded the rate limit of the audit log",
                audit.left_out,
            ),
        ] {
            out.single(name, help, None, ConstCounter::new(value))?;
        }
        let help = "Whether the audit log cannot be written at present";
        out.single("weir_audit_failing", help, None, gauge(audit.failing.into()))
    }

    fn write_access(&self, out: &mut MetricsWriter<'_>, status: &Status) -> fmt::Result {
        let config = self.admin.gateway.config();
        let roles = config.role_metrics();
        let requests = roles.requests().into_iter();
        out.family(
            "weir_role_requests",
            "Requests of authenticated clients, by role",
            None,
            requests.map(|(role, count)| (vec![("role", role)], ConstCounter::new(count))),
        )?;
        let refusals = roles.refusals().into_iter().map(|(role, reason, count)| {
            (vec![("role", role), ("reason", reason)], ConstCounter::new(count))
        });
        let help = "Refused requests of authenticated clients, by role and reason";
        out.family("weir_role_refusals", help, None, refusals)?;
        let users = status.users_without_role.iter();
        out.family(
            "weir_users_without_role",
            "Users with a valid token and without a role, by identity provider",
            None,
            users.map(|(provider, count)| (vec![("provider", &**provider)], gauge(*count as u64))),
        )?;
        let now = SystemTime::now();
        let tls = self.admin.settings.tls.as_ref();
        let (server, client_ca) = tls.map(|tls| tls.expiries(now)).unwrap_or_default();
        let ends = [
            ("client_key", config.next_key_expiry(now)),
            ("server_certificate", server),
            ("client_ca", client_ca),
        ]
        .map(|(what, end)| (vec![("what", what)], end));
        let upstreams = self.admin.gateway.upstreams();
        let upstreams = upstreams.iter().map(|it| {
            let labels = vec![("what", "upstream_certificate"), ("upstream", it.name().as_str())];
            (labels, it.certificate_expiry())
        });
        out.family(
            "weir_expiry",
            "Time until the next client key or certificate expires; negative if it has expired",
            Some(&Unit::Seconds),
            ends.into_iter().chain(upstreams).filter_map(|(labels, end)| {
                Some((labels, ConstGauge::new(seconds_until(end?, now))))
            }),
        )
    }

    fn write_fleet(&self, out: &mut MetricsWriter<'_>, status: &Status) -> fmt::Result {
        let state = self.admin.server_state.now();
        let Some((fleet, status)) = state.fleet().zip(status.fleet.as_ref()) else {
            return Ok(());
        };
        for (name, help, value) in [
            ("weir_fleet_members", "Replicas of the fleet, with this one", status.members as u64),
            ("weir_fleet_store_up", "Whether the store of the fleet replies", status.store.into()),
            (
                "weir_fleet_differences",
                "Differences between the replicas",
                status.differences.len() as u64,
            ),
        ] {
            out.single(name, help, None, gauge(value))?;
        }
        let hops = status.hops.iter();
        out.family(
            "weir_fleet_hops",
            "Requests that were sent on to other replicas, by result",
            None,
            hops.map(|(result, count)| (vec![("result", &**result)], ConstCounter::new(*count))),
        )?;
        for (name, help, value) in [
            (
                "weir_fleet_takeovers",
                "Sessions that were taken over from other replicas",
                status.takeovers,
            ),
            (
                "weir_fleet_store_errors",
                "Calls of the store that failed or were late",
                status.store_errors,
            ),
        ] {
            out.single(name, help, None, ConstCounter::new(value))?;
        }
        out.family(
            "weir_fleet_heartbeat_duration",
            "Duration of the heartbeats in the store",
            Some(&Unit::Seconds),
            [(Vec::<(&str, &str)>::new(), &fleet.metrics().heartbeats)],
        )
    }

    fn write_upstreams(out: &mut MetricsWriter<'_>, upstreams: &[UpstreamStatus]) -> fmt::Result {
        type ReadValue = fn(&UpstreamStatus) -> u64;
        let each = |value: ReadValue| {
            upstreams.iter().map(move |it| (vec![("upstream", &*it.name)], value(it)))
        };
        let gauges: [(_, _, ReadValue); 6] = [
            ("weir_upstream_up", "Whether the upstream is connected", |it| {
                it.is_connected().into()
            }),
            ("weir_upstream_required", "Whether readiness requires the upstream", |it| {
                it.required.into()
            }),
            ("weir_upstream_in_flight", "Calls in progress", |it| it.in_flight as u64),
            ("weir_upstream_waiting", "Queued calls", |it| it.waiting as u64),
            ("weir_upstream_failures", "Connection attempts that failed in a row", |it| {
                it.failures.into()
            }),
            ("weir_upstream_left_out", "Items excluded from lists", |it| it.left_out_items as u64),
        ];
        for (name, help, value) in gauges {
            let series = each(value).map(|(labels, value)| (labels, gauge(value)));
            out.family(name, help, None, series)?;
        }
        let help = "State of the upstream: 1 for the current one";
        let states =
            upstreams.iter().map(|it| vec![("upstream", &*it.name), ("state", &*it.state)]);
        out.family("weir_upstream_state", help, None, states.map(|labels| (labels, gauge(1))))?;
        let items = upstreams.iter().flat_map(|it| {
            it.items.iter().map(|(kind, count)| {
                (vec![("upstream", &*it.name), ("kind", &**kind)], gauge(*count as u64))
            })
        });
        out.family("weir_upstream_items", "Items that clients can see", None, items)?;
        let counters: [(_, _, ReadValue); 2] = [
            ("weir_upstream_restarts", "Reconnections", |it| it.restarts),
            ("weir_upstream_breaker_opens", "Times that the circuit breaker opened", |it| {
                it.breaker_opens
            }),
        ];
        for (name, help, value) in counters {
            let series = each(value).map(|(labels, value)| (labels, ConstCounter::new(value)));
            out.family(name, help, None, series)?;
        }
        Ok(())
    }

    fn write_calls(&self, out: &mut MetricsWriter<'_>) -> fmt::Result {
        let live = self.admin.gateway.upstreams();
        let calls = live.iter().flat_map(|it| {
            it.call_metrics().ends().map(|(method, end, count)| {
                let mut labels =
                    vec![("upstream", it.name().as_str()), ("mcp_method_name", method.as_str())];
                labels.extend(end.error_type().map(|error| ("error_type", error)));
                (labels, ConstCounter::new(count))
            })
        });
        out.family("weir_upstream_calls", "Completed calls", None, calls)?;
        out.family(
            "weir_upstream_call_duration",
            "Duration of calls",
            Some(&Unit::Seconds),
            live.iter()
                .map(|it| (vec![("upstream", it.name().as_str())], it.call_metrics().durations())),
        )?;
        let mut findings = self.admin.gateway.findings();
        findings.sort_by(|(one, _), (other, _)| one.cmp(other));
        let findings = findings.iter().flat_map(|(name, it)| {
            let counts = [
                ("arguments", it.arguments),
                ("definitions", it.definitions),
                ("malformed", it.malformed),
                ("hidden", it.hidden),
                ("redacted", it.redacted),
                ("refused", it.refused),
            ];
            counts.map(|(what, count)| {
                (vec![("upstream", name.as_str()), ("finding", what)], ConstCounter::new(count))
            })
        });
        out.family("weir_guard_findings", "Findings of the content checks", None, findings)
    }

    fn write_process(&self, out: &mut MetricsWriter<'_>) -> fmt::Result {
        let started = self.admin.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = ConstGauge::new(started.as_secs_f64());
        let seconds = Some(&Unit::Seconds);
        out.single("process_start_time", "Start time of the process", seconds, started)?;
        let Some(process) = Process::read() else { return Ok(()) };
        let Process { usage, address_space, max_files } = process;
        out.single("process_cpu", "Processor time", seconds, ConstCounter::new(usage.cpu_seconds))?;
        let bytes = Some(&Unit::Bytes);
        for (name, help, unit, value) in [
            ("process_resident_memory", "Memory in use", bytes, Some(usage.memory)),
            ("process_virtual_memory", "Address space", bytes, Some(address_space)),
            ("process_open_fds", "Open file descriptors", None, Some(usage.files)),
            ("process_max_fds", "Limit on open file descriptors", None, max_files),
        ] {
            if let Some(value) = value {
                out.single(name, help, unit, gauge(value))?;
            }
        }
        Ok(())
    }
}

/// Names and values of the labels of a series.
type Labels<'v> = Vec<(&'static str, &'v str)>;

/// Returns the labels of an operation's durations.
fn operation(method: &'static str, error: Option<&'static str>) -> Labels<'static> {
    let mut labels = vec![("mcp_method_name", method)];
    labels.extend(error.map(|error| ("error_type", error)));
    // A JSON-RPC error code is exported as a status code, too.
    let code = error.filter(|error| error.parse::<i64>().is_ok());
    labels.extend(code.map(|code| ("rpc_response_status_code", code)));
    labels
}

/// Returns the time until a moment, which is negative if it has passed.
fn seconds_until(end: SystemTime, now: SystemTime) -> f64 {
    match end.duration_since(now) {
        Ok(left) => left.as_secs() as f64,
        Err(past) => -past.duration().as_secs_f64().ceil(),
    }
}

fn gauge(value: u64) -> ConstGauge<f64> {
    ConstGauge::new(value as f64)
}

/// Writer of metric families.
struct MetricsWriter<'e>(DescriptorEncoder<'e>);

impl MetricsWriter<'_> {
    /// Writes a family with its series.
    fn family<'v, V: EncodeMetric + TypedMetric>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        series: impl IntoIterator<Item = (Labels<'v>, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit, V::TYPE)?;
        series
            .into_iter()
            .try_for_each(|(labels, value)| value.encode(family.encode_family(&labels)?))
    }

    /// Writes a family that is one series without labels.
    fn single<V: EncodeMetric + TypedMetric>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: V,
    ) -> fmt::Result {
        value.encode(self.0.encode_descriptor(name, help, unit, V::TYPE)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_time_until_a_moment_that_has_passed_is_negative() {
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        for (end, seconds) in
            [(90_000, 60.0), (31_500, 1.0), (30_000, 0.0), (29_999, -1.0), (0, -30.0)]
        {
            assert_eq!(seconds_until(at(end), at(30_000)), seconds, "{end}");
        }
    }
}
