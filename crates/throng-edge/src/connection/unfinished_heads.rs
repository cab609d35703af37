//! Connections whose first request head is incomplete, oldest first. They give way when there is no
//! place for a new connection.

use std::collections::VecDeque;

use super::id::Token;

/// Shorter queues are not cleaned.
const CLEAN_MIN: usize = 128;

/// Connections whose first head was incomplete when they were added, oldest first.
#[derive(Debug, Default)]
pub(super) struct UnfinishedHeads {
    tokens: VecDeque<Token>,
    /// The length after finished heads were last removed.
    cleaned: usize,
}

impl UnfinishedHeads {
    /// Adds a connection. When the queue has doubled, removes those for which `is_unfinished` no
    /// longer holds, so that its length stays below about twice the number of unfinished heads.
    pub(super) fn push(&mut self, token: Token, is_unfinished: impl Fn(Token) -> bool) {
        if self.tokens.len() >= CLEAN_MIN.max(2 * self.cleaned) {
            // Amortized: as many connections were added since as are visited now.
            self.tokens.retain(|&token| is_unfinished(token));
            self.cleaned = self.tokens.len();
        }
        self.tokens.push_back(token);
    }

    /// Takes the oldest that is still unfinished.
    pub(super) fn pop(&mut self, is_unfinished: impl Fn(Token) -> bool) -> Option<Token> {
        while let Some(token) = self.tokens.pop_front() {
            if is_unfinished(token) {
                return Some(token);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::id::{ConnectionId, Generation};
    use super::*;

    fn token(index: u32) -> Token {
        Token::new(ConnectionId::new(index), Generation::after(0))
    }

    #[test]
    fn the_oldest_unfinished_head_is_found() {
        let mut heads = UnfinishedHeads::default();
        (0..10).for_each(|index| heads.push(token(index), |_| true));
        assert_eq!(heads.pop(|found| found.id().index() > 3), Some(token(4)));
        assert_eq!(heads.pop(|_| true), Some(token(5)));
        assert_eq!(heads.pop(|found| found.id().index() > 20), None);
    }

    #[test]
    fn finished_heads_are_removed() {
        let mut heads = UnfinishedHeads::default();
        for index in 0..100_000 {
            heads.push(token(index), |found| found == token(0) || found == token(index));
            assert!(heads.tokens.len() <= CLEAN_MIN, "{}", heads.tokens.len());
        }
        assert_eq!(heads.pop(|found| found == token(0)), Some(token(0)));
    }
}
