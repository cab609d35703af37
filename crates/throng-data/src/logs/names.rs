//! How many channels the disk knows.

/// How many names there are, and what was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NameIndex {
    /// Channels that the disk knows, as far as they were counted since the start.
    pub(crate) kept: u64,
    /// Channels that were forgotten since the start.
    pub(crate) forgotten: u64,
    /// The highest number that was counted.
    pub(super) counted: u64,
    /// The highest number at the start.
    pub(super) last: u64,
}

impl NameIndex {
    pub(super) fn new(last: u64) -> NameIndex {
        NameIndex { last, ..NameIndex::default() }
    }

    pub(super) fn add(&mut self, count: u64) {
        self.kept += count;
    }

    pub(super) fn forget(&mut self, number: u64) {
        self.forgotten += 1;
        // Channels not counted yet will not be found.
        if number <= self.counted || number > self.last {
            self.kept = self.kept.saturating_sub(1);
        }
    }
}
