//! Metrics in the OpenMetrics format, for Prometheus.
//!
//! Metrics that the semantic conventions of OpenTelemetry define for MCP have those names, as
//! Prometheus writes them: dots become underscores, and the unit is the end of the name. All others
//! begin with `weir_`, except the usual ones of a process.
//!
//! Invariants: a series exists because of the configuration, a method, a code or a reason that Weir
//! knows, and never because of a name that a client sent. No client, item or URI is a label.

use std::fmt::{self, Error};
use std::time::UNIX_EPOCH;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use tokio::runtime::Handle;

use super::Admin;
use super::health::Health;
use super::process::Process;
use super::status::Status;
use crate::metrics::{BOUNDS, HistogramSnapshot};
use crate::upstream::call::call_metrics::error_type;

/// Content type of the exposition.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the current values of all metrics.
pub(super) fn text(admin: &Admin) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MetricsSnapshot::of(admin)));
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

/// Labels of a series: names and values.
type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

/// Snapshot of all exported values.
#[derive(Debug)]
struct MetricsSnapshot {
    status: Status,
    started: f64,
    ready: bool,
    requests: Vec<(&'static str, Option<&'static str>, HistogramSnapshot)>,
    calls: Vec<(&'static str, Option<&'static str>, HistogramSnapshot)>,
    upstream_calls: Vec<(String, &'static str, Option<&'static str>, u64)>,
    upstream_durations: Vec<(String, HistogramSnapshot)>,
    sessions: HistogramSnapshot,
    findings: Vec<(String, [(&'static str, u64); 6])>,
    /// Tasks that have not ended.
    tasks: u64,
    process: Option<Process>,
}

impl MetricsSnapshot {
    fn of(admin: &Admin) -> Self {
        let metrics = admin.gateway.metrics();
        let requests =
            metrics.requests().map(|(it, error, durations)| (it.name(), error, durations));
        let calls =
            metrics.calls().map(|(it, end, durations)| (it.as_str(), error_type(end), durations));
        let (mut upstream_calls, mut upstream_durations) = (Vec::new(), Vec::new());
        for upstream in admin.gateway.upstreams() {
            let name = upstream.name().to_string();
            upstream_calls.extend(upstream.call_metrics().ends().map(|(method, end, count)| {
                (name.clone(), method.as_str(), error_type(end), count)
            }));
            upstream_durations.push((name, upstream.call_metrics().durations()));
        }
        let findings = admin.gateway.findings().into_iter().map(|(name, it)| {
            let counts = [
                ("arguments", it.arguments),
                ("definitions", it.definitions),
                ("malformed", it.malformed),
                ("hidden", it.hidden),
                ("redacted", it.redacted),
                ("refused", it.refused),
            ];
            (name.to_string(), counts)
        });
        let since = admin.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (mut upstream_durations, mut findings) = (upstream_durations, Vec::from_iter(findings));
        upstream_durations.sort_by(|(one, _), (other, _)| one.cmp(other));
        findings.sort();
        Self {
            started: since.as_secs_f64(),
            ready: Health::of(admin).is_ready(),
            requests: requests.collect(),
            calls: calls.collect(),
            upstream_calls,
            upstream_durations,
            sessions: metrics.sessions.read(),
            findings,
            tasks: (Handle::try_current().map_or(0, |it| it.metrics().num_alive_tasks())
                + admin.settings.workers.tasks()) as u64,
            process: Process::read(),
            status: Status::of(admin),
        }
    }
}

impl Collector for MetricsSnapshot {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut out = MetricsWriter(encoder);
        self.write_mcp(&mut out)?;
        self.write_gateway(&mut out)?;
        self.write_upstreams(&mut out)?;
        self.write_process(&mut out)
    }
}

impl MetricsSnapshot {
    fn write_mcp(&self, out: &mut MetricsWriter<'_>) -> Result<(), Error> {
        for (name, help, rows) in [
            (
                "mcp_server_operation_duration",
                "Duration of client requests, from arrival to the end of the response",
                &self.requests,
            ),
            (
                "mcp_client_operation_duration",
                "Duration of calls to upstreams, all upstreams together",
                &self.calls,
            ),
        ] {
            let mut family = out.family(name, help, Some(Unit::Seconds), MetricType::Histogram)?;
            for (method, error, durations) in rows {
                let method = ("mcp_method_name", *method);
                match error {
                    None => family.histogram(&[method], durations)?,
                    // A JSON-RPC error code is exported as a status code, too.
                    Some(error) if error.parse::<i64>().is_ok() => {
                        let code = ("rpc_response_status_code", *error);
                        family.histogram(&[method, ("error_type", *error), code], durations)?;
                    }
                    Some(error) => {
                        family.histogram(&[method, ("error_type", *error)], durations)?
                    }
                }
            }
        }
        let help = "Duration of ended sessions of legacy clients";
        let name = "mcp_server_session_duration";
        let mut family = out.family(name, help, Some(Unit::Seconds), MetricType::Histogram)?;
        family.histogram(&[("network_transport", "tcp")], &self.sessions)
    }

    fn write_gateway(&self, out: &mut MetricsWriter<'_>) -> Result<(), Error> {
        let status = &self.status;
        let help = "Version of Weir";
        let mut family = out.family("weir_build", help, None, MetricType::Info)?;
        family.0.encode_info(&[("version", status.version.as_str())])?;
        for (name, help, value) in [
            ("weir_ready", "Whether the process is ready for clients", u64::from(self.ready)),
            (
                "weir_config_refused",
                "Whether the last reload was refused, so that the previous configuration is active",
                u64::from(status.refused.is_some()),
            ),
            ("weir_draining", "Whether the process is draining", u64::from(status.draining)),
            ("weir_connections", "Open connections of clients", status.connections),
            ("weir_sessions", "Open sessions of legacy clients", status.sessions),
            ("weir_streams", "Open streams for notifications", status.streams),
            ("weir_tasks", "Tasks of the runtime that have not ended", self.tasks),
        ] {
            out.gauge(name, help, value as f64)?;
        }
        let help = "Refused requests, by reason";
        let mut family = out.family("weir_refusals", help, None, MetricType::Counter)?;
        for (reason, count) in &status.refusals {
            family.counter(&[("reason", reason.as_str())], *count)?;
        }
        let help = "Requests refused by a limit, by its index in the configuration";
        let mut family = out.family("weir_limit_refusals", help, None, MetricType::Counter)?;
        for limit in &status.limits {
            family.counter(&[("limit", limit.number.to_string().as_str())], limit.refused)?;
        }
        if let Some(audit) = &status.audit {
            for (name, help, value) in [
                ("weir_audit_lost", "Audit entries that could not be written", audit.lost),
                (
                    "weir_audit_left_out",
                    "Refusals of unauthenticated clients that exceeded the rate limit of the audit log",
                    audit.left_out,
                ),
            ] {
                let mut family = out.family(name, help, None, MetricType::Counter)?;
                family.0.encode_counter::<Labels<'_, 0>, _, u64>(&value, None)?;
            }
            let help = "Whether the audit log cannot be written at present";
            out.gauge("weir_audit_failing", help, f64::from(u8::from(audit.failing)))?;
        }
        Ok(())
    }

    fn write_upstreams(&self, out: &mut MetricsWriter<'_>) -> Result<(), Error> {
        let upstreams = &self.status.upstreams;
        let mut gauges = |name, help, value: &dyn Fn(&super::status::UpstreamStatus) -> u64| {
            let mut family = out.family(name, help, None, MetricType::Gauge)?;
            upstreams.iter().try_for_each(|it| {
                family.gauge(&[("upstream", it.name.as_str())], value(it) as f64)
            })
        };
        gauges("weir_upstream_up", "Whether the upstream is connected", &|it| {
            u64::from(it.is_connected())
        })?;
        gauges("weir_upstream_required", "Whether readiness requires the upstream", &|it| {
            u64::from(it.required)
        })?;
        gauges("weir_upstream_in_flight", "Calls in progress", &|it| it.in_flight as u64)?;
        gauges("weir_upstream_waiting", "Queued calls", &|it| it.waiting as u64)?;
        gauges("weir_upstream_failures", "Connection attempts that failed in a row", &|it| {
            u64::from(it.failures)
        })?;
        gauges("weir_upstream_left_out", "Items excluded from lists", &|it| {
            it.left_out_items as u64
        })?;
        let help = "State of the upstream: 1 for the current one";
        let mut family = out.family("weir_upstream_state", help, None, MetricType::Gauge)?;
        for it in upstreams {
            let labels = [("upstream", it.name.as_str()), ("state", it.state.as_str())];
            family.gauge(&labels, 1.0)?;
        }
        let help = "Items that clients can see";
        let mut family = out.family("weir_upstream_items", help, None, MetricType::Gauge)?;
        for it in upstreams {
            for (kind, count) in &it.items {
                let labels = [("upstream", it.name.as_str()), ("kind", kind.as_str())];
                family.gauge(&labels, *count as f64)?;
            }
        }
        let help = "Reconnections";
        let mut family = out.family("weir_upstream_restarts", help, None, MetricType::Counter)?;
        for it in upstreams {
            family.counter(&[("upstream", it.name.as_str())], it.restarts)?;
        }
        let help = "Times that the circuit breaker opened";
        let mut family =
            out.family("weir_upstream_breaker_opens", help, None, MetricType::Counter)?;
        for it in upstreams {
            family.counter(&[("upstream", it.name.as_str())], it.breaker_opens)?;
        }
        let help = "Completed calls";
        let mut family = out.family("weir_upstream_calls", help, None, MetricType::Counter)?;
        for (name, method, error, count) in &self.upstream_calls {
            let (upstream, method) = (("upstream", name.as_str()), ("mcp_method_name", *method));
            match error {
                None => family.counter(&[upstream, method], *count)?,
                Some(error) => {
                    family.counter(&[upstream, method, ("error_type", *error)], *count)?
                }
            }
        }
        let (name, help) = ("weir_upstream_call_duration", "Duration of calls");
        let mut family = out.family(name, help, Some(Unit::Seconds), MetricType::Histogram)?;
        for (name, durations) in &self.upstream_durations {
            family.histogram(&[("upstream", name.as_str())], durations)?;
        }
        let help = "Findings of the content checks";
        let mut family = out.family("weir_guard_findings", help, None, MetricType::Counter)?;
        for (name, counts) in &self.findings {
            for (what, count) in counts {
                family.counter(&[("upstream", name.as_str()), ("finding", *what)], *count)?;
            }
        }
        Ok(())
    }

    fn write_process(&self, out: &mut MetricsWriter<'_>) -> Result<(), Error> {
        let (name, help) = ("process_start_time", "Start time of the process");
        let mut family = out.family(name, help, Some(Unit::Seconds), MetricType::Gauge)?;
        family.0.encode_gauge(&self.started)?;
        let Some(process) = &self.process else { return Ok(()) };
        let (name, help) = ("process_cpu", "Processor time");
        let mut family = out.family(name, help, Some(Unit::Seconds), MetricType::Counter)?;
        family.0.encode_counter::<Labels<'_, 0>, _, u64>(&process.cpu, None)?;
        for (name, help, value) in [
            ("process_resident_memory", "Memory in use", process.resident),
            ("process_virtual_memory", "Address space", process.size),
        ] {
            let mut family = out.family(name, help, Some(Unit::Bytes), MetricType::Gauge)?;
            family.0.encode_gauge(&(value as f64))?;
        }
        out.gauge("process_open_fds", "Open file descriptors", process.files as f64)?;
        match process.max_files {
            Some(max_files) => {
                out.gauge("process_max_fds", "Limit on open file descriptors", max_files as f64)
            }
            None => Ok(()),
        }
    }
}

/// Writer of metric families.
struct MetricsWriter<'e>(DescriptorEncoder<'e>);

/// One metric family.
struct Family<'e>(MetricEncoder<'e>);

