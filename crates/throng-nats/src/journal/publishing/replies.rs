//! The subjects of answers, which are used again.
//!
//! A server remembers for a thousand subjects who gets their messages. With a new subject for each
//! answer, it took a sixth of its time for a publication to find that out.
//!
//! A subject is free again once its publication is stored, if that was sent only once: then no
//! other answer comes. If one came nevertheless, of two servers that both lead, it would have the
//! sequence that the first one had, and the next publication with this subject takes none that the
//! stream had reached before it was sent. One with a key would, as it may be an old one: so each of
//! these has a new subject.

use super::pipeline::Outstanding;
use crate::journal::outbox::Outbox;

/// Subjects that are kept for use: the windows of some busy channels, and a server remembers more.
const FREE_MAX: usize = 512;

/// See the module. A subject is known by its token.
#[derive(Debug, Default)]
pub(super) struct Replies {
    free: Vec<u64>,
}

impl Replies {
    /// A subject for the answers to a publication.
    pub(super) fn take(&mut self, publication: &Outstanding, outbox: &mut Outbox) -> u64 {
        let free = if publication.key.is_none() { self.free.pop() } else { None };
        free.unwrap_or_else(|| outbox.token())
    }

    /// Has the subject of a publication used again, which is stored.
    pub(super) fn give_back(&mut self, stored: &Outstanding) {
        let is_reusable = !stored.is_repeated && stored.key.is_none();
        let reply = stored.reply.filter(|_| is_reusable && self.free.len() < FREE_MAX);
        self.free.extend(reply);
    }
}
