//! Connections whose TLS handshake is done. Each handshake has a task of its own.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

/// Connections that may wait to be served.
const WAITING_MAX: usize = 1024;

type Accepted = (TlsStream<TcpStream>, SocketAddr);

pub(crate) struct Listener {
    accepted: Receiver<Accepted>,
    address: SocketAddr,
}

impl Listener {
    /// Shows the certificate of a file in PEM, with the key of another one.
    pub(crate) fn new(listener: TcpListener, certificate: &str, key: &str) -> io::Result<Listener> {
        let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
        let chain = chain.map_err(io::Error::other)?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(io::Error::other)?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key);
        let acceptor = TlsAcceptor::from(Arc::new(config.map_err(io::Error::other)?));
        let address = listener.local_addr()?;
        let (sender, accepted) = channel(WAITING_MAX);
        tokio::spawn(accept(listener, acceptor, sender));
        Ok(Listener { accepted, address })
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, sender: Sender<Accepted>) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else { continue };
        let (acceptor, sender) = (acceptor.clone(), sender.clone());
        tokio::spawn(async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                let _ = sender.send((stream, peer)).await;
            }
        });
    }
}

impl axum::serve::Listener for Listener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> Accepted {
        self.accepted.recv().await.expect("the accepting task does not end")
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
