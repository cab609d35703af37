//! Memory that a worker uses for one event after another, so that an idle connection needs none.
//!
//! A buffer is taken for the time in which other parts of the worker are called, and returned
//! afterwards. Taking one that is in use is a bug: nothing that takes a buffer calls itself.

use throng_core::{ChannelId, Notification};

use super::delivery::batch::Batch;

/// Size of the input buffer. Larger than any head, and than most WebSocket messages, so that these
/// are handled in place.
const INPUT_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Buffers {
    input: Vec<u8>,
    output: Vec<u8>,
    notifications: Vec<Notification>,
    channels: Vec<ChannelId>,
    batch: Batch,
}

impl Buffers {
    pub(super) fn new() -> Buffers {
        Buffers {
            input: vec![0; INPUT_BYTES],
            output: Vec::new(),
            notifications: Vec::new(),
            channels: Vec::new(),
            batch: Batch::default(),
        }
    }

    /// Frees what the next slice can make anew.
    pub(super) fn shrink(&mut self) {
        self.output = Vec::new();
        self.notifications = Vec::new();
        self.channels = Vec::new();
        self.batch = Batch::default();
    }

    /// An empty list for the channels that a connection leaves.
    pub(super) fn take_channels(&mut self) -> Vec<ChannelId> {
        let mut channels = std::mem::take(&mut self.channels);
        channels.clear();
        channels
    }

    pub(super) fn return_channels(&mut self, channels: Vec<ChannelId>) {
        self.channels = channels;
    }

    /// The buffer that all sockets are read into, of [`INPUT_BYTES`].
    pub(super) fn take_input(&mut self) -> Vec<u8> {
        debug_assert_eq!(self.input.len(), INPUT_BYTES, "the input buffer is in use");
        std::mem::take(&mut self.input)
    }

    pub(super) fn return_input(&mut self, input: Vec<u8>) {
        debug_assert!(self.input.is_empty(), "only the taken buffer is returned");
        self.input = input;
    }

    /// An empty buffer for a head or a notice on its way out.
    pub(super) fn take_output(&mut self) -> Vec<u8> {
        let mut output = std::mem::take(&mut self.output);
        output.clear();
        output
    }

    pub(super) fn return_output(&mut self, output: Vec<u8>) {
        self.output = output;
    }

    /// An empty list for what is taken from the worker's queue.
    pub(super) fn take_notifications(&mut self) -> Vec<Notification> {
        std::mem::take(&mut self.notifications)
    }

    pub(super) fn return_notifications(&mut self, notifications: Vec<Notification>) {
        debug_assert!(notifications.is_empty(), "every notification is acted upon");
        self.notifications = notifications;
    }

    /// The lists of a slice of a fan-out, all empty.
    pub(super) fn take_batch(&mut self) -> Batch {
        let batch = std::mem::take(&mut self.batch);
        debug_assert!(batch.is_empty(), "a slice leaves nothing behind");
        batch
    }

    pub(super) fn return_batch(&mut self, batch: Batch) {
        self.batch = batch;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_buffers_keep_their_memory_and_no_content() {
        let mut buffers = Buffers::new();
        let mut output = buffers.take_output();
        output.extend_from_slice(&[1; 1000]);
        buffers.return_output(output);
        let output = buffers.take_output();
        assert!(output.is_empty() && output.capacity() >= 1000);
        let input = buffers.take_input();
        buffers.return_input(input);
        assert_eq!(buffers.take_input().len(), INPUT_BYTES);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "in use")]
    fn the_input_buffer_is_not_taken_twice() {
        let mut buffers = Buffers::new();
        let _input = buffers.take_input();
        buffers.take_input();
    }
}
