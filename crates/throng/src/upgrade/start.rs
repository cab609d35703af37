//! The parts of a server's start that differ if it takes over from a running one.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use throng_access::session::Tagger;
use throng_control::Control;
use throng_core::Channels;
use throng_edge::{Edge, StartError};
use throng_handover::message::DescriptorKind;
use tokio::runtime::Runtime;

use super::arrival::Arrival;
use super::parent;
use crate::journals::{self, Journals};
use crate::settings::Settings;

/// Lets the workers of the running server act here, and the journals be written to. When this
/// returns, they act, and that one does no more; if it fails, that one goes on.
pub(crate) fn take_over(
    arrival: Option<&mut Arrival>,
    edge: &Edge,
    channels: &Channels,
    journals: &Journals,
) -> Result<()> {
    let Some(arrival) = arrival else { return Ok(()) };
    arrival.finish(|| {
        journals.iter().for_each(|journal| journal.begin());
        edge.take_over();
    })?;
    let moved = channels.moved_channels();
    if moved > 0 {
        tracing::warn!(
            "channels in use that have another journal now: {moved}; their logs begin anew, and \
             their subscribers are disconnected to resume"
        );
    }
    Ok(())
}

/// Receives the connections that the control plane of the running server still has.
pub(crate) fn receive_rest(runtime: &Runtime, arrival: Option<Arrival>, control: &Arc<Control>) {
    let Some(arrival) = arrival else { return };
    let control = Arc::clone(control);
    runtime.spawn_blocking(move || arrival.receive_rest(&control));
}

/// Makes tags of sessions, keys of limits and logins: the running server's, if there is one.
pub(crate) fn tagger(
    runtime: &Runtime,
    settings: &Settings,
    arrival: Option<&Arrival>,
) -> Result<Tagger> {
    let tagger = journals::tagger(runtime, settings, arrival.map(Arrival::tagger));
    tagger.or_else(Tagger::random).context("the system has no random bytes")
}

/// The listener of the running server at this address, or a new one.
pub(crate) fn listener(
    address: SocketAddr,
    passed: Option<OwnedFd>,
    open: impl FnOnce(SocketAddr) -> Result<TcpListener, StartError>,
) -> Result<TcpListener, StartError> {
    let passed = passed.map(TcpListener::from);
    let is_it = |listener: &TcpListener| {
        listener.local_addr().is_ok_and(|its| its.ip() == address.ip())
            && (address.port() == 0
                || listener.local_addr().is_ok_and(|its| its.port() == address.port()))
    };
    match passed.filter(is_it) {
        Some(listener) => Ok(listener),
        None => open(address),
    }
}

/// Copies of the listeners that no worker has, for a process that takes over.
pub(crate) fn copies(
    admin: Option<&impl AsFd>,
    redirect: Option<&impl AsFd>,
) -> Result<Vec<(DescriptorKind, OwnedFd)>> {
    let admin = admin.map(|own| (DescriptorKind::Admin, own.as_fd()));
    let redirect = redirect.map(|own| (DescriptorKind::Redirect, own.as_fd()));
    let own = admin.into_iter().chain(redirect);
    let copies: io::Result<_> =
        own.map(|(kind, own)| Ok((kind, own.try_clone_to_owned()?))).collect();
    copies.context("cannot keep the listeners for an upgrade")
}

/// Why this server cannot be upgraded.
pub(crate) fn obstacle() -> Option<String> {
    if parent::is_needed() && !parent::is_possible() {
        return Some(
            "this process has to stay, for the service would end with it, and cannot: /proc is not \
             mounted; drain it instead"
                .to_owned(),
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_taken_over_only_at_its_address() {
        let open = |address| Ok(TcpListener::bind(address).unwrap());
        let running = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = running.local_addr().unwrap();
        let same = listener(address, Some(running.into()), open).unwrap();
        assert_eq!(same.local_addr().unwrap(), address);
        let other: SocketAddr = "127.0.0.2:0".parse().unwrap();
        let new = listener(other, Some(same.into()), open).unwrap();
        assert_eq!(new.local_addr().unwrap().ip(), other.ip());
    }
}
