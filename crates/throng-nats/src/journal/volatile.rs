//! Volatile messages between nodes: published where the stream republishes, and in no stream.
//!
//! Each node has delivered its own ones before it sends them, so it ignores them when they come
//! back. Nodes of earlier versions ignore all: these messages have no sequence.

use throng_core::{ChannelName, NodeTag, VolatilePublication};

use super::outbox::Outbox;
use super::report::JournalReport;
use crate::api::message;
use crate::protocol::decoder::ServerMessage;
use crate::subject::{self, Subjects};

pub(super) struct VolatileMessages {
    node: NodeTag,
}

impl VolatileMessages {
    /// Those of a node with this tag.
    pub(super) fn new(node: NodeTag) -> VolatileMessages {
        VolatileMessages { node }
    }

    pub(super) fn send(
        &self,
        publication: &VolatilePublication,
        subjects: &Subjects,
        outbox: &mut Outbox,
    ) {
        let Some(suffix) = subject::suffix(&publication.channel) else { return };
        let headers = message::volatile_headers(publication, self.node);
        let payload = publication.body.bytes();
        // A server ends the connection for a message that is too large.
        let is_accepted = headers.len() + payload.len() <= outbox.payload_bytes_max;
        if outbox.is_connected() && is_accepted {
            outbox.publish_with(&subjects.live(&suffix), headers, payload);
        } else {
            outbox.report(JournalReport::VolatileLost);
        }
    }

    /// True if a message is volatile, whoever has published it.
    pub(super) fn is_volatile(&self, delivery: &ServerMessage<'_>) -> bool {
        message::is_volatile(delivery.headers)
    }

    /// Takes a volatile message of a followed channel.
    pub(super) fn heard(
        &self,
        delivery: &ServerMessage<'_>,
        channel: &ChannelName,
        outbox: &mut Outbox,
    ) {
        let (headers, payload) = (delivery.headers, delivery.payload);
        let read = message::parse_volatile(headers, payload, channel.clone());
        let others = read.filter(|(node, _)| *node != self.node);
        if let Some((_, publication)) = others {
            outbox.report(JournalReport::Volatile(publication));
        }
    }
}

#[cfg(test)]
mod tests {
    use throng_core::Body;

    use super::*;
    use crate::journal::outbox::JournalAction;
    use crate::protocol::headers::Headers;

    fn publication(bytes: usize) -> VolatilePublication {
        VolatilePublication::new(ChannelName::channel("room"), Body::Text("x".repeat(bytes).into()))
    }

    /// What a node does to send a message, and what another one reports of it.
    fn sent_to(sender: u64, hearer: u64, bytes: usize) -> (Vec<JournalAction>, Vec<JournalAction>) {
        let [sender, hearer] =
            [sender, hearer].map(|number| VolatileMessages::new(NodeTag::numbered(number)));
        let subjects = Subjects::new("throng", "default");
        let [mut out, mut heard] = ["a", "b"].map(|nonce| Outbox::new("stream".into(), nonce));
        out.connected(100);
        out.actions.clear();
        sender.send(&publication(bytes), &subjects, &mut out);
        if let [JournalAction::Publish { subject, headers, payload, .. }] = &out.actions[..] {
            let headers = Headers::new(headers);
            let delivery = ServerMessage { subject, sid: 9, reply: None, headers, payload };
            assert!(hearer.is_volatile(&delivery));
            hearer.heard(&delivery, &ChannelName::channel("room"), &mut heard);
        }
        (out.actions, heard.actions)
    }

    #[test]
    fn a_node_hears_volatile_messages_of_others_only() {
        let (sent, heard) = sent_to(1, 2, 3);
        let [JournalAction::Publish { subject, reply: None, .. }] = &sent[..] else {
            panic!("it is published: {sent:?}");
        };
        assert_eq!(subject, "throng.live.default.c.room");
        let [JournalAction::Report(JournalReport::Volatile(found))] = &heard[..] else {
            panic!("it is heard: {heard:?}");
        };
        assert_eq!((found.body.bytes(), found.channel.name()), (&b"xxx"[..], "room"));
        assert!(sent_to(1, 1, 3).1.is_empty());
    }

    #[test]
    fn a_volatile_message_that_servers_would_refuse_is_lost_here() {
        let (sent, _) = sent_to(1, 2, 100);
        assert!(
            matches!(sent[..], [JournalAction::Report(JournalReport::VolatileLost)]),
            "{sent:?}"
        );
    }
}
