//! A TLS connection without its socket, on its way to another thread or process.
//!
//! In a handoff, and in frozen state, these bytes stand before the content that was opened already.
//! Integers are little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | 0: nothing was answered yet; 1: the handshake is done |
//! | 2 + n | the frozen halves, as `throng-tls` writes them; empty if nothing was answered |
//! | 4 + n | records that came and are not opened, the last of them incomplete |
//! | 4 + n | the rest of what the socket took a part of, which goes before anything else |
//! | 4 + n | the user of the client's certificate; empty if it names none |
//!
//! The user has from and until when the certificate is valid, in seconds since 1970, with 4 bytes
//! each, and the name.
//!
//! The state moves: the sender has forgotten it before the bytes leave.

use throng_tls::{CertifiedUser, FROZEN_BYTES_MAX, FrozenError, Incoming, Outgoing, freeze, thaw};
use zeroize::Zeroize as _;

/// A TLS connection after its handshake, without its socket.
#[derive(Debug)]
pub struct TlsConnection {
    pub outgoing: Outgoing,
    pub incoming: Incoming,
    /// Records that came and are not opened yet. What the socket has comes after them.
    pub inbound: Vec<u8>,
    /// The rest of what the socket took a part of. It has to be written before anything else.
    pub outbound: Vec<u8>,
    /// The user that the client's certificate names, if there is one.
    pub user: Option<Box<CertifiedUser>>,
}

/// The state of a TLS connection that travels.
#[derive(Debug)]
pub(crate) enum Carried {
    /// Nothing was answered yet: the handshake begins with these bytes.
    New(Vec<u8>),
    Established(Box<TlsConnection>),
}

/// The bytes of a handoff; zeros when they are dropped, for they may be keys.
pub(crate) struct Packed(Vec<u8>);

impl Drop for Packed {
    fn drop(&mut self) {
        self.0.as_mut_slice().zeroize();
    }
}

impl Packed {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The state again, of bytes that were not sent.
    pub(crate) fn unpack(mut self) -> Result<Carried, TlsStateError> {
        Carried::read(&mut self.0).map(|(carried, _)| carried)
    }
}

/// The bytes before the content of a handoff are not the state of a TLS connection, or it cannot
/// travel. The connection has to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TlsStateError {
    /// The halves cannot be frozen or thawed.
    #[error(transparent)]
    Halves(#[from] FrozenError),
    /// The bytes end too early, or have an unknown value.
    #[error("the state of a TLS connection is damaged")]
    Damaged,
}

const NEW: u8 = 0;
const ESTABLISHED: u8 = 1;
const FIXED_BYTES: usize = 1 + 2 + 4 + 4 + 4;

impl Carried {
    /// Writes the state, and `content` behind it.
    pub(crate) fn pack(self, content: &[u8]) -> Result<Packed, TlsStateError> {
        let (stage, frozen, inbound, outbound, user) = match self {
            Carried::New(inbound) => (NEW, None, inbound, Vec::new(), Vec::new()),
            Carried::Established(connection) => {
                let TlsConnection { outgoing, incoming, inbound, outbound, user } = *connection;
                let user = user.map_or_else(Vec::new, |user| user_bytes(&user));
                (ESTABLISHED, Some(freeze(outgoing, incoming)?), inbound, outbound, user)
            }
        };
        let frozen = frozen.as_ref().map_or(&[][..], |frozen| frozen.as_bytes());
        // At once as long as it gets: a vector that grows would leave keys behind.
        let parts = [&inbound, &outbound, &user];
        let parts_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let length = FIXED_BYTES + frozen.len() + parts_bytes + content.len();
        let mut bytes = Vec::with_capacity(length);
        bytes.push(stage);
        let frozen_bytes = u16::try_from(frozen.len()).map_err(|_| TlsStateError::Damaged)?;
        bytes.extend_from_slice(&frozen_bytes.to_le_bytes());
        bytes.extend_from_slice(frozen);
        for part in parts {
            let length = u32::try_from(part.len()).map_err(|_| TlsStateError::Damaged)?;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(part);
        }
        bytes.extend_from_slice(content);
        debug_assert_eq!(bytes.len(), length);
        Ok(Packed(bytes))
    }

    /// Reads the state at the front of `bytes`, where zeros take the place of keys. Returns its
    /// length, too: content follows.
    pub(crate) fn read(bytes: &mut [u8]) -> Result<(Carried, usize), TlsStateError> {
        let length = bytes.len();
        let mut rest = &mut *bytes;
        let [stage] = take_array(&mut rest)?;
        let frozen_bytes = usize::from(u16::from_le_bytes(take_array(&mut rest)?));
        if frozen_bytes > FROZEN_BYTES_MAX {
            return Err(TlsStateError::Damaged);
        }
        let frozen = take(&mut rest, frozen_bytes)?;
        let halves = (stage == ESTABLISHED).then(|| thaw(frozen)).transpose();
        frozen.zeroize();
        let halves = halves?;
        let inbound = take_part(&mut rest)?;
        let outbound = take_part(&mut rest)?;
        let user = user_of(&take_part(&mut rest)?)?;
        let used = length - rest.len();
        let carried = match halves {
            Some((outgoing, incoming)) => {
                let connection = TlsConnection { outgoing, incoming, inbound, outbound, user };
                Carried::Established(Box::new(connection))
            }
            None if (stage, frozen_bytes) == (NEW, 0) && outbound.is_empty() && user.is_none() => {
                Carried::New(inbound)
            }
            None => return Err(TlsStateError::Damaged),
        };
        Ok((carried, used))
    }
}

