//! Logging in: the server says what it is, TLS begins, and the client says who it is.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::login::Login;
use super::lost::ConnectionLost;
use super::servers::{KnownServer, Said};
use super::source::Source;
use super::stream::ServerStream;
use crate::protocol::decoder::{Decoder, ServerOp};
use crate::protocol::encoder;

const READ_BYTES: usize = 8 << 10;

/// Servers say at once what they are, unless they wait for TLS to begin. Shorter than the time that
/// they give it, which is two seconds.
const GREETING: Duration = Duration::from_secs(1);

/// How TLS is spoken to servers.
#[derive(Debug, Clone)]
pub struct NatsTls {
    /// Trusted authorities, and the certificate of this client, if it has one. Without the protocol
    /// of the application (ALPN).
    pub config: Source<Arc<ClientConfig>>,
    /// True if nothing is said to any server without TLS, whatever its address says.
    pub is_demanded: bool,
    /// True if TLS begins at once, before the server has said anything: `handshake_first` of
    /// nats-server.
    pub is_first: bool,
}

/// A server's description of itself.
#[derive(Debug, Clone, Deserialize)]
pub struct Info {
    #[serde(default)]
    pub server_name: String,
    /// Its version, like `2.11.0`.
    #[serde(default)]
    pub version: String,
    /// The largest message that it accepts, in bytes, with headers.
    #[serde(default = "default_payload")]
    pub max_payload: usize,
    /// The name of its cluster, if it is in one.
    #[serde(default)]
    pub cluster: Option<String>,
    /// True if this server has JetStream; others of its cluster may have it.
    #[serde(default)]
    pub jetstream: bool,
    #[serde(default)]
    headers: bool,
    #[serde(default)]
    tls_required: bool,
    #[serde(default)]
    tls_available: bool,
    #[serde(default)]
    nonce: String,
    /// Other servers of its cluster.
    #[serde(default)]
    pub(super) connect_urls: Vec<String>,
    #[serde(default, rename = "ldm")]
    pub(super) shuts_down: bool,
}

impl Info {
    /// Servers of its cluster that it announces, mostly itself among them.
    pub fn announced(&self) -> &[String] {
        &self.connect_urls
    }

    /// Reads INFO, which may come at any time.
    pub(super) fn read(bytes: &[u8]) -> Result<Info, ConnectionLost> {
        serde_json::from_slice(bytes).map_err(|error| {
            ConnectionLost::Said(format!("something that is not its INFO: {error}"))
        })
    }
}

/// The payload limit of servers with default settings.
fn default_payload() -> usize {
    1 << 20
}

/// A connection that is logged in.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) stream: ServerStream,
    /// Received bytes that are not acted upon yet.
    pub(super) decoder: Decoder,
    pub(super) info: Info,
    /// How the server has announced others of its cluster.
    pub(super) said: Said,
    /// How this client has logged in.
    pub(super) login: Login,
}

/// Connects to a server and logs in.
pub(super) async fn connect(
    server: &KnownServer,
    login: &Source<Login>,
    tls: &NatsTls,
    name: &str,
) -> Result<Connected, ConnectionLost> {
    let login = login.get().map_err(ConnectionLost::Settings)?;
    let address = (&*server.address.host, server.address.port);
    let stream =
        TcpStream::connect(address).await.map_err(|error| ConnectionLost::unreachable(&error))?;
    if let Err(error) = stream.set_nodelay(true) {
        tracing::warn!("the socket option TCP_NODELAY cannot be set, so it is left out: {error}");
    }
    let mut stream = ServerStream::Plain(stream);
    let is_wanted = server.address.is_tls || tls.is_demanded;
    if is_wanted && (tls.is_first || server.address.is_first) {
        stream = begin_tls(stream, server, tls).await?;
    }
    let mut decoder = Decoder::default();
    let greeting = timeout(GREETING, read_info(&mut stream, &mut decoder)).await;
    let info = match greeting {
        Ok(info) => info?,
        // A server with `handshake_first` waits for TLS to begin.
        Err(_) if is_wanted && !stream.is_tls() => {
            stream = begin_tls(stream, server, tls).await?;
            tracing::warn!(
                "NATS: {}: the server expects TLS first (handshake_first), which takes a second to \
                 find out: set nats-tls-first, or name it with tls-first://",
                server.address
            );
            read_info(&mut stream, &mut decoder).await?
        }
        Err(_) => return Err(ConnectionLost::Mute),
    };
    let mut said = if stream.is_tls() { Said::OverTls } else { Said::Plainly };
    if !stream.is_tls() && (is_wanted || info.tls_required) {
        if !info.tls_required && !info.tls_available {
            return Err(ConnectionLost::Tls(
                "the server does not speak TLS, which the settings demand; configure it there \
                 (tls { }), or name the server with nats:// and leave nats-ca and nats-cert out"
                    .into(),
            ));
        }
        // Nothing that was said without TLS may count as said over it.
        decoder = Decoder::default();
        said = Said::BeforeTls;
        stream = begin_tls(stream, server, tls).await?;
    }
    check(&info, &login)?;
    let mut out = Vec::new();
    encoder::connect(&mut out, &login.connect(name, &info.nonce));
    encoder::ping(&mut out);
    let mut connected = Connected { stream, decoder, info, said, login };
    connected.introduce(&out).await?;
    Ok(connected)
}

