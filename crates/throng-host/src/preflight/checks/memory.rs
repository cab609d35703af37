//! Memory: what a connection takes in the kernel at rest, and with a message on its way.

use throng_units::format::{bytes, count};

use crate::preflight::check::{Check, Verdict, verdict};
use crate::preflight::room::{Firewall, Memory, Room};
use crate::preflight::wanted::Wanted;

/// A socket at rest in the kernel, with its epoll entry: measured 3.9 to 5.0 KiB.
const SOCKET_BYTES: (u64, u64) = (3_900, 5_100);

/// The server's own share of a subscriber, and the generator's of a client: docs/benchmarks.md.
const USER_BYTES: u64 = 64;

/// A short message to all, for each connection until it is read: measured 1,160 bytes.
const IN_FLIGHT_BYTES: u64 = 1_160;

/// A connection that the firewall follows takes this much at least.
const CONNTRACK_BYTES: u64 = 256;

const TCP_MEM: &str = "net.ipv4.tcp_mem";

pub(super) fn checks(wanted: &Wanted, room: &Room) -> Vec<Check> {
    let pages = wanted.is_publishing.then(|| pages(wanted.connections, room.tcp_pages));
    pages.into_iter().chain([memory(wanted, room)]).collect()
}

/// The kernel charges a message by the page, however short it is.
fn pages(connections: u64, found: Option<[u64; 3]>) -> Check {
    let why =
        "beyond this the kernel throttles all TCP; a message to all takes a page per connection";
    let needed = format!("{} pages", count(connections));
    let check = Check::new(TCP_MEM, why);
    let Some(found) = found else { return check.unread(needed) };
    let is_short = found[1] < connections;
    let least = [connections / 4 * 3, connections, connections / 2 * 3];
    let text = |pages: [u64; 3]| pages.map(|pages| pages.to_string()).join(" ");
    let value: [u64; 3] = std::array::from_fn(|nth| found[nth].max(least[nth]));
    check
        .judged(format!("{} pages", count(found[1])), needed, verdict(is_short, Verdict::Should))
        .set(text(found), if is_short { text(value) } else { text(found) })
}

/// Refused only if even the least that a connection takes is not there: the rest is a guess.
fn memory(wanted: &Wanted, room: &Room) -> Check {
    let (least, most) = connection_bytes(wanted, room.firewall);
    let total = |each: u64| each.saturating_mul(wanted.connections);
    let shown = |amount: u64| bytes(amount as f64);
    let why = format!("{} to {} a connection, most of it the kernel's", shown(least), shown(most));
    let check = Check::new("memory", why);
    let Some(Memory { bytes: free, group }) = &room.memory else {
        return check.unread(shown(total(most)));
    };
    let place = match group {
        Some(group) => format!(" that {group} allows"),
        None => String::new(),
    };
    let because = format!("{} of free memory{place}, {} a connection", shown(*free), shown(least));
    let (needed, verdict) = match (free < &total(least), free < &total(most)) {
        (true, _) => (total(least), Verdict::Must),
        (false, true) => (total(most), Verdict::Should),
        (false, false) => (total(most), Verdict::Ok),
    };
    let check = check
        .judged(format!("{} free", shown(*free)), shown(needed), verdict)
        .limited(free / least.max(1), because);
    match (verdict, group) {
        (Verdict::Ok | Verdict::Unknown, _) => check,
        (_, Some(group)) => check.advised(format!("give {group} more memory")),
        (Verdict::Must, None) => check.advised("take a machine with more memory, or several"),
        (Verdict::Should, None) => check
            .advised("take fewer connections, or watch the memory: the machine may run out of it"),
    }
}

fn connection_bytes(wanted: &Wanted, firewall: Firewall) -> (u64, u64) {
    let is_followed = matches!(firewall, Firewall::Follows { now, .. } if now > 0);
    let tracked = if is_followed { CONNTRACK_BYTES } else { 0 };
    let in_flight = if wanted.is_publishing { IN_FLIGHT_BYTES } else { 0 };
    let (least, most) = SOCKET_BYTES;
    let ends = wanted.ends().max(1);
    (ends * least + USER_BYTES + tracked, ends * (most + USER_BYTES) + tracked + in_flight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(free: u64) -> Room {
        Room { memory: Some(Memory { bytes: free, group: None }), ..Room::default() }
    }

    #[test]
    fn a_message_to_all_takes_pages() {
        let short = pages(1_000_000, Some([98_152, 130_869, 2_000_000]));
        // The third was more than needed, and stays.
        assert_eq!(short.help(), ["sysctl -w net.ipv4.tcp_mem=\"750000 1000000 2000000\""]);
        assert_eq!(short.verdict, Verdict::Should);
        assert_eq!(pages(1_000, Some([98_152, 130_869, 196_304])).change(), None);
        assert_eq!(pages(1_000, None).verdict, Verdict::Unknown);
        let quiet = Wanted { is_publishing: false, ..Wanted::server(1) };
        assert!(checks(&quiet, &Room::default()).iter().all(|check| check.name != TCP_MEM));
    }

    #[test]
    fn memory_is_refused_by_the_least_and_doubted_by_the_most() {
        let both = Wanted::both(1_000_000);
        assert_eq!(memory(&both, &with(20 << 30)).verdict, Verdict::Ok);
        assert_eq!(memory(&both, &with(9 << 30)).verdict, Verdict::Should);
        let refused = memory(&both, &with(1 << 30));
        assert_eq!(refused.verdict, Verdict::Must);
        let limit = refused.limit.expect("a limit");
        assert_eq!(limit.because, "1.00 GiB of free memory, 7.68 KiB a connection");
        assert_eq!(limit.allows, (1 << 30) / 7_864);
        // One end takes half.
        assert_eq!(memory(&Wanted::server(1_000_000), &with(9 << 30)).verdict, Verdict::Ok);
    }

    #[test]
    fn a_group_is_named() {
        let group = Some("/sys/fs/cgroup/app".to_owned());
        let room = Room { memory: Some(Memory { bytes: 1 << 30, group }), ..Room::default() };
        let found = memory(&Wanted::server(1_000_000), &room);
        assert_eq!(found.by_hand, ["give /sys/fs/cgroup/app more memory"]);
        assert!(found.limit.expect("a limit").because.contains("/sys/fs/cgroup/app"));
        assert_eq!(memory(&Wanted::server(1), &Room::default()).verdict, Verdict::Unknown);
    }
}
