//! What a token says, once its signature is known to be good: for whom, how long, who, and which roles.
//!
//! Promise: a claim of another type than it should have counts as missing, and what has to be there is
//! refused where it is missing. Nothing here has a control character.
//! Knows nothing of: keys and signatures.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Bad, Settings};
use crate::json::Object;
use crate::policy::Refusal;

/// Who a token is about.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subject {
    /// As the provider names it.
    pub(super) user: String,
    /// The application that the token was issued to.
    pub(super) application: Option<Arc<str>>,
    /// The names of its roles.
    pub(super) roles: BTreeSet<Arc<str>>,
    /// From when on the token is refused.
    pub(super) until: SystemTime,
}

/// Judges the claims of a token whose issuer is the one of these settings.
pub(super) fn judge(
    settings: &Settings,
    claims: &Object,
    now: SystemTime,
) -> Result<Subject, Refusal> {
    check_audience(settings, claims)?;
    let until = check_times(claims, now)?;
    settings.preset.check_use(claims)?;
    // Good only with a proof that its holder has a key (RFC 9449, RFC 8705), which nobody asks for here.
    if claims.has("cnf") {
        return Err(Bad::Bound.into());
    }
    let user = value_at(claims, &settings.user_claim).and_then(|found| single(&found));
    let user = user.filter(|_| is_trusted(claims, &settings.user_claim)).ok_or(Bad::User)?;
    let application = ["azp", "client_id", "cid", "appid"].iter().find_map(|name| {
        let found = claims.get_string(name)?;
        is_plain(&found).then(|| (&*found).into())
    });
    check_scopes(settings, claims)?;
    Ok(Subject { user, application, roles: roles(settings, claims), until })
}

fn check_audience(settings: &Settings, claims: &Object) -> Result<(), Bad> {
    let named = match claims.get("aud") {
        Some(raw) => texts(raw),
        None if settings.preset.client_is_audience() => {
            claims.get("client_id").map(texts).unwrap_or_default()
        }
        None => Vec::new(),
    };
    let ours = named.iter().any(|one| settings.audience.contains(one));
    if ours { Ok(()) } else { Err(Bad::Audience) }
}

/// Returns the end of the token's life.
fn check_times(claims: &Object, now: SystemTime) -> Result<SystemTime, Bad> {
    let time = |name| claims.get(name).map(|raw| moment(raw).ok_or(Bad::Time)).transpose();
    let expires = time("exp")?.ok_or(Bad::Time)?;
    let until = expires.checked_add(LEEWAY).ok_or(Bad::Time)?;
    if until <= now {
        return Err(Bad::Expired);
    }
    let soon = now + LEEWAY;
    for begins in [time("nbf")?, time("iat")?].into_iter().flatten() {
        if begins > soon {
            return Err(Bad::NotYet);
        }
    }
    Ok(until)
}

/// A NumericDate (RFC 7519, 2): seconds, perhaps with a fraction.
fn moment(raw: &str) -> Option<SystemTime> {
    let seconds: f64 = serde_json::from_str(raw).ok()?;
    // To the year 9999: what is later is no time that anybody meant.
    let good = (0.0..=253_402_300_799.0).contains(&seconds);
    good.then(|| UNIX_EPOCH + Duration::from_secs_f64(seconds))
}

fn check_scopes(settings: &Settings, claims: &Object) -> Result<(), Refusal> {
    let required = &settings.scopes_required;
    if required.is_empty() {
        return Ok(());
    }
    let granted: Vec<String> = ["scope", "scp"].iter().flat_map(|it| words(claims, it)).collect();
    match required.iter().all(|scope| granted.contains(scope)) {
        true => Ok(()),
        // All at once: who learns of one missing scope after the other asks its user as often.
        false => Err(Refusal::Scope(required.join(" ").into())),
    }
}

fn roles(settings: &Settings, claims: &Object) -> BTreeSet<Arc<str>> {
    let claim = &settings.role_claim;
    let values = match &**claim {
        "scope" | "scp" => words(claims, claim),
        _ if is_trusted(claims, claim) => {
            value_at(claims, claim).map(|found| texts(&found)).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let mapped = values.iter().filter_map(|value| settings.roles.get(value));
    let roles: BTreeSet<Arc<str>> = mapped.map(|role| role.as_str().into()).collect();
    match &settings.default_role {
        Some(role) if roles.is_empty() => [role.as_str().into()].into(),
        _ => roles,
    }
}

/// Whether a claim says what it seems to: an address counts only once the provider has seen that it is its
/// user's.
fn is_trusted(claims: &Object, claim: &str) -> bool {
    claim != "email" || claims.get("email_verified") == Some("true")
}

/// The value of a claim, or of a member of one by a path of dots. A claim's own name may have dots, too, as
/// names that are URLs do: so the whole is tried first.
fn value_at(claims: &Object, path: &str) -> Option<String> {
    if let Some(raw) = claims.get(path) {
        return Some(raw.to_owned());
    }
    let (first, rest) = path.split_once('.')?;
    value_at(&claims.get_object(first)?, rest)
}

/// A text, or the texts of a list; what is something else in it is left out.
fn texts(raw: &str) -> Vec<String> {
    let list: Vec<&serde_json::value::RawValue> = match raw.starts_with('[') {
        true => serde_json::from_str(raw).unwrap_or_default(),
        false => return single(raw).into_iter().collect(),
    };
    list.into_iter().filter_map(|raw| single(raw.get())).collect()
}

fn single(raw: &str) -> Option<String> {
    let text = crate::json::decode_string(raw)?;
    is_plain(&text).then(|| text.into_owned())
}

/// The words of a text, or of the texts of a list.
fn words(claims: &Object, name: &str) -> Vec<String> {
    let raw = claims.get(name).unwrap_or_default();
    let list: Vec<String> = match raw.starts_with('[') {
        true => texts(raw),
        false => crate::json::decode_string(raw).map(|it| it.into_owned()).into_iter().collect(),
    };
    list.iter()
        .flat_map(|it| it.split(' '))
        .filter(|it| !it.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Whether a text may stand in a name, a log and a header.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_TEXT_BYTES && !text.chars().any(char::is_control)
}

/// By how much clocks may differ.
const LEEWAY: Duration = Duration::from_secs(60);
/// The longest name of a user, an application, an audience or a role.
const MAX_TEXT_BYTES: usize = 512;
