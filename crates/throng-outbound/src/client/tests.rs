//! Tests of the client, over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::*;
use crate::fake_server::{FakeServer, Reply, ok, response};

const LONG: Duration = Duration::from_secs(30);
const BYTES_MAX: usize = 1000;

fn request(timeout: Duration) -> OutgoingRequest {
    let mut headers = HeaderMap::new();
    headers.insert("x-test", HeaderValue::from_static("yes"));
    let body = Bytes::from_static(b"hello");
    OutgoingRequest { method: Method::POST, headers, body, timeout, max_response_bytes: BYTES_MAX }
}

fn origin(url: &str, trust: Trust) -> Origin {
    Origin::new(url.parse().unwrap(), trust, 2)
}

/// The outcome of one request to a server that replies so.
async fn outcome(
    answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
    timeout: Duration,
) -> Result<(u16, String), &'static str> {
    let server = FakeServer::start(answer).await;
    let origin = origin(&server.url("/"), Trust::none());
    let response = origin.send(&request(timeout)).await.map_err(|error| error.label())?;
    let body = String::from_utf8(response.body.to_vec()).unwrap();
    Ok((response.status.as_u16(), body))
}

#[tokio::test]
async fn a_request_is_sent_and_its_response_returned() {
    let server = FakeServer::start(|_| ok("world")).await;
    let origin = origin(&server.url("/a/b?c=d"), Trust::none());
    let answer = origin.send(&request(LONG)).await.unwrap();
    assert_eq!((answer.status.as_u16(), &*answer.body), (200, &b"world"[..]));
    let sent = &server.requests()[0];
    assert!(sent.starts_with("POST /a/b?c=d HTTP/1.1\r\n"), "{sent}");
    assert!(sent.contains(&format!("host: {}\r\n", server.address)), "{sent}");
    assert!(sent.contains("x-test: yes\r\n") && sent.contains("user-agent: throng/"), "{sent}");
    assert!(sent.ends_with("\r\n\r\nhello"), "{sent}");
}

#[tokio::test]
async fn connections_are_kept_up_to_their_number() {
    let server = FakeServer::start(|_| ok("")).await;
    let origin = Arc::new(origin(&server.url("/"), Trust::none()));
    for _ in 0..5 {
        origin.send(&request(LONG)).await.unwrap();
    }
    assert_eq!(server.connections(), 1);
    let unkept = Origin::new(origin.endpoint().clone(), Trust::none(), 0);
    for _ in 0..3 {
        unkept.send(&request(LONG)).await.unwrap();
    }
    assert_eq!(server.connections(), 4);
}

#[tokio::test]
async fn a_request_on_a_kept_connection_that_ends_is_repeated() {
    let count = AtomicUsize::new(0);
    let server = FakeServer::start(move |_| match count.fetch_add(1, Ordering::Relaxed) {
        // The second request on a connection is not answered.
        1 => Reply::BytesAndClose(Vec::new()),
        _ => ok("x"),
    })
    .await;
    let origin = origin(&server.url("/"), Trust::none());
    for _ in 0..2 {
        assert_eq!(&*origin.send(&request(LONG)).await.unwrap().body, b"x");
    }
    assert_eq!((server.connections(), server.requests().len()), (2, 3));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = FakeServer::start(|_| ok("elsewhere")).await;
    let location = format!("Location: {}\r\n", elsewhere.url("/"));
    let answer = move |_: &str| Reply::Bytes(response("307 Temporary Redirect", &location, ""));
    assert_eq!(outcome(answer, LONG).await, Ok((307, String::new())));
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn a_response_has_a_deadline() {
    const SOON: Duration = Duration::from_millis(50);
    for bytes in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"] {
        let answer = move |_: &str| Reply::BytesAndHang(bytes.into());
        assert_eq!(outcome(answer, SOON).await, Err("timeout"), "{bytes}");
    }
    let continues = |_: &str| Reply::Forever(b"HTTP/1.1 103 Early Hints\r\n\r\n".to_vec());
    assert_eq!(outcome(continues, SOON).await, Err("timeout"));
}

#[tokio::test]
async fn a_response_has_a_maximum_size() {
    let exact = |_: &str| ok(&"x".repeat(BYTES_MAX));
    assert_eq!(outcome(exact, LONG).await, Ok((200, "x".repeat(BYTES_MAX))));
    let announced = |_: &str| ok(&"x".repeat(BYTES_MAX + 1));
    assert_eq!(outcome(announced, LONG).await, Err("too_large"));
    let unannounced = |_: &str| {
        let body = "x".repeat(BYTES_MAX + 1);
        Reply::BytesAndClose(format!("HTTP/1.1 200 OK\r\n\r\n{body}").into())
    };
    assert_eq!(outcome(unannounced, LONG).await, Err("too_large"));
    let endless_head = |_: &str| Reply::Forever(b"HTTP/1.1 200 OK\r\nX: y\r\n".repeat(100));
    assert_eq!(outcome(endless_head, LONG).await, Err("protocol"));
}

#[tokio::test]
async fn a_reply_that_is_not_http_is_an_error() {
    for bytes in ["", "hello\r\n\r\n", "HTTP/1.1 2x0 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nCont"] {
        let answer = move |_: &str| Reply::BytesAndClose(bytes.into());
        assert_eq!(outcome(answer, LONG).await, Err("protocol"), "{bytes}");
    }
    let truncated =
        |_: &str| Reply::BytesAndClose(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx".to_vec());
    assert_eq!(outcome(truncated, LONG).await, Err("protocol"));
}

#[tokio::test]
async fn an_endpoint_that_does_not_listen_is_an_error() {
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", server.local_addr().unwrap());
    drop(server);
    let error = origin(&url, Trust::none()).send(&request(LONG)).await.unwrap_err();
    assert_eq!(error.label(), "connect");
}

fn fixture(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A server with TLS, whose certificate is for `localhost`.
async fn tls_server() -> FakeServer {
    let certificate = CertificateDer::from_pem_file(fixture("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(fixture("server-key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let accept = move |stream| {
        let acceptor = acceptor.clone();
        async move { acceptor.accept(stream).await.ok() }
    };
    FakeServer::start_with(|_| ok("secret"), accept).await
}

#[tokio::test]
async fn https_is_for_endpoints_whose_certificate_is_trusted() {
    let server = tls_server().await;
    let url = format!("https://localhost:{}/", server.address.port());
    let trust = Trust::load(Some(&fixture("ca.pem"))).unwrap();
    let answer = origin(&url, trust.clone()).send(&request(LONG)).await.unwrap();
    assert_eq!(&*answer.body, b"secret");
    let untrusted = origin(&url, Trust::none()).send(&request(LONG)).await;
    assert_eq!(untrusted.unwrap_err().label(), "tls");
    let other_name = format!("https://{}/", server.address);
    let misnamed = origin(&other_name, trust.clone()).send(&request(LONG)).await;
    assert_eq!(misnamed.unwrap_err().label(), "tls");
    let plain = FakeServer::start(|_| ok("")).await;
    let url = format!("https://localhost:{}/", plain.address.port());
    let soon = Duration::from_millis(200);
    let error = origin(&url, trust).send(&request(soon)).await.unwrap_err();
    assert!(["tls", "timeout"].contains(&error.label()), "{error}");
}

#[test]
fn a_file_of_certificates_must_have_some() {
    for (name, expected) in [("none.pem", "none.pem"), ("server-key.pem", "it has none")] {
        let error = Trust::load(Some(&fixture(name))).unwrap_err().to_string();
        assert!(error.starts_with("cannot read certificates") && error.contains(expected));
    }
}
