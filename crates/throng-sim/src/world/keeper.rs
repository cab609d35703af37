//! What is known of created channels, and what their keeper does next.
//!
//! The keeper does here what the control plane does: it looks at channels whose time may be over,
//! ends and erases them.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;

use throng_core::{Body, LogChange, Publication};

pub(super) const JSON: &str = "application/json";

/// A creation as the world knows it.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) content_type: Option<&'static str>,
    pub(super) ttl_ms: Option<NonZeroU64>,
    pub(super) expires_ms: Option<NonZeroU64>,
    /// When it was created, or its newest message came.
    pub(super) used_ms: u64,
    /// True if it has ended because its time is over.
    pub(super) is_over: bool,
}

impl Made {
    /// Until when it stays at least.
    pub(super) fn until_ms(&self) -> u64 {
        let sliding_ms = self.ttl_ms.map_or(u64::MAX, |ttl_ms| self.used_ms + ttl_ms.get());
        self.expires_ms.map_or(sliding_ms, |at_ms| sliding_ms.min(at_ms.get()))
    }

    /// True if it takes a message with such a content.
    pub(super) fn takes(&self, publication: &Publication) -> bool {
        match (self.content_type, &publication.content_type) {
            (None, _) => true,
            (Some(wanted), Some(own)) => wanted == &**own,
            (Some(JSON), None) => matches!(publication.body, Body::Json(_)),
            (Some("text/plain"), None) => matches!(publication.body, Body::Text(_)),
            // A text says nothing about its type.
            (Some(_), None) => !matches!(publication.body, Body::Json(_)),
        }
    }
}

/// A step of the keeper that comes next.
#[derive(Debug)]
pub(super) enum Step {
    /// The creation notes which message was seen.
    Note(LogChange),
    /// The channel ends.
    End(LogChange),
    Erase,
}

/// The created channels, and their keeper.
#[derive(Debug, Default)]
pub(super) struct Creations {
    /// By channel.
    pub(super) made: BTreeMap<usize, Made>,
    /// When the keeper looks at channels.
    pub(super) due: BTreeMap<usize, u64>,
    pub(super) next: VecDeque<(usize, Step)>,
}
