//! The control socket: how commands on this machine reach a server that runs.
//!
//! Two checks restrict who may connect: the socket is in a directory that only one user may enter,
//! and the kernel names the peer's user (`SO_PEERCRED`), which must be the server's or root.
//!
//! A connection is one conversation: the client writes a request, one line of JSON, and then
//! nothing until the server has answered. The server writes lines of progress and one last line,
//! which says what came of it. `docs/reference/control-socket.md` describes the lines.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `place` | where the socket is, for servers and for commands |
//! | `protocol` | requests and answers |
//! | `server` | takes the socket, and holds conversations |
//! | `find` | which of the servers that run a command is for |
//! | `client` | connects to it, and asks it |

mod client;
mod find;
mod place;
mod protocol;
mod server;

pub(crate) use client::ControlConnection;
pub(crate) use place::network;
pub(crate) use protocol::{About, Failure, Request};
pub(crate) use server::{Act, ControlSocket, Conversation};
