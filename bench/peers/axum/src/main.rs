//! A typical broadcast server with axum: a task per connection and a broadcast channel.
//!
//! `GET /` opens a WebSocket. Messages from clients, and bodies posted to `/`, go to all clients.
//! Usage: `axum-broadcast PORT [small] [CERTIFICATE KEY]`. With `small`, read and write buffers are
//! 1 KiB instead of 128 KiB, and the backlog is long enough for a burst of connects. With a
//! certificate, it speaks TLS by rustls.

mod tls;

use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::extract::State;
use axum::extract::ws::{Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender, channel};

/// Messages that a connection may lag.
const LAG_MAX: usize = 1024;

const SMALL_BUFFER_BYTES: usize = 1024;
const SMALL_BACKLOG: u32 = 65_535;

#[derive(Clone)]
struct Server {
    all: Sender<Utf8Bytes>,
    is_small: bool,
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().and_then(|port| port.parse().ok()).expect("a port");
    let mut arguments = arguments.peekable();
    let is_small = arguments.next_if(|argument| argument == "small").is_some();
    let certificate = arguments.next().zip(arguments.next());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = if is_small {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(SMALL_BACKLOG)?
    } else {
        TcpListener::bind(address).await?
    };
    let server = Server { all: channel(LAG_MAX).0, is_small };
    let routes = Router::new().route("/", get(upgrade).post(publish)).with_state(server);
    match certificate {
        Some((certificate, key)) => {
            axum::serve(tls::Listener::new(listener, &certificate, &key)?, routes).await
        }
        None => axum::serve(listener, routes).await,
    }
}

async fn upgrade(State(server): State<Server>, upgrade: WebSocketUpgrade) -> Response {
    let upgrade = if server.is_small {
        upgrade.read_buffer_size(SMALL_BUFFER_BYTES).write_buffer_size(SMALL_BUFFER_BYTES)
    } else {
        upgrade
    };
    // Subscribed before the response, so that no message after it is missed.
    let messages = server.all.subscribe();
    upgrade.on_upgrade(move |socket| serve(socket, messages, server.all))
}

async fn publish(State(server): State<Server>, text: String) -> StatusCode {
    let _ = server.all.send(text.into());
    StatusCode::OK
}

async fn serve(mut socket: WebSocket, mut messages: Receiver<Utf8Bytes>, all: Sender<Utf8Bytes>) {
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Ok(text) => {
                    if socket.send(Message::Text(text)).await.is_err() {
                        return;
                    }
                }
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            received = socket.recv() => match received {
                Some(Ok(Message::Text(text))) => {
                    let _ = all.send(text);
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return,
            },
        }
    }
}
