//! Sessions that their clients have ended, as bits: one for each session that a process has opened.
//!
//! A process numbers the sessions that it opens, and the number is in the session's id. So an end
//! takes a bit, whichever client has made it, and none displaces another.
//!
//! Invariants: an end is never taken back. A block is kept until the last of its sessions' ids has
//! expired, and at most a day longer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::time::SystemTime;

use crate::secrets::sealing::InstanceId;
use crate::text::hex;

/// Number of a session: the process that has opened it, and its place among those of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionNumber {
    /// Process that has opened it.
    pub opened_by: InstanceId,
    /// Place among the sessions of that process.
    pub place: u64,
}

/// Name of a block: sessions of one process whose numbers follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockName {
    opened_by: InstanceId,
    index: u64,
}

/// Ends of [`SESSIONS_PER_BLOCK`] sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedBlock {
    /// Second since 1970 at which no id of these sessions is good any more.
    until: u64,
    bits: [u8; BLOCK_BYTES],
}

/// Set of ended sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndedSessions(HashMap<BlockName, EndedBlock>);

impl SessionNumber {
    /// Returns the block with the end of the session alone, whose id expires then.
    pub fn ended(self, until: SystemTime) -> (BlockName, EndedBlock) {
        let mut bits = [0; BLOCK_BYTES];
        let (byte, bit) = self.bit();
        bits[byte] |= bit;
        // Blocks that expire on the same day do so at once: all replicas read the rest then.
        let days = until.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / DAY;
        (self.block(), EndedBlock { until: (days + 1).saturating_mul(DAY), bits })
    }

    /// Parses a number as it is shown.
    pub fn parse(text: &str) -> Option<Self> {
        let (opened_by, place) = InstanceId::split_named(text)?;
        Some(Self { opened_by, place: place.parse().ok()? })
    }

    /// Returns the hexadecimal digit of its block's text that has its bit, counted from 1 behind
    /// the colon, and the bit.
    pub fn digit(self) -> (usize, u8) {
        let (byte, bit) = self.bit();
        // The higher half of a byte is written first.
        if bit > 0xf { (2 * byte + 1, bit >> 4) } else { (2 * byte + 2, bit) }
    }

    /// Returns the block that it belongs to.
    pub fn block(self) -> BlockName {
        BlockName { opened_by: self.opened_by, index: self.place / SESSIONS_PER_BLOCK }
    }

    fn bit(self) -> (usize, u8) {
        let place = (self.place % SESSIONS_PER_BLOCK) as usize;
        (place / 8, 1 << (place % 8))
    }
}

/// Shown as the number of the process and the place.
impl fmt::Display for SessionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.opened_by.name(self.place))
    }
}

impl BlockName {
    /// Parses a name as it is shown.
    pub fn parse(text: &str) -> Option<Self> {
        let (opened_by, index) = InstanceId::split_named(text)?;
        Some(Self { opened_by, index: index.parse().ok()? })
    }
}

/// Shown as the number of the process and the index of the block.
impl fmt::Display for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.opened_by.name(self.index))
    }
}

impl EndedBlock {
    /// Parses the text of a block.
    pub fn parse(text: &str) -> Option<Self> {
        let (until, bits) = text.split_once(':')?;
        Some(Self { until: until.parse().ok()?, bits: hex::decode(bits)? })
    }

    /// Returns whether all ids of these sessions have expired.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        now.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|now| now.as_secs() >= self.until)
    }

    /// Adds the ends of another block; false if all are known.
    fn merge(&mut self, other: &Self) -> bool {
        let before = self.clone();
        self.until = self.until.max(other.until);
        for (byte, others) in self.bits.iter_mut().zip(other.bits) {
            *byte |= others;
        }
        *self != before
    }
}

/// Shown as its last second and its bits, in hexadecimal digits.
impl fmt::Display for EndedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.until, hex::hex(&self.bits))
    }
}

impl EndedSessions {
    /// Returns whether the session of this number has ended.
    pub fn contains(&self, number: SessionNumber) -> bool {
        let (byte, bit) = number.bit();
        self.0.get(&number.block()).is_some_and(|block| block.bits[byte] & bit != 0)
    }

