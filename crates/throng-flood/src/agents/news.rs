//! What agents are told of the board: what is published, which they cannot see by themselves.

use std::time::{Duration, Instant};

use super::message::{Ask, Published};
use crate::clients::Board;

/// Sequences in one message: well below the 1 MiB that a NATS server takes.
const SEQUENCES_MAX: usize = 20_000;

/// While something is published, agents are told so often at least. A client's audit begins after
/// twice that at the latest; a board of a million streams takes some milliseconds to read.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// What agents know of the board.
#[derive(Debug)]
pub(super) struct News {
    published: Box<[u32]>,
    /// How many were refused.
    refused: usize,
    /// Publishing goes on.
    is_publishing: bool,
    /// When they were told last.
    told_at: Option<Instant>,
}

impl News {
    /// They know nothing, and nothing is published.
    pub(super) fn new(streams: u32) -> News {
        let published = vec![0; streams as usize].into();
        News { published, refused: 0, is_publishing: false, told_at: None }
    }

    /// Whether they are to be told although nothing else is asked of them.
    pub(super) fn is_due(&self) -> bool {
        self.is_publishing && self.told_at.is_none_or(|at| at.elapsed() >= TELL_EVERY)
    }

    /// Publishing begins or has ended: what they are to be told.
    pub(super) fn publishing(&mut self, is_publishing: bool, board: &Board) -> Vec<Ask> {
        self.is_publishing = is_publishing;
        self.told(board, true)
    }

    /// What they are to be told before anything is asked of them, in this order. While something is
    /// published that is never nothing: that there is no news says something too, because clients
    /// count how often the board was told.
    pub(super) fn read(&mut self, board: &Board) -> Vec<Ask> {
        self.told(board, self.is_publishing)
    }

    fn told(&mut self, board: &Board, is_always: bool) -> Vec<Ask> {
        self.told_at = Some(Instant::now());
        let mut published: Vec<Published> = Vec::new();
        for (stream, told) in (0..).zip(&mut self.published) {
            let last = board.last_published(stream);
            if last > *told {
                *told = last;
                published.push((stream, last));
            }
        }
        let mut refused = board.all_refused();
        if refused.len() == std::mem::replace(&mut self.refused, refused.len()) {
            refused.clear();
        }
        if published.is_empty() && refused.is_empty() && !is_always {
            return Vec::new();
        }
        let parts = published.len().max(refused.len()).div_ceil(SEQUENCES_MAX).max(1);
        let part = |part: usize| {
            let of = |all: &[Published]| {
                all.chunks(SEQUENCES_MAX).nth(part).unwrap_or_default().to_vec()
            };
            Ask::Board {
                published: of(&published),
                refused: of(&refused),
                has_more: part + 1 < parts,
                is_behind: self.is_publishing,
            }
        };
        (0..parts).map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of each message: sequences published, sequences refused, `has_more`, `is_behind`.
    fn counts(asks: &[Ask]) -> Vec<(usize, usize, bool, bool)> {
        let count = |ask: &Ask| match ask {
            Ask::Board { published, refused, has_more, is_behind } => {
                (published.len(), refused.len(), *has_more, *is_behind)
            }
            _ => panic!("{ask:?}"),
        };
        asks.iter().map(count).collect()
    }

    #[test]
    fn while_publishing_no_news_are_told_too() {
        let board = Board::new(3);
        let mut news = News::new(3);
        assert!(news.read(&board).is_empty() && !news.is_due());
        assert_eq!(counts(&news.publishing(true, &board)), [(0, 0, false, true)]);
        board.published(1, 4);
        assert_eq!(counts(&news.read(&board)), [(1, 0, false, true)]);
        assert_eq!(counts(&news.read(&board)), [(0, 0, false, true)]);
        board.refused(1, 4);
        assert_eq!(counts(&news.publishing(false, &board)), [(0, 1, false, false)]);
        assert!(news.read(&board).is_empty() && !news.is_due());
        board.refused(1, 3);
        assert_eq!(counts(&news.read(&board)), [(0, 2, false, false)]);
    }

    #[test]
    fn many_streams_are_one_look_at_the_board() {
        let streams = 2 * SEQUENCES_MAX as u32 + 1;
        let board = Board::new(streams);
        (0..streams).for_each(|stream| board.published(stream, 1));
        let told = counts(&News::new(streams).publishing(true, &board));
        let full = (SEQUENCES_MAX, 0, true, true);
        assert_eq!(told, [full, full, (1, 0, false, true)]);
    }
}
