//! Tests of the state of a token: what each state does at each request, and what changes it.

use super::*;
use crate::token_request::IssuedToken;
use crate::vault::SignInNumber;

/// A state, and the time that begins with it.
struct Machine {
    state: TokenState,
    begin: Instant,
}

impl Machine {
    fn new() -> Self {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        Self { state: TokenState::new(backoff), begin: Instant::now() }
    }

    fn at(&self, seconds: u64) -> Instant {
        self.begin + Duration::from_secs(seconds)
    }

    /// Applies an event that is no request.
    fn on(mut self, seconds: u64, event: Event) -> Self {
        let action = self.state.apply(event, self.at(seconds));
        assert!(matches!(action, Action::None), "{action:?}");
        self
    }

    /// Issues a token for 100 s, which is due after 80 s.
    fn issue(self, seconds: u64) -> Self {
        let token = issued(self.state.next_number(), self.at(seconds));
        self.on(seconds, Event::Issued(token))
    }

    fn fail(self, seconds: u64, error: OAuthError) -> Self {
        let sign_in = self.state.sign_in();
        self.on(seconds, Event::Failed { error, sign_in })
    }

    /// Changes the sign-in record to this version, with the token of that number.
    fn sign_in(self, seconds: u64, version: u64, token: Option<u64>) -> Self {
        let token = token.map(|number| issued(numbered(number), self.begin).authorization());
        let version = RecordVersion::numbered(version);
        self.on(seconds, Event::SignInChanged { version, token })
    }

    fn start(mut self, seconds: u64) -> Self {
        assert_eq!(self.request(seconds, Event::ScopesDemanded), "refresh");
        self
    }

    /// Returns the action for a request.
    fn request(&mut self, seconds: u64, event: Event) -> String {
        let number = |token: AccessToken| {
            let mut numbers = (1..10).filter(|number| numbered(*number) == token.number());
            numbers.next().expect("a number")
        };
        match self.state.apply(event, self.at(seconds)) {
            Action::None => "none".into(),
            Action::SendWithout => "send without".into(),
            Action::Use(token) => format!("use {}", number(token)),
            Action::UseAndRefresh(token) => format!("use {}, refresh", number(token)),
            Action::Refresh => "refresh".into(),
            Action::Join => "join".into(),
            Action::Fail(error) => format!("fail: {error}"),
            Action::RefuseRequest => "refuse".into(),
        }
    }

    fn has_failed(&self) -> bool {
        self.state.has_failed()
    }
}

/// Name of a state, the time of the requests, the state, and the action for each of the requests.
type Row<'a> = (&'a str, u64, &'a dyn Fn() -> Machine, [&'a str; 5]);

fn numbered(number: u64) -> TokenNumber {
    (0..number).fold(TokenNumber::default(), |number, _| number.next())
}

fn issued(number: TokenNumber, now: Instant) -> AccessToken {
    let token = Ok(format!("{number:?}").replace(['(', ')'], "-").into());
    let lifetime = Some(Duration::from_secs(100));
    let issued = IssuedToken { token, refresh_token: None, lifetime };
    AccessToken::new(&issued, SignInNumber::default(), number, now).expect("usable")
}

fn unavailable() -> OAuthError {
    OAuthError::Unavailable("down".into())
}

fn refused() -> OAuthError {
    OAuthError::Refused("no".into())
}

fn sign_in_needed() -> OAuthError {
    OAuthError::SignInNeeded("sign in".into())
}

