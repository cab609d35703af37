//! The state that moves besides the workers', as bytes.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use throng_access::revocation::PassedFile;
use throng_access::{KeptChange, KeptSubscriptions};
use throng_control::Handoff;
use throng_core::{Listener, MemoryEngine};
use throng_handover::channel::{Channel, ChannelError};
use throng_handover::message::Kind;
use throng_handover::records::RecordStream;

use crate::planes;
use crate::presence_events::PresenceShared;

/// Sends all logs, with idempotency keys and followers.
pub(super) fn send_logs(memory: &MemoryEngine, channel: &Channel) -> Result<(), ChannelError> {
    let mut records = RecordStream::new(channel);
    memory.freeze(|record| records.push(&record))?;
    records.finish()
}

/// Sends what the server keeps for users.
pub(super) fn send_kept(kept: &KeptSubscriptions, channel: &Channel) -> Result<(), ChannelError> {
    let mut records = RecordStream::new(channel);
    let mut sent = Ok(());
    freeze_kept(kept, |record| {
        if sent.is_ok() {
            sent = records.push(record);
        }
    });
    sent?;
    records.finish()
}

/// Sends what subscribers of presence events have been told, if any channel has them.
pub(super) fn send_presence_events(
    events: Option<&PresenceShared>,
    memory: &MemoryEngine,
    channel: &Channel,
) -> Result<(), ChannelError> {
    let mut records = RecordStream::new(channel);
    if let Some(events) = events {
        let events = events.lock().unwrap_or_else(PoisonError::into_inner);
        events.freeze(&memory.presence_cache().watched, |record| records.push(&record))?;
    }
    records.finish()
}

/// Sends the file of revocations, if there is one.
pub(super) fn send_revocations(
    file: Option<&PassedFile>,
    channel: &Channel,
) -> Result<(), ChannelError> {
    let descriptors: Vec<_> = file.into_iter().flat_map(PassedFile::descriptors).collect();
    channel.send_with(Kind::State, b"revocations", &descriptors)
}

/// Sends what the control plane has counted.
pub(super) fn send_control(counted: &[Vec<u8>], channel: &Channel) -> Result<(), ChannelError> {
    let mut records = RecordStream::new(channel);
    counted.iter().try_for_each(|record| records.push(record))?;
    records.finish()
}

/// How long nothing was delivered: milliseconds in 8 bytes.
pub(super) fn pack_pause(pause: Duration) -> [u8; 8] {
    (pause.as_millis() as u64).to_le_bytes()
}

/// Reads what [`pack_pause`] has written; `None` if it is something else.
pub(super) fn unpack_pause(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Subscriptions that the server keeps for users: a record for each, with the user's name and the
/// channels, each behind its length in two bytes.
fn freeze_kept(kept: &KeptSubscriptions, mut write: impl FnMut(&[u8])) {
    let mut record = Vec::new();
    kept.each_user(|user, channels| {
        record.clear();
        let mut put = |name: &str| {
            // Names are far shorter.
            record.extend_from_slice(&(name.len() as u16).to_le_bytes());
            record.extend_from_slice(name.as_bytes());
        };
        put(user);
        channels.for_each(&mut put);
        write(&record);
    });
}

/// Reads a record of [`freeze_kept`].
pub(super) fn thaw_kept(record: &[u8], kept: &KeptSubscriptions) -> Result<()> {
    let mut rest = record;
    let mut names = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk() {
        let name = behind.split_at_checked(usize::from(u16::from_le_bytes(*length)));
        let (name, behind) =
            name.ok_or_else(|| anyhow!("a user's kept subscriptions end early"))?;
        names.push(std::str::from_utf8(name)?.to_owned());
        rest = behind;
    }
    ensure!(rest.is_empty() && !names.is_empty(), "a user's kept subscriptions end early");
    let user = names.remove(0);
    let change = KeptChange::Replace(names);
    let plan = kept.plan(&user, &change, 0)?;
    kept.make(&user, &change, plan, drop);
    Ok(())
}

/// A connection of the control plane without its socket, behind a byte for its listener; `None` if
/// it cannot travel.
pub(super) fn pack(listener: Listener, handoff: Handoff) -> Option<(Vec<u8>, TcpStream)> {
    let (packed, stream) = planes::to_edge(handoff).pack()?;
    let mut bytes = vec![u8::from(listener == Listener::Admin)];
    bytes.extend_from_slice(&packed);
    Some((bytes, stream))
}

/// Reads what [`pack`] has written.
pub(super) fn unpack(mut bytes: Vec<u8>, socket: OwnedFd) -> io::Result<(Listener, Handoff)> {
    if bytes.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let listener = if bytes.remove(0) == 0 { Listener::Public } else { Listener::Admin };
    let handoff = throng_edge::Handoff::unpack(bytes, TcpStream::from(socket))?;
    Ok((listener, planes::from_edge(handoff)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_for_users_comes_out_as_it_went_in() {
        let kept = KeptSubscriptions::default();
        for (user, channels) in [("ann", vec!["a", "b"]), ("bob", vec!["b"])] {
            let change = KeptChange::Replace(channels.into_iter().map(str::to_owned).collect());
            let plan = kept.plan(user, &change, 0).unwrap();
            kept.make(user, &change, plan, drop);
        }
        let again = KeptSubscriptions::default();
        freeze_kept(&kept, |record| thaw_kept(record, &again).unwrap());
        assert_eq!(again.counts(), kept.counts());
        assert!(again.has("ann", "a") && again.has("ann", "b") && again.has("bob", "b"));
        assert!(thaw_kept(&[5, 0, b'x'], &again).is_err() && thaw_kept(&[], &again).is_err());
    }

    #[test]
    fn a_connection_keeps_its_bytes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let own = stream.local_addr().unwrap();
        let handoff = Handoff { stream, bytes: b"GET /".to_vec(), client: None, tls: None };
        let (bytes, stream) = pack(Listener::Admin, handoff).unwrap();
        let (listener, handoff) = unpack(bytes, stream.into()).unwrap();
        assert_eq!(listener, Listener::Admin);
        assert_eq!((handoff.bytes.as_slice(), handoff.tls.is_none()), (&b"GET /"[..], true));
        assert_eq!(handoff.stream.local_addr().unwrap(), own);
    }
}