fn user_bytes(user: &CertifiedUser) -> Vec<u8> {
    let times = [user.from_s, user.until_s].map(u32::to_le_bytes);
    [times.as_flattened(), user.name.as_bytes()].concat()
}

fn user_of(mut bytes: &[u8]) -> Result<Option<Box<CertifiedUser>>, TlsStateError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut time = || bytes.split_off(..4).and_then(|time| time.try_into().ok());
    let (from_s, until_s) = time().zip(time()).ok_or(TlsStateError::Damaged)?;
    let name = str::from_utf8(bytes).map_err(|_| TlsStateError::Damaged)?.into();
    let [from_s, until_s] = [from_s, until_s].map(u32::from_le_bytes);
    Ok(Some(Box::new(CertifiedUser { name, from_s, until_s })))
}

fn take_part(rest: &mut &mut [u8]) -> Result<Vec<u8>, TlsStateError> {
    let length = u32::from_le_bytes(take_array(rest)?) as usize;
    Ok(take(rest, length)?.to_vec())
}

fn take_array<const COUNT: usize>(rest: &mut &mut [u8]) -> Result<[u8; COUNT], TlsStateError> {
    take(rest, COUNT)?.try_into().map_err(|_| TlsStateError::Damaged)
}

fn take<'b>(rest: &mut &'b mut [u8], count: usize) -> Result<&'b mut [u8], TlsStateError> {
    if count > rest.len() {
        return Err(TlsStateError::Damaged);
    }
    let (taken, after) = std::mem::take(rest).split_at_mut(count);
    *rest = after;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use throng_tls::testing;
    use throng_tls::{Established, Suite};

    use super::*;

    fn established(suite: Suite) -> (TlsConnection, Established) {
        let (server, client) = testing::connect(suite);
        let Established { outgoing, incoming, .. } = server;
        let (inbound, outbound) = (b"half a record".to_vec(), b"rest".to_vec());
        let user = CertifiedUser { name: "ann".into(), from_s: 7, until_s: u32::MAX };
        (TlsConnection { outgoing, incoming, inbound, outbound, user: Some(user.into()) }, client)
    }

    #[test]
    fn a_connection_goes_on_where_it_was_with_what_is_half_done() {
        for suite in Suite::ALL {
            let (connection, mut client) = established(suite);
            let mut bytes = Carried::Established(Box::new(connection))
                .pack(b"GET / HTTP/1.1")
                .unwrap()
                .bytes()
                .to_vec();
            let (carried, used) = Carried::read(&mut bytes).unwrap();
            assert_eq!(&bytes[used..], b"GET / HTTP/1.1");
            let Carried::Established(mut thawed) = carried else { panic!("it was established") };
            assert_eq!(
                (&thawed.inbound[..], &thawed.outbound[..]),
                (&b"half a record"[..], &b"rest"[..])
            );
            let user = thawed.user.as_deref().map(|user| (&*user.name, user.from_s, user.until_s));
            assert_eq!(user, Some(("ann", 7, u32::MAX)));
            let mut record = Vec::new();
            let sealed = thawed.outgoing.seal([&b"hello"[..]], &mut record).unwrap();
            thawed.outgoing.keep(sealed);
            let opened = client.incoming.open(&mut client.outgoing, &mut record);
            assert_eq!((opened.end, &record[..opened.content_bytes]), (None, &b"hello"[..]));
        }
    }

    #[test]
    fn keys_are_zeros_once_they_are_read() {
        let (connection, _client) = established(Suite::Tls13Aes128Gcm);
        let mut bytes =
            Carried::Established(Box::new(connection)).pack(&[]).unwrap().bytes().to_vec();
        let frozen_bytes = usize::from(u16::from_le_bytes([bytes[1], bytes[2]]));
        assert!(bytes[3..3 + frozen_bytes].iter().any(|byte| *byte != 0));
        Carried::read(&mut bytes).unwrap();
        assert!(bytes[3..3 + frozen_bytes].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_connection_that_nobody_answered_carries_what_came() {
        let mut bytes = Carried::New(b"\x16\x03".to_vec()).pack(&[]).unwrap().bytes().to_vec();
        let length = bytes.len();
        let (carried, used) = Carried::read(&mut bytes).unwrap();
        assert!(matches!(carried, Carried::New(inbound) if inbound == b"\x16\x03"));
        assert_eq!(used, length);
    }

    #[test]
    fn damaged_state_is_refused() {
        let (connection, _client) = established(Suite::Tls13ChaCha20Poly1305);
        let packed = Carried::Established(Box::new(connection)).pack(&[]).unwrap();
        for length in 0..packed.bytes().len() {
            let mut cut = packed.bytes()[..length].to_vec();
            assert!(Carried::read(&mut cut).is_err(), "{length}");
        }
        for at in 0..3 {
            let mut changed = packed.bytes().to_vec();
            changed[at] ^= 0x80;
            assert!(Carried::read(&mut changed).is_err(), "{at}");
        }
    }
}
