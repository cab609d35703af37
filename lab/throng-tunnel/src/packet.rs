//! Parses and writes IPv4 packets with TCP segments in them.
//!
//! Packets within one machine cannot be damaged, so TCP checksums are left to the offload, as with
//! a network card: received ones are not verified, and sent ones hold only the checksum of the
//! pseudo header, which the kernel would complete if necessary (`CHECKSUM_PARTIAL`). The kernel
//! does verify the IPv4 header checksum, so that one is complete.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Bytes of an IPv4 header without options.
pub(crate) const IP_BYTES: usize = 20;

/// Bytes of a TCP header without options.
const TCP_BYTES: usize = 20;

/// Bytes of the maximum segment size option.
const MSS_OPTION_BYTES: usize = 4;

/// The most header bytes of a packet that this module writes.
pub(crate) const HEADERS_BYTES_MAX: usize = IP_BYTES + TCP_BYTES + MSS_OPTION_BYTES;

/// Offset of the checksum in the TCP header.
pub(crate) const CHECKSUM_AT: usize = 16;

const PROTOCOL_TCP: u8 = 6;
const TIME_TO_LIVE: u8 = 64;
const DO_NOT_FRAGMENT: u16 = 0x4000;

/// Any of these bits marks a fragment: "more fragments", or an offset.
const FRAGMENT_MASK: u16 = 0x3fff;

/// The flags of a TCP header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    pub(crate) const FIN: Flags = Flags(0x01);
    pub(crate) const SYN: Flags = Flags(0x02);
    pub(crate) const RST: Flags = Flags(0x04);
    pub(crate) const PSH: Flags = Flags(0x08);
    pub(crate) const ACK: Flags = Flags(0x10);

    pub(crate) const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    pub(crate) const fn has(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }
}

/// A TCP segment with its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) from: SocketAddrV4,
    pub(crate) to: SocketAddrV4,
    pub(crate) sequence: u32,
    pub(crate) acknowledged: u32,
    pub(crate) flags: Flags,
    /// Bytes that the sender can receive now.
    pub(crate) window: u16,
    /// The maximum segment size option. Written only with `SYN`, and not parsed.
    pub(crate) max_segment_bytes: Option<u16>,
    pub(crate) payload: &'a [u8],
}

impl Segment<'_> {
    /// Its length in sequence numbers: the payload, and one each for `SYN` and `FIN`.
    pub(crate) fn length(&self) -> u32 {
        // A packet has less than 2^16 bytes.
        self.payload.len() as u32
            + u32::from(self.flags.has(Flags::SYN))
            + u32::from(self.flags.has(Flags::FIN))
    }
}

/// Parses a packet; `None` if it is incomplete, a fragment, or not TCP over IPv4.
pub(crate) fn parse(packet: &[u8]) -> Option<Segment<'_>> {
    let ip = packet.first_chunk::<IP_BYTES>()?;
    let two = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
    let is_fragment = two(6) & FRAGMENT_MASK != 0;
    if ip[0] >> 4 != 4 || ip[9] != PROTOCOL_TCP || is_fragment {
        return None;
    }
    let ip_bytes = usize::from(ip[0] & 15) * 4;
    let segment = packet.get(ip_bytes.max(IP_BYTES)..usize::from(two(2)))?;
    let tcp = segment.first_chunk::<TCP_BYTES>()?;
    let two = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let four = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    let tcp_bytes = usize::from(tcp[12] >> 4) * 4;
    Some(Segment {
        from: SocketAddrV4::new(address(12), two(0)),
        to: SocketAddrV4::new(address(16), two(2)),
        sequence: four(4),
        acknowledged: four(8),
        flags: Flags(tcp[13]),
        window: two(14),
        max_segment_bytes: None,
        payload: segment.get(tcp_bytes.max(TCP_BYTES)..)?,
    })
}

