//! What becomes of requests about states when answers are lost or late.

use super::request::{Resolving, Step};
use super::{AGAIN_MS, States};
use crate::journal::outbox::Outbox;
use crate::journal::report::{LogOutcome, Outcome};

impl States {
    /// Answers are lost.
    pub(in crate::journal) fn disconnected(&mut self, outbox: &mut Outbox) {
        let suffixes: Vec<_> = self.channels.keys().cloned().collect();
        for suffix in suffixes {
            self.forget_questions(&suffix, outbox);
            let Some(channel) = self.channels.get_mut(&suffix) else { continue };
            match std::mem::replace(&mut channel.step, Step::Begin) {
                Step::Store(_, sent) | Step::Resolve(_, sent) => {
                    channel.step = Step::Resolve(Resolving::default(), sent);
                }
                // What was stored is done again: nothing is there any more.
                Step::Begin | Step::Scan | Step::Read(..) | Step::Remove(..) => {
                    channel.seen = None;
                }
            }
            self.ready.push(suffix);
        }
    }

    /// The stream is another one: nothing that was read means anything, and what was sent may be
    /// lost.
    pub(in crate::journal) fn begin_epoch(&mut self, outbox: &mut Outbox) {
        let suffixes: Vec<_> = self.channels.keys().cloned().collect();
        for suffix in suffixes {
            self.forget_questions(&suffix, outbox);
            let Some(channel) = self.channels.get_mut(&suffix) else { continue };
            match channel.step {
                Step::Store(..) | Step::Resolve(..) | Step::Remove(..) => {
                    self.end_all(&suffix, &LogOutcome::Failed(Outcome::Unknown), outbox);
                }
                Step::Begin | Step::Scan | Step::Read(..) => {
                    channel.seen = None;
                    self.again(&suffix, 0);
                }
            }
        }
    }

    /// The servers do not let this node publish to a subject.
    pub(in crate::journal) fn denied(&mut self, subject: &str, error: &str, outbox: &mut Outbox) {
        let suffixes: Vec<_> = self.channels.keys().cloned().collect();
        for suffix in suffixes {
            let Some(channel) = self.channels.get(&suffix) else { continue };
            let asks = match channel.step {
                Step::Read(..) | Step::Resolve(..) => "$JS.API.STREAM.MSG.GET.",
                Step::Remove(..) => "$JS.API.STREAM.",
                Step::Begin | Step::Scan | Step::Store(..) => continue,
            };
            if subject.starts_with(asks) {
                let reason = format!("NATS does not let this node publish to {subject}: {error}");
                let is_uncertain = !matches!(channel.step, Step::Read(..));
                let refused = Outcome::Refused { reason, limit: None };
                let outcome = if is_uncertain { Outcome::Unknown } else { refused };
                self.forget_questions(&suffix, outbox);
                self.end_all(&suffix, &LogOutcome::Failed(outcome), outbox);
            }
        }
    }

    /// Ends what has taken too long, and asks again what has no answer.
    pub(in crate::journal) fn tick(&mut self, now_ms: u64, outbox: &mut Outbox) {
        let suffixes: Vec<_> = self.channels.keys().cloned().collect();
        for suffix in suffixes {
            let Some(channel) = self.channels.get_mut(&suffix) else { continue };
            let taken_ms = channel.queue.front().map_or(now_ms, |item| item.taken_ms);
            let is_silent = now_ms.saturating_sub(channel.at_ms) >= AGAIN_MS;
            let is_uncertain =
                matches!(channel.step, Step::Store(..) | Step::Resolve(..) | Step::Remove(..));
            if now_ms.saturating_sub(taken_ms) >= self.publish_ms {
                self.forget_questions(&suffix, outbox);
                let outcome = if is_uncertain { Outcome::Unknown } else { Outcome::Away };
                self.end_all(&suffix, &LogOutcome::Failed(outcome), outbox);
            } else if is_silent && !matches!(channel.step, Step::Begin | Step::Scan) {
                self.forget_questions(&suffix, outbox);
                let Some(channel) = self.channels.get_mut(&suffix) else { continue };
                channel.at_ms = now_ms;
                match std::mem::replace(&mut channel.step, Step::Begin) {
                    Step::Store(_, sent) | Step::Resolve(_, sent) => {
                        channel.step = Step::Resolve(Resolving::default(), sent);
                    }
                    _ => {}
                }
                self.ready.push(suffix);
            } else if !matches!(channel.step, Step::Store(..) | Step::Read(..)) {
                self.ready.push(suffix);
            }
        }
    }
}
