//! Reads a list through all its pages, within bounds.
//!
//! A server decides how many pages its list has, and need not be right: cursors may go round in
//! circles or on for ever. No decision is taken from a cursor's value, which goes back byte for byte;
//! an endless list ends by budget. What was read until then is kept, and the listing says what cut it.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::cpu_bound;
use crate::json::{self, Elements, Object};
use crate::jsonrpc::code;
use crate::mcp::call::{Body, Outcome};
use crate::mcp::definition::item::Item;
use crate::mcp::kind::Kind;
use crate::mcp::name::UpstreamName;
use crate::upstream::message::Failure;
use crate::upstream::session::connection::{Wired, error_code, error_text};
use crate::upstream::{Limits, Listing};

/// How many pages in a row may bring nothing new.
const MAX_STALE_PAGES: usize = 3;

/// Of how many items of a page the log says one by one why they are left out.
const MAX_TOLD: usize = 10;

/// A walk through one list.
pub(crate) struct Walk<'a> {
    pub(crate) name: &'a UpstreamName,
    pub(crate) connection: &'a Wired,
    pub(crate) kind: Kind,
    pub(crate) limits: &'a Limits,
    /// For all pages together.
    pub(crate) time: Duration,
}

/// How a walk went, if it did not fail.
enum End {
    Done(Listing),
    /// The server does not accept its own cursor (any more).
    BadCursor(String),
}

impl Walk<'_> {
    /// Reads all pages. Begins anew, once, if the server does not know its own cursor any more.
    pub(crate) async fn run(self) -> Result<Listing, Failure> {
        let deadline = Instant::now() + self.time;
        match self.pages(deadline).await? {
            End::Done(listing) => return Ok(listing),
            End::BadCursor(text) => tracing::debug!(upstream = %self.name, text, "walking again"),
        }
        match self.pages(deadline).await? {
            End::Done(listing) => Ok(listing),
            End::BadCursor(text) => {
                let method = self.kind.list_method();
                Err(Failure::Protocol(format!("`{method}` refuses its own cursor: {text}")))
            }
        }
    }

    async fn pages(&self, deadline: Instant) -> Result<End, Failure> {
        let mut listing = Listing::default();
        let mut seen: HashSet<Box<str>> = HashSet::new();
        let (mut cursor, mut bytes, mut stale) = (None, 0, 0);
        for page_number in 1.. {
            let page = timeout_at(deadline, self.connection.page(self.kind, cursor.as_ref()));
            let page = match page.await {
                Ok(outcome) => match outcome? {
                    Outcome::Result(Body::Read(page)) => page,
                    Outcome::Result(Body::Whole(_)) => {
                        let method = self.kind.list_method();
                        return Err(Failure::Protocol(format!("`{method}`: not a JSON object")));
                    }
                    Outcome::Result(Body::Arriving(_)) => {
                        return Err(Failure::Protocol("a page is too large".into()));
                    }
                    Outcome::Error(error) => return self.refused(&error, cursor.is_some()),
                },
                Err(_) if page_number > 1 => {
                    listing.truncated = Some(format!("the time for a list ({:?})", self.time));
                    break;
                }
                Err(_) => return Err(Failure::TimedOut(self.time)),
            };
            bytes += page.text_bytes();
            listing.pages = page_number;
            if let Some(ttl) = ttl(&page) {
                listing.ttl = Some(listing.ttl.map_or(ttl, |least: Duration| least.min(ttl)));
            }
            listing.is_private |= page.get("cacheScope") == Some("\"private\"");
            let known = listing.items.len();
            cpu_bound::run_on_bytes(page.text_bytes(), || {
                self.take(&page, &mut listing, &mut seen)
            })?;
            stale = if listing.items.len() > known { 0 } else { stale + 1 };

            let next = page.get_bytes("nextCursor").filter(|cursor| cursor.starts_with(b"\""));
            let cut_within = listing.items.len() > self.limits.max_items;
            listing.items.truncate(self.limits.max_items);
            let more = next.is_some() || cut_within;
            listing.truncated =
                if cut_within || more && listing.items.len() == self.limits.max_items {
                    Some(format!("{} items", self.limits.max_items))
                } else if more && page_number >= self.limits.max_pages {
                    Some(format!("{} pages", self.limits.max_pages))
                } else if more && bytes > self.limits.max_list {
                    Some(size(self.limits.max_list))
                } else if more && stale >= MAX_STALE_PAGES {
                    Some(format!("{MAX_STALE_PAGES} pages without a new item"))
                } else {
                    None
                };
            // An empty cursor is a cursor; only its absence ends the list.
            if listing.truncated.is_some() || next.is_none() {
                break;
            }
            cursor = next;
        }
        cpu_bound::discard(seen.len(), seen);
        Ok(End::Done(listing))
    }

    /// Adds the items of a page that are new and well-formed. A list that is left out, or null, is an empty
    /// one: some servers write it so.
    fn take(
        &self,
        page: &Object,
        listing: &mut Listing,
        seen: &mut HashSet<Box<str>>,
    ) -> Result<(), Failure> {
        let member = self.kind.list_member();
        let items = match page.get_bytes(member).filter(|list| list != "null") {
            Some(list) => json::elements_again(&list)
                .ok_or_else(|| Failure::Protocol(format!("`{member}` is no array")))?,
            None => Elements::default(),
        };
        let mut left_out = 0_usize;
        for definition in items {
            // One more than allowed shows that the limit cuts something off.
            if listing.items.len() > self.limits.max_items {
                break;
            }
            // The item outlives its page by far, and must not keep it in memory.
            match Item::parse(self.kind, Bytes::copy_from_slice(&definition)) {
                Ok(item) => {
                    if seen.insert(item.key.clone()) {
                        listing.items.push(item);
                    }
                }
                Err(bad) => {
                    left_out += 1;
                    if left_out <= MAX_TOLD {
                        tracing::warn!(upstream = %self.name, kind = %self.kind, %bad, "an item is left out");
                    }
                }
            }
        }
        if left_out > MAX_TOLD {
            let more = left_out - MAX_TOLD;
            tracing::warn!(upstream = %self.name, kind = %self.kind, more, "more items are left out");
        }
        Ok(())
    }

    fn refused(&self, error: &Bytes, has_cursor: bool) -> Result<End, Failure> {
        let (method, text) = (self.kind.list_method(), error_text(error));
        match error_code(error) {
            // It declares the topic but not this list of it.
            Some(code::METHOD_NOT_FOUND) => Ok(End::Done(Listing::default())),
            Some(code::INVALID_PARAMS) if has_cursor => Ok(End::BadCursor(text)),
            _ => Err(Failure::Protocol(format!("it refuses `{method}`: {text}"))),
        }
    }
}

/// A limit in words.
fn size(bytes: usize) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        mebibytes => format!("{mebibytes} MiB"),
    }
}

/// How long a page may be kept, if its server says so. A negative time is none
/// (spec 2026-07-28, caching).
fn ttl(page: &Object) -> Option<Duration> {
    let ttl: f64 = page.get("ttlMs")?.parse().ok()?;
    // As a float: the number's text may be `1e3`. A year is as good as any longer time.
    Some(Duration::from_millis(ttl.clamp(0.0, 365.0 * 86_400_000.0) as u64))
}
