//! The names of many channels, in one buffer.
//!
//! A name with its own allocation costs 16 bytes of pointer and length and at least 32 of heap;
//! here it costs one byte more than its text. Names of forgotten channels leave holes. When half of
//! the buffer is holes, the owner packs it.

use crate::name::{ChannelName, NAME_BYTES_MAX};

const _: () = assert!(NAME_BYTES_MAX <= u8::MAX as usize, "the length is kept in one byte");

/// The position of a name in the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameRef(u32);

/// The names of many channels.
#[derive(Debug, Default)]
pub struct Names {
    /// For each name one byte of length, without the mark, then the key.
    bytes: Vec<u8>,
    holes_bytes: usize,
}

impl Names {
    /// Adds a name. The buffer must stay below 4 GiB: split more names over several of them.
    /// A shard of the memory engine has at most 2^26 channels, and memory runs out before names of
    /// full length fill it.
    pub fn add(&mut self, name: &ChannelName) -> NameRef {
        let at = NameRef(self.bytes.len() as u32);
        self.bytes.push(name.name().len() as u8);
        self.bytes.extend_from_slice(name.key().as_bytes());
        at
    }

    /// The key at `at`.
    pub fn get(&self, at: NameRef) -> &str {
        let start = at.0 as usize + 1;
        let end = start + usize::from(self.bytes[start - 1]) + 1;
        std::str::from_utf8(&self.bytes[start..end]).unwrap_or_default()
    }

    /// The name at `at`.
    pub fn name(&self, at: NameRef) -> ChannelName {
        ChannelName::from_key(self.get(at))
    }

    /// True if the key at `at` is `key`. Compares bytes, without a check for UTF-8.
    pub fn is(&self, at: NameRef, key: &str) -> bool {
        let start = at.0 as usize + 1;
        let end = start + usize::from(self.bytes[start - 1]) + 1;
        self.bytes[start..end] == *key.as_bytes()
    }

    /// Removes the name at `at`, which leaves a hole.
    pub fn forget(&mut self, at: NameRef) {
        self.holes_bytes += usize::from(self.bytes[at.0 as usize]) + 2;
    }

    /// True if holes take more than half of the memory, and [`Names::pack`] is worth its time.
    pub fn should_pack(&self) -> bool {
        self.holes_bytes > 4096 && self.holes_bytes * 2 > self.bytes.len()
    }

    /// Closes the holes. `all` are the positions of all names in use, which change.
    pub fn pack<'a>(&mut self, all: impl Iterator<Item = &'a mut NameRef>) {
        let mut packed = Vec::with_capacity(self.bytes.len() - self.holes_bytes);
        for at in all {
            let start = at.0 as usize;
            let end = start + usize::from(self.bytes[start]) + 2;
            *at = NameRef(packed.len() as u32);
            packed.extend_from_slice(&self.bytes[start..end]);
        }
        self.bytes = packed;
        self.holes_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_every_name() {
        let mut names = Names::default();
        let long = "n".repeat(NAME_BYTES_MAX);
        let all: Vec<ChannelName> = (0..1000)
            .map(|n| ChannelName::user(&format!("user-{n}")))
            .chain([ChannelName::channel(&long)])
            .collect();
        let mut kept = Vec::new();
        for (nth, name) in all.iter().enumerate() {
            let at = names.add(name);
            assert!(names.is(at, name.key()));
            if nth % 5 == 0 { kept.push((at, name)) } else { names.forget(at) }
        }
        assert!(names.should_pack());
        names.pack(kept.iter_mut().map(|(at, _)| at));
        assert!(!names.should_pack());
        for (at, name) in kept {
            assert_eq!(names.get(at), name.key());
        }
    }
}
