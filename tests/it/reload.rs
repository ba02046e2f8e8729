//! Configuration reloads: unchanged parts stay untouched, changed parts apply from the report of
//! the reload on, and no request is lost (F-81, F-82, F-83, D-P28).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use weir::app::ReloadOutcome;
use weir_mcp::kind::ListTopic;

use crate::by_night;
use crate::cell::{CLIENTS, LEGACY_SSE, LEGACY_STDIO, MODERN_HTTP, UPSTREAMS};
use crate::client::{ChangeStream, Client, named, set};
use crate::identity::token;
use crate::upstream::Script;
use crate::world::{World, everywhere, hub, pass, with_pair};

const OPEN: &str = "[roles.guest]\nprompts.allow = [\"hub/*\"]\ntools.allow = [\"hub/*\"]\n\
                    [roles.staff]\nprompts.allow = [\"*\"]\ntools.allow = [\"*\"]\n";
const NARROW: &str = "[roles.guest]\nprompts.allow = [\"hub/a\"]\ntools.allow = [\"hub/*\"]\n\
                      [roles.staff]\nprompts.allow = [\"*\"]\ntools.allow = [\"*\"]\n";
const GONE: &str = "[roles.staff]\nprompts.allow = [\"*\"]\ntools.allow = [\"*\"]\n";
const BAD: &str = "[roles.guest]\nprompts.alow = [\"hub/*\"]\n";
const ANSWER: &str = r#"{"resultType":"complete","content":[{"type":"text","text":"at last"}]}"#;

/// The configuration for this client's transport.
fn with(client: crate::cell::Side, config: &str) -> String {
    if client == LEGACY_SSE { with_pair(config) } else { config.to_owned() }
}

/// All messages until the stream is silent.
async fn drain(notifications: &mut ChangeStream<'_>) -> String {
    let mut sent = String::new();
    while let Ok(Some(next)) =
        tokio::time::timeout(Duration::from_secs(3), notifications.next()).await
    {
        sent += &next;
    }
    sent
}

fn is_applied(outcome: &ReloadOutcome) -> bool {
    matches!(outcome, ReloadOutcome::Applied { after_restart, .. } if after_restart.is_empty())
}

