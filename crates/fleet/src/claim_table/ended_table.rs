//! Ended sessions, as one replica reads them from the store.

use std::time::SystemTime;

use super::table_reading::{PageEnd, TableReading};
use crate::store::{StoredEntry, TablePage, TableRequest};
use weir_base::ended_sessions::{BlockName, EndedBlock, EndedSessions, SessionNumber};

/// Sessions that their clients have ended, as far as one replica knows.
#[derive(Default)]
pub(super) struct EndedTable {
    ended: EndedSessions,
    reading: TableReading,
    /// Blocks that the store has lost.
    lost: Vec<BlockName>,
}

impl EndedTable {
    /// Returns the request for the next page.
    pub(super) fn request(&mut self) -> TableRequest {
        self.reading.request()
    }

    /// Has all blocks read anew.
    pub(super) fn begin_anew(&mut self) {
        self.reading.begin_anew();
    }

    /// Takes over a page. Returns whether a session has ended that was not known to.
    pub(super) fn update(&mut self, page: TablePage, time: SystemTime) -> bool {
        let end = self.reading.take(&page);
        let mut has_ended = false;
        for StoredEntry { name, text, .. } in page.entries {
            if let Some((name, block)) = BlockName::parse(&name).zip(EndedBlock::parse(&text)) {
                has_ended |= self.ended.merge(name, &block);
            }
        }
        if end == PageEnd::All(true) {
            let read = &self.reading;
            let is_kept = |name: BlockName, block: &EndedBlock| {
                !block.has_expired(time) || read.has_any(&name.to_string())
            };
            self.ended.retain(is_kept);
            let is_lost = |(name, block): &(BlockName, &EndedBlock)| {
                !read.has(&name.to_string(), &block.to_string())
            };
            self.lost = self.ended.blocks().filter(is_lost).map(|(name, _)| name).collect();
        }
        has_ended
    }

    /// Takes over a block that this replica has written, as the store has it now; `None` if it has
    /// expired there. Returns whether a session has ended that was not known to.
    pub(super) fn learn(&mut self, name: BlockName, stored: Option<StoredEntry>) -> bool {
        self.lost.retain(|lost| *lost != name);
        let block = stored.as_ref().and_then(|stored| EndedBlock::parse(&stored.text));
        match block.zip(stored) {
            Some((block, stored)) => {
                self.reading.expect(stored.number, &stored.name, &stored.text);
                self.ended.merge(name, &block)
            }
            None => {
                self.ended.remove(name);
                false
            }
        }
    }

    /// Returns whether the client of a session has ended it.
    pub(super) fn contains(&self, number: Option<SessionNumber>) -> bool {
        number.is_some_and(|number| self.ended.contains(number))
    }

    /// Returns some of the blocks that the store has lost.
    pub(super) fn lost(&self, count: usize) -> Vec<(BlockName, EndedBlock)> {
        let lost = self.lost.iter().take(count);
        lost.filter_map(|name| Some((*name, self.ended.get(*name)?.clone()))).collect()
    }
}
