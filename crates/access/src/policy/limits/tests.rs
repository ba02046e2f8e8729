//! Tests of the limits alone.

use super::*;

fn limit(
    per: LimitScope,
    methods: &str,
    rate: Option<RequestRate>,
    concurrency: Option<usize>,
) -> Limit {
    Limit { per, methods: vec![Pattern::new(methods)], item: None, rate, concurrency }
}

fn two_a_second() -> Option<RequestRate> {
    Some(RequestRate::new(2, Duration::from_secs(1), 2))
}

fn principal(name: &str) -> Principal {
    Principal::new(name, "role")
}

fn charge<'a>(principal: &'a Principal, method: &'a str) -> LimitRequest<'a> {
    LimitRequest { method, principal, from: None, item: None, is_part: false }
}

/// Returns the number of admitted requests among `of` that end immediately.
fn admitted(limits: &Limits, charge: &LimitRequest<'_>, of: usize) -> usize {
    (0..of).filter(|_| limits.acquire_here(charge).is_ok()).count()
}

#[tokio::test(start_paused = true)]
async fn each_has_a_bucket_of_its_own_and_roles_and_all_share_one() {
    let (ann, bob) = (principal("ann"), principal("bob"));
    for (per, together) in [
        (LimitScope::Client, 4),
        (LimitScope::User, 4),
        (LimitScope::Role, 2),
        (LimitScope::Global, 2),
        (LimitScope::Upstream, 10),
    ] {
        let limits = Limits::new(vec![limit(per, "*", two_a_second(), None)]);
        let found = admitted(&limits, &charge(&ann, "ping"), 5)
            + admitted(&limits, &charge(&bob, "ping"), 5);
        assert_eq!(found, together, "{per:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_shows_a_token_is_counted_by_the_application_or_as_a_user() {
    let through = |name: &str| Principal { application: Some("ide".into()), ..principal(name) };
    let (ann, bob) = (through("ann"), through("bob"));
    for (per, together) in [(LimitScope::Client, 2), (LimitScope::User, 4)] {
        let limits = Limits::new(vec![limit(per, "*", two_a_second(), None)]);
        let found = admitted(&limits, &charge(&ann, "ping"), 5)
            + admitted(&limits, &charge(&bob, "ping"), 5);
        assert_eq!(found, together, "{per:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_is_limited_for_all_who_use_it() {
    let limits = Limits::new(vec![limit(LimitScope::Upstream, "*", two_a_second(), None)]);
    let [hub, wiki] = ["hub", "wiki"].map(|name| name.parse::<UpstreamName>().expect(name));
    let (ann, bob) = (principal("ann"), principal("bob"));
    let about = |principal, upstream| LimitRequest {
        item: Some((upstream, "x")),
        ..charge(principal, "tools/call")
    };
    assert!(limits.depend_on_items());
    assert_eq!(admitted(&limits, &about(&ann, &hub), 1), 1);
    assert_eq!(admitted(&limits, &about(&bob, &hub), 5), 1);
    assert_eq!(admitted(&limits, &about(&ann, &wiki), 5), 2);
}

#[tokio::test(start_paused = true)]
async fn who_shows_no_credentials_is_its_address() {
    let limits = Limits::new(vec![limit(LimitScope::Client, "*", two_a_second(), None)]);
    let nobody = principal("anonymous");
    let from = |address: &str| LimitRequest {
        from: Some(address.parse().expect(address)),
        ..charge(&nobody, "ping")
    };
    assert_eq!(admitted(&limits, &from("10.0.0.1"), 5), 2);
    assert_eq!(admitted(&limits, &from("::ffff:10.0.0.1"), 5), 0);
    assert_eq!(admitted(&limits, &from("10.0.0.2"), 5), 2);
    assert_eq!(admitted(&limits, &from("2001:db8::1"), 5), 2);
    assert_eq!(admitted(&limits, &from("2001:db8::2"), 5), 0);
    // A known client is the same wherever it comes from.
    let ann = principal("ann");
    for address in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
        let _ = limits.acquire_here(&LimitRequest { principal: &ann, ..from(address) });
    }
    assert_eq!(admitted(&limits, &charge(&ann, "ping"), 5), 0);
}

#[tokio::test(start_paused = true)]
async fn a_limit_counts_its_methods_and_items_only() {
    let item = Some(Pattern::new("hub/delete_*"));
    let rule = Limit { item, ..limit(LimitScope::Client, "tools/*", two_a_second(), None) };
    let limits = Limits::new(vec![rule]);
    let hub: UpstreamName = "hub".parse().expect("a name");
    let ann = principal("ann");
    let about = |method, own| LimitRequest { item: Some((&hub, own)), ..charge(&ann, method) };
    assert_eq!(admitted(&limits, &about("tools/call", "delete_all"), 5), 2);
    assert_eq!(admitted(&limits, &about("tools/call", "delete_some"), 5), 0);
    assert_eq!(admitted(&limits, &about("tools/call", "list"), 5), 5);
    assert_eq!(admitted(&limits, &about("prompts/get", "delete_all"), 5), 5);
    // An item that the client may not see is not counted.
    assert_eq!(admitted(&limits, &charge(&ann, "tools/call"), 5), 5);
}

#[tokio::test(start_paused = true)]
async fn all_limits_are_charged_or_none() {
    let slow = Some(RequestRate::new(1, Duration::from_secs(1), 1));
    let limits = Limits::new(vec![
        limit(
            LimitScope::Global,
            "*",
            Some(RequestRate::new(1, Duration::from_secs(3_600), 4)),
            None,
        ),
        limit(LimitScope::Client, "*", slow, None),
    ]);
    let (ann, bob) = (principal("ann"), principal("bob"));
    assert_eq!(admitted(&limits, &charge(&ann, "ping"), 50), 1);
    // Ann's 49 refusals are not charged to others: three are left of all.
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(admitted(&limits, &charge(&ann, "ping"), 50), 1);
    assert_eq!(admitted(&limits, &charge(&bob, "ping"), 50), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(admitted(&limits, &charge(&bob, "ping"), 50), 1);
    let refused = limits.acquire_here(&charge(&ann, "ping")).expect_err("all are used");
    assert_eq!(refused, RateLimited { retry_after: Duration::from_secs(3_598), limit: 0 });
}

#[tokio::test(start_paused = true)]
async fn waiting_as_long_as_told_is_admitted() {
    let minute = Duration::from_secs(60);
    let limits = Limits::new(vec![
        limit(LimitScope::Client, "*", Some(RequestRate::new(7, Duration::from_secs(1), 3)), None),
        limit(LimitScope::Global, "*", Some(RequestRate::new(100, minute, 5)), None),
    ]);
    let ann = principal("ann");
    let mut refusals = 0;
    for _ in 0..50 {
        if let Err(refused) = limits.acquire_here(&charge(&ann, "ping")) {
            // The paused clock goes in milliseconds.
            let wait = refused.retry_after.as_nanos().div_ceil(1_000_000);
            let wait = Duration::from_millis(u64::try_from(wait).expect("short"));
            tokio::time::advance(wait - Duration::from_millis(1)).await;
            assert!(limits.acquire_here(&charge(&ann, "ping")).is_err());
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(limits.acquire_here(&charge(&ann, "ping")).is_ok());
            refusals += 1;
        }
    }
    assert!(refusals > 20, "{refusals}");
}

#[tokio::test(start_paused = true)]
async fn a_place_is_free_again_when_the_permit_is_dropped_or_waits_for_a_person() {
    let limits = Limits::new(vec![limit(LimitScope::Client, "tools/*", None, Some(2))]);
    let (ann, bob) = (principal("ann"), principal("bob"));
    let call = charge(&ann, "tools/call");
    let (one, mut other) = (
        limits.acquire_here(&call).expect("a place"),
        limits.acquire_here(&call).expect("a place"),
    );
    let refused = limits.acquire_here(&call).expect_err("both are taken");
    assert_eq!(refused.retry_after, FULL_RETRY);
    assert!(
        limits.acquire_here(&charge(&bob, "tools/call")).is_ok_and(|permit| permit.holds_slots())
    );
    assert!(limits.acquire_here(&charge(&ann, "ping")).is_ok_and(|permit| !permit.holds_slots()));
    drop(one);
    let one = limits.acquire_here(&call).expect("a place");

    let meanwhile =
        other.release_while(async { limits.acquire_here(&call) }).await.expect("a place");
    // Three are under way now, and two of them have to end before there is a place.
    assert!(limits.acquire_here(&call).is_err());
    drop(meanwhile);
    assert!(limits.acquire_here(&call).is_err());
    drop(one);
    assert!(limits.acquire_here(&call).is_ok());

    // A permit that is dropped while it waits has no slots to return.
    {
        let mut waiting = Box::pin(other.release_while(std::future::pending::<()>()));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
    }
    drop(other);
    let both = [limits.acquire_here(&call), limits.acquire_here(&call)];
    assert!(both.iter().all(Result::is_ok) && limits.acquire_here(&call).is_err());

    // A continued request gets its slot in any case, and is not charged.
    let again = limits.resume(&call);
    drop(both);
    assert!(again.holds_slots());
    assert_eq!(admitted_together(&limits, &call), 1);
    drop(again);
    assert_eq!(admitted_together(&limits, &call), 2);
}

/// Returns the number of requests admitted concurrently.
fn admitted_together(limits: &Limits, charge: &LimitRequest<'_>) -> usize {
    std::iter::from_fn(|| limits.acquire_here(charge).ok()).collect::<Vec<_>>().len()
}

#[tokio::test(start_paused = true)]
async fn who_is_refused_again_and_again_is_not_read_for_a_while() {
    let limits = Limits::new(vec![limit(LimitScope::Client, "tools/*", two_a_second(), None)]);
    let (ann, bob) = (principal("ann"), principal("bob"));
    assert_eq!(admitted(&limits, &charge(&ann, "tools/call"), 101), 2);
    assert_eq!(limits.flood_retry_after(&ann, None), None);
    assert!(limits.acquire_here(&charge(&ann, "tools/call")).is_err());
    assert_eq!(limits.flood_retry_after(&ann, None), Some(Duration::from_millis(100)));
    assert_eq!(limits.flood_retry_after(&bob, None), None);
    tokio::time::advance(Duration::from_millis(100)).await;
    assert_eq!(limits.flood_retry_after(&ann, None), None);
}

#[tokio::test(start_paused = true)]
async fn attempts_to_guess_are_counted_by_address() {
    let limits = Limits::new(Vec::new());
    let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().ok());
    let told = (0..21).filter_map(|_| limits.count_failed_login(one)).collect::<Vec<_>>();
    assert_eq!(told, [Duration::from_secs(3)]);
    assert_eq!(limits.count_failed_login(other), None);
    assert_eq!(limits.count_failed_login(None), None);
    tokio::time::advance(Duration::from_secs(3)).await;
    assert_eq!(limits.count_failed_login(one), None);
}

#[test]
fn of_many_at_once_exactly_as_many_are_admitted_as_may_be() {
    let hour = Duration::from_secs(3_600);
    let limits = Limits::new(vec![
        limit(LimitScope::Global, "*", Some(RequestRate::new(1, hour, 700)), None),
        limit(LimitScope::Client, "*", Some(RequestRate::new(1, hour, 100)), None),
        limit(LimitScope::Role, "*", None, Some(1_000)),
    ]);
    let admitted: usize = std::thread::scope(|scope| {
        let ask = |thread: usize| {
            let (limits, client) = (&limits, principal(&format!("client-{}", thread % 4)));
            scope.spawn(move || admitted(limits, &charge(&client, "ping"), 200))
        };
        let threads: Vec<_> = (0..8).map(ask).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    // Each client's hundred; what they were refused for cost the others nothing.
    assert_eq!(admitted, 400);
    assert_eq!(admitted_together(&limits, &charge(&principal("another"), "ping")), 100);
    assert_eq!(admitted_together(&limits, &charge(&principal("a-third"), "ping")), 100);
}
