//! Answers of the application, for as long as it said that they hold.

use std::collections::{HashMap, VecDeque};

use ring::digest::{Context, SHA256};

/// Identifies a question: a hash of it of the question, without what differs from one connection to
/// the next. Clients choose parts of a question, so no two may have the same hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct QuestionKey([u8; 16]);

impl QuestionKey {
    /// The key of a question in JSON, and of what is left out of it.
    pub(super) fn of(question: &[u8], left_out: &[u8]) -> QuestionKey {
        let mut context = Context::new(&SHA256);
        context.update(question);
        // The question says how long it is, so that no byte can be of either.
        context.update(left_out);
        let mut hash = [0; 16];
        hash.copy_from_slice(&context.finish().as_ref()[..16]);
        QuestionKey(hash)
    }
}

/// A bounded number of answers. A full cache forgets the oldest one.
#[derive(Debug)]
pub(super) struct Cache<T> {
    entries: HashMap<QuestionKey, CachedAnswer<T>>,
    /// The keys in the order of their first insertion. An entry that was replaced keeps its place.
    order: VecDeque<QuestionKey>,
    max_entries: usize,
}

#[derive(Debug)]
struct CachedAnswer<T> {
    answer: T,
    until_ms: u64,
}

impl<T: Clone> Cache<T> {
    pub(super) fn new(max_entries: usize) -> Cache<T> {
        Cache { entries: HashMap::new(), order: VecDeque::new(), max_entries }
    }

    pub(super) fn get(&self, key: &QuestionKey, now_ms: u64) -> Option<T> {
        let entry = self.entries.get(key)?;
        (now_ms < entry.until_ms).then(|| entry.answer.clone())
    }

    /// Keeps an answer until a time.
    pub(super) fn insert(&mut self, key: QuestionKey, answer: T, until_ms: u64) {
        if self.max_entries == 0 {
            return;
        }
        if self.entries.insert(key, CachedAnswer { answer, until_ms }).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > self.max_entries
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
        debug_assert_eq!(self.order.len(), self.entries.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> QuestionKey {
        QuestionKey::of(number.to_string().as_bytes(), b"")
    }

    #[test]
    fn an_answer_holds_for_its_time() {
        let mut cache = Cache::new(10);
        cache.insert(key(1), "a", 100);
        assert_eq!(cache.get(&key(1), 99), Some("a"));
        assert_eq!(cache.get(&key(1), 100), None);
        cache.insert(key(1), "b", 200);
        assert_eq!(cache.get(&key(1), 199), Some("b"));
        assert_eq!(cache.get(&key(2), 0), None);
    }

    #[test]
    fn a_full_cache_forgets_the_oldest() {
        let mut cache = Cache::new(3);
        for number in 0..5 {
            cache.insert(key(number), number, 100);
            cache.insert(key(number), number, 100);
        }
        let known: Vec<_> = (0..5).filter_map(|number| cache.get(&key(number), 0)).collect();
        assert_eq!(known, [2, 3, 4]);
        let mut none = Cache::new(0);
        none.insert(key(1), 1, 100);
        assert_eq!(none.get(&key(1), 0), None);
    }
}
