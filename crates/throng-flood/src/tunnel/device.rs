//! The TUN device of one client thread: packets that the kernel routes to the clients' addresses
//! are read from it, and what clients send is written to it. It vanishes with the process.
//!
//! The kernel hands over large segments whole and leaves checksums open (`IFF_VNET_HDR` with TCP
//! segmentation offload), so that one read brings up to 64 KiB.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::ends::{Addresses, DEVICE_PREFIX, DEVICES_MAX};
use super::packet::{self, CHECKSUM_AT, HEADERS_BYTES_MAX, IP_BYTES, Segment};
use super::stack::Wire;

const NODE: &str = "/dev/net/tun";

/// As on Ethernet.
const MTU: u16 = 1500;

/// Bytes of a segment that fit into a packet.
pub(super) const SEGMENT_BYTES_MAX: usize = MTU as usize - HEADERS_BYTES_MAX;

/// The head before each packet (`struct virtio_net_hdr`).
const HEAD_BYTES: usize = 10;

/// The head of a segment whose checksum is open (`VIRTIO_NET_HDR_F_NEEDS_CSUM`): where TCP begins,
/// and where its checksum is from there.
const HEAD: [u8; HEAD_BYTES] = {
    let mut head = [0; HEAD_BYTES];
    head[0] = 1;
    let [low, high] = (IP_BYTES as u16).to_ne_bytes();
    (head[6], head[7]) = (low, high);
    let [low, high] = (CHECKSUM_AT as u16).to_ne_bytes();
    (head[8], head[9]) = (low, high);
    head
};

/// What a read may bring, at most.
pub(super) const READ_BYTES_MAX: usize = HEAD_BYTES + 65_535;

/// Packets that wait to be read, at most: what does not fit is lost, and comes
/// [`PATIENCE`](super::PATIENCE) later. The kernel keeps a pointer for each place, in one piece of
/// memory of 4 MiB at most.
const QUEUE: u32 = 500_000;

/// Why no tunnel can be had.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The kernel has no TUN.
    #[error("the network tunnel needs {NODE}, which is not there: load the kernel's module tun")]
    NoNode,
    /// The process may not.
    #[error(
        "the network tunnel needs the right to make network devices: run as root, or with \
         CAP_NET_ADMIN"
    )]
    NotAllowed,
    /// Other processes have them all.
    #[error("all {DEVICES_MAX} tunnel devices of this machine are in use: end other floods first")]
    NoneLeft,
    /// Anything else.
    #[error("the network device {name} cannot be made: {error}")]
    Device {
        /// As `ip link` shows it.
        name: String,
        /// As the kernel says it.
        error: io::Error,
    },
    /// Packets to and from 127.0.0.0/8 cannot pass the device.
    #[error(
        "clients of a tunnel cannot reach 127.0.0.1, because {path} cannot be written ({error}): \
         let the server listen on another address of this machine"
    )]
    Loopback {
        /// The kernel's setting.
        path: String,
        /// As the kernel says it.
        error: io::Error,
    },
    /// The server is elsewhere.
    #[error(
        "{0} is not an address of this machine: a tunnel ends in this kernel, so use the network \
         sockets"
    )]
    Elsewhere(IpAddr),
    /// There is no IPv6 in it.
    #[error("{0} is not an IPv4 address, and a tunnel has no others: give 127.0.0.1, say")]
    NotV4(IpAddr),
}

/// See the module.
pub(super) struct Device {
    device: SyncDevice,
    name: String,
    addresses: Addresses,
    packet: Vec<u8>,
    /// Packets that the kernel did not take.
    refused: u64,
}

