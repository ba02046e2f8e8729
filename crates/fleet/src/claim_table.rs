//! Claims of sessions, as one replica reads them from the store.

pub(super) mod table_reading;
