//! The numbers in the words of OpenMetrics, for Prometheus.
//!
//! What the semantic conventions of OpenTelemetry name for MCP has their names, as Prometheus writes them: dots become
//! underlines, and the unit is the name's end. Everything else begins with `weir_`, but for what every process has.
//!
//! Promises: a series is there because of the configuration, a method, a code or a reason that Weir knows, and never
//! because of a name that somebody sent; no client, item or URI is a label.
//!
//! Knows nothing of: who reads it.

use std::fmt::{self, Error};
use std::time::UNIX_EPOCH;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use tokio::runtime::Handle;

use super::Ops;
use super::health::Health;
use super::process::Process;
use super::status::Status;
use crate::metrics::{BOUNDS, Durations};
use crate::upstream::call::call_metrics::error_type;

/// What the text is.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writes all numbers as they are at this moment.
pub(super) fn text(ops: &Ops) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Numbers::of(ops)));
    let mut text = String::new();
    // Writing to a text does not fail.
    let _ = encode(&mut text, &registry);
    text
}

/// The labels of a series: names and values.
type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

/// What is exported, read once.
#[derive(Debug)]
struct Numbers {
    status: Status,
    started: f64,
    ready: bool,
    requests: Vec<(&'static str, Option<&'static str>, Durations)>,
    calls: Vec<(&'static str, Option<&'static str>, Durations)>,
    upstream_calls: Vec<(String, &'static str, Option<&'static str>, u64)>,
    upstream_took: Vec<(String, Durations)>,
    sessions: Durations,
    findings: Vec<(String, [(&'static str, u64); 6])>,
    /// Tasks that are alive.
    tasks: u64,
    process: Option<Process>,
}

impl Numbers {
    fn of(ops: &Ops) -> Self {
        let meters = ops.gateway.meters();
        let requests = meters.requests().map(|(it, error, took)| (it.name(), error, took));
        let calls = meters.calls().map(|(it, end, took)| (it.as_str(), error_type(end), took));
        let (mut upstream_calls, mut upstream_took) = (Vec::new(), Vec::new());
        for upstream in ops.gateway.upstreams() {
            let name = upstream.name().to_string();
            upstream_calls.extend(upstream.calls().ends().map(|(method, end, count)| {
                (name.clone(), method.as_str(), error_type(end), count)
            }));
            upstream_took.push((name, upstream.calls().durations()));
        }
        let findings = ops.gateway.findings().into_iter().map(|(name, it)| {
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
        let since = ops.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (mut upstream_took, mut findings) = (upstream_took, Vec::from_iter(findings));
        upstream_took.sort_by(|(one, _), (other, _)| one.cmp(other));
        findings.sort();
        Self {
            started: since.as_secs_f64(),
            ready: Health::of(ops).is_ready(),
            requests: requests.collect(),
            calls: calls.collect(),
            upstream_calls,
            upstream_took,
            sessions: meters.sessions.read(),
            findings,
            tasks: (Handle::try_current().map_or(0, |it| it.metrics().num_alive_tasks())
                + ops.settings.workers.tasks()) as u64,
            process: Process::look(),
            status: Status::of(ops),
        }
    }
}

impl Collector for Numbers {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut out = Out(encoder);
        self.write_mcp(&mut out)?;
        self.write_house(&mut out)?;
        self.write_upstreams(&mut out)?;
        self.write_process(&mut out)
    }
}

impl Numbers {
    fn write_mcp(&self, out: &mut Out<'_>) -> Result<(), Error> {
        for (name, help, rows) in [
            (
                "mcp_server_operation_duration",
                "How long requests of clients took, from their arrival to the end of the answer",
                &self.requests,
            ),
            (
                "mcp_client_operation_duration",
                "How long calls to upstreams took, all upstreams together",
                &self.calls,
            ),
        ] {
            let mut family = out.family(name, help, Some(Unit::Seconds), MetricType::Histogram)?;
            for (method, error, took) in rows {
                let method = ("mcp_method_name", *method);
                match error {
                    None => family.histogram(&[method], took)?,
                    // What is a code of JSON-RPC is told as one, too.
                    Some(error) if error.parse::<i64>().is_ok() => {
                        let code = ("rpc_response_status_code", *error);
                        family.histogram(&[method, ("error_type", *error), code], took)?;
                    }
                    Some(error) => family.histogram(&[method, ("error_type", *error)], took)?,
                }
            }
        }
        let help = "How long sessions of legacy clients lasted that are over";
        let name = "mcp_server_session_duration";
        let mut family = out.family(name, help, Some(Unit::Seconds), MetricType::Histogram)?;
        family.histogram(&[("network_transport", "tcp")], &self.sessions)
    }

    fn write_house(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let status = &self.status;
        let help = "Which Weir this is";
        let mut family = out.family("weir_build", help, None, MetricType::Info)?;
        family.0.encode_info(&[("version", status.version.as_str())])?;
        for (name, help, value) in [
            ("weir_ready", "Whether clients should be sent here", u64::from(self.ready)),
            (
                "weir_config_refused",
                "Whether the files hold a configuration that was refused, so that the former one holds",
                u64::from(status.refused.is_some()),
            ),
            ("weir_draining", "Whether no new requests are taken", u64::from(status.draining)),
            ("weir_connections", "Open connections of clients", status.connections),
            ("weir_sessions", "Open sessions of legacy clients", status.sessions),
            ("weir_streams", "Streams that are open to tell of changes", status.streams),
            ("weir_tasks", "Tasks of the runtime that have not ended", self.tasks),
        ] {
            out.gauge(name, help, value as f64)?;
        }
        let help = "What was not done, by reason";
        let mut family = out.family("weir_refusals", help, None, MetricType::Counter)?;
        for (reason, count) in &status.refusals {
            family.counter(&[("reason", reason.as_str())], *count)?;
        }
        let help = "Requests that a limit refused, by its number in the configuration";
        let mut family = out.family("weir_limit_refusals", help, None, MetricType::Counter)?;
        for limit in &status.limits {
            family.counter(&[("limit", limit.number.to_string().as_str())], limit.refused)?;
        }
        if let Some(audit) = &status.audit {
            for (name, help, value) in [
                ("weir_audit_lost", "Requests whose record could not be written", audit.lost),
                (
                    "weir_audit_left_out",
                    "Refusals of strangers that were too many to be recorded",
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

    fn write_upstreams(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let upstreams = &self.status.upstreams;
        let mut gauges = |name, help, value: &dyn Fn(&super::status::Upstream) -> u64| {
            let mut family = out.family(name, help, None, MetricType::Gauge)?;
            upstreams.iter().try_for_each(|it| {
                family.gauge(&[("upstream", it.name.as_str())], value(it) as f64)
            })
        };
        gauges("weir_upstream_up", "Whether it is connected", &|it| u64::from(it.is_connected()))?;
        gauges("weir_upstream_required", "Whether nothing is ready without it", &|it| {
            u64::from(it.required)
        })?;
        gauges("weir_upstream_in_flight", "Calls under way", &|it| it.in_flight as u64)?;
        gauges("weir_upstream_waiting", "Calls that wait for their turn", &|it| it.waiting as u64)?;
        gauges("weir_upstream_failures", "Attempts to connect that failed in a row", &|it| {
            u64::from(it.failures)
        })?;
        gauges("weir_upstream_left_out", "Items that are left out of lists", &|it| {
            it.left_out_items as u64
        })?;
        let help = "In which state it is: 1 for that one";
        let mut family = out.family("weir_upstream_state", help, None, MetricType::Gauge)?;
        for it in upstreams {
            let labels = [("upstream", it.name.as_str()), ("state", it.state.as_str())];
            family.gauge(&labels, 1.0)?;
        }
        let help = "Items that clients can be shown";
        let mut family = out.family("weir_upstream_items", help, None, MetricType::Gauge)?;
        for it in upstreams {
            for (kind, count) in &it.items {
                let labels = [("upstream", it.name.as_str()), ("kind", kind.as_str())];
                family.gauge(&labels, *count as f64)?;
            }
        }
        let help = "How often it was connected to after the first time";
        let mut family = out.family("weir_upstream_restarts", help, None, MetricType::Counter)?;
        for it in upstreams {
            family.counter(&[("upstream", it.name.as_str())], it.restarts)?;
        }
        let help = "How often it was left alone because too many calls in a row failed";
        let mut family =
            out.family("weir_upstream_breaker_opens", help, None, MetricType::Counter)?;
        for it in upstreams {
            family.counter(&[("upstream", it.name.as_str())], it.breaker_opens)?;
        }
        let help = "Calls that are over";
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
        let (name, help) = ("weir_upstream_call_duration", "How long calls took");
        let mut family = out.family(name, help, Some(Unit::Seconds), MetricType::Histogram)?;
        for (name, took) in &self.upstream_took {
            family.histogram(&[("upstream", name.as_str())], took)?;
        }
        let help = "What the guard has found in what passes";
        let mut family = out.family("weir_guard_findings", help, None, MetricType::Counter)?;
        for (name, counts) in &self.findings {
            for (what, count) in counts {
                family.counter(&[("upstream", name.as_str()), ("finding", *what)], *count)?;
            }
        }
        Ok(())
    }

    fn write_process(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let (name, help) = ("process_start_time", "When the process started");
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
            Some(most) => out.gauge("process_max_fds", "How many there may be", most as f64),
            None => Ok(()),
        }
    }
}

/// Where the text is written.
struct Out<'e>(DescriptorEncoder<'e>);

/// One family, of which series are written.
struct Family<'e>(MetricEncoder<'e>);

impl Out<'_> {
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
        took: &Durations,
    ) -> fmt::Result {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(took.buckets).collect();
        let sum = took.micros as f64 / 1e6;
        let mut series = self.0.encode_family(labels)?;
        series.encode_histogram::<Labels<'_, N>>(sum, took.count(), &buckets, None)
    }
}