#[test]
fn each_state_has_one_action_for_each_request() {
    let new = Machine::new;
    let valid = || new().issue(0);
    let first = Some(numbered(1));
    let rejected = || valid().on(0, Event::RefusedWhenNew(numbered(1)));
    // Columns: a token is needed, and can be requested or cannot; a request with the first token,
    // or without one, was refused; scopes are demanded.
    let rows: [Row<'_>; 21] = [
        ("none", 0, &new, ["refresh", "send without", "refresh", "refresh", "refresh"]),
        ("valid", 79, &valid, ["use 1", "use 1", "refresh", "use 1", "refresh"]),
        ("due", 80, &valid, ["use 1, refresh", "use 1, refresh", "refresh", "use 1", "refresh"]),
        ("expired", 100, &valid, ["refresh", "refresh", "refresh", "use 1", "refresh"]),
        (
            "of a former sign-in",
            1,
            &|| valid().sign_in(1, 1, None),
            ["refresh", "send without", "refresh", "refresh", "refresh"],
        ),
        (
            "of a record that was written again",
            1,
            &|| valid().sign_in(1, 1, Some(1)),
            ["use 1", "use 1", "refresh", "use 1", "refresh"],
        ),
        ("refreshing", 0, &|| new().start(0), ["join", "send without", "join", "join", "join"]),
        (
            "refreshing, and valid",
            79,
            &|| valid().start(0),
            ["use 1", "use 1", "join", "use 1", "join"],
        ),
        (
            "refreshing, and due",
            80,
            &|| valid().start(80),
            ["use 1", "use 1", "join", "use 1", "join"],
        ),
        (
            "refreshing, and expired",
            100,
            &|| valid().start(80),
            ["join", "join", "join", "use 1", "join"],
        ),
        (
            "paused",
            59,
            &|| new().start(0).fail(0, refused()),
            ["fail: no", "send without", "fail: no", "fail: no", "fail: no"],
        ),
        (
            "paused, and valid",
            59,
            &|| valid().start(0).fail(0, refused()),
            ["use 1", "use 1", "fail: no", "use 1", "fail: no"],
        ),
        (
            "paused, and due",
            99,
            &|| valid().start(80).fail(80, refused()),
            ["use 1", "use 1", "fail: no", "use 1", "fail: no"],
        ),
        (
            "paused, and expired",
            100,
            &|| valid().start(80).fail(80, refused()),
            ["fail: no", "fail: no", "fail: no", "use 1", "fail: no"],
        ),
        (
            "paused, and accepted",
            1,
            &|| valid().start(0).fail(0, refused()).on(1, Event::Accepted(numbered(1))),
            ["use 1", "use 1", "fail: no", "use 1", "fail: no"],
        ),
        (
            "after the pause",
            60,
            &|| new().start(0).fail(0, refused()),
            ["refresh", "send without", "refresh", "refresh", "refresh"],
        ),
        (
            "after the pause, and due",
            81,
            &|| valid().start(80).fail(80, unavailable()),
            ["use 1, refresh", "use 1, refresh", "refresh", "use 1", "refresh"],
        ),
        (
            "in the pause, with another sign-in",
            1,
            &|| new().start(0).fail(0, refused()).sign_in(1, 1, Some(9)),
            ["refresh", "send without", "refresh", "refresh", "refresh"],
        ),
        ("refused when it was new", 59, &rejected, ["use 1", "use 1", "refuse", "use 1", "refuse"]),
        (
            "refused when it was new, a minute ago",
            60,
            &rejected,
            ["use 1", "use 1", "refresh", "use 1", "refresh"],
        ),
        (
            "refused when it was new, and replaced",
            1,
            &|| rejected().issue(0),
            ["use 2", "use 2", "use 2", "use 2", "refresh"],
        ),
    ];
    for (name, seconds, machine, expected) in rows {
        let events = [
            Event::Needed { can_request: true },
            Event::Needed { can_request: false },
            Event::Refused(first),
            Event::Refused(None),
            Event::ScopesDemanded,
        ];
        let actions = events.map(|event| machine().request(seconds, event));
        assert_eq!(actions, expected, "{name}");
    }
}

#[test]
fn pauses_after_failures_grow_until_a_token_is_issued() {
    let mut machine = Machine::new();
    let mut now = 0;
    for (error, pause) in [
        (unavailable(), 1),
        (unavailable(), 2),
        (unavailable(), 4),
        (sign_in_needed(), 1),
        (unavailable(), 8),
        (refused(), 60),
        (unavailable(), 60),
    ] {
        machine = machine.start(now).fail(now, error.clone());
        assert_eq!(machine.state.pause(machine.at(now)), Duration::from_secs(pause), "{error}");
        assert_eq!(
            machine.request(now + pause - 1, Event::ScopesDemanded),
            format!("fail: {error}")
        );
        now += pause;
    }
    machine = machine.start(now).issue(now).start(now).fail(now, unavailable());
    assert_eq!(machine.state.pause(machine.at(now)), Duration::from_secs(1));
}

