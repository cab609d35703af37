//! The table of how far users have read channels in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_wire::{ErrorCode, ErrorResponse};

use crate::name::ChannelName;
use crate::read_marker::{MARKED_CHANNELS_MAX, too_many_markers};

/// The markers of all users, at most: with names of usual lengths some 100 MB.
const MARKERS_MAX: u64 = 1 << 20;

/// The markers of a user: offsets, in the order of the channels.
pub(crate) type OfUser = Vec<(ChannelName, u64)>;

/// The users of one part, by name.
pub(crate) type Part = HashMap<Box<str>, OfUser>;

/// The markers of all users.
#[derive(Debug)]
pub(crate) struct ChannelMarkers {
    /// Each has the users whose inboxes are of one shard.
    parts: Box<[Mutex<Part>]>,
    count: AtomicU64,
    /// Markers that were refused since the start, of any journal.
    refused: AtomicU64,
}

impl ChannelMarkers {
    /// None, in this many parts.
    pub(crate) fn new(parts: usize) -> ChannelMarkers {
        let parts = (0..parts).map(|_| Mutex::default()).collect();
        ChannelMarkers { parts, count: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }

    pub(crate) fn lock(&self, at: usize) -> MutexGuard<'_, Part> {
        self.parts[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are, and how many were refused.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }

    /// Sets a marker of a user; that at 0 is none.
    pub(crate) fn set(
        &self,
        part: &mut Part,
        (user, channel): (&str, &ChannelName),
        offset: u64,
        has_room: bool,
    ) -> Result<(), ErrorResponse> {
        let place = |all: &OfUser| all.binary_search_by(|(of, _)| of.cmp(channel));
        let found = part.get(user).map_or(Err(0), place);
        match (found, offset) {
            (Err(_), 0) => {}
            (Ok(at), 0) => {
                let is_last = part.get_mut(user).is_some_and(|all| {
                    all.remove(at);
                    all.is_empty()
                });
                if is_last {
                    part.remove(user);
                }
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
            (Ok(at), offset) => {
                if let Some(all) = part.get_mut(user) {
                    all[at].1 = offset;
                }
            }
            (Err(at), offset) => {
                if part.get(user).is_some_and(|all| all.len() >= MARKED_CHANNELS_MAX) {
                    return Err(too_many_markers());
                }
                if !has_room || self.count.load(Ordering::Relaxed) >= MARKERS_MAX {
                    let message = "the server has no room for another read marker";
                    return Err(ErrorResponse::new(ErrorCode::TooManyChannels, message));
                }
                // Most users have few.
                let all = part.entry(user.into()).or_insert_with(|| Vec::with_capacity(1));
                all.insert(at, (channel.clone(), offset));
                self.count.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Keeps those markers of a part for which `keeps` is true.
    pub(crate) fn retain(
        &self,
        at: usize,
        mut keeps: impl FnMut(&str, &ChannelName) -> bool,
    ) -> u64 {
        let mut part = self.lock(at);
        let mut dropped = 0;
        part.retain(|user, all| {
            let before = all.len();
            all.retain(|(channel, _)| keeps(user, channel));
            dropped += (before - all.len()) as u64;
            !all.is_empty()
        });
        self.count.fetch_sub(dropped, Ordering::Relaxed);
        dropped
    }

    /// Removes all of a user. Returns how many there were.
    pub(crate) fn remove(&self, at: usize, user: &str) -> u64 {
        let removed = self.lock(at).remove(user).map_or(0, |all| all.len() as u64);
        self.count.fetch_sub(removed, Ordering::Relaxed);
        removed
    }

    pub(crate) fn are_none(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Counts a marker that was refused.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}
