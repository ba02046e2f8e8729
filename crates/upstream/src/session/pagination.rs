//! Pagination of a list, within bounds.
//!
//! A server decides how many pages its list has, and may be wrong: cursors may form a cycle or
//! never end. No decision depends on the value of a cursor, which is sent back byte for byte; an
//! endless list ends at a limit. The items read until then are used, and the listing names the
//! limit.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::message::{TransportError, error_code, error_text};
use crate::{Error, Listing, UpstreamLimits};
use weir_base::json::{self, Elements, Object};
use weir_base::tasks::cpu_bound;
use weir_mcp::call::{Payload, ResponseOutcome};
use weir_mcp::definition::item::{Item, ItemDefect};
use weir_mcp::jsonrpc::code;
use weir_mcp::kind::Kind;
use weir_mcp::name::UpstreamName;

/// Maximum number of consecutive pages without a new item.
const MAX_STALE_PAGES: usize = 3;

/// Maximum number of omitted elements of a list that are recorded.
const MAX_OMITTED: usize = 256;

/// Reads one list, page by page.
pub(crate) struct ListPager<'a, F> {
    pub(crate) name: &'a UpstreamName,
    /// Requests the page after a cursor, or the first page.
    pub(crate) read_page: F,
    pub(crate) kind: Kind,
    pub(crate) limits: &'a UpstreamLimits,
    /// Timeout of all pages together.
    pub(crate) time: Duration,
}

/// Place of an item in a list that is being read.
struct ItemPlace {
    page: usize,
    index: usize,
}

/// Result of reading the pages.
enum PagesOutcome {
    Done(Listing),
    /// The server does not accept its own cursor (any more).
    InvalidCursor(String),
}

