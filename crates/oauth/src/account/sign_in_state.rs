//! State of a user's sign-in in the vault, as an account has seen it last.
//!
//! Invariants: a sign-in that was removed or replaced is not used for longer than
//! [`CHECK_INTERVAL`]. One that cannot be read is not used.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use tokio::time::Instant;

use super::client::AccountClient;
use crate::OAuthError;
use crate::access_token::authorization;
use crate::vault::{RecordVersion, SignInNumber, SignInRecord, Vault};

/// State of a user's sign-in.
#[derive(Debug, Default)]
pub(super) struct SignInState {
    /// Time of the next check whether another process has changed the record.
    next_check: Option<Instant>,
    /// Reason why the record cannot be read.
    unreadable: Option<OAuthError>,
    /// Version of the record that the refresh has written: it is no change by another process.
    written: Option<RecordVersion>,
    /// Refreshed record that could not be written.
    unwritten: Option<Box<RecordReplacement>>,
}

/// Record of a sign-in before and after a refresh.
#[derive(Debug)]
pub(super) struct RecordReplacement {
    pub(super) before: SignInRecord,
    pub(super) after: SignInRecord,
}

/// Sign-in that another process has changed.
#[derive(Debug)]
pub(super) struct SignInChange {
    pub(super) version: RecordVersion,
    /// Header with its token; `None` if there is none.
    pub(super) token: Option<HeaderValue>,
    /// Number of the sign-in, also if it has run out; `None` if no user is signed in.
    pub(super) number: Option<SignInNumber>,
}

impl SignInState {
    /// Checks, once in a while, whether another process has changed the sign-in whose version was
    /// `known`.
    pub(super) fn check(
        &mut self,
        client: &Arc<AccountClient>,
        known: Option<RecordVersion>,
        now: Instant,
    ) -> Option<SignInChange> {
        let folder = client.settings.state.as_deref()?;
        if !client.is_of_user() || self.next_check.is_some_and(|it| it > now) {
            return None;
        }
        self.next_check = Some(now + CHECK_INTERVAL);
        let version = Vault::version(folder, &client.name);
        if known == Some(version) {
            return None;
        }
        let (record, ran_out) = match read(client) {
            Ok(read) => read,
            // It is read again with the next check.
            Err(error) => {
                self.unreadable = Some(error);
                return None;
            }
        };
        self.unreadable = None;
        let number = record.as_ref().map(SignInRecord::number).or(ran_out);
        let token = record.as_ref().and_then(|record| authorization(&record.access_token).ok());
        if let Some(unwritten) = self.unwritten.take_if(|it| Some(it.before.number()) != number) {
            client.revoke_former(unwritten.after, record.as_ref());
        }
        Some(SignInChange { version, token, number })
    }

    /// Lets the next check be made at once.
    pub(super) fn check_soon(&mut self) {
        self.next_check = None;
    }

    /// Returns why the sign-in is not used, although there may be one.
    pub(super) fn unreadable(&self) -> Option<&OAuthError> {
        self.unreadable.as_ref()
    }

    /// Records that the refresh has written the record.
    pub(super) fn on_written(&mut self, version: RecordVersion) {
        self.written = Some(version);
    }

    /// Takes the version of the record that the refresh has written, if it has.
    pub(super) fn take_written(&mut self) -> Option<RecordVersion> {
        self.written.take()
    }

    /// Keeps a record that could not be written: the authorization server may have ended the
    /// former refresh token.
    pub(super) fn keep_unwritten(&mut self, replacement: Option<Box<RecordReplacement>>) {
        self.unwritten = replacement;
    }

    /// Takes the record that could not be written, if there is one.
    pub(super) fn take_unwritten(&mut self) -> Option<Box<RecordReplacement>> {
        self.unwritten.take()
    }
}

/// Reads the user's sign-in, or else the number of the one that ran out.
fn read(
    client: &AccountClient,
) -> Result<(Option<SignInRecord>, Option<SignInNumber>), OAuthError> {
    let Some(vault) = Vault::open_existing(client.folder()?)? else { return Ok((None, None)) };
    match vault.read(&client.name)? {
        Some(record) => Ok((Some(record).filter(|it| it.is_of(&client.settings)), None)),
        None => Ok((None, vault.notes(&client.name)?.ran_out)),
    }
}

/// Time between two checks of the sign-in in the vault.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
