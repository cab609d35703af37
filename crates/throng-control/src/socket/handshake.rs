//! The handshakes of the admin listener. Those of the public one are the workers'.

use std::io;

use throng_tls::{Acceptor, Established, HandshakeError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::edge::TlsConnection;

/// Size of the first read. Most first flights fit.
const FIRST_BYTES: usize = 2 << 10;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ShakeError {
    /// The socket has ended or failed.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// The handshake failed. The client has been told, unless it speaks no TLS.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

/// Shakes hands with the client at the other end of `socket`. The caller limits the time, and the
/// number of those under way.
pub(crate) async fn shake_hands(
    socket: &mut TcpStream,
    acceptor: &Acceptor,
) -> Result<Box<TlsConnection>, ShakeError> {
    let mut inbound = Vec::with_capacity(FIRST_BYTES);
    // Before the first bytes, nothing is made that takes memory.
    read_more(socket, &mut inbound).await?;
    let mut handshake = acceptor.handshake()?;
    loop {
        let mut output = Vec::new();
        let progress = handshake.advance(&inbound, &mut output);
        // After an error it is the alert.
        socket.write_all(&output).await?;
        let progress = progress?;
        inbound.drain(..progress.used_bytes);
        if progress.is_done {
            break;
        }
        read_more(socket, &mut inbound).await?;
    }
    let Established { outgoing, incoming, peer } = handshake.finish()?;
    let user = peer.user.map(Box::new);
    Ok(Box::new(TlsConnection { outgoing, incoming, inbound, outbound: Vec::new(), user }))
}

async fn read_more(socket: &mut TcpStream, inbound: &mut Vec<u8>) -> io::Result<()> {
    match socket.read_buf(inbound).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}
