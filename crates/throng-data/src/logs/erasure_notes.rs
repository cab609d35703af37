//! What all threads know of the [rewriting](super::rewriting) of the store's files, and the
//! writer's notes of erasures.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::format;
use super::group::WriteBatch;
use crate::storage::Space;

/// Nothing is rewritten.
pub(super) const IDLE: u8 = 0;
/// It may begin once the group that is being written is there.
pub(super) const ASKED: u8 = 1;
pub(super) const RUNNING: u8 = 2;
/// It has ended, with or without success, and the writer has not noted it.
pub(super) const DONE: u8 = 3;
pub(super) const FAILED: u8 = 4;

/// The state of the rewriting that all threads see.
#[derive(Debug, Default)]
pub(super) struct Rewriting {
    pub(super) step: AtomicU8,
    /// [`format::ERASED_MS`]; 0 if there is none.
    pub(super) erased_ms: AtomicU64,
}

impl Rewriting {
    /// True while the files are being rewritten.
    pub(super) fn is_running(&self) -> bool {
        self.step.load(Ordering::SeqCst) == RUNNING
    }

    /// True from the question to the writer's note of the end, which replaces the first note.
    fn is_under_way(&self) -> bool {
        self.step.load(Ordering::SeqCst) != IDLE
    }

    pub(super) fn take_step(&self, from: u8, to: u8) -> bool {
        self.step.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Times by the machine's clock; 0 where there is none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ErasureNotes {
    pub(super) first_ms: u64,
    pub(super) again_ms: u64,
}

impl ErasureNotes {
    /// Notes an erasure of this time with the other changes of its group.
    pub(super) fn add(&mut self, rewriting: &Rewriting, batch: &mut WriteBatch, wall_ms: u64) {
        let wall_ms = wall_ms.max(1);
        if self.first_ms == 0 {
            self.first_ms = wall_ms;
            batch.put(Space::Meta, format::ERASED_MS, wall_ms.to_be_bytes());
            rewriting.erased_ms.store(wall_ms, Ordering::SeqCst);
        } else if self.again_ms == 0 && rewriting.is_under_way() {
            self.again_ms = wall_ms;
            batch.put(Space::Meta, format::ERASED_AGAIN_MS, wall_ms.to_be_bytes());
        }
    }
}