#[test]
fn tokens_that_are_refused_when_they_are_young_are_refreshed_at_a_pace() {
    let mut machine = Machine::new().issue(0);
    for (seconds, action) in [
        (0, "refresh"),
        (0, "refresh"),
        (0, "refuse"),
        (1, "refresh"),
        (2, "refuse"),
        (3, "refresh"),
        (6, "refuse"),
        (7, "refresh"),
        // One that has lived for a minute is no young one.
        (67, "refresh"),
        (67, "refresh"),
        (67, "refuse"),
    ] {
        let refused = machine.state.last().map(AccessToken::number);
        assert_eq!(machine.request(seconds, Event::Refused(refused)), action, "{seconds} s");
        if action == "refresh" {
            machine = machine.issue(seconds);
        }
    }
}

#[test]
fn a_failure_counts_until_the_upstream_accepts_the_token() {
    let failed = || Machine::new().issue(0).start(1).fail(1, sign_in_needed());
    let needs_sign_in = |machine: &Machine, seconds| {
        machine.state.sign_in_needed(machine.at(seconds)).map(str::to_owned)
    };
    assert!(!Machine::new().issue(0).has_failed());
    assert!(failed().has_failed());
    assert_eq!(needs_sign_in(&failed(), 1).as_deref(), Some("sign in"));
    // Also while the next refresh runs.
    let running = failed().start(2);
    assert!(running.has_failed());
    assert_eq!(needs_sign_in(&running, 2).as_deref(), Some("sign in"));
    for (name, machine, has_failed) in [
        ("the token", failed().on(2, Event::Accepted(numbered(1))), false),
        ("the token, meanwhile", failed().start(2).on(2, Event::Accepted(numbered(1))), false),
        ("a former token", failed().on(2, Event::Accepted(numbered(0))), true),
        ("a token that is due", failed().on(80, Event::Accepted(numbered(1))), true),
    ] {
        assert_eq!(machine.has_failed(), has_failed, "{name}");
        assert_eq!(needs_sign_in(&machine, 2).is_some(), has_failed, "{name}");
    }
    assert!(!failed().start(2).issue(2).has_failed());
}

#[test]
fn a_token_that_is_due_needs_no_sign_in_until_it_expires_or_is_refused() {
    let due = || Machine::new().issue(0).start(80).fail(80, sign_in_needed());
    let is_needed =
        |machine: &Machine, seconds| machine.state.sign_in_needed(machine.at(seconds)).is_some();
    assert!(!is_needed(&due(), 80) && !is_needed(&due(), 99) && is_needed(&due(), 100));
    let mut machine = due();
    let refused = Event::Refused(Some(numbered(1)));
    assert_eq!(machine.request(81, refused), "refresh");
    assert!(is_needed(&machine.fail(81, sign_in_needed()), 82));
    // Another failure than a missing sign-in needs none.
    assert!(!is_needed(&Machine::new().start(0).fail(0, unavailable()), 0));
}

#[test]
fn a_sign_in_is_new_if_another_process_has_written_it_since_the_failure() {
    let begun = || Machine::new().sign_in(0, 1, Some(9)).start(0);
    let failed_with = |version| {
        let sign_in = Some(RecordVersion::numbered(version));
        begun().sign_in(0, 2, Some(9)).on(0, Event::Failed { error: refused(), sign_in })
    };
    for (name, machine, is_new) in [
        ("none has failed", begun(), false),
        ("unchanged", begun().fail(0, refused()), false),
        ("changed afterwards", begun().fail(0, refused()).sign_in(1, 2, Some(9)), true),
        ("changed meanwhile", failed_with(1), true),
        ("written by the refresh", failed_with(2), false),
        ("a server that is down", begun().fail(0, unavailable()).sign_in(1, 2, Some(9)), false),
    ] {
        assert_eq!(machine.state.has_new_sign_in(), is_new, "{name}");
    }
}
