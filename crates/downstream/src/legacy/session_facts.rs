//! Facts that a session of the legacy era is rebuilt from, and settings that its client changes.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use weir_base::json::{self, Object};
use weir_mcp::call::CallContext;
use weir_mcp::input_request::ClientFeatures;
use weir_mcp::log_level::LogLevel;
use weir_mcp::revision::{Era, Revision};

/// Facts about a session that stay the same from its beginning to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionFacts {
    /// Time of `initialize`, in whole seconds.
    pub(crate) begun: SystemTime,
    /// Place of the session among those that its process has opened; `None` in ids that were made
    /// up to version 0.1.0.
    pub(crate) place: Option<u64>,
    pub(crate) revision: Revision,
    /// Declared capabilities, as raw JSON. Of long ones only those that Weir knows.
    pub(crate) capabilities: Bytes,
    /// Name and version of the client, as raw JSON; long ones are truncated.
    pub(crate) info: Option<Bytes>,
}

/// Settings that a client has changed in its session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SessionSettings {
    pub(crate) log_level: Option<LogLevel>,
    /// URIs of the resources that it has subscribed to.
    pub(crate) subscriptions: Vec<Box<str>>,
}

impl SessionFacts {
    /// Takes the facts of a session that begins at `now`.
    pub(crate) fn of(context: &CallContext, now: SystemTime) -> Self {
        let capabilities = match context.capabilities.len() <= MAX_CAPABILITIES_BYTES {
            true => context.capabilities.clone(),
            false => context.features.declare(context.revision).to_bytes(),
        };
        let info = context.info.as_ref().and_then(shorten_info);
        let begun = whole_seconds(now);
        Self { begun, place: None, revision: context.revision, capabilities, info }
    }

    /// Returns the client's features for input requests.
    pub(crate) fn features(&self) -> ClientFeatures {
        let capabilities = Object::parse_trusted(self.capabilities.clone()).unwrap_or_default();
        ClientFeatures::read(&capabilities).within(self.revision)
    }

    /// Returns whether the session has reached its maximum age. A beginning in the future, by the
    /// clock of another machine, counts as now.
    pub(crate) fn is_older_than(&self, max_age: Duration, now: SystemTime) -> bool {
        now.duration_since(self.begun).is_ok_and(|age| age >= max_age)
    }

    /// The facts as bytes: seconds since 1970, place if there is one, index of the revision, length
    /// of the capabilities, capabilities, client information.
    pub(crate) fn write(&self) -> Vec<u8> {
        let seconds = seconds_of(self.begun).to_be_bytes();
        let revision = Revision::ALL.iter().position(|it| *it == self.revision);
        let revision = revision.and_then(|at| u8::try_from(at).ok()).expect("there are few");
        let length = u16::try_from(self.capabilities.len()).expect("they are bounded");
        // Version 0.1.0 reads a place as a revision that does not exist.
        let place = self.place.map(|place| [&[PLACE][..], &place.to_be_bytes()].concat());
        let place = place.unwrap_or_default();
        let mut written = [&seconds[..], &place, &[revision], &length.to_be_bytes()].concat();
        written.extend(&self.capabilities);
        written.extend(self.info.iter().flatten());
        written
    }

    /// Reads facts; `None` if they are not those of a session of this era.
    pub(crate) fn read(written: &[u8]) -> Option<Self> {
        let (seconds, rest) = written.split_first_chunk()?;
        let (place, rest) = match rest.split_first()? {
            (&PLACE, rest) => {
                let (place, rest) = rest.split_first_chunk()?;
                (Some(u64::from_be_bytes(*place)), rest)
            }
            _ => (None, rest),
        };
        let (revision, rest) = rest.split_first()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (capabilities, info) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        let begun = Duration::from_secs(u64::from_be_bytes(*seconds));
        let revision = *Revision::ALL.get(usize::from(*revision))?;
        (revision.era() == Era::Legacy).then_some(())?;
        Some(Self {
            begun: SystemTime::UNIX_EPOCH.checked_add(begun)?,
            place,
            revision,
            capabilities: Bytes::copy_from_slice(capabilities),
            info: (!info.is_empty()).then(|| Bytes::copy_from_slice(info)),
        })
    }
}

