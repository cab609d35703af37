//! Fetches of an engine that keeps its logs elsewhere: each part of a log is readable only between
//! the answer to its fetch and the drop of what was answered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::{Answer, ChannelName, Fetched, Later, Reading};

use crate::late_answers::LateAnswers;
use crate::random::Random;

/// The readings that are possible now, as often as each was fetched.
#[derive(Debug, Clone, Default)]
struct Readable(Arc<Mutex<Vec<(ChannelName, Reading)>>>);

impl Readable {
    fn lock(&self) -> MutexGuard<'_, Vec<(ChannelName, Reading)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, channel: ChannelName, reading: Reading) -> Fetched {
        self.lock().push((channel.clone(), reading));
        Fetched::held_by(Hold { readable: self.clone(), part: (channel, reading) })
    }
}

/// Keeps one part readable.
struct Hold {
    readable: Readable,
    part: (ChannelName, Reading),
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut readable = self.readable.lock();
        let at = readable.iter().position(|part| *part == self.part);
        readable.swap_remove(at.expect("it is readable until now"));
    }
}

#[derive(Debug)]
pub(crate) struct Fetches {
    readable: Readable,
    answers: LateAnswers,
}

impl Fetches {
    /// Nothing is fetched yet. Of a hundred fetches, `late_percent` are answered later.
    pub(crate) fn new(late_percent: usize, random: Random) -> Fetches {
        let answers = LateAnswers::new(late_percent, random);
        Fetches { readable: Readable::default(), answers }
    }

    /// Makes a part of a log readable at once.
    pub(crate) fn hold(&self, channel: &ChannelName, reading: Reading) -> Fetched {
        self.readable.hold(channel.clone(), reading)
    }

    /// Makes a part of a log readable, at once or later.
    pub(crate) fn fetch(
        &self,
        channel: &ChannelName,
        reading: Reading,
        later: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        let (readable, channel) = (self.readable.clone(), channel.clone());
        self.answers.answer(later, move || readable.hold(channel, reading))
    }

    /// Panics unless a part of a log is readable.
    pub(crate) fn expect_readable(&self, channel: &ChannelName, reading: Reading) {
        let is_readable =
            self.readable.lock().iter().any(|part| part == &(channel.clone(), reading));
        assert!(is_readable, "{reading:?} of {channel:?} was not fetched");
    }

    /// The number of parts that are readable.
    pub(crate) fn readable(&self) -> usize {
        self.readable.lock().len()
    }

    /// The fetches to answer.
    pub(crate) fn answers(&self) -> &LateAnswers {
        &self.answers
    }
}
