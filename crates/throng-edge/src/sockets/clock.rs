//! A worker's time. It stands still while the worker handles an event.

use std::time::Duration;

use throng_core::frozen::ThawError;
use throng_core::spread::RetrySchedule;
use throng_wire::{CurrentDate, Date, ErrorCode, RetryAfter};

/// Ticks per second: the unit of a connection's deadline, and the pace of the timer scan.
pub const TICKS_PER_S: u32 = 10;

const TICK_MS: u64 = 1000 / TICKS_PER_S as u64;

/// The moment at which something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Milliseconds since 1970; never goes back.
    pub unix_ms: u64,
    /// Ticks since the start of the worker's process.
    pub tick: u32,
    /// The part of the current tick that is over.
    pub part_ms: u32,
}

impl Now {
    /// The moment at `unix_ms`, `elapsed_ms` after the start of the worker's process.
    pub fn after(elapsed_ms: u64, unix_ms: u64) -> Now {
        let (tick, part_ms) = (elapsed_ms / TICK_MS, elapsed_ms % TICK_MS);
        Now { unix_ms, tick: tick as u32, part_ms: part_ms as u32 }
    }
}

/// The current time, as a tick for deadlines and as a date for responses, and the times at which
/// refused clients should come back.
#[derive(Debug)]
pub(crate) struct Clock {
    now: Now,
    /// Ticks that had passed before the process of this worker started: for the worker that this
    /// one goes on for.
    ticks_before: u32,
    date: CurrentDate,
    /// Spreads the times at which refused clients come back.
    retry_schedule: RetrySchedule,
}

impl Clock {
    /// A clock at tick 0. Clocks with other numbers have other retry times.
    pub(crate) fn new(number: u32) -> Clock {
        let retry_schedule = RetrySchedule::numbered(number);
        let (now, date) = (Now::default(), CurrentDate::default());
        Clock { now, ticks_before: 0, date, retry_schedule }
    }

    /// Sets the time. Deadlines count on ticks that never go back.
    pub(crate) fn set(&mut self, now: Now) {
        let now = Now { tick: now.tick.saturating_add(self.ticks_before), ..now };
        debug_assert!(now.tick >= self.now.tick, "ticks go back: {now:?} after {:?}", self.now);
        self.now = now;
        self.date.set_ms(throng_core::clock::wall_ms(now.unix_ms));
    }

    /// Goes on from the tick of another clock, which showed it at `unix_ms`. Fails if no worker can
    /// have got so far.
    pub(crate) fn resume(&mut self, tick: u32, unix_ms: u64) -> Result<(), ThawError> {
        // Deadlines that were set there are not early here, where ticks begin at other times.
        let began_ms = self.now.unix_ms.saturating_sub(self.now.part_ms.into());
        let elapsed = began_ms.saturating_sub(unix_ms) / TICK_MS;
        let tick = u32::try_from(u64::from(tick).saturating_add(elapsed)).ok();
        let tick = tick.filter(|&tick| tick < u32::MAX / 2);
        let tick = tick.ok_or(ThawError::Invalid("the tick of a worker"))?;
        self.ticks_before = tick.saturating_sub(self.now.tick);
        self.set(self.now);
        Ok(())
    }

    /// The current time in milliseconds since 1970, for the engine.
    pub(crate) fn unix_ms(&self) -> u64 {
        self.now.unix_ms
    }

    /// The current time by the machine's clock, in seconds since 1970, for tokens.
    pub(crate) fn wall_s(&self) -> u64 {
        throng_core::clock::wall_ms(self.now.unix_ms) / 1000
    }

    pub(crate) fn tick(&self) -> u32 {
        self.now.tick
    }

    /// The deadline of something that may take `duration`: the first later tick that does not begin
    /// before this has passed.
    pub(crate) fn deadline(&self, duration: Duration) -> u32 {
        let part_ms = u64::from(self.now.part_ms) + TICK_MS - 1;
        self.deadline_ticks(ticks(duration.saturating_add(Duration::from_millis(part_ms))).max(1))
    }

    /// The deadline of something that may take `ticks`, as a tick.
    pub(crate) fn deadline_ticks(&self, ticks: u32) -> u32 {
        self.now.tick.saturating_add(ticks)
    }