/// Returns the name and the version of the client, both truncated if they are long.
fn shorten_info(info: &Bytes) -> Option<Bytes> {
    let info = Object::parse_trusted(info.clone()).ok()?;
    let short = |member| {
        let text = info.get_string(member)?;
        Some(json::quote(&text[..text.floor_char_boundary(MAX_INFO_BYTES)]))
    };
    // Spec, lifecycle: both are required.
    let object = Object::new().with("name", short("name")?).with("version", short("version")?);
    let text = object.to_bytes();
    // Escapes can make a text six times longer.
    (text.len() <= 4 * MAX_INFO_BYTES).then_some(text)
}

fn whole_seconds(time: SystemTime) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds_of(time))
}

/// Returns the seconds since 1970.
pub(crate) fn seconds_of(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Byte before a place: no index of a revision.
const PLACE: u8 = u8::MAX;
/// Longest capabilities that an id contains as they were declared.
const MAX_CAPABILITIES_BYTES: usize = 320;
/// Longest name and longest version of a client.
const MAX_INFO_BYTES: usize = 40;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    pub(crate) fn context(capabilities: &str, info: Option<&str>) -> CallContext {
        let capabilities = Bytes::copy_from_slice(capabilities.as_bytes());
        let revision = Revision::V2025_11_25;
        CallContext {
            features: ClientFeatures::read(
                &Object::parse(capabilities.clone()).expect("an object"),
            )
            .within(revision),
            capabilities,
            info: info.map(|info| Bytes::copy_from_slice(info.as_bytes())),
            ..CallContext::without_features(revision)
        }
    }

    #[test]
    fn a_long_declaration_is_reduced_to_what_weir_knows() {
        const ELICITATION: &str = r#""elicitation":{"form":{},"url":{}}"#;
        let long = format!(
            r#"{{"experimental":{{"x":"{}"}},"sampling":{{"tools":{{}}}},{ELICITATION}}}"#,
            "y".repeat(600)
        );
        let info = format!(r#"{{"name":"{}","version":"1","icons":[1]}}"#, "\u{e4}".repeat(100));
        let context = context(&long, Some(&info));
        let facts = SessionFacts::of(&context, NOW);
        assert_eq!(facts.features(), context.features);
        let short = format!(r#"{{"name":"{}","version":"1"}}"#, "\u{e4}".repeat(20));
        assert_eq!(facts.info.as_deref(), Some(short.as_bytes()));
        assert_eq!(SessionFacts::read(&facts.write()), Some(facts));
        for info in ["{}", "{\"name\":1,\"version\":\"1\"}"] {
            assert_eq!(SessionFacts::of(&self::context("{}", Some(info)), NOW).info, None);
        }
    }

    #[test]
    fn an_age_is_counted_from_the_beginning_and_never_from_the_future() {
        let begun = NOW + Duration::from_secs(1_000);
        let facts = SessionFacts::of(&context("{}", None), begun);
        let day = Duration::from_secs(86_400);
        assert!(!facts.is_older_than(day, begun + day - Duration::from_secs(1)));
        assert!(facts.is_older_than(day, begun + day));
        assert!(!facts.is_older_than(day, NOW));
    }

    #[test]
    fn a_place_is_no_revision_for_version_0_1_0_and_facts_without_one_are_read() {
        let mut facts = SessionFacts::of(&context("{}", None), NOW);
        assert_eq!(SessionFacts::read(&facts.write()), Some(facts.clone()));
        let revision = facts.write()[8];
        facts.place = Some(u64::MAX - 1);
        assert_eq!(SessionFacts::read(&facts.write()), Some(facts.clone()));
        // That version reads the index of the revision behind the seconds.
        let written = facts.write();
        assert!(usize::from(written[8]) >= Revision::ALL.len(), "{written:?}");
        assert_eq!((written[17], facts.write().len()), (revision, written.len()));
        assert_eq!(SessionFacts::read(&written[..16]), None);
    }
}
