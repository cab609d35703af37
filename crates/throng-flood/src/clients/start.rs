//! From which message on a client's audit counts when the publisher is on another machine.
//!
//! What the board says is then from a moment before: a client that becomes subscribed cannot read
//! from it what is sent afterwards. Two things tell it, whichever comes first:
//!
//! * **A message.** What follows the first one must come.
//! * **The board, told for the second time since.** Whoever tells it reads what is published, tells
//!   it, and waits for the answer before reading again. So the client was subscribed before the
//!   second reading, and what is published above that is sent after the client was subscribed. The
//!   first one may have been read before.
//!
//! Until then nothing is expected: what the client has not got may have been sent before it was
//! subscribed. No clock is needed for that.

use super::client::Client;
use super::setting::Setting;
use super::thread::Thread;

/// Whether it is known from which message on a client's audit counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Start {
    /// From what its tracks say.
    #[default]
    Known,
    /// Not yet: the board has not been told since the client is subscribed.
    New,
    /// Not yet: the board has been told once since.
    ToldOnce,
}

/// The clients of a thread whose start may not be known: each at least in the list of its state.
#[derive(Debug, Default)]
pub(super) struct Starts {
    new: Vec<u32>,
    told_once: Vec<u32>,
}

impl Starts {
    /// A client became [`Start::New`].
    pub(super) fn push(&mut self, position: usize) {
        // A thread has fewer clients than that.
        self.new.push(position as u32);
    }
}

impl Thread {
    /// The board has been told; `is_behind` says whether publishing goes on.
    pub(super) fn told(&mut self, is_behind: bool) {
        let new = std::mem::take(&mut self.starts.new);
        let told_once = std::mem::take(&mut self.starts.told_once);
        // Whoever is in a list and in another state has got a message, or has come anew since.
        for position in told_once {
            self.begin_if(position, Start::ToldOnce);
        }
        for position in new {
            if !is_behind {
                // Nothing is published any more: the board says it all.
                self.begin_if(position, Start::New);
            } else if self.clients[position as usize].start == Start::New {
                self.clients[position as usize].start = Start::ToldOnce;
                self.starts.told_once.push(position);
            }
        }
    }

    fn begin_if(&mut self, position: u32, start: Start) {
        let number = self.setting.number(self.index, position as usize);
        let client = &mut self.clients[position as usize];
        if client.start == start {
            begin(&self.setting, number, client);
        }
    }
}

/// What follows the board is expected, except of streams that have brought something already.
fn begin(setting: &Setting, number: usize, client: &mut Client) {
    client.start = Start::Known;
    let board = &setting.board;
    match setting.stream(number) {
        Some(stream) => client.track.begin_later(board.last_published(stream)),
        None => {
            let tracks = client.extra.as_mut().map(|extra| &mut extra.tracks[..]);
            for (stream, track) in tracks.unwrap_or_default() {
                track.begin_later(board.last_published(*stream));
            }
        }
    }
}
