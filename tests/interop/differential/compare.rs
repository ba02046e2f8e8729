//! Comparison of two recordings, frame by frame: one table lists the allowed differences.
//!
//! Bytes are compared as they were written. Where a row allows a difference inside an object, the
//! object is taken apart one level, and its other members keep their bytes and their order.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Mutex;

use super::recording::{Exchange, Recording, at, elements, members};
use super::script::is_unknown;

/// A part of a message that Weir owns, and the reason.
pub(crate) struct Row {
    pub(crate) when: When,
    /// Message: the method, with the part of the message before it. `*` is any method.
    pub(crate) of: &'static str,
    /// Path within the message.
    pub(crate) at: &'static str,
    pub(crate) how: How,
    /// Reason for which Weir owns it.
    pub(crate) since: &'static str,
}

/// Cells to which a row applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    /// The upstream speaks the client's era.
    Same,
    /// A legacy client, a modern upstream.
    Down,
    /// A modern client, a legacy upstream.
    Up,
}

/// Kind of an allowed difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Anything,
    /// Equal elements in another order.
    Order,
    /// Equal elements in any order, with additional ones.
    More,
    /// Equal, at another place among the members.
    Place,
    /// Equal values in equal order, under other names.
    Names,
    /// Through Weir it is one of these.
    Is(&'static [&'static str]),
    /// Through Weir it is missing.
    Gone,
    /// Through Weir it may be missing, depending on timing: the row may stay unused.
    Late,
}

/// All rows, and those that were used.
pub(crate) struct Judge<'a> {
    rows: &'a [Row],
    /// Rows that were used.
    used: Mutex<BTreeSet<usize>>,
    /// Parts of the comparison that have ended.
    ended: Mutex<BTreeSet<String>>,
}

/// Comparison of one cell.
pub(crate) struct Trial<'a> {
    judge: &'a Judge<'a>,
    when: When,
    /// Message that is compared.
    of: String,
    place: String,
    pub(crate) problems: Vec<String>,
}

impl<'a> Judge<'a> {
    pub(crate) const fn new(rows: &'a [Row]) -> Self {
        Self { rows, used: Mutex::new(BTreeSet::new()), ended: Mutex::new(BTreeSet::new()) }
    }

    pub(crate) fn trial(&self, when: When) -> Trial<'_> {
        let (of, place) = Default::default();
        Trial { judge: self, when, of, place, problems: Vec::new() }
    }

    /// Ends a part of the comparison. The last one of so many returns the rows that none of them
    /// has used.
    pub(crate) fn end(&self, part: String, parts: usize) -> Vec<String> {
        let mut ended = self.ended.lock().unwrap();
        ended.insert(part);
        if ended.len() == parts { self.unused() } else { Vec::new() }
    }

    fn use_rows(&self, rows: impl IntoIterator<Item = usize>) {
        self.used.lock().unwrap().extend(rows);
    }

    /// Rows that were not used.
    fn unused(&self) -> Vec<String> {
        let used = self.used.lock().unwrap();
        let rows = self.rows.iter().enumerate();
        let rows = rows.filter(|(place, row)| !used.contains(place) && row.how != How::Late);
        rows.map(|(_, Row { when, of, at, since, .. })| {
            format!("nothing needs the row {when:?}, {of}, {at}: {since}\n")
        })
        .collect()
    }
}

