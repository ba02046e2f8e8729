//! Tests of `[[limits]]`: valid values, and mistakes.

use std::time::Duration;

use weir_access::policy::limits::LimitScope;
use weir_base::time::rate_limit::RequestRate;
use weir_mcp::pattern::Pattern;

use super::*;

const UPSTREAMS: &str = "[upstreams.guide]\nprompts_dir = \"p\"\n";

fn with(limits: &str) -> String {
    format!("{UPSTREAMS}{limits}")
}

#[test]
fn a_limit_says_who_what_and_how_often() {
    let limits = config(&with(
        r#"
        [[limits]]
        per = "client"
        rate = "600/min"
        burst = 60
        [[limits]]
        per = "upstream"
        method = ["tools/call", "resources/*"]
        match = "guide/*"
        rate = "5/s"
        concurrency = 4
        [[limits]]
        per = "global"
        method = "*/list"
        concurrency = 100
        "#,
    ))
    .limits;
    let patterns = |texts: &[&str]| texts.iter().map(|text| Pattern::new(text)).collect::<Vec<_>>();
    let found: Vec<_> =
        limits.iter().map(|limit| (limit.per, &limit.methods, limit.rate)).collect();
    let [all, some, lists] =
        [&["*"][..], &["tools/call", "resources/*"], &["*/list"]].map(patterns);
    let rates = [(600, 60, 60), (5, 1, 5)].map(|(count, seconds, burst)| {
        Some(RequestRate::new(count, Duration::from_secs(seconds), burst))
    });
    assert_eq!(
        found,
        [
            (LimitScope::Client, &all, rates[0]),
            (LimitScope::Upstream, &some, rates[1]),
            (LimitScope::Global, &lists, None)
        ]
    );
    let items: Vec<_> =
        limits.iter().map(|limit| limit.item.as_ref().map(Pattern::as_str)).collect();
    assert_eq!(items, [None, Some("guide/*"), None]);
    let concurrency: Vec<_> = limits.iter().map(|limit| limit.concurrency).collect();
    assert_eq!(concurrency, [None, Some(4), Some(100)]);
}

#[test]
fn a_limit_that_cannot_be_meant_is_refused_at_its_place() {
    let report = parse(&with(
        r#"
        [[limits]]
        [[limits]]
        per = "clients"
        rate = "10/day"
        [[limits]]
        per = "client"
        method = ["tools/cal", "*/lists", 7]
        rate = "0/s"
        burst = 0
        [[limits]]
        per = "client"
        method = "prompts/list"
        match = "guide/*"
        rate = "1000001/s"
        [[limits]]
        per = "upstream"
        method = ["ping"]
        rate = "600"
        [[limits]]
        per = "client"
        match = "guide"
        concurrency = 0
        burst = 7
        [[limits]]
        per = "role"
        rates = "1/s"
        "#,
    ))
    .unwrap_err();
    let problems: Vec<_> = report.problems().iter().map(|p| format!("{p:?}")).collect();
    insta::assert_snapshot!(problems.join("\n"), @r#"
    weir.toml:4:9: limits.per: is missing: who is counted together (add per = "client", or user, role, upstream, global)
    weir.toml:4:9: limits: nothing is limited here (add rate = "600/min", or concurrency = 4)
    weir.toml:6:15: limits.per: "clients" is not a choice here (did you mean `client`?)
    weir.toml:7:16: limits.rate: "10/day" is not a rate (write it like "10/s", "600/min" or "1000/h")
    weir.toml:10:19: limits.method: no request of a client has the method "tools/cal" (did you mean `tools/call`?)
    weir.toml:10:32: limits.method: no request of a client has the method "*/lists" (one of these, or "*": completion/complete, initialize, logging/setLevel, ping, prompts/get, prompts/list, resources/list, resources/read, resources/subscribe, resources/templates/list, resources/unsubscribe, server/discover, subscriptions/listen, tasks/cancel, tasks/get, tasks/result, tasks/update, tools/call, tools/list)
    weir.toml:10:43: limits.method: expected a string, found an integer (put it in quotes)
    weir.toml:11:16: limits.rate: a rate of zero would never admit anything (write the rate that you want; to forbid an item, use roles)
    weir.toml:12:17: limits.burst: zero never means unlimited (write the limit that you want, or remove the key for the default)
    weir.toml:16:17: limits.match: no method of this limit is about an item, so it would count nothing (write a method that is, such as "tools/call", or remove it)
    weir.toml:17:16: limits.rate: "1000001/s" is more than can be counted (write at most 1000000)
    weir.toml:19:15: limits.per: no method of this limit is about an item, so it would count nothing (write a method that is, such as "tools/call", or remove it)
    weir.toml:21:16: limits.rate: "600" is not a rate (write it like "10/s", "600/min" or "1000/h")
    weir.toml:24:17: limits.match: "guide" is not a pattern like "<upstream>/<name>" (write "guide/*" for all of that upstream, or "*/guide" for the name anywhere)
    weir.toml:25:23: limits.concurrency: zero never means unlimited (write the limit that you want, or remove the key for the default)
    weir.toml:26:17: limits.burst: a burst goes with a rate (add rate = "600/min", or write concurrency for how many at a time)
    weir.toml:27:9: limits: nothing is limited here (add rate = "600/min", or concurrency = 4)
    weir.toml:29:9: limits.rates: no such key (did you mean `rate`?)
    "#);
}

#[test]
fn limits_are_a_list_of_tables() {
    let messages = |limits: &str| {
        let report = parse(&with(limits)).unwrap_err();
        report.problems().iter().map(|p| format!("{p:?}")).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(messages("[limits]\nper = \"client\"\nrate = \"1/s\""), @r#"weir.toml:3:1: limits: expected a list of tables, found a table (write [[limits]] above each, with two brackets)"#);
}

#[test]
fn limits_stand_in_one_file() {
    let limit = "[[limits]]\nper = \"client\"\nrate = \"1/s\"\n";
    let main = format!("include = [\"a.toml\"]\n{}", with(limit));
    let home = Home::new(&[("weir.toml", main.as_str()), ("a.toml", limit), ("p/a.md", "a")]);
    insta::assert_snapshot!(home.lines(), @"a.toml:1:3: limits: weir.toml:4 defines this already (remove one of the two)");
}

#[test]
fn an_upstream_that_nobody_knows_is_probably_not_meant() {
    let warnings =
        config(&with("[[limits]]\nper = \"client\"\nmatch = \"giude/*\"\nrate = \"1/s\"")).warnings;
    let messages: Vec<_> = warnings.iter().map(|p| format!("{p:?}")).collect();
    insta::assert_snapshot!(messages.join("\n"), @r#"weir.toml:5:9: limits.match: there is no upstream "giude" (did you mean `guide`?)"#);
}
