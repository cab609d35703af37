//! Acknowledgements of frames with messages: most clients send them, some never do.

use serde_json::{Value, json};

use super::Client;
use super::view::View;
use crate::decode::frames;
use crate::{Check, ensure};

/// Frames that the server lets a client owe.
const OWED_MAX: u64 = 8;

impl Client {
    /// Notes a frame with `messages`, which the client is to acknowledge if it `asks`.
    pub(super) fn asked(&mut self, asks: bool, messages: &[Value], view: View<'_>) -> Check {
        // A volatile one, and a number of skipped ones, ask for nothing.
        let is_asking = |message: &&Value| {
            let topics = self.numbers.iter().filter(|(_, number)| message[0] == **number);
            let asks = topics.into_iter().any(|(&topic, _)| view.model.topics[topic].asks());
            asks && message[1].as_u64().is_some() && !message[2].is_null()
        };
        let expected = messages.iter().find(is_asking).is_some();
        ensure!(asks == expected, "a frame asks: {asks}, with {messages:?}");
        if asks {
            view.notes.saw("ack: asked");
            self.owed += 1;
            // The last words to a client do not wait.
            let is_held = self.expected_close.is_none() && !view.may_send_away();
            ensure!(!is_held || self.owed <= OWED_MAX, "{} frames to acknowledge", self.owed);
            if self.owed == OWED_MAX {
                view.notes.saw("ack: as many owed as may be");
            }
        }
        Ok(())
    }

    /// True if it has frames to acknowledge, and does that.
    pub(crate) fn may_acknowledge(&self) -> bool {
        self.owed > 0 && self.acknowledges && self.may_speak()
    }

    /// Acknowledges at most so many frames.
    pub(crate) fn acknowledge(&mut self, most: u64, view: View<'_>) {
        let frames = most.min(self.owed);
        self.owed -= frames;
        view.notes.saw("ack: sent");
        let command = json!({"type": "ack", "frames": frames});
        self.send_frame(frames::TEXT, command.to_string().as_bytes());
    }

    /// Acknowledges more than it can have been sent, for which the server has to close.
    pub(super) fn acknowledge_falsely(&mut self) {
        self.send_frame(frames::TEXT, br#"{"type":"ack","frames":1000}"#);
        self.expected_close = Some(4008);
    }

    /// True if the server may hold messages of a channel until the client acknowledges some, which
    /// it does not.
    pub(crate) fn may_be_held(&self, topic: usize, view: View<'_>) -> bool {
        view.model.topics[topic].asks() && self.owed > 0 && !self.acknowledges
    }
}
