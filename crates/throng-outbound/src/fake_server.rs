//! A server for tests that answers each request as the test wants, right or wrong.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The server's reaction to a request.
pub(crate) enum Reply {
    /// Writes these bytes and reads the next request.
    Bytes(Vec<u8>),
    BytesAndClose(Vec<u8>),
    /// Writes these bytes and then nothing, and keeps the connection open.
    BytesAndHang(Vec<u8>),
    /// Writes these bytes again and again.
    Forever(Vec<u8>),
}

pub(crate) fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n{body}").into_bytes()
}

/// A response with the status 200.
pub(crate) fn ok(body: &str) -> Reply {
    Reply::Bytes(response("200 OK", "", body))
}

type Answer = dyn Fn(&str) -> Reply + Send + Sync;

pub(crate) struct FakeServer {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    /// The heads and bodies of all requests.
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakeServer {
    /// Answers each request, head and body, with `answer`.
    pub(crate) async fn start(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Self {
        FakeServer::start_with(answer, |stream| async { Some(stream) }).await
    }

    /// As [`FakeServer::start`], behind what `accept` makes of each connection.
    pub(crate) async fn start_with<S, F>(
        answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
        accept: impl Fn(TcpStream) -> F + Send + 'static,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = Option<S>> + Send,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, requests) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<_>>::default());
        let server = FakeServer { address, connections, requests };
        let (connections, requests) = (server.connections.clone(), server.requests.clone());
        let answer: Arc<Answer> = Arc::new(answer);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                let Some(stream) = accept(stream).await else { continue };
                tokio::spawn(serve(stream, Arc::clone(&answer), Arc::clone(&requests)));
            }
        });
        server
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    answer: Arc<Answer>,
    requests: Arc<Mutex<Vec<String>>>,
) {
    let mut read = Vec::new();
    loop {
        let Some(request) = next_request(&mut stream, &mut read).await else { return };
        let reply = answer(&request);
        requests.lock().unwrap().push(request);
        let written = match &reply {
            Reply::Bytes(bytes) | Reply::BytesAndClose(bytes) | Reply::BytesAndHang(bytes) => {
                stream.write_all(bytes).await
            }
            Reply::Forever(bytes) => loop {
                if let Err(error) = stream.write_all(bytes).await {
                    break Err(error);
                }
            },
        };
        match reply {
            Reply::Bytes(_) if written.is_ok() => {}
            // Until the client closes.
            Reply::BytesAndHang(_) => drop(stream.read(&mut [0; 1]).await),
            _ => return drop(stream.shutdown().await),
        }
    }
}

/// The next request, with its body; `None` if the client has closed.
async fn next_request<S: AsyncRead + Unpin>(stream: &mut S, read: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(length) = complete(read) {
            return String::from_utf8(read.drain(..length).collect()).ok();
        }
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).await.ok()?;
        if count == 0 {
            return None;
        }
        read.extend_from_slice(&buffer[..count]);
    }
}

/// The length of the first request, if it is complete.
fn complete(read: &[u8]) -> Option<usize> {
    let text = str::from_utf8(read).ok()?;
    let head = text.find("\r\n\r\n")? + 4;
    let head_text = text[..head].to_ascii_lowercase();
    let body = head_text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = head + body.map_or(0, |length| length.parse::<usize>().unwrap());
    (read.len() >= length).then_some(length)
}
