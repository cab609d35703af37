//! How many events clients have published lately, where their dialect has a limit for that.

use std::collections::HashMap;

use crate::connection::ConnectionId;

/// The numbers of events that clients have published within the present second.
#[derive(Debug, Default)]
pub(super) struct ClientEventRate {
    second: u64,
    /// By the index of the connection. As many as have published anything in this second.
    counts: HashMap<u32, u32>,
}

impl ClientEventRate {
    /// Counts an event. Returns false if it is beyond `max`.
    pub(super) fn count(&mut self, id: ConnectionId, second: u64, max: u32) -> bool {
        if self.second != second {
            self.second = second;
            self.counts.clear();
        }
        let count = self.counts.entry(id.index()).or_default();
        *count = count.saturating_add(1);
        *count <= max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_so_many_events_in_a_second() {
        let mut rate = ClientEventRate::default();
        let ids = [1, 2].map(ConnectionId::new);
        for second in [7, 8] {
            for at in 0..15 {
                for id in ids {
                    assert_eq!(rate.count(id, second, 10), at < 10, "{at}");
                }
            }
            assert_eq!(rate.counts.len(), 2);
        }
    }
}
