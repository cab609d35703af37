//! The message ids that clients resume after, on reconnects and from one long-poll to the next.
//!
//! Clients of the same stream are at the same id, or at one of the last few. So a thread stores
//! each id once, and a client has a reference of four bytes.

use std::collections::HashMap;

use crate::protocol::ResumeHeaders;

/// Longer ids are not stored, and their clients start afresh.
const ID_BYTES_MAX: usize = 512;

/// How an id is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum IdKind {
    /// In the header `Last-Event-ID`.
    LastEventId,
    /// In the query, as `since=`.
    Since,
    /// As complete header lines.
    Headers,
}

/// The id of a client, if it has one. Return it to [`MessageIds::release`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MessageId(u32);

impl MessageId {
    pub(super) fn is_some(&self) -> bool {
        self.0 != 0
    }
}

/// All ids of one thread's clients.
#[derive(Debug, Default)]
pub(super) struct MessageIds {
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_text: HashMap<(IdKind, Box<[u8]>), u32>,
    /// The id that was set last, and is probably the next one, too.
    last: u32,
}

#[derive(Debug)]
struct Entry {
    kind: IdKind,
    text: Box<[u8]>,
    uses: u32,
}

impl MessageIds {
    /// Replaces the id of a client.
    pub(super) fn set(&mut self, id: &mut MessageId, kind: IdKind, text: &[u8]) {
        self.release(id);
        let is_sendable = |&byte: &u8| byte >= b' ' || byte == b'\t';
        let is_text = kind == IdKind::Headers || text.iter().all(is_sendable);
        if text.is_empty() || text.len() > ID_BYTES_MAX || !is_text {
            return;
        }
        let is_last = self
            .entries
            .get(self.last as usize)
            .is_some_and(|entry| entry.uses > 0 && entry.kind == kind && *entry.text == *text);
        if !is_last {
            self.last = self.find(kind, text);
        }
        self.entries[self.last as usize].uses += 1;
        *id = MessageId(self.last + 1);
    }

    /// Sets the id from the response to a long-poll. Without one in the response, the old id stays.
    pub(super) fn set_next(&mut self, id: &mut MessageId, next: &ResumeHeaders<'_>) {
        if let Some(text) = next.id {
            return self.set(id, IdKind::Since, text.as_bytes());
        }
        let mut lines = String::new();
        if let Some(time) = next.last_modified {
            lines.extend(["If-Modified-Since: ", time, "\r\n"]);
        }
        if let Some(etag) = next.etag {
            lines.extend(["If-None-Match: ", etag, "\r\n"]);
        }
        if !lines.is_empty() {
            self.set(id, IdKind::Headers, lines.as_bytes());
        }
    }

    /// The id of a client, and how to send it.
    pub(super) fn get(&self, id: &MessageId) -> Option<(IdKind, &[u8])> {
        let entry = self.entries.get(id.0.checked_sub(1)? as usize)?;
        Some((entry.kind, &entry.text))
    }

    /// Removes the id of a client.
    pub(super) fn release(&mut self, id: &mut MessageId) {
        let Some(position) = std::mem::take(id).0.checked_sub(1) else { return };
        let entry = &mut self.entries[position as usize];
        entry.uses -= 1;
        if entry.uses == 0 {
            self.by_text.remove(&(entry.kind, std::mem::take(&mut entry.text)));
            self.free.push(position);
        }
    }

    fn find(&mut self, kind: IdKind, text: &[u8]) -> u32 {
        let key = (kind, Box::from(text));
        if let Some(&position) = self.by_text.get(&key) {
            return position;
        }
        let entry = Entry { kind, text: text.into(), uses: 0 };
        let position = match self.free.pop() {
            Some(position) => {
                self.entries[position as usize] = entry;
                position
            }
            None => {
                self.entries.push(entry);
                // A thread has fewer than 2^32 clients.
                self.entries.len() as u32 - 1
            }
        };
        self.by_text.insert(key, position);
        position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_shared_and_freed() {
        let (mut ids, mut clients) =
            (MessageIds::default(), [MessageId(0), MessageId(0), MessageId(0)]);
        for text in ["a-1", "a-2", "a-3"] {
            for client in &mut clients {
                ids.set(client, IdKind::Since, text.as_bytes());
            }
        }
        assert_eq!(ids.get(&clients[2]), Some((IdKind::Since, &b"a-3"[..])));
        assert!(ids.entries.len() <= 2, "{ids:?}");
        ids.set(&mut clients[0], IdKind::LastEventId, b"a-3");
        assert_eq!(ids.get(&clients[0]), Some((IdKind::LastEventId, &b"a-3"[..])));
        clients.iter_mut().for_each(|client| ids.release(client));
        assert!(ids.by_text.is_empty() && ids.free.len() == ids.entries.len());
        assert_eq!(ids.get(&clients[1]), None);
    }

    #[test]
    fn an_id_cannot_inject_a_header() {
        let (mut ids, mut client) = (MessageIds::default(), MessageId(0));
        ids.set(&mut client, IdKind::LastEventId, b"a\r\nX: y");
        assert!(!client.is_some());
    }

    #[test]
    fn a_response_without_an_id_keeps_the_old_one() {
        let (mut ids, mut client) = (MessageIds::default(), MessageId(0));
        let next = ResumeHeaders {
            last_modified: Some("Sat"),
            etag: Some("\"3\""),
            ..ResumeHeaders::default()
        };
        ids.set_next(&mut client, &next);
        ids.set_next(&mut client, &ResumeHeaders::default());
        let lines = &b"If-Modified-Since: Sat\r\nIf-None-Match: \"3\"\r\n"[..];
        assert_eq!(ids.get(&client), Some((IdKind::Headers, lines)));
    }
}
