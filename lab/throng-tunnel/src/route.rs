//! The kernel's route to a device's clients, set through rtnetlink.
//!
//! The route raises the kernel's minimum retransmission timeout from 0.2 s to [`RTO_MIN`]: a
//! packet that waits in the device's queue is not lost, and a retransmission would only queue
//! behind it.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Draining a full queue takes two seconds (4 µs a packet), or five on a busy machine.
pub const RTO_MIN: Duration = Duration::from_secs(5);

/// Sizes and codes of a netlink message and of the route header in it.
const HEAD_BYTES: usize = 16;
const NEW_ROUTE: u16 = 24;
const ERROR: u16 = 2;
const REQUEST_ACK_REPLACE_CREATE: u16 = 0x1 | 0x4 | 0x100 | 0x400;

const FAMILY_INET: u8 = 2;
const TABLE_MAIN: u8 = 254;
const PROTOCOL_KERNEL: u8 = 2;
const SCOPE_LINK: u8 = 253;
const UNICAST: u8 = 1;

/// Attributes of a route message.
const DESTINATION: u16 = 1;
const DEVICE: u16 = 4;
const SOURCE: u16 = 7;
const METRICS: u16 = 8;

/// Route metrics: the bit set of locked metrics, and the minimum retransmission timeout in ms.
const METRIC_LOCK: u16 = 1;
const METRIC_RTO_MIN: u16 = 13;

/// The network of one device.
pub(crate) struct Route {
    pub(crate) device: u32,
    pub(crate) network: Ipv4Addr,
    pub(crate) prefix: u8,
    pub(crate) kernel: Ipv4Addr,
}

impl Route {
    /// Replaces the route that the kernel created with the device's address.
    pub(crate) fn replace(&self) -> io::Result<()> {
        let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, None)?;
        rustix::net::send(&socket, &self.request(), SendFlags::empty())?;
        let mut answer = [0_u8; 1024];
        let (_, bytes) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
        let answer = &answer[..bytes.min(answer.len())];
        let kind = answer.get(4..6).and_then(|two| two.try_into().ok()).map(u16::from_ne_bytes);
        let code = answer.get(HEAD_BYTES..HEAD_BYTES + 4).and_then(|four| four.try_into().ok());
        match (kind, code.map(i32::from_ne_bytes)) {
            (Some(ERROR), Some(0)) => Ok(()),
            (Some(ERROR), Some(code)) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
            _ => Err(io::Error::other("the kernel's answer about its route cannot be read")),
        }
    }

    fn request(&self) -> Vec<u8> {
        let mut request = vec![0; HEAD_BYTES];
        request.extend([FAMILY_INET, self.prefix, 0, 0]);
        request.extend([TABLE_MAIN, PROTOCOL_KERNEL, SCOPE_LINK, UNICAST, 0, 0, 0, 0]);
        put(&mut request, DESTINATION, &self.network.octets());
        put(&mut request, DEVICE, &self.device.to_ne_bytes());
        put(&mut request, SOURCE, &self.kernel.octets());
        let mut metrics = Vec::new();
        put(&mut metrics, METRIC_LOCK, &(1_u32 << METRIC_RTO_MIN).to_ne_bytes());
        put(&mut metrics, METRIC_RTO_MIN, &(RTO_MIN.as_millis() as u32).to_ne_bytes());
        put(&mut request, METRICS, &metrics);
        let length = request.len() as u32;
        request[0..4].copy_from_slice(&length.to_ne_bytes());
        request[4..6].copy_from_slice(&NEW_ROUTE.to_ne_bytes());
        request[6..8].copy_from_slice(&REQUEST_ACK_REPLACE_CREATE.to_ne_bytes());
        request
    }
}

/// Appends an attribute. The length of `value` must be a multiple of four.
fn put(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = (4 + value.len()) as u16;
    to.extend(length.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend_from_slice(value);
}