impl<F, Page> ListPager<'_, F>
where
    F: Fn(Option<Bytes>) -> Page,
    Page: Future<Output = Result<ResponseOutcome, TransportError>>,
{
    /// Reads all pages. Starts over, once, if the server does not accept its own cursor any more.
    pub(crate) async fn run(self) -> Result<Listing, TransportError> {
        let deadline = Instant::now() + self.time;
        match self.read_pages(deadline).await? {
            PagesOutcome::Done(listing) => return Ok(listing),
            PagesOutcome::InvalidCursor(text) => {
                tracing::debug!(upstream = %self.name, text, "cursor rejected, list restarted")
            }
        }
        match self.read_pages(deadline).await? {
            PagesOutcome::Done(listing) => Ok(listing),
            PagesOutcome::InvalidCursor(text) => {
                let method = self.kind.list_method();
                Err(TransportError::Protocol(format!("`{method}` refuses its own cursor: {text}")))
            }
        }
    }

    async fn read_pages(&self, deadline: Instant) -> Result<PagesOutcome, TransportError> {
        let mut listing = Listing::default();
        let mut seen: HashMap<Box<str>, ItemPlace> = HashMap::new();
        let (mut cursor, mut bytes, mut stale, mut elements) = (None, 0, 0, 0);
        for page_number in 1.. {
            let page = timeout_at(deadline, (self.read_page)(cursor.clone()));
            let page = match page.await {
                Ok(outcome) => match outcome? {
                    ResponseOutcome::Result(Payload::Parsed(page)) => page,
                    ResponseOutcome::Result(Payload::Complete(_)) => {
                        let method = self.kind.list_method();
                        return Err(TransportError::Protocol(format!(
                            "`{method}`: the result is not a JSON object"
                        )));
                    }
                    ResponseOutcome::Result(Payload::Streaming(_)) => {
                        return Err(TransportError::Protocol("a page is too large".into()));
                    }
                    ResponseOutcome::Error(error) => {
                        return self.on_error(&error, cursor.is_some());
                    }
                },
                Err(_) if page_number > 1 => {
                    listing.truncated = Some(format!("the time for a list ({:?})", self.time));
                    break;
                }
                Err(_) => return Err(TransportError::Other(Error::TimedOut(self.time))),
            };
            bytes += page.text_len();
            listing.pages = page_number;
            if let Some(ttl) = ttl(&page) {
                listing.ttl = Some(listing.ttl.map_or(ttl, |least: Duration| least.min(ttl)));
            }
            listing.is_private |= page.get("cacheScope") == Some("\"private\"");
            let known_items = listing.items.len();
            cpu_bound::run_on_bytes(page.text_len(), || {
                self.add_items(&page, &mut listing, &mut seen, &mut elements)
            })?;
            stale = if listing.items.len() > known_items { 0 } else { stale + 1 };

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
                    Some(format_size(self.limits.max_list))
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
        Ok(PagesOutcome::Done(listing))
    }

    /// Adds the new and usable items of a page, and the other elements to those that are omitted.
    /// `elements` counts those of all pages. A missing or null list counts as empty: some servers
    /// send it so.
    fn add_items(
        &self,
        page: &Object,
        listing: &mut Listing,
        seen: &mut HashMap<Box<str>, ItemPlace>,
        elements: &mut usize,
    ) -> Result<(), TransportError> {
        let member = self.kind.list_member();
        let items = match page.get_bytes(member).filter(|list| list != "null") {
            Some(list) => json::trusted_elements(&list)
                .ok_or_else(|| TransportError::Protocol(format!("`{member}` is not an array")))?,
            None => Elements::default(),
        };
        let Listing { items: known, omitted, duplicates, pages, .. } = listing;
        let mut more = 0_usize;
        for definition in items {
            // One item more than allowed shows that the limit cuts something off.
            if known.len() > self.limits.max_items {
                break;
            }
            *elements += 1;
            // The item outlives its page by far, so it must not keep the page in memory.
            let mut item = Item::parse(self.kind, Bytes::copy_from_slice(&definition))
                .unwrap_or_else(|bad| Item::unnamed(self.kind, *elements, bad));
            if item.defect.is_none() {
                match seen.entry(item.key.clone()) {
                    Entry::Vacant(entry) => {
                        entry.insert(ItemPlace { page: *pages, index: known.len() });
                        known.push(item);
                        continue;
                    }
                    // A list that changes between two pages may have an item on both.
                    Entry::Occupied(entry)
                        if entry.get().page != *pages
                            && known[entry.get().index].definition == item.definition =>
                    {
                        continue;
                    }
                    Entry::Occupied(_) => {
                        duplicates.add(item.key.as_bytes());
                        item.defect = Some(ItemDefect::Duplicate);
                    }
                }
            }
            match omitted.len() < MAX_OMITTED {
                true => omitted.push(item.without_definition()),
                false => more += 1,
            }
        }
        if more > 0 {
            let (upstream, kind) = (self.name, self.kind);
            tracing::warn!(%upstream, %kind, more, "more unusable list items omitted");
        }
        Ok(())
    }

    fn on_error(&self, error: &Bytes, has_cursor: bool) -> Result<PagesOutcome, TransportError> {
        let (method, text) = (self.kind.list_method(), error_text(error));
        match error_code(error) {
            // The server declares the topic but does not have this list of it.
            Some(code::METHOD_NOT_FOUND) => Ok(PagesOutcome::Done(Listing::default())),
            Some(code::INVALID_PARAMS) if has_cursor => Ok(PagesOutcome::InvalidCursor(text)),
            _ => Err(TransportError::Protocol(format!("it refuses `{method}`: {text}"))),
        }
    }
}

/// Formats a limit in bytes.
fn format_size(bytes: usize) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        mebibytes => format!("{mebibytes} MiB"),
    }
}

/// Returns how long a page may be cached, if its server sets that. A negative time counts as zero
/// (spec 2026-07-28, caching).
fn ttl(page: &Object) -> Option<Duration> {
    let ttl: f64 = page.get("ttlMs")?.parse().ok()?;
    // Parsed as a float, since the number may be written `1e3`. A year is as good as any longer
    // time.
    Some(Duration::from_millis(ttl.clamp(0.0, 365.0 * 86_400_000.0) as u64))
}