/// Appends the packet of a segment. Headers and payload must fit into 2^16 bytes.
pub(crate) fn write(segment: &Segment<'_>, to: &mut Vec<u8>) {
    let option_bytes = if segment.max_segment_bytes.is_some() { MSS_OPTION_BYTES } else { 0 };
    let tcp_bytes = TCP_BYTES + option_bytes;
    let total = (IP_BYTES + tcp_bytes + segment.payload.len()) as u16;
    let (source, destination) = (segment.from.ip().octets(), segment.to.ip().octets());

    let mut ip = [0; IP_BYTES];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip[6..8].copy_from_slice(&DO_NOT_FRAGMENT.to_be_bytes());
    ip[8] = TIME_TO_LIVE;
    ip[9] = PROTOCOL_TCP;
    ip[12..16].copy_from_slice(&source);
    ip[16..20].copy_from_slice(&destination);
    let checksum = !folded(sum(&ip));
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    to.extend_from_slice(&ip);

    let tcp_length = total - IP_BYTES as u16;
    let pseudo = sum(&source) + sum(&destination);
    let pseudo = folded(pseudo + u32::from(PROTOCOL_TCP) + u32::from(tcp_length));
    let mut tcp = [0; TCP_BYTES];
    tcp[0..2].copy_from_slice(&segment.from.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&segment.to.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&segment.sequence.to_be_bytes());
    tcp[8..12].copy_from_slice(&segment.acknowledged.to_be_bytes());
    tcp[12] = ((tcp_bytes / 4) as u8) << 4;
    tcp[13] = segment.flags.0;
    tcp[14..16].copy_from_slice(&segment.window.to_be_bytes());
    tcp[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&pseudo.to_be_bytes());
    to.extend_from_slice(&tcp);
    if let Some(bytes) = segment.max_segment_bytes {
        let [high, low] = bytes.to_be_bytes();
        to.extend_from_slice(&[2, MSS_OPTION_BYTES as u8, high, low]);
    }
    to.extend_from_slice(segment.payload);
}

/// The sum of 16-bit words, of an even number of bytes; at most 20, so that it cannot overflow.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum()
}

/// Folds a sum into 16 bits of ones' complement.
fn folded(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    // The first fold may carry again.
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segments() -> impl Strategy<Value = (Segment<'static>, Vec<u8>)> {
        let address = || {
            any::<(u32, u16)>().prop_map(|(ip, port)| SocketAddrV4::new(Ipv4Addr::from(ip), port))
        };
        let numbers = any::<(u32, u32, u8, u16, Option<u16>)>();
        let payload = prop::collection::vec(any::<u8>(), 0..3_000);
        (address(), address(), numbers, payload).prop_map(|(from, to, numbers, payload)| {
            let (sequence, acknowledged, flags, window, max_segment_bytes) = numbers;
            let flags = Flags(flags);
            let segment = Segment {
                from,
                to,
                sequence,
                acknowledged,
                flags,
                window,
                max_segment_bytes,
                payload: &[],
            };
            (segment, payload)
        })
    }

    /// The checksum of RFC 1071, computed word by word.
    fn checksum(parts: &[&[u8]]) -> u16 {
        let bytes = parts.concat();
        let mut sum = 0_u64;
        for two in bytes.chunks(2) {
            sum += u64::from(two[0]) << 8 | u64::from(two.get(1).copied().unwrap_or(0));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read((segment, payload) in segments()) {
            let segment = Segment { payload: &payload, ..segment };
            let mut packet = Vec::new();
            write(&segment, &mut packet);
            let read = parse(&packet);
            prop_assert_eq!(read, Some(Segment { max_segment_bytes: None, ..segment }));
            for end in 0..packet.len() {
                prop_assert_eq!(parse(&packet[..end]), None);
            }
        }

        #[test]
        fn checksums_are_what_the_kernel_expects((segment, payload) in segments()) {
            let segment = Segment { payload: &payload, ..segment };
            let mut packet = Vec::new();
            write(&segment, &mut packet);
            prop_assert_eq!(checksum(&[&packet[..IP_BYTES]]), 0);
            // Completes the checksum as the kernel would: over the segment and the partial sum in
            // it.
            let whole = checksum(&[&packet[IP_BYTES..]]);
            let at = IP_BYTES + CHECKSUM_AT;
            packet[at..at + 2].copy_from_slice(&whole.to_be_bytes());
            let length = ((packet.len() - IP_BYTES) as u16).to_be_bytes();
            let pseudo = [&packet[12..20], &[0, PROTOCOL_TCP], &length].concat();
            prop_assert_eq!(checksum(&[&pseudo, &packet[IP_BYTES..]]), 0);
        }

        #[test]
        fn whatever_comes_is_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&bytes);
        }
    }

    #[test]
    fn fragments_and_other_protocols_are_not_read() {
        let end = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
        let segment = Segment {
            from: end,
            to: end,
            sequence: 1,
            acknowledged: 2,
            flags: Flags::ACK,
            window: 3,
            max_segment_bytes: None,
            payload: b"x",
        };
        let mut packet = Vec::new();
        write(&segment, &mut packet);
        for (at, value) in [(0, 0x65), (9, 17), (6, 0x20), (7, 1)] {
            let mut other = packet.clone();
            other[at] = value;
            assert_eq!(parse(&other), None, "byte {at}");
        }
    }
}