async fn begin_tls(
    stream: ServerStream,
    server: &KnownServer,
    tls: &NatsTls,
) -> Result<ServerStream, ConnectionLost> {
    let ServerStream::Plain(stream) = stream else { return Ok(stream) };
    let config = tls.config.get().map_err(ConnectionLost::Settings)?;
    let name = ServerName::try_from(server.name.clone()).map_err(|_| {
        ConnectionLost::Tls(format!("{} is no name that a certificate has", server.name))
    })?;
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    Ok(ServerStream::Tls(Box::new(stream)))
}

async fn read_info(
    stream: &mut ServerStream,
    decoder: &mut Decoder,
) -> Result<Info, ConnectionLost> {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match decoder.next_op()? {
            Some(ServerOp::Info(info)) => return Info::read(info),
            Some(ServerOp::Error(error)) => return Err(ConnectionLost::Said(error.to_owned())),
            Some(_) => {}
            None => match stream.read(&mut buffer).await? {
                0 => return Err(ConnectionLost::Closed),
                count => decoder.feed(&buffer[..count]),
            },
        }
    }
}

/// The missing features of a server, in clear words.
fn check(info: &Info, login: &Login) -> Result<(), ConnectionLost> {
    if !info.headers {
        let error = "it does not support headers: version 2.11 or later is needed";
        return Err(ConnectionLost::Said(error.to_owned()));
    }
    if login.is_signed() && info.nonce.is_empty() {
        return Err(ConnectionLost::Refused(format!(
            "the server does not ask for signed logins, and nats-login has one ({}); configure \
             its user there, or give USER:PASSWORD or a token",
            login.kind()
        )));
    }
    Ok(())
}

impl Connected {
    /// Sends the introduction, and waits until it is accepted.
    async fn introduce(&mut self, out: &[u8]) -> Result<(), ConnectionLost> {
        let mut buffer = vec![0; READ_BYTES];
        let written = async {
            self.stream.write_all(out).await?;
            self.stream.flush().await
        };
        // A server that has hung up may have said why before.
        let fault = written.await.err();
        loop {
            while let Some(op) = self.decoder.next_op()? {
                match op {
                    ServerOp::Pong => return Ok(()),
                    ServerOp::Error(error) => return Err(ConnectionLost::said(error, &self.login)),
                    // It knows more about this connection now, and which limits its account has.
                    ServerOp::Info(info) => {
                        let info = Info::read(info)?;
                        self.info.max_payload = info.max_payload;
                        if !info.connect_urls.is_empty() {
                            let over_tls = self.stream.is_tls();
                            self.said = if over_tls { Said::OverTls } else { Said::Plainly };
                            self.info.connect_urls = info.connect_urls;
                        }
                    }
                    _ => {}
                }
            }
            match self.stream.read(&mut buffer).await {
                Ok(0) => return Err(fault.map_or(ConnectionLost::Closed, ConnectionLost::from)),
                Ok(count) => self.decoder.feed(&buffer[..count]),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
