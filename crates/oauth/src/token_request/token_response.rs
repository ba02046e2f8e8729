//! Response to a token request (RFC 6749, 5).

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Response, StatusCode};
use serde_json::Deserializer;
use serde_json::value::RawValue;
use zeroize::Zeroizing;

use crate::OAuthError;
use crate::url_rules::MAX_SHOWN_CHARS;
use weir_base::secrets::secret::Secret;
use weir_base::secrets::secret_search::SecretPatterns;
use weir_base::text::quote::quote;
use weir_base::time::timestamp::unix_time;

/// Token that was issued.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct IssuedToken {
    /// The access token, or why it cannot be used.
    pub(crate) token: Result<Secret, UnusableToken>,
    pub(crate) refresh_token: Option<Secret>,
    /// Time after which it expires; `None` if the server does not say.
    pub(crate) lifetime: Option<Duration>,
}

/// Access token that cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnusableToken {
    pub(crate) error: OAuthError,
    /// The token, if there is one. It may be revoked, and nothing else.
    pub(crate) token: Option<Secret>,
}

impl IssuedToken {
    /// Takes a refresh token that is too long to be kept.
    pub(crate) fn take_long_refresh_token(&mut self) -> Option<Secret> {
        self.refresh_token.take_if(|token| token.expose().len() > MAX_REFRESH_TOKEN_BYTES)
    }

    /// Returns the Unix time in seconds at which the token expires.
    pub(crate) fn expires(&self) -> Option<u64> {
        self.lifetime.map(|lifetime| (unix_time() + lifetime).as_secs())
    }
}

/// Reads the response to a request that contained these secrets. An error that is among `end` ends
/// the sign-in.
pub(super) fn read_response(
    response: &Response<Bytes>,
    url: &str,
    end: &[&str],
    secrets: &[Secret],
) -> Result<IssuedToken, OAuthError> {
    let (status, url) = (response.status(), quote(url, MAX_SHOWN_CHARS));
    let body = Zeroizing::new(String::from_utf8_lossy(response.body()).into_owned());
    let members = Members::read(&body);
    // Some servers send tokens with the status 201, or errors with 200. Some send an empty text for
    // none.
    let issued = |name| members.issued(name).filter(|_| status.is_success());
    let (token, refresh_token) = (issued("access_token"), issued("refresh_token"));
    let can_refuse =
        status.is_success() || status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS;
    if token.is_none()
        && refresh_token.is_none()
        && can_refuse
        && let Some(code) = members.text("error")
    {
        let repeated = ["access_token", "refresh_token"].map(|name| members.issued(name));
        let secrets: Vec<_> =
            secrets.iter().cloned().chain(repeated.into_iter().flatten()).collect();
        let patterns = SecretPatterns::of_request(&secrets);
        let shown = |text: &str| quote(&patterns.redact(text), MAX_SHOWN_CHARS);
        let description = members.text("error_description").unwrap_or_default();
        let text = format!("{url} refuses the request: {}: {}", shown(&code), shown(&description));
        let text = text.trim_end_matches([':', ' ']).to_owned();
        return Err(match end.contains(&&*code) {
            true => OAuthError::SignInNeeded(text),
            false => OAuthError::Refused(text),
        });
    }
    if !status.is_success() {
        return Err(OAuthError::Unavailable(format!("{url}: the response status is {status}")));
    }
    let unusable = |what, token| {
        let error = OAuthError::Unavailable(format!("{url}: {what}"));
        Err(UnusableToken { error, token })
    };
    let token = match token {
        Some(token) if members.is_whole() => {
            match check_token(&token, members.text("token_type")) {
                Ok(()) => Ok(token),
                Err(what) => unusable(what, Some(token)),
            }
        }
        token => unusable("the response is not a token", token),
    };
    Ok(IssuedToken { token, refresh_token, lifetime: members.lifetime() })
}

/// Reads the part of a response that has come before this error.
pub(super) fn read_part(received: &[u8], error: OAuthError) -> Result<IssuedToken, OAuthError> {
    let body = Zeroizing::new(String::from_utf8_lossy(received).into_owned());
    let members = Members::read(&body);
    let (token, refresh_token) = (members.issued("access_token"), members.issued("refresh_token"));
    match (token, refresh_token) {
        (None, None) => Err(error),
        (token, refresh_token) => {
            let token = Err(UnusableToken { error, token });
            Ok(IssuedToken { token, refresh_token, lifetime: None })
        }
    }
}

/// Checks whether an access token can be used.
fn check_token(token: &Secret, token_type: Option<String>) -> Result<(), &'static str> {
    // RFC 6749, 7.1: a token of another type, or of an unknown one, must not be used.
    if !token_type.is_some_and(|name| name.eq_ignore_ascii_case("bearer")) {
        return Err("the token is not of the type Bearer");
    }
    let is_sendable = token.expose().len() <= MAX_TOKEN_BYTES
        && token.expose().bytes().all(|byte| byte.is_ascii_graphic());
    is_sendable.then_some(()).ok_or("the token is longer than 16 KiB, or not visible ASCII")
}

/// Members of a response, each of which is read for itself: an odd one must not throw away the
/// others, since the refresh token of the request may be used up.
struct Members<'a> {
    body: &'a str,
    /// `None` if the body is no object.
    all: Option<HashMap<String, &'a RawValue>>,
}

impl<'a> Members<'a> {
    /// Reads the members of an object. Some servers write a byte order mark before it.
    fn read(body: &'a str) -> Self {
        let body = body.trim_start_matches('\u{feff}');
        Self { body, all: serde_json::from_str(body).ok() }
    }

    fn is_whole(&self) -> bool {
        self.all.is_some()
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.all.as_ref()?.get(name).map(|value| value.get())
    }

    /// Returns the member of this name, if it is a text.
    fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.get(name)?).ok()
    }

    /// Returns the token of this name, which is also found in an object that is cut off, or that
    /// contains what is no JSON.
    fn issued(&self, name: &str) -> Option<Secret> {
        let token = match self.is_whole() {
            true => self.text(name),
            false => self.body.split(&format!("\"{name}\"")).skip(1).find_map(|rest| {
                let value = rest.trim_start().strip_prefix(':')?;
                Deserializer::from_str(value).into_iter().next()?.ok()
            }),
        };
        token.filter(|token: &String| !token.is_empty()).map(Secret::from)
    }

    /// Returns the lifetime of the token; `None` if it is unknown. Some servers write the number as
    /// a text.
    fn lifetime(&self) -> Option<Duration> {
        let name = "expires_in";
        let seconds = self.text(name);
        let seconds = seconds.unwrap_or_else(|| self.get(name).unwrap_or_default().to_owned());
        let seconds: f64 = seconds.trim().parse().ok()?;
        let is_usable = seconds.is_finite() && seconds >= 0.0;
        is_usable.then(|| Duration::from_secs_f64(seconds.min(MAX_LIFETIME_SECONDS)))
    }
}

/// Maximum size of an access token.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Maximum size of a refresh token, which is larger because the record of a sign-in has the space.
const MAX_REFRESH_TOKEN_BYTES: usize = 32 * 1024;
/// Longest lifetime that is believed: a year.
const MAX_LIFETIME_SECONDS: f64 = 31_536_000.0;