impl Trial<'_> {
    /// Compares a client's recordings: its whole conversation.
    pub(crate) fn clients(&mut self, direct: &Recording, through: &Recording) {
        self.count(direct, through);
        for (direct, through) in direct.exchanges.iter().zip(&through.exchanges) {
            self.exchange(direct, through);
        }
        self.unsolicited(direct, through);
        // The number of list changes and of opened streams depends on timing.
        let notification = |recording: &Recording| {
            let notification =
                recording.unsolicited.iter().filter(|notification| is_of_lists(notification));
            let notification =
                notification.map(|notification| format!("unasked {}", method(notification)));
            notification.chain(recording.verbs.iter().cloned()).collect::<BTreeSet<_>>()
        };
        let (direct, through) = (notification(direct), notification(through));
        for (notification, is_direct) in direct
            .difference(&through)
            .map(|notification| (notification, true))
            .chain(through.difference(&direct).map(|notification| (notification, false)))
        {
            self.of = notification.clone();
            self.place = "beside the requests".to_owned();
            let (direct, through) =
                if is_direct { ("sent", "not sent") } else { ("not sent", "sent") };
            self.compare("", Some(direct), Some(through));
        }
    }

    /// Compares notifications and requests that belong to none of the client's requests, in their
    /// order.
    fn unsolicited(&mut self, direct: &Recording, through: &Recording) {
        let all = |recording: &Recording| {
            recording
                .unsolicited
                .iter()
                .filter(|notification| !is_of_lists(notification))
                .cloned()
                .collect::<Vec<_>>()
        };
        let (direct, through) = (all(direct), all(through));
        let methods =
            |all: &[String]| all.iter().map(|it| method(it).to_owned()).collect::<Vec<_>>();
        if methods(&direct) != methods(&through) {
            self.of = "unasked".to_owned();
            self.place = "beside the requests".to_owned();
            return self.differ("", &direct.join("\n"), &through.join("\n"));
        }
        for (direct, through) in direct.iter().zip(&through) {
            self.of = format!("note {}", method(direct));
            self.compare("params", at(direct, &["params"]), at(through, &["params"]));
        }
    }

    /// Compares a server's recordings as a client writes them: the requests for its items, and
    /// responses to its requests.
    pub(crate) fn upstreams(&mut self, direct: &Recording, through: &Recording) {
        let items = |recording: &Recording| {
            // Weir itself responds to requests for unknown items.
            let is_item = |exchange: &&Exchange| {
                // Weir itself rejects server requests that belong to no call.
                let is_answer = at(&exchange.message, &["result"]).is_some();
                let is_of_item = is_answer || ITEMS.contains(&exchange.method());
                is_of_item && !is_unknown(&exchange.message)
            };
            let items: Vec<_> = recording.exchanges.iter().filter(is_item).collect();
            let is_about_one =
                |exchange: &&Exchange| items.iter().any(|item| exchange.cancels(item));
            let found = recording.exchanges.iter().filter(|it| is_item(it) || is_about_one(it));
            Recording { exchanges: found.cloned().collect(), ..Default::default() }
        };
        let (direct, through) = (items(direct), items(through));
        self.count(&direct, &through);
        for (direct, through) in direct.exchanges.iter().zip(&through.exchanges) {
            self.request("upstream", direct, through);
            let left = |exchange: &Exchange| exchange.was_left().then_some("before its answer");
            self.compare("left", left(direct), left(through));
        }
    }

    fn count(&mut self, direct: &Recording, through: &Recording) {
        let methods = |recording: &Recording| {
            let methods = recording.exchanges.iter().map(|exchange| exchange.method().to_owned());
            methods.collect::<Vec<_>>()
        };
        let (direct, through) = (methods(direct), methods(through));
        if direct != through {
            self.place = "all requests".to_owned();
            self.differ("", &direct.join(" "), &through.join(" "));
        }
    }

    fn exchange(&mut self, direct: &Exchange, through: &Exchange) {
        self.request("request", direct, through);
        let of = if is_unknown(&direct.message) { "no item" } else { "answer" };
        let of = format!("{of} {}", direct.method());
        self.of = of.clone();
        let status = |exchange: &Exchange| exchange.status.map(|status| status.to_string());
        self.compare("status", status(direct).as_deref(), status(through).as_deref());
        let kinds = |exchange: &Exchange| {
            exchange.answers.iter().map(|answer| method(answer).to_owned()).collect::<Vec<_>>()
        };
        if kinds(direct) != kinds(through) {
            self.differ("", &direct.answers.join("\n"), &through.answers.join("\n"));
            return;
        }
        for (one, other) in direct.answers.iter().zip(&through.answers) {
            let method = method(one);
            if method.is_empty() {
                // Each belongs to the request that was sent, in type and bytes.
                for (exchange, answer) in [(direct, one), (through, other)] {
                    let (sent, came) = (at(&exchange.message, &["id"]), at(answer, &["id"]));
                    if sent != came {
                        self.differ("id", sent.unwrap_or("none"), came.unwrap_or("none"));
                    }
                }
                self.of = of.clone();
                for member in ["result", "error"] {
                    self.compare(member, at(one, &[member]), at(other, &[member]));
                }
            } else {
                self.of = format!("note {method}");
                self.compare("params", at(one, &["params"]), at(other, &["params"]));
            }
        }
    }

    fn request(&mut self, side: &str, direct: &Exchange, through: &Exchange) {
        self.of = format!("{side} {}", direct.method());
        self.place = direct.message.chars().take(200).collect();
        let kind = |exchange: &Exchange| {
            let id = at(&exchange.message, &["id"]);
            id.map(|id| if id.starts_with('"') { "a string" } else { "a number" })
        };
        self.compare("id", kind(direct), kind(through));
        for member in ["jsonrpc", "params", "result", "error"] {
            let member = |exchange| (member, at(exchange, &[member]));
            let ((at, direct), (_, through)) = (member(&direct.message), member(&through.message));
            self.compare(at, direct, through);
        }
        let header = |exchange: &Exchange, name: &str| {
            exchange.headers.iter().find(|it| it.0 == name).map(|it| it.1.clone())
        };
        let names = direct.headers.iter().chain(&through.headers).map(|it| &it.0);
        for name in names.collect::<BTreeSet<_>>() {
            let (direct, through) = (header(direct, name), header(through, name));
            self.compare(&format!("header/{name}"), direct.as_deref(), through.as_deref());
        }
    }

    fn compare(&mut self, at: &str, direct: Option<&str>, through: Option<&str>) {
        let is_same = self.read(direct) == self.read(through);
        if is_same || self.allows(at, direct, through) {
            return;
        }
        let below = format!("{at}/");
        let is_below = |row: &Row| self.fits(row) && row.at.starts_with(&below);
        let apart = self.judge.rows.iter().any(is_below);
        let (Some(one), Some(other)) = (
            members(direct.unwrap_or("{}")).filter(|_| apart),
            members(through.unwrap_or("{}")).filter(|_| apart),
        ) else {
            return self.differ(at, direct.unwrap_or("nothing"), through.unwrap_or("nothing"));
        };
        let is_owned = |name: &str| {
            let path = format!("{below}{name}");
            let rows = self.judge.rows.iter().enumerate();
            let owns = |row: &Row| row.at == path || row.at.starts_with(&format!("{path}/"));
            let mut found = rows.filter(|(_, row)| self.fits(row) && owns(row)).peekable();
            let is_owned = found.peek().is_some();
            // A different place needs a row as well.
            let moved = found.filter(|(_, row)| matches!(row.how, How::Place));
            self.judge.use_rows(moved.map(|(row, _)| row));
            is_owned
        };
        let order = |members: &[(String, &str)]| {
            let names = members.iter().map(|(name, _)| name.clone());
            names.filter(|name| !is_owned(name)).collect::<Vec<_>>()
        };
        if order(&one) != order(&other) {
            return self.differ(at, direct.unwrap_or("nothing"), through.unwrap_or("nothing"));
        }
        let value = |members: &[(String, &str)], name: &str| {
            members.iter().find(|it| it.0 == name).map(|it| it.1.to_owned())
        };
        let names: BTreeSet<_> = one.iter().chain(&other).map(|it| it.0.clone()).collect();
        for name in names {
            let (one, other) = (value(&one, &name), value(&other, &name));
            self.compare(&format!("{below}{name}"), one.as_deref(), other.as_deref());
        }
    }

    /// Compared form of a value: its bytes. Only across eras it is the parsed value, since a server
    /// may write JSON in another way in each.
    fn read<'t>(&self, text: Option<&'t str>) -> Option<Cow<'t, str>> {
        let text = text?;
        if self.when == When::Same {
            return Some(text.into());
        }
        let value = serde_json::from_str::<serde_json::Value>(text);
        Some(value.map_or(text.into(), |mut value| {
            value.sort_all_objects();
            value.to_string().into()
        }))
    }

    /// Whether a row allows the difference; the row then counts as used.
    fn allows(&self, at: &str, direct: Option<&str>, through: Option<&str>) -> bool {
        let rows = self.judge.rows.iter().enumerate();
        let found =
            rows.filter(|(_, row)| self.fits(row) && row.at == at).find(|(_, row)| match row.how {
                How::Anything => true,
                How::Place => false,
                How::Gone | How::Late => through.is_none(),
                How::Names => {
                    let values = |text: Option<&str>| {
                        let members = members(text?)?.into_iter();
                        Some(
                            members
                                .map(|it| self.read(Some(it.1)).map(Cow::into_owned))
                                .collect::<Vec<_>>(),
                        )
                    };
                    values(direct).is_some_and(|direct| Some(direct) == values(through))
                }
                How::Is(values) => through.is_some_and(|value| values.contains(&value)),
                How::Order | How::More => {
                    let sorted = |text: Option<&str>| {
                        let elements = elements(text?)?.into_iter();
                        let mut elements: Vec<_> =
                            elements.map(|one| self.read(Some(one)).map(Cow::into_owned)).collect();
                        elements.sort();
                        Some(elements)
                    };
                    match (sorted(direct), sorted(through)) {
                        (Some(direct), Some(through)) if row.how == How::More => {
                            direct.iter().all(|one| through.contains(one))
                        }
                        (direct, through) => direct.is_some() && direct == through,
                    }
                }
            });
        found.is_some_and(|(row, _)| {
            self.judge.use_rows([row]);
            true
        })
    }

    fn fits(&self, row: &Row) -> bool {
        let is_of = match row.of.split_once('*') {
            Some((start, end)) => self.of.starts_with(start) && self.of.ends_with(end),
            None => self.of == row.of,
        };
        is_of && (row.when == When::Always || row.when == self.when)
    }

    fn differ(&mut self, at: &str, direct: &str, through: &str) {
        let short = |text: &str| text.chars().take(3000).collect::<String>();
        self.problems.push(format!(
            "{} [{}] {at}\n    of {}\n    direct:  {}\n    through: {}\n",
            self.of,
            format!("{:?}", self.when).to_lowercase(),
            self.place,
            short(direct),
            short(through),
        ));
    }
}

