//! The Pusher Channels protocol, version 7, without I/O: what its clients and libraries send, what
//! they are sent, and what they sign.
//!
//! Nothing here knows a channel of ours, a connection or a server. The dialect and the control
//! plane do, and use this.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`app`] | an application: its id, its keys with their secrets, and its names on this server |
//! | [`channel`] | the names of channels, and what they say |
//! | [`client_frame`] | the frames of clients |
//! | [`server_frame`] | the frames of servers |
//! | [`hide`] | numbers that nobody foresees |
//! | [`request`] | signed requests of the HTTP API |
//! | [`signature`] | HMAC over texts |
//! | [`socket`] | the names of connections |
//! | [`trigger`] | the bodies of requests that publish |
//!
//! # Invariants
//!
//! * What is signed is compared as it came, byte for byte, before it means anything.
//! * No error and no debug output contains a secret or a signature.
//! * Whatever peers send, nothing panics, and nothing is kept that is not returned.

pub mod app;
pub mod channel;
pub mod client_frame;
pub mod hide;
pub mod request;
pub mod server_frame;
pub mod signature;
pub mod socket;
pub mod trigger;

pub use app::App;
pub use channel::Channel;
pub use socket::SocketId;
