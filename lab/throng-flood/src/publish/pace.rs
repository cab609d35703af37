//! A timer that wakes a publisher when a message is due.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

const NS_PER_S: u64 = 1_000_000_000;

/// A timer that becomes readable at a given time.
///
/// Timeouts of `epoll_wait` are whole milliseconds and up to 50 microseconds late. A timer
/// descriptor is precise.
pub(super) struct Timer(OwnedFd);

impl Timer {
    /// A timer that is not set.
    pub(super) fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Timer(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Becomes readable at `at_ns`, or now if that has passed. This replaces an earlier time, and
    /// clears its readiness.
    pub(super) fn set(&self, at_ns: u64) -> io::Result<()> {
        // Zero would disarm it.
        let at_ns = at_ns.max(1);
        let at = Timespec {
            tv_sec: (at_ns / NS_PER_S).cast_signed(),
            tv_nsec: (at_ns % NS_PER_S).cast_signed(),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::marker::now_ns;

    #[test]
    fn the_timer_fires_on_time_and_not_before() {
        let timer = Timer::new().expect("a timer");
        let at_ns = now_ns() + 5_000_000;
        timer.set(at_ns).expect("set");
        let limit = Timespec::try_from(Duration::from_secs(5)).expect("short");
        let ready = poll(&mut [PollFd::new(&timer, PollFlags::IN)], Some(&limit));
        assert_eq!(ready, Ok(1));
        assert!(now_ns() >= at_ns);
    }
}
