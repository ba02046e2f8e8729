//! Claims of a token with a verified signature: audience, times, user and roles.
//!
//! Invariants: a claim of a wrong type counts as missing, and a missing required claim is refused.
//! No result contains a control character.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Settings, TokenError};
use crate::policy::AuthError;
use weir_base::json::Object;

/// User of a token, with application and roles.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subject {
    /// User, as the provider names it.
    pub(super) user: String,
    /// Application that the token was issued to.
    pub(super) application: Option<Arc<str>>,
    /// Names of the roles.
    pub(super) roles: BTreeSet<Arc<str>>,
    /// Time from which the token is refused.
    pub(super) expires_at: SystemTime,
    /// Time at which the token was issued, if it says it.
    pub(super) issued_at: Option<SystemTime>,
}

/// Validates the claims of a token that the issuer of these settings has signed.
pub(super) fn validate(
    settings: &Settings,
    claims: &Object,
    now: SystemTime,
) -> Result<Subject, AuthError> {
    check_audience(settings, claims)?;
    let (expires_at, issued_at) = check_times(claims, now)?;
    settings.preset.check_use(claims)?;
    // Such a token is only valid with a proof of possession (RFC 9449, RFC 8705), which Weir does
    // not verify.
    if claims.has("cnf") {
        return Err(TokenError::Bound.into());
    }
    let user = user(claims, &settings.user_claim);
    let user = user.filter(|_| is_trusted(claims, &settings.user_claim)).ok_or(TokenError::User)?;
    let application = ["azp", "client_id", "cid", "appid"].iter().find_map(|name| {
        let found = claims.get_string(name)?;
        is_plain(&found).then(|| (&*found).into())
    });
    check_scopes(settings, claims)?;
    Ok(Subject { user, application, roles: roles(settings, claims), expires_at, issued_at })
}

/// Returns the user that a claim names.
pub(super) fn user(claims: &Object, claim: &str) -> Option<String> {
    value_at(claims, claim).and_then(|found| single(&found))
}

fn check_audience(settings: &Settings, claims: &Object) -> Result<(), TokenError> {
    let named = match claims.get("aud") {
        Some(raw) => strings(raw),
        None if settings.preset.client_is_audience() => {
            claims.get("client_id").map(strings).unwrap_or_default()
        }
        None => Vec::new(),
    };
    let ours = named.iter().any(|one| settings.audience.contains(one));
    if ours { Ok(()) } else { Err(TokenError::Audience) }
}

/// Returns the time from which the token is refused, and the time at which it was issued.
fn check_times(
    claims: &Object,
    now: SystemTime,
) -> Result<(SystemTime, Option<SystemTime>), TokenError> {
    let time =
        |name| claims.get(name).map(|raw| numeric_date(raw).ok_or(TokenError::Time)).transpose();
    let expires = time("exp")?.ok_or(TokenError::Time)?;
    let until = expires.checked_add(CLOCK_LEEWAY).ok_or(TokenError::Time)?;
    if until <= now {
        return Err(TokenError::Expired);
    }
    let soon = now + CLOCK_LEEWAY;
    let issued_at = time("iat")?;
    for begins in [time("nbf")?, issued_at].into_iter().flatten() {
        if begins > soon {
            return Err(TokenError::NotYet);
        }
    }
    Ok((until, issued_at))
}

/// Parses a NumericDate (RFC 7519, 2): seconds, perhaps with a fraction.
fn numeric_date(raw: &str) -> Option<SystemTime> {
    let seconds: f64 = serde_json::from_str(raw).ok()?;
    // A time after the year 9999 is a mistake.
    let good = (0.0..=253_402_300_799.0).contains(&seconds);
    good.then(|| UNIX_EPOCH + Duration::from_secs_f64(seconds))
}

fn check_scopes(settings: &Settings, claims: &Object) -> Result<(), AuthError> {
    let required = &settings.scopes_required;
    if required.is_empty() {
        return Ok(());
    }
    let granted: Vec<String> =
        ["scope", "scp"].iter().flat_map(|it| split_words(claims, it)).collect();
    match required.iter().all(|scope| granted.contains(scope)) {
        true => Ok(()),
        // All required scopes at once: with one missing scope per response, a client would have to
        // ask its user once per scope.
        false => Err(AuthError::Scope(required.join(" ").into())),
    }
}

fn roles(settings: &Settings, claims: &Object) -> BTreeSet<Arc<str>> {
    let claim = &settings.role_claim;
    let values = match &**claim {
        "scope" | "scp" => split_words(claims, claim),
        _ if is_trusted(claims, claim) => {
            value_at(claims, claim).map(|found| strings(&found)).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    settings.roles_of(&values)
}

/// Returns whether a claim can be trusted: an email address only if the provider has verified it.
fn is_trusted(claims: &Object, claim: &str) -> bool {
    claim != "email" || claims.get("email_verified") == Some("true")
}

/// Returns the value of a claim, or of a member of one by a path separated by dots. A claim's own
/// name may contain dots, as URLs do, so the whole path is tried as a name first.
fn value_at(claims: &Object, path: &str) -> Option<String> {
    if let Some(raw) = claims.get(path) {
        return Some(raw.to_owned());
    }
    let (first, rest) = path.split_once('.')?;
    value_at(&claims.get_object(first)?, rest)
}

/// Returns a string, or the strings of a list; other elements are ignored.
fn strings(raw: &str) -> Vec<String> {
    let list: Vec<&serde_json::value::RawValue> = match raw.starts_with('[') {
        true => serde_json::from_str(raw).unwrap_or_default(),
        false => return single(raw).into_iter().collect(),
    };
    list.into_iter().filter_map(|raw| single(raw.get())).collect()
}

fn single(raw: &str) -> Option<String> {
    let text = weir_base::json::decode_string(raw)?;
    is_plain(&text).then(|| text.into_owned())
}

/// Returns the space-separated words of a string, or of the strings of a list.
fn split_words(claims: &Object, name: &str) -> Vec<String> {
    let raw = claims.get(name).unwrap_or_default();
    let list: Vec<String> = match raw.starts_with('[') {
        true => strings(raw),
        false => {
            weir_base::json::decode_string(raw).map(|it| it.into_owned()).into_iter().collect()
        }
    };
    list.iter()
        .flat_map(|it| it.split(' '))
        .filter(|it| !it.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Returns whether a text may be used in a name, a log and a header.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_TEXT_BYTES && !text.chars().any(char::is_control)
}

/// Tolerated difference between clocks.
const CLOCK_LEEWAY: Duration = Duration::from_secs(60);
/// Longest name of a user, an application, an audience or a role.
const MAX_TEXT_BYTES: usize = 512;