#[tokio::test(start_paused = true)]
async fn f82_who_sees_something_else_hears_of_it_once_and_nobody_asks_the_upstream_again() {
    everywhere(OPEN, hub, async |world, cell| {
        let guest = world.client_as("guest", cell.client).await;
        let staff = world.client_as("staff", cell.client).await;
        let (mut guest_changes, mut staff_changes) = (guest.listen().await, staff.listen().await);
        let requests = world.requests();

        let outcome = world.reload(&with(cell.client, NARROW)).await;
        assert!(is_applied(&outcome), "{outcome:?}");
        assert_eq!(guest.prompts().await, ["hub__a"]);
        assert_eq!(staff.prompts().await, ["hub__a", "hub__b"]);
        assert_eq!(guest_changes.next_change().await, ListTopic::Prompts);
        guest_changes.stays_silent().await;
        staff_changes.stays_silent().await;
        assert_eq!(world.requests(), requests, "the upstream was asked something");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_listed_between_a_change_and_its_return_is_not_left_to_stand() {
    everywhere(OPEN, hub, async |world, cell| {
        let guest = world.client_as("guest", cell.client).await;
        let mut notifications = guest.listen().await;
        world.reload(&with(cell.client, NARROW)).await;
        assert_eq!(notifications.next_change().await, ListTopic::Prompts);

        // This reload comes before the next notification is due.
        world.reload(&with(cell.client, OPEN)).await;
        assert_eq!(guest.prompts().await, ["hub__a", "hub__b"]);
        world.reload(&with(cell.client, NARROW)).await;
        assert_eq!(notifications.next_change().await, ListTopic::Prompts);
        assert_eq!(guest.prompts().await, ["hub__a"]);
        notifications.stays_silent().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f82_a_call_under_way_is_answered_over_a_reload() {
    everywhere(OPEN, hub, async |world, cell| {
        let client = world.client_as("staff", cell.client).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        assert!(is_applied(&world.reload(&with(cell.client, NARROW)).await));
        pass(Duration::from_secs(40)).await;
        call.result(ANSWER);
        let reply = exchange.reply().await;
        assert!(reply.result().contains("at last"), "{reply:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f82_an_upstream_that_changed_is_opened_anew_and_its_list_is_never_empty() {
    everywhere(OPEN, hub, async |world, cell| {
        let client = world.client_as("staff", cell.client).await;
        let mut notifications = client.listen().await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = client.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;

        let changed = format!("{OPEN}[upstreams.hub]\nlimits = {{ max_items = 99 }}\n");
        let outcome = world.reload(&with(cell.client, &changed)).await;
        let ReloadOutcome::Applied { changes, .. } = &outcome else { panic!("{outcome:?}") };
        assert_eq!(changes[..], ["upstream hub restarted", "upstreams kept: 0"]);
        assert_eq!(client.prompts().await, ["hub__a", "hub__b"]);
        // The old connection finishes its calls.
        assert!(call.is_wanted());
        call.result(ANSWER);
        assert!(exchange.reply().await.result().contains("at last"));
        world.upstream("hub").reset_answer("tools/call");
        assert!(client.call_tool("hub__a").await.outcome.is_ok());
        world.listed().await;
        notifications.stays_silent().await;
        assert_eq!(client.prompts().await, ["hub__a", "hub__b"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn f82_an_upstream_that_is_removed_ends_what_it_has_begun_and_one_that_is_added_is_listed() {
    for upstream in UPSTREAMS {
        let scripts = vec![("hub", Script::full(upstream)), ("late", Script::full(upstream))];
        let world = World::start(scripts, OPEN).await;
        let client = world.client_as("staff", MODERN_HTTP).await;
        let mut notifications = client.listen().await;
        let mut intercepted = world.upstream("late").intercept("tools/call");
        let exchange = client.start("tools/call", &named("late__a"));
        let call = intercepted.next().await;

        assert!(is_applied(&world.reload_with(&["hub"], OPEN).await));
        assert_eq!(client.prompts().await, ["hub__a", "hub__b"]);
        assert!(client.call_tool("late__a").await.outcome.is_err());
        call.result(ANSWER);
        assert!(exchange.reply().await.result().contains("at last"));
        pass(Duration::from_secs(5)).await;
        while let Ok(Some(_)) =
            tokio::time::timeout(Duration::from_secs(3), notifications.next()).await
        {}

        world.upstream("late").reset_answer("tools/call");
        assert!(is_applied(&world.reload(OPEN).await));
        world.listed().await;
        assert_eq!(client.prompts().await, ["hub__a", "hub__b", "late__a", "late__b"]);
        drop(notifications);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f83_whoever_is_gone_hears_the_end_within_a_second_and_calls_that_are_under_way_finish() {
    for side in CLIENTS {
        let world = World::start(hub(MODERN_HTTP), &with(side, OPEN)).await;
        let guest = world.client_as("guest", side).await;
        let staff = world.client_as("staff", side).await;
        let mut intercepted = world.upstream("hub").intercept("tools/call");
        let exchange = guest.start("tools/call", &named("hub__a"));
        let call = intercepted.next().await;
        let (mut notifications, mut others) = (guest.listen().await, staff.listen().await);

        assert!(is_applied(&world.reload(&with(side, GONE)).await));
        let begin = Instant::now();
        if side.is_http() {
            // A modern listen ends with a result.
            let last = notifications.next().await;
            assert_eq!(last.is_some(), side.is_modern(), "{side}: {last:?}");
            assert!(last.is_none_or(|last| last.contains("resultType")), "{side}");
            assert_eq!(notifications.next().await, None, "{side}");
            assert!(begin.elapsed() <= Duration::from_secs(1), "{side}: {:?}", begin.elapsed());
            let refused =
                guest.http().post("{}", &guest.http().headers("ping", "{}")).whole().await;
            assert_eq!(refused.status, 401, "{side}");
        }
        others.stays_silent().await;
        call.result(ANSWER);
        let reply = exchange.reply().await;
        assert!(reply.result().contains("at last"), "{side}: {reply:?}");

        // A client that comes back goes on in its session.
        assert!(is_applied(&world.reload(&with(side, OPEN)).await));
        if side.is_http() && !side.is_modern() {
            let mut again = guest.http().get();
            again.opened().await;
            assert_eq!(again.status(), 200, "{side}");
        }
        drop((notifications, others));
        drop((guest, staff));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f81_what_is_not_good_changes_nothing_and_is_told_with_its_place() {
    let world = World::start(hub(MODERN_HTTP), OPEN).await;
    let client = world.client_as("guest", MODERN_HTTP).await;
    let mut notifications = client.listen().await;
    let outcome = world.reload(BAD).await;
    let ReloadOutcome::Refused(report) = &outcome else { panic!("{outcome:?}") };
    let problem = &report.problems()[0];
    assert_eq!(
        (&*problem.location(), &*problem.key),
        ("weir.toml:2:9", "roles.guest.prompts.alow")
    );
    assert_eq!(client.prompts().await, ["hub__a", "hub__b"]);
    notifications.stays_silent().await;
    assert_eq!(world.reload(OPEN).await, ReloadOutcome::Unchanged);

    let outcome = world.reload(&format!("[server]\nlisten = \"127.0.0.1:1\"\n{NARROW}")).await;
    let ReloadOutcome::Applied { after_restart, .. } = &outcome else { panic!("{outcome:?}") };
    assert_eq!(after_restart[..], ["server.listen"]);
    assert_eq!(client.prompts().await, ["hub__a"], "all else is taken up");
    drop(notifications);
    drop(client);
    world.close().await;
}

/// Lists repeatedly until it is stopped; each list is one of the two possible ones.
async fn list_without_end(client: &Client, count: &AtomicUsize) {
    loop {
        let keys = client.prompts().await;
        let known: [&[&str]; 2] = [&["hub__a", "hub__b"], &["hub__a"]];
        assert!(known.iter().any(|known| keys == *known), "{keys:?}");
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn f81_f82_g19_no_request_fails_over_many_reloads_and_each_that_begins_after_one_is_decided_by_it()
 {
    let (rounds, each) = if by_night() { (1_000, 50) } else { (50, 10) };
    for side in [MODERN_HTTP, LEGACY_STDIO] {
        let world = World::start(hub(MODERN_HTTP), OPEN).await;
        let (guest, other) =
            (world.client_as("guest", side).await, world.client_as("guest", side).await);
        let (before, count) = (world.upstream("hub").count("prompts/list"), AtomicUsize::new(0));
        let mut checks = 0;
        let reloading = async {
            for round in 0..rounds {
                let (config, expected): (_, &[&str]) = match round % 2 {
                    0 => (NARROW, &["hub__a"]),
                    _ => (OPEN, &["hub__a", "hub__b"]),
                };
                assert!(is_applied(&world.reload(config).await), "round {round}");
                for _ in 0..each {
                    assert_eq!(guest.prompts().await, expected, "round {round}");
                    let denied = guest.get_prompt("hub__b").await.outcome.is_err();
                    assert_eq!(denied, expected.len() == 1, "round {round}");
                    checks += 2;
                }
                let refused = world.reload(BAD).await;
                assert!(matches!(refused, ReloadOutcome::Refused(_)), "round {round}: {refused:?}");
                assert_eq!(guest.prompts().await, expected, "round {round}");
            }
        };
        tokio::select! {
            () = reloading => {}
            () = list_without_end(&other, &count) => {}
        }
        let listed = count.load(Ordering::Relaxed);
        eprintln!(
            "{side}: {rounds} good and {rounds} bad reloads, {checks} checks, {listed} lists beside them"
        );
        assert!(listed > rounds, "{listed}");
        assert_eq!(world.upstream("hub").count("prompts/list"), before, "it was listed again");
        drop((guest, other));
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_reloads_is_one_behind_the_one_that_is_under_way() {
    let world = World::start(hub(MODERN_HTTP), OPEN).await;
    let storm = (0..100).map(|_| world.reload(NARROW));
    let outcomes = futures::future::join_all(storm).await;
    assert!(outcomes.iter().any(is_applied));
    assert!(
        outcomes.iter().all(|it| is_applied(it) || *it == ReloadOutcome::Unchanged),
        "{outcomes:?}"
    );
    // Reloads that arrive while another one runs are combined into one, so the last ones found no
    // change.
    assert_eq!(outcomes.last(), Some(&ReloadOutcome::Unchanged));
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn limits_that_stay_have_counted_already() {
    let limited = |roles: &str| {
        format!("{roles}[[limits]]\nper = \"client\"\nmethod = \"prompts/list\"\nrate = \"2/h\"\n")
    };
    let world = World::start(hub(MODERN_HTTP), &limited(OPEN)).await;
    let client = world.client_as("guest", MODERN_HTTP).await;
    assert_eq!(client.prompts().await.len(), 2);
    assert_eq!(client.prompts().await.len(), 2);
    assert!(is_applied(&world.reload(&limited(NARROW)).await));
    assert!(client.request("prompts/list", "{}").await.outcome.is_err());
    drop(client);
    world.close().await;
}

#[tokio::test(start_paused = true)]
async fn another_server_of_the_same_name_does_not_show_what_the_one_before_it_listed() {
    for side in UPSTREAMS {
        let scripts = vec![("hub", Script::full(side)), ("other", Script::full(side))];
        let world = World::start(scripts, OPEN).await;
        let client = world.client_as("staff", MODERN_HTTP).await;
        assert_eq!(client.prompts().await, ["hub__a", "hub__b", "other__a", "other__b"]);
        let mut intercepted = world.upstream("other").intercept("prompts/list");
        let outcome = world.reload_leading("hub", "other", OPEN).await;
        assert!(is_applied(&outcome), "{side}: {outcome:?}");
        let listing = intercepted.next().await;
        let list = client.request("prompts/list", "{}").await;
        assert!(list.result().contains(r#""weir/partial":["hub"]"#), "{side}: {list:?}");
        assert!(!list.result().contains("hub__"), "{side}: {list:?}");
        assert!(client.get_prompt("hub__a").await.outcome.is_err(), "{side}");
        let members = if side.is_modern() {
            r#""resultType":"complete","ttlMs":60000,"cacheScope":"public","#
        } else {
            ""
        };
        listing.result(&format!(r#"{{{members}"prompts":[{{"name":"new"}}]}}"#));
        world.listed().await;
        assert_eq!(client.prompts().await, ["hub__new", "other__a", "other__b"], "{side}");
        drop(intercepted);
        drop(client);
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_was_opened_anew_is_listed_once_and_then_left_alone() {
    for side in UPSTREAMS {
        let scripts = vec![("hub", Script::full(side)), ("rim", Script::full(side))];
        let world = World::start(scripts, OPEN).await;
        let lists = |name: &str| world.upstream(name).count("tools/list");
        let changed = format!("{OPEN}[upstreams.hub]\nlimits = {{ max_items = 99 }}\n");
        assert!(is_applied(&world.reload(&changed).await));
        pass(Duration::from_secs(600)).await;
        assert_eq!((lists("hub"), lists("rim")), (2, 1), "{side}");
        // An unreachable upstream takes nothing from the others.
        let away = format!("{OPEN}[upstreams.away]\nurl = \"http://away.test/mcp\"\n");
        assert!(is_applied(&world.reload_with(&["rim"], &away).await));
        pass(Duration::from_secs(600)).await;
        assert_eq!((lists("hub"), lists("rim")), (2, 1), "{side}");
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn limits_and_pins_that_come_and_go_hold_for_the_next_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let lock = folder.path().join("weir.lock").display().to_string();
    everywhere(OPEN, hub, async |world, cell| {
        let client = world.client_as("guest", cell.client).await;
        let mut notifications = client.listen_for(&[ListTopic::Prompts]).await;
        let limits = "[[limits]]\nper = \"client\"\nmethod = \"prompts/get\"\nrate = \"1/h\"\n";
        let get = async || client.get_prompt("hub__a").await.outcome.is_ok();
        assert!(get().await && get().await);
        assert!(is_applied(&world.reload(&with(cell.client, &format!("{OPEN}{limits}"))).await));
        assert_eq!((get().await, get().await), (true, false));
        assert!(is_applied(&world.reload(&with(cell.client, OPEN)).await));
        assert!(get().await && get().await);
        notifications.stays_silent().await;

        let pins = format!("{OPEN}[guard]\npinning = \"locked\"\nlock_file = {lock:?}\n");
        assert!(is_applied(&world.reload(&with(cell.client, &pins)).await));
        assert!(drain(&mut notifications).await.contains("prompts/list_changed"));
        assert_eq!((client.prompts().await.len(), get().await), (0, false));
        assert!(is_applied(&world.reload(&with(cell.client, OPEN)).await));
        assert!(drain(&mut notifications).await.contains("prompts/list_changed"));
        assert_eq!((client.prompts().await.len(), get().await), (2, true));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_comes_and_goes_holds_for_the_next_request() {
    let sent =
        r#""messages":[{"role":"user","content":{"type":"text","text":"the token is s3cret"}}]"#;
    everywhere(OPEN, hub, async |world, cell| {
        let members = if cell.upstream.is_modern() { "\"resultType\":\"complete\"," } else { "" };
        world.upstream("hub").result("prompts/get", &format!("{{{members}{sent}}}"));
        let client = world.client_as("guest", cell.client).await;
        let shows = async || client.get_prompt("hub__a").await.result().contains("s3cret");
        assert!(shows().await);
        let guard = format!("{OPEN}[guard]\nredact = {{ token = \"s3[a-z]+\" }}\n");
        assert!(is_applied(&world.reload(&with(cell.client, &guard)).await));
        assert!(!shows().await);
        assert!(is_applied(&world.reload(&with(cell.client, OPEN)).await));
        assert!(shows().await);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_identity_provider_that_comes_and_goes_lets_its_tokens_in_from_the_next_request_on() {
    let public = "[server]\npublic_url = \"http://127.0.0.1:8642\"\n";
    let provider = "[auth.oidc.corp]\nissuer = \"https://id.test/a\"\n\
                    audience = [\"http://127.0.0.1:8642/mcp\"]\nroles = { devs = \"guest\" }\n";
    for side in CLIENTS.into_iter().filter(|side| side.is_http()) {
        let config = |provider: &str| with(side, &format!("{public}{OPEN}{provider}"));
        let world = World::start(hub(MODERN_HTTP), &config("")).await;
        let ask = async || {
            let client = world.uninitialized_client(side, None);
            let mut headers = client.http().headers("prompts/list", "{}");
            let shown = format!("Bearer {}", token("dev", r#""roles":["devs"]"#));
            set(&mut headers, "authorization", &shown);
            client.http().post("{}", &headers).whole().await.status
        };
        assert_eq!(ask().await, 401, "{side}");
        assert!(is_applied(&world.reload(&config(provider)).await), "{side}");
        // The keys of the issuer are fetched first.
        pass(Duration::from_secs(5)).await;
        assert_ne!(ask().await, 401, "{side}");
        let others = provider.replace("8642/mcp", "8642/other");
        assert!(is_applied(&world.reload(&config(&others)).await), "{side}");
        assert_eq!(ask().await, 401, "{side}: it is for somebody else");
        assert!(is_applied(&world.reload(&config("")).await), "{side}");
        assert_eq!(ask().await, 401, "{side}");
        world.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_user_refused_by_a_reload_loses_sessions_and_streams_at_once_and_others_do_not() {
    let public = "[server]\npublic_url = \"http://127.0.0.1:8642\"\n";
    let provider = "[auth.oidc.corp]\nissuer = \"https://id.test/a\"\n\
                    audience = [\"http://127.0.0.1:8642/mcp\"]\nroles = { devs = \"guest\" }\n";
    // The second key refuses all tokens without `iat`: those of these tests have none.
    for (refusal, refuses_all) in
        [("blocked = [\"ann\"]\n", false), ("not_before = 2026-01-01T00:00:00Z\n", true)]
    {
        for side in CLIENTS.into_iter().filter(|side| side.is_http()) {
            let config = |more: &str| with(side, &format!("{public}{OPEN}{provider}{more}"));
            let world = World::start(hub(MODERN_HTTP), &config("")).await;
            pass(Duration::from_secs(5)).await;
            let [ann, bob] = ["ann", "bob"].map(|user| token(user, r#""roles":["devs"]"#));
            let first = world.client_with(side, &ann, "guest").await;
            let second = world.client_with(side, &bob, "guest").await;
            let (mut hers, mut his) = (first.listen().await, second.listen().await);

            assert!(is_applied(&world.reload(&config(refusal)).await), "{side}");
            let begin = Instant::now();
            while hers.next().await.is_some() {}
            assert!(begin.elapsed() <= Duration::from_secs(1), "{side}");
            let status = async |client: &Client| {
                let http = client.http();
                http.post("{}", &http.headers("ping", "{}")).whole().await.status
            };
            assert_eq!(status(&first).await, 401, "{side}");
            match refuses_all {
                true => assert_eq!(status(&second).await, 401, "{side}"),
                false => his.stays_silent().await,
            }
            // The provider's keys are still known when the refusal ends.
            assert!(is_applied(&world.reload(&config("")).await), "{side}");
            assert_ne!(status(&first).await, 401, "{side}");
            drop((hers, his));
            drop((first, second));
            world.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_during_shutdown_is_refused_at_once() {
    let world = World::start(hub(MODERN_HTTP), OPEN).await;
    world.stop_downstream();
    for _ in 0..2 {
        pass(Duration::from_secs(1)).await;
        let outcome = tokio::time::timeout(Duration::from_secs(1), world.reload(NARROW)).await;
        assert_eq!(outcome.expect("an outcome"), ReloadOutcome::Failed("Weir is stopping".into()));
    }
    world.close().await;
}
