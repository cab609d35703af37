//! Serves TLS connections one after another, over blocking sockets: what it receives it sends back.
//!
//! `cargo run -p throng-tls --example serve_tls -- CERTIFICATE.pem KEY.pem [127.0.0.1:8443]`
//!
//! Try it with `openssl s_client -connect 127.0.0.1:8443`: a line `k` is a key update, `K` one that
//! asks for the server's.

use std::io::{Error, Read as _, Result, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use throng_tls::{
    Acceptor, Alert, End, Established, Incoming, LeastVersion, Outgoing, RECORD_BYTES_MAX,
    RecordFate, SealError, StreamEnd, provider, self_test,
};

/// How long a silent peer is waited for.
const SILENCE_MAX: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [certificate, key, rest @ ..] = &arguments[..] else {
        return Err(Error::other("usage: serve_tls CERTIFICATE.pem KEY.pem [ADDRESS]"));
    };
    self_test(&provider()).map_err(Error::other)?;
    let acceptor = acceptor(certificate, key)?;
    let listener = TcpListener::bind(rest.first().map_or("127.0.0.1:8443", String::as_str))?;
    let mut log = std::io::stderr();
    writeln!(log, "listening on {}", listener.local_addr()?)?;
    loop {
        let (socket, peer) = listener.accept()?;
        match serve(&acceptor, socket) {
            Ok(served) => writeln!(log, "{peer}: {served:?}")?,
            Err(error) => writeln!(log, "{peer}: {error}")?,
        }
    }
}

/// A server with this certificate and key, files in PEM.
pub(crate) fn acceptor(certificate: &str, key: &str) -> Result<Acceptor> {
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(Error::other)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(Error::other)?;
    let config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(LeastVersion::Tls12.versions())
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(Error::other)?;
    Ok(Acceptor::new(config))
}

/// How a connection went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// The number of bytes that came and went back.
    pub(crate) content_bytes: usize,
    /// The number of key updates that the peer asked for.
    pub(crate) key_updates: usize,
    /// What the peer or this side said at the end, if anything.
    pub(crate) end: Option<End>,
    /// Whether all came that the peer has sent.
    pub(crate) stream_end: StreamEnd,
}

/// Serves one connection to its end.
pub(crate) fn serve(acceptor: &Acceptor, mut socket: TcpStream) -> Result<Served> {
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    let (established, unread) = shake_hands(acceptor, &mut socket)?;
    let Established { outgoing, incoming, .. } = established;
    let mut connection = Connection { socket, outgoing, incoming };
    connection.echo(unread)
}

/// Returns what has come behind the handshake, too.
fn shake_hands(acceptor: &Acceptor, socket: &mut TcpStream) -> Result<(Established, Vec<u8>)> {
    let mut handshake = acceptor.handshake().map_err(Error::other)?;
    let mut input = Vec::new();
    loop {
        let mut output = Vec::new();
        let progress = handshake.advance(&input, &mut output);
        // After an error it is the alert.
        socket.write_all(&output)?;
        let progress = progress.map_err(Error::other)?;
        input.drain(..progress.used_bytes);
        if progress.is_done {
            return Ok((handshake.finish().map_err(Error::other)?, input));
        }
        if read_more(socket, &mut input)? == 0 {
            return Err(Error::other("the peer left during the handshake"));
        }
    }
}

struct Connection {
    socket: TcpStream,
    outgoing: Outgoing,
    incoming: Incoming,
}

impl Connection {
    /// Sends back what comes, beginning with the records in `input`.
    fn echo(&mut self, mut input: Vec<u8>) -> Result<Served> {
        let (mut content_bytes, mut key_updates) = (0, 0);
        let mut end = None;
        while end.is_none() {
            let opened = self.incoming.open(&mut self.outgoing, &mut input);
            key_updates += self.send(&input[..opened.content_bytes])?;
            content_bytes += opened.content_bytes;
            input.drain(..opened.used_bytes);
            end = opened.end;
            if end.is_none() && read_more(&mut self.socket, &mut input)? == 0 {
                break;
            }
        }
        let alert = match end {
            Some(End::Failed(alert)) => Some(alert),
            Some(End::PeerFailed(_)) => None,
            Some(End::Closed) | None => Some(Alert::CloseNotify),
        };
        if let Some(alert) = alert {
            let mut record = Vec::new();
            self.outgoing.seal_alert(alert, &mut record).map_err(Error::other)?;
            // The peer may be gone.
            let _ = self.socket.write_all(&record);
        }
        let stream_end = self.incoming.stream_end();
        Ok(Served { content_bytes, key_updates, end, stream_end })
    }

    /// Sends all of `content`. Returns the number of key updates that had to come before.
    fn send(&mut self, mut content: &[u8]) -> Result<usize> {
        let (mut record, mut key_updates) = (Vec::new(), 0);
        while !content.is_empty() {
            record.clear();
            if self.outgoing.check() == Err(SealError::KeyUpdateDue) {
                let update = self.incoming.seal_key_update(&mut self.outgoing, &mut record);
                update.map_err(Error::other)?;
                // It cannot be taken back, so it is written whatever happens to the data.
                self.socket.write_all(&record)?;
                record.clear();
                key_updates += 1;
            }
            let sealed = self.outgoing.seal([content], &mut record).map_err(Error::other)?;
            let content_bytes = sealed.content_bytes();
            let written_bytes = self.socket.write(&record)?;
            match self.outgoing.settle(sealed, written_bytes) {
                RecordFate::Whole => {}
                RecordFate::Part { rest_bytes } => {
                    self.socket.write_all(&record[record.len() - rest_bytes..])?;
                }
                RecordFate::NotAtAll => continue,
            }
            content = &content[content_bytes..];
        }
        Ok(key_updates)
    }
}

/// Appends to `input` what can be read, and returns how much that is: 0 at the end of the stream.
fn read_more(socket: &mut TcpStream, input: &mut Vec<u8>) -> Result<usize> {
    let before = input.len();
    input.resize(before + RECORD_BYTES_MAX, 0);
    let count = socket.read(&mut input[before..])?;
    input.truncate(before + count);
    Ok(count)
}