    /// The first tick at or after a time in milliseconds since 1970; the current one if it is over.
    pub(crate) fn tick_at(&self, unix_ms: u64) -> u32 {
        match unix_ms.saturating_sub(self.now.unix_ms) {
            0 => self.now.tick,
            left_ms => self.deadline(Duration::from_millis(left_ms)),
        }
    }

    /// The current date, as responses give it.
    pub(crate) fn date(&self) -> Date {
        self.date.get()
    }

    /// The next client's `Retry-After`; `None` for a code without one. `drain_window` finds
    /// the time over which a shutdown spreads its clients.
    pub(crate) fn retry_after(
        &self,
        code: ErrorCode,
        drain_window: impl FnOnce() -> Duration,
    ) -> Option<RetryAfter> {
        let window_ms = code.retry()?.window_ms(drain_window);
        Some(RetryAfter::from_ms(self.retry_schedule.next_ms(&window_ms)))
    }
}

/// The whole ticks in a duration, at most half of the range of a `u32`, so that sums of a tick and
/// a duration stay far from `u32::MAX`, which means "never".
pub(crate) fn ticks(duration: Duration) -> u32 {
    let ticks = duration.as_millis() * u128::from(TICKS_PER_S) / 1000;
    u32::try_from(ticks).unwrap_or(u32::MAX / 2).min(u32::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_the_first_tick_that_is_not_early() {
        let mut clock = Clock::new(0);
        for elapsed_ms in 7000..7100 {
            clock.set(Now::after(elapsed_ms, 5000 + elapsed_ms));
            for duration_ms in [1, 2, 99, 100, 101, 3000] {
                let deadline = clock.deadline(Duration::from_millis(duration_ms));
                let (begins_ms, due_ms) = (u64::from(deadline) * 100, elapsed_ms + duration_ms);
                assert!((due_ms..due_ms + 100).contains(&begins_ms), "{elapsed_ms} {duration_ms}");
                assert_eq!(clock.tick_at(5000 + due_ms), deadline);
            }
        }
        clock.set(Now { unix_ms: 9000, tick: 70, part_ms: 0 });
        assert_eq!(clock.deadline(Duration::from_secs(3)), 70 + 3 * TICKS_PER_S);
        assert_eq!(clock.deadline(Duration::ZERO), 71, "the scan of this tick may be over");
        assert_eq!(clock.deadline(Duration::MAX), 70 + u32::MAX / 2);
        assert_eq!(clock.deadline_ticks(u32::MAX), u32::MAX);
    }

    #[test]
    fn a_time_is_reached_at_the_next_whole_tick() {
        let mut clock = Clock::new(0);
        clock.set(Now { unix_ms: 5000, tick: 7, part_ms: 0 });
        assert_eq!([0, 5000, 5001, 5100, 5101].map(|ms| clock.tick_at(ms)), [7, 7, 8, 8, 9]);
    }

    #[test]
    fn a_clock_that_goes_on_in_another_process_makes_no_deadline_early() {
        let mut old = Clock::new(0);
        old.set(Now::after(7000, 50_000));
        let deadline = old.deadline(Duration::from_secs(1));
        for elapsed_ms in 0..300 {
            let mut new = Clock::new(0);
            new.set(Now::after(elapsed_ms, 50_100));
            new.resume(old.tick(), 50_000).expect("a tick that a worker can have");
            let left_ms = u64::from(deadline - new.tick()) * 100 - elapsed_ms % 100;
            assert!((900..1000).contains(&left_ms), "{elapsed_ms}: {left_ms}");
        }
    }

    #[test]
    fn clients_refused_together_get_different_retry_times() {
        let clock = Clock::new(3);
        let next = || clock.retry_after(ErrorCode::Busy, || Duration::from_secs(10));
        let (first, second) = (next(), next());
        assert!(first.is_some() && first.map(RetryAfter::ms) != second.map(RetryAfter::ms));
        assert!(clock.retry_after(ErrorCode::BadRequest, || Duration::from_secs(10)).is_none());
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "ticks go back")]
    fn ticks_do_not_go_back() {
        let mut clock = Clock::new(0);
        clock.set(Now { unix_ms: 0, tick: 2, part_ms: 0 });
        clock.set(Now { unix_ms: 0, tick: 1, part_ms: 0 });
    }
}
