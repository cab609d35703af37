//! States of channels that are being read, and values that expire.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::{ChangeError, ChannelName, Content, KeyPage, Ticket};

use super::expiring::Expiring;
use super::pending::PendingRead;

/// Who a state is read for.
pub(super) enum StateFor {
    Part(Box<PendingRead>),
    Page(ChannelName, u64, Ticket<Result<KeyPage, ChangeError>>),
    /// The node, which removes values that expire.
    Node(ChannelName),
}

/// States that are being read, and values that expire.
#[derive(Default)]
pub(super) struct NodeStates {
    pub(super) reads: Mutex<HashMap<u64, StateFor>>,
    pub(super) expiring: Mutex<Expiring>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NodeStates {
    pub(super) fn is_at_rest(&self) -> bool {
        lock(&self.reads).values().all(|read| matches!(read, StateFor::Node(_)))
    }

    /// A message was delivered, or read as the newest of its key.
    pub(super) fn note(&self, content: &Content) {
        if let Some(key) = content.key() {
            let expires_ms = content.expires_ms.filter(|_| !content.removes_key());
            let due_ms = expires_ms.map(std::num::NonZeroU64::get);
            lock(&self.expiring).note(&content.channel, key, (content.id.offset, due_ms));
        }
    }
}
