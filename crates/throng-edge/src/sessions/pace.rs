//! The pace at which a worker asks its clients to leave: as many in each tick, evenly over a time.
//!
//! The worker passes over its table of connections, and stops wherever the part of this tick has
//! been asked. How the clients lie in the table does not matter: there may be none in one part of
//! it, because they have left, and many in another. Those that cannot be asked, because they lack
//! messages, are passed over and come again in the next pass, at the same pace: after a fan-out
//! that may be most of them.

use crate::sockets::TICKS_PER_S;

/// Connections that are looked at in one slice.
const LOOKED_AT_PER_SLICE: u32 = 512;

/// How many times as many as its part a tick may ask, to catch up with ticks before that found
/// fewer.
const CATCH_UP: u32 = 2;

/// Passes over the table of connections. Times are ticks.
#[derive(Debug)]
pub(crate) struct Pace {
    began: u32,
    /// How long it takes to ask all; at least a tick.
    over: u32,
    /// Those that are to be asked.
    clients: u32,
    asked: u32,
    /// The most that may have been asked by the end of `tick`.
    asked_max: u32,
    tick: u32,
    pass_began: u32,
    /// The first connection that this pass has not come to.
    next_index: u32,
    looked_at: u32,
    /// True if the last slice was full, so that there is more to do in this tick.
    has_more: bool,
}

impl Pace {
    /// Asks this many clients within `over` ticks.
    pub(crate) fn new(tick: u32, over: u32, clients: u32) -> Pace {
        let mut pace = Pace {
            began: tick,
            over: over.max(1),
            clients,
            asked: 0,
            asked_max: 0,
            tick,
            pass_began: tick,
            next_index: 0,
            looked_at: 0,
            has_more: false,
        };
        pace.allow(1);
        pace
    }

    /// True if there is a slice to do at once.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// The next connection to look at; `None` at the end of the slice. All connections have indices
    /// below `extent`.
    pub(crate) fn next(&mut self, tick: u32, extent: u32) -> Option<u32> {
        if tick > self.tick {
            let passed = tick - self.tick;
            self.tick = tick;
            self.allow(passed);
        }
        self.has_more = false;
        if self.next_index >= extent && tick.saturating_sub(self.pass_began) >= TICKS_PER_S {
            self.pass_began = tick;
            self.next_index = 0;
        }
        if self.asked >= self.asked_max || self.next_index >= extent {
            self.looked_at = 0;
            return None;
        }
        if self.looked_at == LOOKED_AT_PER_SLICE {
            self.looked_at = 0;
            self.has_more = true;
            return None;
        }
        self.looked_at += 1;
        self.next_index += 1;
        Some(self.next_index - 1)
    }

    /// The connection that was looked at last is asked.
    pub(crate) fn note_asked(&mut self) {
        self.asked = self.asked.saturating_add(1);
    }

    /// Allows what is due now, after `passed` ticks.
    fn allow(&mut self, passed: u32) {
        let elapsed = (self.tick - self.began).saturating_add(1);
        let part = self.clients.div_ceil(self.over).max(1);
        let due = if elapsed >= self.over {
            // Those who came meanwhile, such as requests that had to wait, are among the rest.
            u32::MAX
        } else {
            // At most `clients`.
            (u64::from(self.clients) * u64::from(elapsed) / u64::from(self.over)) as u32
        };
        let most = part.saturating_mul(CATCH_UP).saturating_mul(passed);
        self.asked_max = due.min(self.asked.saturating_add(most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many are asked in each tick, of a table in which these have a client that can be asked.
    fn ticks(pace: &mut Pace, count: u32, table: &mut [bool]) -> Vec<u32> {
        let tick = |tick| {
            let mut asked = 0;
            loop {
                while let Some(index) = pace.next(tick, table.len() as u32) {
                    if std::mem::take(&mut table[index as usize]) {
                        pace.note_asked();
                        asked += 1;
                    }
                }
                if !pace.has_more() {
                    return asked;
                }
            }
        };
        (0..count).map(tick).collect()
    }

    #[test]
    fn each_tick_has_its_part_and_the_last_one_the_rest() {
        assert_eq!(ticks(&mut Pace::new(0, 4, 10), 4, &mut [true; 10]), [2, 3, 2, 3]);
        let many = ticks(&mut Pace::new(0, 20, 100_003), 20, &mut vec![true; 100_003]);
        assert_eq!(many.iter().sum::<u32>(), 100_003);
        assert!(many.iter().all(|asked| (5000..5002).contains(asked)), "{many:?}");
    }

    #[test]
    fn a_pace_without_time_asks_all_at_once_in_slices() {
        let extent = LOOKED_AT_PER_SLICE + 3;
        let mut pace = Pace::new(7, 0, extent);
        let mut slice = || {
            let indices =
                std::iter::from_fn(|| pace.next(7, extent).inspect(|_| pace.note_asked()));
            (indices.count() as u32, pace.has_more())
        };
        assert_eq!(slice(), (LOOKED_AT_PER_SLICE, true));
        assert_eq!(slice(), (3, false));
    }

    #[test]
    fn how_clients_lie_in_the_table_does_not_change_the_pace() {
        for at in [0, 500, 9000] {
            let mut table = vec![false; 10_000];
            table[at..at + 1000].fill(true);
            let asked = ticks(&mut Pace::new(0, 100, 1000), 100, &mut table);
            assert!(asked.iter().all(|&asked| asked == 10), "{asked:?}");
        }
    }

    #[test]
    fn those_that_could_not_be_asked_are_asked_at_the_same_pace() {
        let mut pace = Pace::new(0, 100, 10_000);
        // In the first pass most of them lack messages.
        let mut most = vec![false; 10_000];
        most[..1000].fill(true);
        assert_eq!(ticks(&mut pace, 10, &mut most).iter().sum::<u32>(), 1000);
        let mut rest = vec![true; 9000];
        let mut asked = Vec::new();
        for tick in 10..100 {
            let mut asked_now = 0;
            while asked_now < 9000 {
                let Some(index) = pace.next(tick, 9000) else {
                    if pace.has_more() {
                        continue;
                    }
                    break;
                };
                if std::mem::take(&mut rest[index as usize]) {
                    pace.note_asked();
                    asked_now += 1;
                }
            }
            asked.push(asked_now);
        }
        assert!(asked.iter().all(|&asked| asked <= 200), "{asked:?}");
        assert_eq!(asked.iter().sum::<u32>(), 9000);
    }

    #[test]
    fn a_table_without_anybody_to_ask_is_passed_once_a_second() {
        let mut pace = Pace::new(0, 2, 10);
        let looked_at = (0..40).map(|tick| {
            let looked_at = std::iter::from_fn(|| pace.next(tick, 10)).count();
            assert!(!pace.has_more());
            looked_at
        });
        assert_eq!(looked_at.sum::<usize>(), 40);
    }
}
