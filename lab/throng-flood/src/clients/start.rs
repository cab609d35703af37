//! Where the audit of a client starts if the publisher is on another machine.
//!
//! The counters are then out of date: a client that has just subscribed cannot see in them what
//! is sent afterwards. It learns that from the first of two events:
//!
//! * **A message.** Everything after the first one must arrive.
//! * **The second update of the counters.** The coordinator reads what is published, sends it, and
//!   waits for the reply before it reads again. So the client was subscribed before the second
//!   reading, and everything published above that was sent afterwards. The first update may have
//!   been read before.
//!
//! Until then nothing is expected, because a missing message may have been sent before the client
//! was subscribed. This needs no clock.

use super::client::AuditStart;
use super::thread::ClientThread;

impl ClientThread {
    /// The counters were updated; `is_behind` says whether publishing continues.
    pub(super) fn counters_updated(&mut self, is_behind: bool) {
        let new = std::mem::take(&mut self.starts.new);
        let updated_once = std::mem::take(&mut self.starts.updated_once);
        // A client in another state has got a message, or has subscribed again, since it was
        // listed.
        for position in updated_once {
            self.begin_if(position, AuditStart::UpdatedOnce);
        }
        for position in new {
            if !is_behind {
                // Nothing is published any more, so the counters are complete.
                self.begin_if(position, AuditStart::New);
            } else if self.clients[position as usize].start == AuditStart::New {
                self.clients[position as usize].start = AuditStart::UpdatedOnce;
                self.starts.updated_once.push(position);
            }
        }
    }

    /// Expects what follows the counters, except in streams that have delivered something already,
    /// if the client has this start.
    fn begin_if(&mut self, position: u32, start: AuditStart) {
        let stream = self.stream(position as usize);
        let client = &mut self.clients[position as usize];
        if client.start == start {
            client.start = AuditStart::Known;
            for (stream, track) in client.tracks_mut(stream) {
                track.begin_later(self.shared.counters.last_published(stream));
            }
        }
    }
}