    /// Adds the ends of a block; false if all are known.
    pub fn merge(&mut self, name: BlockName, block: &EndedBlock) -> bool {
        match self.0.entry(name) {
            Entry::Occupied(mut known) => known.get_mut().merge(block),
            Entry::Vacant(space) => {
                space.insert(block.clone());
                true
            }
        }
    }

    /// Returns the block of this name.
    pub fn get(&self, name: BlockName) -> Option<&EndedBlock> {
        self.0.get(&name)
    }

    /// Takes a block out of the set.
    pub fn remove(&mut self, name: BlockName) {
        self.0.remove(&name);
    }

    /// Returns all blocks, in no order.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (BlockName, &EndedBlock)> {
        self.0.iter().map(|(name, block)| (*name, block))
    }

    /// Drops the other blocks.
    pub fn retain(&mut self, mut is_kept: impl FnMut(BlockName, &EndedBlock) -> bool) {
        self.0.retain(|name, block| is_kept(*name, block));
    }
}

/// Sessions of one block: a thousand times fewer entries than ends, and each is sent as a whole
/// when one of its bits changes.
pub(crate) const SESSIONS_PER_BLOCK: u64 = 1_024;
const BLOCK_BYTES: usize = (SESSIONS_PER_BLOCK / 8) as usize;
/// Seconds of a day.
const DAY: u64 = 86_400;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::secrets::sealing::SealingKeys;

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    #[test]
    fn an_end_concerns_its_own_session_only_and_is_never_taken_back() {
        let keys = SealingKeys::random();
        let [one, other] = [keys.instance(), keys.of_another_process().instance()];
        let number = |opened_by, place| SessionNumber { opened_by, place };
        let mut ended = EndedSessions::default();
        let (name, block) = number(one, 1_030).ended(at(100));
        assert!(ended.merge(name, &block) && !ended.merge(name, &block));
        for (opened_by, place) in [(one, 1_029), (one, 1_031), (one, 6), (other, 1_030)] {
            assert!(!ended.contains(number(opened_by, place)), "{place}");
        }
        let (name, block) = number(one, 2_047).ended(at(DAY));
        assert!(ended.merge(name, &block));
        assert!(ended.contains(number(one, 1_030)) && ended.contains(number(one, 2_047)));
        let (name, first) = number(one, 1_030).ended(at(1));
        assert!(!ended.merge(name, &first), "an earlier expiry changes nothing");
        let block = ended.get(name).expect("there");
        assert!(!block.has_expired(at(2 * DAY - 1)), "the later id is good");
        assert!(block.has_expired(at(2 * DAY)));
        ended.retain(|_, block| !block.has_expired(at(2 * DAY)));
        assert_eq!(ended, EndedSessions::default());
    }

    #[test]
    fn a_block_is_read_as_it_was_written() {
        let opened_by = SealingKeys::random().instance();
        let number = SessionNumber { opened_by, place: u64::MAX };
        let (name, block) = number.ended(at(7));
        assert_eq!(SessionNumber::parse(&number.to_string()), Some(number));
        assert_eq!(BlockName::parse(&name.to_string()), Some(name));
        assert_eq!(EndedBlock::parse(&block.to_string()), Some(block.clone()));
        assert_eq!(block.to_string().len(), "86400:".len() + 256);
        for place in 0..SESSIONS_PER_BLOCK {
            let number = SessionNumber { opened_by, place };
            let text = number.ended(at(7)).1.to_string();
            let (digit, bit) = number.digit();
            let found = text["86400:".len()..].chars().enumerate().filter(|(_, it)| *it != '0');
            let found: Vec<_> = found.map(|(at, it)| (at + 1, it.to_digit(16))).collect();
            assert_eq!(found, [(digit, Some(bit.into()))], "{place}");
        }
        for text in ["", "86400", "86400:", "x:00", &block.to_string()[1..], "-1:00"] {
            let read = EndedBlock::parse(text).filter(|read| *read == block);
            assert_eq!(read, None, "{text}");
        }
        for text in ["", "0.1", "0123456789abcdef.", "0123456789abcdef.x"] {
            assert_eq!(BlockName::parse(text), None, "{text}");
        }
    }
}
