//! The keys of all sources together.

use std::sync::Arc;

use super::key::Key;
use super::published::PublishedKeys;
use super::set::{KeySet, SetError};

/// One source of keys: the configuration, a file or a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceId(usize);

/// Keeps the keys of each source, and publishes them as one set. A source that cannot be read keeps
/// the keys that it had.
#[derive(Debug)]
pub struct KeySources {
    parts: Vec<Vec<Arc<Key>>>,
    published: Arc<PublishedKeys<KeySet>>,
}

impl KeySources {
    /// Publishes the keys of the sources to `published`.
    pub fn new(published: Arc<PublishedKeys<KeySet>>) -> KeySources {
        KeySources { parts: Vec::new(), published }
    }

    /// Adds a source, which has no keys yet.
    pub fn add(&mut self) -> SourceId {
        self.parts.push(Vec::new());
        SourceId(self.parts.len() - 1)
    }

    /// Replaces the keys of a source, and says whether they differ. Keys that stay do not count as
    /// a change, so that reading the same set again does not make every cached token be looked at.
    ///
    /// # Errors
    ///
    /// [`SetError`] if they conflict with other sources; then the old ones stay.
    pub fn replace(&mut self, source: SourceId, keys: Vec<Arc<Key>>) -> Result<bool, SetError> {
        let fingerprints =
            |keys: &[Arc<Key>]| -> Vec<_> { keys.iter().map(|key| key.fingerprint()).collect() };
        if fingerprints(&self.parts[source.0]) == fingerprints(&keys) {
            return Ok(false);
        }
        let parts = self.parts.iter().enumerate();
        let all = parts.flat_map(|(at, part)| if at == source.0 { &keys } else { part });
        let set = KeySet::new(all.cloned().collect())?;
        self.parts[source.0] = keys;
        self.published.publish(set);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::keys::{KEYS_MAX, Reader};

    fn key(byte: u8) -> Arc<Key> {
        Arc::new(Key::from_secret(None, Algorithm::Hs256, &[byte; 32]).unwrap())
    }

    fn world() -> (KeySources, Reader<KeySet>) {
        let published = PublishedKeys::new(KeySet::default());
        let reader = published.reader();
        (KeySources::new(published), reader)
    }

    #[test]
    fn sources_are_published_together() {
        let (mut sources, mut reader) = world();
        let (one, other) = (sources.add(), sources.add());
        assert_eq!(sources.replace(one, vec![key(1)]), Ok(true));
        assert_eq!(sources.replace(other, vec![key(2), key(3)]), Ok(true));
        assert_eq!(reader.get().0.len(), 3);
        assert_eq!(sources.replace(other, vec![key(3)]), Ok(true));
        let (set, version) = reader.get();
        assert!(set.contains(key(1).fingerprint()) && set.contains(key(3).fingerprint()));
        assert!(!set.contains(key(2).fingerprint()));
        assert_eq!(sources.replace(other, vec![key(3)]), Ok(false));
        assert_eq!(reader.get().1, version, "nothing has changed");
    }

    #[test]
    fn keys_that_do_not_fit_leave_the_old_ones() {
        let (mut sources, mut reader) = world();
        let (one, other) = (sources.add(), sources.add());
        sources.replace(one, vec![key(1)]).unwrap();
        sources.replace(other, vec![key(2)]).unwrap();
        let many = (0..KEYS_MAX as u8).map(key).collect();
        assert_eq!(sources.replace(other, many), Err(SetError::TooMany));
        assert_eq!(reader.get().0.len(), 2);
        assert_eq!(sources.replace(other, vec![key(2)]), Ok(false), "they are still the source's");
    }
}
