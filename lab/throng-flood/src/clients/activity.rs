//! Clients that have to ping, or their server takes them for gone: the protocol of Pusher.
//!
//! Its servers name the time without a sign of life after which they close a client. The official
//! client pings when nothing has come for that time; here each client pings at least twice in it,
//! whatever comes: nothing is kept per client, and servers count any frame.

use throng_wire::websocket::{Opcode, write_masked_frame};

use super::request::MASK;
use crate::plan::Target;

const PING: &str = r#"{"event":"pusher:ping","data":{}}"#;
const PONG: &[u8] = b"pusher:pong";
/// The member of the first message that names the time, in seconds.
const TIMEOUT: &[u8] = b"activity_timeout";

/// Shares of its time that a client may be silent for. Pings come at intervals that a busy thread
/// makes longer.
const PINGS_PER_TIMEOUT: u64 = 3;

/// The shortest time between two pings of a client: a server cannot make clients flood it.
const EVERY_NS_MIN: u64 = 100_000_000;

/// Pings of a thread's clients: an endless walk over all of them.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// The time between two pings of a client; `None` before a server has named its time.
    every_ns: Option<u64>,
    /// When the walk began, and how many clients it has visited since.
    since_ns: u64,
    visited: u64,
}

/// True if clients of the target have to ping.
pub(super) fn is_asked_for(target: &Target) -> bool {
    target.pings.iter().any(|ping| ping.ask.contains("pusher:ping"))
}

/// True if a message answers a ping of the client.
pub(super) fn is_pong(message: &[u8]) -> bool {
    memchr::memmem::find(message, PONG).is_some()
}

/// The time that a message names, in seconds. Its quotes may be escaped: the message has it in a
/// text.
fn named_s(message: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(message, TIMEOUT)? + TIMEOUT.len();
    let rest = message[at..].iter().skip_while(|byte| b"\\\": ".contains(byte));
    let digits: Vec<u8> = rest.take_while(|byte| byte.is_ascii_digit()).copied().collect();
    std::str::from_utf8(&digits).ok()?.parse().ok()
}

impl Activity {
    /// Takes the time that a server names in its first message. The shortest counts.
    pub(super) fn learn(&mut self, message: &[u8], now_ns: u64) {
        let Some(named_s) = named_s(message).filter(|named_s| *named_s > 0) else { return };
        let every_ns = named_s.saturating_mul(1_000_000_000) / PINGS_PER_TIMEOUT;
        let every_ns = every_ns.max(EVERY_NS_MIN);
        if self.every_ns.is_none_or(|before| every_ns < before) {
            (self.every_ns, self.since_ns, self.visited) = (Some(every_ns), now_ns, 0);
        }
    }

    /// How many of so many clients are to be visited now, and the position of the first.
    pub(super) fn due(&mut self, now_ns: u64, clients: usize) -> Option<(usize, usize)> {
        let (every_ns, clients) = (self.every_ns?, clients as u64);
        if clients == 0 {
            return None;
        }
        let elapsed_ns = u128::from(now_ns.saturating_sub(self.since_ns));
        let due = elapsed_ns * u128::from(clients) / u128::from(every_ns);
        let due = u64::try_from(due).unwrap_or(u64::MAX);
        // After a pause of the thread, one ping each is enough. The number of clients changes.
        let count = due.saturating_sub(self.visited).min(clients);
        let first = self.visited % clients;
        self.visited = due.max(self.visited);
        (count > 0).then_some((first as usize, count as usize))
    }

    /// When the walk goes on, at the latest.
    pub(super) fn next_ns(&self, now_ns: u64) -> u64 {
        self.every_ns.map_or(u64::MAX, |every_ns| now_ns.saturating_add(every_ns / 8))
    }
}

/// A ping, as a frame.
pub(super) fn ping() -> Vec<u8> {
    let mut ping = Vec::new();
    write_masked_frame(&mut ping, Opcode::Text, PING.as_bytes(), MASK);
    ping
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn servers_name_the_time_in_an_escaped_text_or_plainly() {
        for (message, named) in [
            (&br#"{"data":"{\"activity_timeout\":120}"}"#[..], Some(120)),
            (br#"{"data":{"activity_timeout": 30}}"#, Some(30)),
            (br#"{"data":{"activity_timeout":null}}"#, None),
            (br#"{"event":"pusher:ping"}"#, None),
        ] {
            assert_eq!(named_s(message), named);
        }
    }

    #[test]
    fn each_client_pings_several_times_before_its_time_is_over() {
        let mut activity = Activity::default();
        assert_eq!(activity.due(0, 7), None, "no server has named a time");
        activity.learn(br#"{"activity_timeout":6}"#, 0);
        activity.learn(br#"{"activity_timeout":60}"#, 0);
        let (mut last, mut longest) = ([0; 7], 0);
        for tenth in 1..=600 {
            let now_ns = tenth * SECOND_NS / 10;
            let (first, count) = activity.due(now_ns, last.len()).unwrap_or((0, 0));
            for step in 0..count {
                let position = (first + step) % last.len();
                longest = longest.max(now_ns - last[position]);
                last[position] = now_ns;
            }
        }
        assert!(longest > 0 && longest < 3 * SECOND_NS, "{longest} {last:?}");
    }

    #[test]
    fn a_pause_of_the_thread_makes_no_client_ping_twice() {
        let mut activity = Activity::default();
        activity.learn(br#"{"activity_timeout":6}"#, 0);
        assert_eq!(activity.due(100 * SECOND_NS, 5), Some((0, 5)));
        assert_eq!(activity.due(100 * SECOND_NS, 5), None);
    }
}
