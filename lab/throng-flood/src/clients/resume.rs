//! The message ids that clients resume after, on reconnects and from one long-poll to the next.
//!
//! Clients of the same stream are at the same id, or at one of the last few, so they share it.

use std::collections::VecDeque;
use std::rc::Rc;

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

/// How many ids a thread knows: clients are at few different ones at a time.
const RECENT_MAX: usize = 8;

/// The id of a client, if it has one.
#[derive(Debug, Default)]
pub(super) struct MessageId(Option<Rc<Id>>);

#[derive(Debug)]
struct Id {
    kind: IdKind,
    text: Box<[u8]>,
}

impl MessageId {
    pub(super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// The id, and how to send it.
    pub(super) fn get(&self) -> Option<(IdKind, &[u8])> {
        self.0.as_ref().map(|id| (id.kind, &*id.text))
    }
}

/// The ids that one thread's clients were given last.
#[derive(Debug, Default)]
pub(super) struct MessageIds {
    /// The newest first.
    recent: VecDeque<Rc<Id>>,
}

impl MessageIds {
    /// Replaces the id of a client.
    pub(super) fn set(&mut self, id: &mut MessageId, kind: IdKind, text: &[u8]) {
        let is_sendable = |&byte: &u8| byte >= b' ' || byte == b'\t';
        let is_text = kind == IdKind::Headers || text.iter().all(is_sendable);
        if text.is_empty() || text.len() > ID_BYTES_MAX || !is_text {
            *id = MessageId::default();
            return;
        }
        let known = self.recent.iter().find(|id| id.kind == kind && *id.text == *text).cloned();
        *id = MessageId(Some(known.unwrap_or_else(|| {
            let new = Rc::new(Id { kind, text: text.into() });
            self.recent.truncate(RECENT_MAX - 1);
            self.recent.push_front(Rc::clone(&new));
            new
        })));
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_shared_and_freed() {
        let (mut ids, mut clients) =
            (MessageIds::default(), [(); 3].map(|()| MessageId::default()));
        for number in 0..2 * RECENT_MAX {
            for client in &mut clients {
                ids.set(client, IdKind::Since, format!("a-{number}").as_bytes());
            }
        }
        assert_eq!(clients[2].get(), Some((IdKind::Since, &b"a-15"[..])));
        let shared = clients[0].0.clone().expect("an id");
        // By the clients, the list of ids, and here.
        assert_eq!((Rc::strong_count(&shared), ids.recent.len()), (5, RECENT_MAX));
        ids.set(&mut clients[0], IdKind::LastEventId, b"a-15");
        assert_eq!(clients[0].get(), Some((IdKind::LastEventId, &b"a-15"[..])));
        drop((clients, ids));
        assert_eq!(Rc::strong_count(&shared), 1);
    }

    #[test]
    fn an_id_cannot_inject_a_header() {
        let (mut ids, mut client) = (MessageIds::default(), MessageId::default());
        ids.set(&mut client, IdKind::LastEventId, b"a\r\nX: y");
        assert!(!client.is_some());
    }

    #[test]
    fn a_response_without_an_id_keeps_the_old_one() {
        let (mut ids, mut client) = (MessageIds::default(), MessageId::default());
        let next = ResumeHeaders {
            last_modified: Some("Sat"),
            etag: Some("\"3\""),
            ..ResumeHeaders::default()
        };
        ids.set_next(&mut client, &next);
        ids.set_next(&mut client, &ResumeHeaders::default());
        let lines = &b"If-Modified-Since: Sat\r\nIf-None-Match: \"3\"\r\n"[..];
        assert_eq!(client.get(), Some((IdKind::Headers, lines)));
    }
}