impl MetricsWriter<'_> {
    fn family(
        &mut self,
        name: &'static str,
        help: &str,
        unit: Option<Unit>,
        kind: MetricType,
    ) -> Result<Family<'_>, Error> {
        const SECONDS: Unit = Unit::Seconds;
        const BYTES: Unit = Unit::Bytes;
        let unit = match unit {
            Some(Unit::Seconds) => Some(&SECONDS),
            Some(Unit::Bytes) => Some(&BYTES),
            _ => None,
        };
        self.0.encode_descriptor(name, help, unit, kind).map(Family)
    }

    fn gauge(&mut self, name: &'static str, help: &str, value: f64) -> fmt::Result {
        self.family(name, help, None, MetricType::Gauge)?.0.encode_gauge(&value)
    }
}

impl Family<'_> {
    fn gauge<const N: usize>(&mut self, labels: &Labels<'_, N>, value: f64) -> fmt::Result {
        self.0.encode_family(labels)?.encode_gauge(&value)
    }

    fn counter<const N: usize>(&mut self, labels: &Labels<'_, N>, value: u64) -> fmt::Result {
        let mut series = self.0.encode_family(labels)?;
        series.encode_counter::<Labels<'_, N>, _, u64>(&value, None)
    }

    fn histogram<const N: usize>(
        &mut self,
        labels: &Labels<'_, N>,
        durations: &HistogramSnapshot,
    ) -> fmt::Result {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(durations.buckets).collect();
        let sum = durations.sum_micros as f64 / 1e6;
        let mut series = self.0.encode_family(labels)?;
        series.encode_histogram::<Labels<'_, N>>(sum, durations.count(), &buckets, None)
    }
}
