//! A broadcast server as one writes it with axum: a task for each connection, a broadcast channel.
//!
//! `GET /` is the WebSocket; what a client says, or what is posted to `/`, goes to all.
//! Usage: `axum-broadcast PORT [small]`. `small` is the same with read and write buffers of 1 KiB
//! where the default is 128 KiB, and with a backlog that a burst of connects does not overflow.

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

/// Messages that a connection may be behind.
const BEHIND_MAX: usize = 1024;

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
    let is_small = arguments.next().as_deref() == Some("small");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = match is_small {
        true => {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(SMALL_BACKLOG)?
        }
        false => TcpListener::bind(address).await?,
    };
    let server = Server { all: channel(BEHIND_MAX).0, is_small };
    let routes = Router::new().route("/", get(upgrade).post(publish)).with_state(server);
    axum::serve(listener, routes).await
}

async fn upgrade(State(server): State<Server>, upgrade: WebSocketUpgrade) -> Response {
    let upgrade = match server.is_small {
        true => upgrade.read_buffer_size(SMALL_BUFFER_BYTES).write_buffer_size(SMALL_BUFFER_BYTES),
        false => upgrade,
    };
    // Followed before the answer, so that nothing is missed that is published after it.
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
            heard = socket.recv() => match heard {
                Some(Ok(Message::Text(text))) => {
                    let _ = all.send(text);
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return,
            },
        }
    }
}
