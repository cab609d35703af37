//! Memory that a worker uses for one event after another, so that an idle connection needs none.
//!
//! A buffer is taken for the time in which other parts of the worker are called, and returned
//! afterwards. Taking one that is in use is a bug: nothing that takes a buffer calls itself.

/// Size of the input buffer. Larger than any head, and than most WebSocket messages, so that these
/// are handled in place.
const INPUT_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Buffers {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Buffers {
    pub(crate) fn new() -> Buffers {
        Buffers { input: vec![0; INPUT_BYTES], output: Vec::new() }
    }

    /// The buffer that all sockets are read into, of [`INPUT_BYTES`].
    pub(crate) fn take_input(&mut self) -> Vec<u8> {
        debug_assert_eq!(self.input.len(), INPUT_BYTES, "the input buffer is in use");
        std::mem::take(&mut self.input)
    }

    pub(crate) fn return_input(&mut self, input: Vec<u8>) {
        debug_assert!(self.input.is_empty(), "only the taken buffer is returned");
        self.input = input;
    }

    /// An empty buffer for a head or a notice on its way out.
    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        let mut output = std::mem::take(&mut self.output);
        output.clear();
        output
    }

    pub(crate) fn return_output(&mut self, output: Vec<u8>) {
        self.output = output;
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