/// Methods whose requests Weir forwards.
const ITEMS: [&str; 4] = ["prompts/get", "tools/call", "resources/read", "completion/complete"];

fn is_of_lists(notification: &str) -> bool {
    method(notification).ends_with("list_changed")
}

fn method(message: &str) -> &str {
    at(message, &["method"]).unwrap_or_default().trim_matches('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [Row; 6] = [
        Row { when: When::Same, of: "answer ask", at: "result/keys", how: How::Names, since: "" },
        Row { when: When::Same, of: "answer ask", at: "result/late", how: How::Late, since: "" },
        Row {
            when: When::Same,
            of: "answer tools/list",
            at: "result/tools",
            how: How::Order,
            since: "",
        },
        Row {
            when: When::Always,
            of: "answer tools/list",
            at: "result/ttlMs",
            how: How::Is(&["5"]),
            since: "",
        },
        Row {
            when: When::Always,
            of: "note *",
            at: "params/progressToken",
            how: How::Place,
            since: "",
        },
        Row { when: When::Up, of: "answer *", at: "result/extra", how: How::Gone, since: "" },
    ];

    fn recording(method: &str, answers: &[&str]) -> Recording {
        let message = format!(r#"{{"id":1,"method":"{method}","params":{{"name":"x"}}}}"#);
        let answers = answers.iter().map(|&answer| answer.to_owned()).collect();
        let exchanges = vec![Exchange { answers, ..Exchange::of(message) }];
        Recording { exchanges, ..Recording::default() }
    }

    /// Number of problems between these responses to a request.
    fn check(when: When, method: &str, direct: &[&str], through: &[&str]) -> usize {
        let judge = Judge::new(&ROWS);
        let mut trial = judge.trial(when);
        trial.clients(&recording(method, direct), &recording(method, through));
        trial.problems.len()
    }

    #[test]
    fn nothing_may_differ_but_what_a_row_says() {
        let call = |result: &'static str| check(When::Same, "tools/call", &[CALLED], &[result]);
        assert_eq!(call(CALLED), 0);
        for other in [
            r#"{"id":1,"result":{"a":1,"b":[1.0]}}"#,
            r#"{"id":1,"result":{"a":1, "b":[1]}}"#,
            r#"{"id":1,"result":{"b":[1],"a":1}}"#,
            r#"{"id":1,"result":{"a":1}}"#,
            r#"{"id":1,"result":{"a":1,"b":[1],"c":2}}"#,
            r#"{"id":1,"result":{"a":1,"b":[1]},"error":{}}"#,
            r#"{"id":"1","result":{"a":1,"b":[1]}}"#,
            r#"{"id":1,"method":"ping"}"#,
        ] {
            assert_eq!(call(other), 1, "{other}");
        }
        for others in
            [&[][..], &[CALLED, CALLED], &[r#"{"method":"notifications/message"}"#, CALLED]]
        {
            assert_eq!(check(When::Same, "tools/call", &[CALLED], others), 1, "{others:?}");
        }
    }

    const CALLED: &str = r#"{"id":1,"result":{"a":1,"b":[1]}}"#;

    #[test]
    fn a_row_allows_what_it_says_and_no_more() {
        let list = r#"{"id":1,"result":{"tools":[{"n":1},{"n":2}],"ttlMs":0,"x":0}}"#;
        for (other, problems) in [
            (r#"{"id":1,"result":{"tools":[{"n":2},{"n":1}],"ttlMs":5,"x":0}}"#, 0),
            (r#"{"id":1,"result":{"ttlMs":5,"tools":[{"n":2},{"n":1}],"x":0}}"#, 0),
            (r#"{"id":1,"result":{"tools":[{"n":2},{"n": 1}],"ttlMs":5,"x":0}}"#, 1),
            (r#"{"id":1,"result":{"tools":[{"n":2}],"ttlMs":5,"x":0}}"#, 1),
            (r#"{"id":1,"result":{"tools":[{"n":1},{"n":2}],"ttlMs":6,"x":0}}"#, 1),
            (r#"{"id":1,"result":{"tools":[{"n":1},{"n":2}],"x":0}}"#, 1),
            (r#"{"id":1,"result":{"tools":[{"n":1},{"n":2}],"ttlMs":5,"x":1}}"#, 1),
        ] {
            assert_eq!(check(When::Same, "tools/list", &[list], &[other]), problems, "{other}");
        }
        let note =
            |params: &str| format!(r#"{{"method":"notifications/progress","params":{params}}}"#);
        let notification = note(r#"{"progressToken":1,"progress":2}"#);
        for (other, problems) in [
            (r#"{"progress":2,"progressToken":1}"#, 0),
            (r#"{"progress":2,"progressToken":2}"#, 1),
            (r#"{"progress":2}"#, 1),
        ] {
            let answers = [&[notification.as_str(), CALLED][..], &[&note(other), CALLED]];
            let seen = check(When::Same, "tools/call", answers[0], answers[1]);
            assert_eq!(seen, problems, "{other}");
        }
    }

    #[test]
    fn other_names_are_the_same_values_and_what_is_late_may_be_missing() {
        let direct = r#"{"id":1,"result":{"keys":{"a":1,"b":[2]},"late":1}}"#;
        for (other, problems) in [
            (r#"{"id":1,"result":{"keys":{"x":1,"y":[2]},"late":1}}"#, 0),
            (r#"{"id":1,"result":{"keys":{"x":1,"y":[2]}}}"#, 0),
            (r#"{"id":1,"result":{"keys":{"x":[2],"y":1},"late":1}}"#, 1),
            (r#"{"id":1,"result":{"keys":{"x":1},"late":1}}"#, 1),
            (r#"{"id":1,"result":{"keys":[1,[2]],"late":1}}"#, 1),
            (r#"{"id":1,"result":{"keys":{"a":1,"b":[2]},"late":2}}"#, 1),
        ] {
            assert_eq!(check(When::Same, "ask", &[direct], &[other]), problems, "{other}");
        }
        let judge = Judge::new(&ROWS);
        assert_eq!(judge.end("one part".to_owned(), 2), [""; 0], "the other may need them");
        let unused = judge.end("the other".to_owned(), 2);
        assert_eq!(unused.len(), ROWS.len() - 1, "nothing has to need the one that is late");
    }

    #[test]
    fn what_is_told_beside_the_requests_is_compared_in_its_order() {
        let notification = |uris: &[&str]| {
            let notification = uris.iter().map(|uri| {
                format!(
                    r#"{{"method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#
                )
            });
            let changed = r#"{"method":"notifications/tools/list_changed"}"#.to_owned();
            Recording {
                unsolicited: notification.chain([changed]).collect(),
                ..Recording::default()
            }
        };
        for (other, problems) in
            [(&["a", "b"][..], 0), (&["a"], 1), (&["a", "c"], 1), (&["b", "a"], 2)]
        {
            let judge = Judge::new(&ROWS);
            let mut trial = judge.trial(When::Same);
            trial.clients(&notification(&["a", "b"]), &notification(other));
            assert_eq!(trial.problems.len(), problems, "{other:?}");
        }
    }

    #[test]
    fn across_eras_the_same_may_be_written_otherwise() {
        let direct = r#"{"id":1,"result":{"a":{"x":"ä","y":1},"extra":0}}"#;
        let through = r#"{"id":1,"result":{"a":{"y":1,"x":"\u00e4"}}}"#;
        for (when, problems) in [(When::Same, 1), (When::Down, 1), (When::Up, 0)] {
            assert_eq!(check(when, "tools/call", &[direct], &[through]), problems, "{when:?}");
        }
    }
}