impl Device {
    /// Makes the first device that nobody has yet.
    pub(super) fn open(reaches_loopback: bool) -> Result<Device, TunnelError> {
        if !Path::new(NODE).exists() {
            return Err(TunnelError::NoNode);
        }
        for number in 0..DEVICES_MAX {
            let name = format!("throng{number}");
            let addresses = Addresses::of_device(number);
            let built = DeviceBuilder::new()
                .name(name.as_str())
                .offload(true)
                .mtu(MTU)
                .tx_queue_len(QUEUE)
                .ipv4(addresses.kernel(), DEVICE_PREFIX as u8, None)
                .build_sync();
            let built = built.and_then(|device| {
                device.set_nonblocking(true)?;
                Ok(device)
            });
            let device = match built {
                Ok(device) => device,
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => continue,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(TunnelError::NotAllowed);
                }
                Err(error) => return Err(TunnelError::Device { name, error }),
            };
            addresses
                .route(device.if_index().unwrap_or_default())
                .replace()
                .map_err(|error| TunnelError::Device { name: name.clone(), error })?;
            if reaches_loopback {
                let path = format!("/proc/sys/net/ipv4/conf/{name}/route_localnet");
                fs::write(&path, "1").map_err(|error| TunnelError::Loopback { path, error })?;
            }
            let packet = Vec::with_capacity(HEAD_BYTES + usize::from(MTU));
            return Ok(Device { device, name, addresses, packet, refused: 0 });
        }
        Err(TunnelError::NoneLeft)
    }

    pub(super) fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The next packet, if there is one.
    pub(super) fn read<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        // Nothing but an empty queue is to be expected; whatever else it is, TCP sends it again.
        let bytes = self.device.recv(buffer).ok()?;
        Some(buffer.get(HEAD_BYTES..bytes).unwrap_or_default())
    }

    /// Sleeps until there is a packet, or something to read from `wake`; whether the latter is so.
    pub(super) fn wait(&self, wake: &OwnedFd, sleep: Duration) -> bool {
        let mut both = [
            PollFd::new(wake, PollFlags::IN),
            PollFd::from_borrowed_fd(self.device.as_fd(), PollFlags::IN),
        ];
        let sleep =
            Timespec { tv_sec: sleep.as_secs() as i64, tv_nsec: sleep.subsec_nanos().into() };
        // A signal ends the sleep too, which does no harm.
        let _ = poll(&mut both, Some(&sleep));
        both[0].revents().contains(PollFlags::IN)
    }

    /// Packets that were lost so far: those that did not fit into the queue, and those that the
    /// kernel did not take.
    pub(super) fn lost(&self) -> u64 {
        let path = format!("/sys/class/net/{}/statistics/tx_dropped", self.name);
        let dropped = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        dropped.unwrap_or(0) + self.refused
    }
}

impl Wire for Device {
    fn send(&mut self, segment: &Segment<'_>) {
        self.packet.clear();
        self.packet.extend_from_slice(&HEAD);
        packet::write(segment, &mut self.packet);
        self.refused += u64::from(self.device.send(&self.packet).is_err());
    }
}

/// The target's addresses, if a tunnel reaches them: those of this machine.
pub fn reachable(targets: &[SocketAddr]) -> Result<Vec<SocketAddrV4>, TunnelError> {
    let reach = |target: &SocketAddr| match target {
        SocketAddr::V6(target) => Err(TunnelError::NotV4((*target.ip()).into())),
        SocketAddr::V4(target) => {
            let ip = *target.ip();
            // Only own addresses can be bound to. That of all addresses means loopback.
            match UdpSocket::bind((ip, 0)) {
                Ok(_) if ip.is_unspecified() => {
                    Ok(SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, target.port()))
                }
                Ok(_) => Ok(*target),
                Err(_) => Err(TunnelError::Elsewhere(ip.into())),
            }
        }
    };
    targets.iter().map(reach).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_reached() {
        let reach = |text: &str| reachable(&[text.parse().unwrap()]).map_err(|e| e.to_string());
        assert_eq!(reach("127.0.0.1:80").unwrap(), ["127.0.0.1:80".parse().unwrap()]);
        assert_eq!(reach("0.0.0.0:80").unwrap(), ["127.0.0.1:80".parse().unwrap()]);
        assert!(reach("203.0.113.9:80").unwrap_err().contains("not an address of this machine"));
        assert!(reach("[::1]:80").unwrap_err().contains("not an IPv4 address"));
    }
}
