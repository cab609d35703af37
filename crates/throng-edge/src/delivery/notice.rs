//! What the server says beside messages, in the dialect of the connection.

use throng_core::{ChannelId, Epoch, Kind, SubscriptionId};
use throng_dialect::{Out, Saying};
use throng_wire::v1::{Numbered, RawValue};

use crate::connection::{Connection, ConnectionId, Flags};
use crate::delivery::Delivery;
use crate::net::Net;

/// Appends what is said to the connection; nothing if its dialect has no word for it.
pub(crate) fn write_saying<S>(
    connection: &Connection<S>,
    saying: &Saying<'_>,
    reference: Option<&RawValue>,
    out: &mut Vec<u8>,
) {
    let encoding = connection.encoding();
    let mut out = Out::new(encoding.framing(), connection.has(Flags::CHUNKED), out);
    encoding.dialect().say(saying, reference, &mut out);
}

impl<N: Net> Delivery<N> {
    /// Tells the connection something. Returns whether its dialect has a word for it.
    pub(crate) fn say(&mut self, id: ConnectionId, saying: &Saying<'_>) -> bool {
        self.reply(id, saying, None)
    }

    /// Answers a command, which its client calls `reference`.
    pub(crate) fn reply(
        &mut self,
        id: ConnectionId,
        saying: &Saying<'_>,
        reference: Option<&RawValue>,
    ) -> bool {
        let dialect = self[id].encoding().dialect();
        if reference.is_some()
            && let Some(mut out) = self.replies.of(id)
        {
            dialect.say(saying, reference, &mut out);
            if self.replies.is_full() {
                self.flush_replies(id);
            }
            return true;
        }
        self.flush_replies(id);
        let mut out = Vec::new();
        write_saying(&self[id], saying, reference, &mut out);
        if !out.is_empty() {
            self.send(id, &out);
        }
        !out.is_empty()
    }

    /// The numbers of the connection's channels of which `is_meant`, in the order of its
    /// subscriptions. Presence events have none.
    fn numbers(
        &self,
        id: ConnectionId,
        is_meant: impl Fn(SubscriptionId) -> bool,
    ) -> Vec<Numbered<Epoch>> {
        let own = self.subscriptions_in_order(id).into_iter().filter(|&own| is_meant(own));
        let numbered = own.filter_map(|own| {
            let target = self.target_of(own).filter(|target| target.kind != Kind::Internal)?;
            let epoch = self.subscriptions.position(own)?.epoch;
            let ChannelId(number) = self.subscriptions.number(own);
            Some(Numbered { target, number, epoch })
        });
        numbered.collect()
    }

    /// The numbers of those of the connection's channels whose subscriptions are not confirmed: on
    /// a connection with commands only what the server keeps for its user.
    pub(crate) fn unconfirmed_numbers(&self, id: ConnectionId) -> Vec<Numbered<Epoch>> {
        let are_confirmed = self[id].has_commands();
        self.numbers(id, |own| !are_confirmed || self.subscriptions.is_unasked(own))
    }

    /// Tells the connection the numbers of the channels of which `is_meant`, if its messages name
    /// channels by numbers.
    pub(crate) fn tell_numbers(
        &mut self,
        id: ConnectionId,
        is_meant: impl Fn(SubscriptionId) -> bool,
    ) {
        if self[id].encoding().has_numbers() {
            let numbered = self.numbers(id, is_meant);
            self.say(id, &Saying::Numbers(&numbered));
        }
    }

    /// Tells the connection the numbers of [`Delivery::unconfirmed_numbers`], if there are any and
    /// its messages name channels by numbers.
    pub(crate) fn tell_unconfirmed_numbers(&mut self, id: ConnectionId) {
        if self[id].encoding().has_numbers() {
            let numbered = self.unconfirmed_numbers(id);
            if !numbered.is_empty() {
                self.say(id, &Saying::Numbers(&numbered));
            }
        }
    }

    /// A message of the connection is acted upon, and the answers to its commands are joined if its
    /// dialect does that.
    pub(crate) fn begin_replies(&mut self, id: ConnectionId, is_text: bool) {
        let between = self[id].encoding().dialect().between_answers();
        self.replies.begin(id, between, is_text);
    }

    /// Writes the connection the answers that are held back.
    pub(crate) fn flush_replies(&mut self, id: ConnectionId) {
        if let Some(frame) = self.replies.take(id) {
            self.send(id, &frame);
        }
    }

    /// The message of the connection has been acted upon.
    pub(crate) fn end_replies(&mut self, id: ConnectionId) {
        self.flush_replies(id);
        self.replies.end();
    }
}
