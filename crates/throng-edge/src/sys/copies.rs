//! The sockets of a worker of which another process has copies.
//!
//! A copy keeps a connection open: closing the worker's own descriptor says nothing to the peer,
//! and does not take the socket out of epoll. So such a socket is shut down before it is closed.

use std::os::fd::{AsFd, AsRawFd as _, RawFd};

/// Descriptor numbers of one table, a bit each.
#[derive(Debug, Default)]
pub(crate) struct Copies(Vec<u64>);

impl Copies {
    /// Adds the socket with this number.
    pub(crate) fn insert(&mut self, number: RawFd) {
        let (word, bit) = place(number);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    pub(crate) fn contains(&self, socket: impl AsFd) -> bool {
        let (word, bit) = place(socket.as_fd().as_raw_fd());
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Forgets a socket. Returns whether it was there.
    pub(crate) fn remove(&mut self, socket: impl AsFd) -> bool {
        let (word, bit) = place(socket.as_fd().as_raw_fd());
        let word = self.0.get_mut(word).filter(|word| **word & bit != 0);
        word.map(|word| *word &= !bit).is_some()
    }

    /// Forgets all: the other process has ended.
    pub(crate) fn clear(&mut self) {
        self.0 = Vec::new();
    }
}

fn place(number: RawFd) -> (usize, u64) {
    let number = number as usize;
    (number / 64, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_was_copied_is_known_until_it_is_forgotten() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut copies = Copies::default();
        assert!(!copies.contains(&one) && !copies.remove(&one));
        copies.insert(one.as_raw_fd());
        assert!(copies.contains(&one) && !copies.contains(&other));
        assert!(copies.remove(&one) && !copies.remove(&one));
        copies.insert(other.as_raw_fd());
        copies.clear();
        assert!(!copies.contains(&other));
    }
}
