//! The TUN device of one client thread. The kernel routes packets for the clients' addresses to
//! it, and clients write theirs to it. The device goes away with its descriptor.
//!
//! The kernel passes large segments unsplit and without checksums (`IFF_VNET_HDR` with TCP
//! segmentation offload), so one read returns up to 64 KiB.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::addresses::{Addresses, DEVICE_PREFIX, DEVICES_MAX};
use crate::packet::{self, CHECKSUM_AT, HEADERS_BYTES_MAX, IP_BYTES, Segment};
use crate::stack::PacketSink;

const NODE: &str = "/dev/net/tun";

/// The MTU of Ethernet.
const MTU: u16 = 1500;

/// Payload bytes that fit into one packet.
pub(crate) const SEGMENT_BYTES_MAX: usize = MTU as usize - HEADERS_BYTES_MAX;

/// The header before each packet (`struct virtio_net_hdr`).
const HEAD_BYTES: usize = 10;

/// The header of a segment whose checksum the kernel would complete
/// (`VIRTIO_NET_HDR_F_NEEDS_CSUM`): the offset of the TCP header, and of the checksum in it.
const HEAD: [u8; HEAD_BYTES] = {
    let mut head = [0; HEAD_BYTES];
    head[0] = 1;
    let [low, high] = (IP_BYTES as u16).to_ne_bytes();
    (head[6], head[7]) = (low, high);
    let [low, high] = (CHECKSUM_AT as u16).to_ne_bytes();
    (head[8], head[9]) = (low, high);
    head
};

/// The most bytes that one read returns.
pub(crate) const READ_BYTES_MAX: usize = HEAD_BYTES + 65_535;

/// Packets in the device's queue. The kernel drops what does not fit and retransmits it
/// [`RTO_MIN`](super::RTO_MIN) later. It allocates one pointer for each place, in one block of at
/// most 4 MiB.
const QUEUE: u32 = 500_000;

/// Why a tunnel cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The kernel has no TUN device node.
    #[error("the network tunnel needs {NODE}, which is not there: load the kernel's module tun")]
    NoNode,
    /// The process lacks the capability.
    #[error(
        "the network tunnel needs the right to make network devices: run as root, or with \
         CAP_NET_ADMIN"
    )]
    NotAllowed,
    /// Other processes use all devices.
    #[error("all {DEVICES_MAX} tunnel devices of this machine are in use: end other floods first")]
    NoneLeft,
    /// Any other error of the device.
    #[error("the network device {name} cannot be made: {error}")]
    Device {
        /// The device name, as `ip link` shows it.
        name: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The kernel does not let packets from and to 127.0.0.0/8 pass the device.
    #[error(
        "clients of a tunnel cannot reach 127.0.0.1, because {path} cannot be written ({error}): \
         let the server listen on another address of this machine"
    )]
    Loopback {
        /// The kernel setting that must be written.
        path: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The target is on another machine.
    #[error(
        "{0} is not an address of this machine: a tunnel ends in this kernel, so use the network \
         sockets"
    )]
    Elsewhere(IpAddr),
    /// The tunnel supports IPv4 only.
    #[error("{0} is not an IPv4 address, and a tunnel has no others: give 127.0.0.1, say")]
    NotV4(IpAddr),
}

/// A TUN device; see the module documentation.
pub(crate) struct Device {
    device: SyncDevice,
    name: String,
    addresses: Addresses,
    packet: Vec<u8>,
    /// Packets that the kernel did not accept.
    refused: u64,
}

impl Device {
    /// Creates the first device that is not in use.
    pub(crate) fn open(reaches_loopback: bool) -> Result<Device, TunnelError> {
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

    pub(crate) fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Reads the next packet, if there is one.
    pub(crate) fn read<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        // An empty queue is the only expected error. TCP retransmits after any other.
        let bytes = self.device.recv(buffer).ok()?;
        Some(buffer.get(HEAD_BYTES..bytes).unwrap_or_default())
    }

    /// Waits for a packet, `wake`, or the timeout. Returns whether `wake` is readable.
    pub(crate) fn wait(&self, wake: &OwnedFd, sleep: Duration) -> bool {
        let mut both = [
            PollFd::new(wake, PollFlags::IN),
            PollFd::from_borrowed_fd(self.device.as_fd(), PollFlags::IN),
        ];
        let sleep =
            Timespec { tv_sec: sleep.as_secs() as i64, tv_nsec: sleep.subsec_nanos().into() };
        // A signal ends the wait early; the caller's loop copes with that.
        let _ = poll(&mut both, Some(&sleep));
        both[0].revents().contains(PollFlags::IN)
    }

    /// Packets lost so far: dropped from a full queue, or not accepted by the kernel.
    pub(crate) fn lost(&self) -> u64 {
        let path = format!("/sys/class/net/{}/statistics/tx_dropped", self.name);
        let dropped = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        dropped.unwrap_or(0) + self.refused
    }
}

impl PacketSink for Device {
    fn send(&mut self, segment: &Segment<'_>) {
        self.packet.clear();
        self.packet.extend_from_slice(&HEAD);
        packet::write(segment, &mut self.packet);
        self.refused += u64::from(self.device.send(&self.packet).is_err());
    }
}

/// The targets as a tunnel reaches them. Fails unless all are IPv4 addresses of this machine.
pub fn reachable(targets: &[SocketAddr]) -> Result<Vec<SocketAddrV4>, TunnelError> {
    let reach = |target: &SocketAddr| match target {
        SocketAddr::V6(target) => Err(TunnelError::NotV4((*target.ip()).into())),
        SocketAddr::V4(target) => {
            let ip = *target.ip();
            // Only local addresses can be bound. The unspecified address means loopback.
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
