//! `[[limits]]`: rate limits and concurrency limits.

use std::collections::BTreeSet;
use std::time::Duration;

use super::access::{self, warn_of_unknown_upstream};
use crate::keys::shape::{self, ValueShape};
use crate::keys::{Described, Key, count, custom, parsed, settings, string, variant};
use crate::reader::report::{ValueError, did_you_mean};
use crate::reader::table_reader::{Parsed, SpannedValue, TableReader};
use crate::reader::value;
use weir_access::policy::limits::{Limit, LimitScope};
use weir_base::time::rate_limit::RequestRate;
use weir_mcp::methods::METHODS;
use weir_mcp::pattern::Pattern;

settings! {
    /// Rate limits and concurrency limits. A request must be within all limits that count it; a
    /// request that is not is refused with error 4290, which says in `data.retryAfterMs` how long
    /// to wait (over HTTP: 429 with `Retry-After`), and counts towards none of them. By default
    /// there are no limits. All `[[limits]]` must be in one file.
    ///
    /// ```toml
    /// #[[limits]]                          # all requests of each client
    /// #per = "client"
    /// #method = "*"
    /// #rate = "600/min"
    /// #burst = 60
    ///
    /// #[[limits]]                          # fewer of the expensive requests
    /// #per = "client"
    /// #method = "tools/call"
    /// #match = "github/*"
    /// #rate = "60/min"
    /// #concurrency = 4
    /// ```
    pub(super) struct LimitKeys {
        /// The requests that are counted together: those of each `client`, those of each `user`
        /// whichever client they use, those of all clients with one `role`, those to one
        /// `upstream`, or all (`global`). With access tokens, `client` is the application that the
        /// token was issued to, with all its users: write `user` to count each of them. Each
        /// resource that a `subscriptions/listen` names counts as one `resources/subscribe`.
        /// Clients without a key are counted by the address of their connection: each IPv4 address
        /// by itself, IPv6 addresses by their /64. Behind a reverse proxy all of these have one
        /// address, because headers that contain an address can be forged.
        per: Option<LimitScope> = None, variant().optional().required();
        /// The methods that are counted, all together: `"tools/call"`, `["prompts/get",
        /// "resources/read"]`, `"*/list"`.
        methods ("method"): Vec<String> = vec!["*".to_owned()], methods();
        /// The items that are counted: a pattern as in a role's rules. Requests without an item,
        /// and requests for an item that the client may not see, match no pattern.
        item ("match"): Option<String> = None,
            string("`<upstream>/<original name>`", shape::POLICY_PATTERN, access::parse_pattern)
                .optional();
        /// Number of requests per unit of time. Each MCP request counts once, however many HTTP
        /// requests it takes, and so does each element of a batch; responses to requests of a
        /// server, notifications and cancellations are never refused.
        ///
        /// ```toml
        /// rate = "600/min"
        /// ```
        rate: Option<(u32, Duration)> = None,
            parsed(ValueShape::Text("`<number>/s`, `/min` or `/h`", shape::RATE), rate).optional();
        /// Number of requests that are accepted at once after a pause.
        burst: Option<u32> = None, count(BURSTS).optional().default_text("the number in `rate`");
        /// Maximum number of requests in progress. A call does not count while it waits for input
        /// of its client.
        concurrency: Option<usize> = None, count(1..=100_000).optional();
    }
}

/// Reads all limits; invalid ones are reported and left out.
pub(super) fn read_limits(root: &TableReader<'_>, upstreams: &[String]) -> Vec<Limit> {
    root.table_list("limits", |t| limit(t, upstreams)).into_iter().flatten().collect()
}

fn limit(t: &TableReader<'_>, upstreams: &[String]) -> Option<Limit> {
    let LimitKeys { per, methods, item, rate, burst, concurrency } = LimitKeys::read(t);
    if !t.has("per") {
        let remedy = "add per = \"client\", or user, role, upstream, global";
        t.error("per", ValueError::new("is missing: who is counted together", remedy));
    }
    warn_of_unknown_upstream(t, "match", upstreams);

    let is_counted = |name| methods.iter().any(|one| Pattern::new(one).matches(name));
    let is_about_items = METHODS.iter().any(|known| known.has_item && is_counted(known.name));
    if !is_about_items && !methods.is_empty() {
        let key = match per {
            _ if t.has("match") => Some("match"),
            Some(LimitScope::Upstream) => Some("per"),
            _ => None,
        };
        if let Some(key) = key {
            let what = "no method of this limit is about an item, so it would count nothing";
            let remedy = "write a method that is, such as \"tools/call\", or remove it";
            t.error(key, ValueError::new(what, remedy));
        }
    }
    if t.has("burst") && !t.has("rate") {
        let remedy = "add rate = \"600/min\", or write concurrency for how many at a time";
        t.error("burst", ValueError::new("a burst goes with a rate", remedy));
    }
    if !t.has("rate") && !t.has("concurrency") {
        let remedy = "add rate = \"600/min\", or concurrency = 4";
        t.table_error(ValueError::new("nothing is limited here", remedy));
    }
    let rate = rate.map(|(count, period)| RequestRate::new(count, period, burst.unwrap_or(count)));
    let methods = methods.iter().map(|method| Pattern::new(method)).collect();
    let item = item.as_deref().map(Pattern::new);
    Some(Limit { per: per?, methods, item, rate, concurrency })
}

/// One or several methods, or patterns of methods.
fn methods() -> Key<Vec<String>> {
    let text = "name of a method, or a pattern of names";
    let of = ValueShape::Text(text, shape::ITEM_PATTERN);
    custom(ValueShape::OneOrList(Box::new(of)), |t, name, _| t.one_or_list(name, method))
        .written(|methods: &Vec<String>| methods.concat().into())
}

/// Parses a method, or a pattern of methods.
fn method(v: &SpannedValue<'_>) -> Parsed<String> {
    let text = value::string(v)?;
    let pattern = Pattern::new(text);
    if METHODS.iter().any(|known| pattern.matches(known.name)) {
        return Ok(text.to_owned());
    }
    let names: BTreeSet<_> = METHODS.iter().map(|known| known.name).collect();
    let remedy = did_you_mean(text, names.iter().copied())
        .unwrap_or_else(|| format!("one of these, or \"*\": {}", Vec::from_iter(names).join(", ")));
    Err(ValueError::new(format!("no request of a client has the method {text:?}"), remedy))
}

/// Parses a rate: `10/s`, `600/min`, `1000/h`.
fn rate(v: &SpannedValue<'_>) -> Parsed<(u32, Duration)> {
    let text = value::string(v)?;
    let malformed = || {
        ValueError::new(
            format!("{text:?} is not a rate"),
            "write it like \"10/s\", \"600/min\" or \"1000/h\"",
        )
    };
    let (count, unit) = text.split_once('/').ok_or_else(malformed)?;
    let seconds = match unit.trim() {
        "s" => 1,
        "min" => 60,
        "h" => 3_600,
        _ => return Err(malformed()),
    };
    let count = count.trim();
    if count.is_empty() || !count.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(malformed());
    }
    match count.parse::<u32>() {
        Ok(0) => Err(ValueError::new(
            "a rate of zero would never admit anything",
            "write the rate that you want; to forbid an item, use roles",
        )),
        Ok(count) if BURSTS.contains(&(count as usize)) => {
            Ok((count, Duration::from_secs(seconds)))
        }
        _ => Err(ValueError::new(
            format!("{text:?} is more than can be counted"),
            format!("write at most {}", BURSTS.end()),
        )),
    }
}

const BURSTS: std::ops::RangeInclusive<usize> = 1..=1_000_000;
