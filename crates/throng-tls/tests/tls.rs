//! The crate against rustls, openssl and Python, and against what no ordinary peer sends.

#[path = "tls/bad_input.rs"]
mod bad_input;
#[path = "tls/dialogues.rs"]
mod dialogues;
#[path = "tls/handshakes.rs"]
mod handshakes;
#[path = "tls/peers.rs"]
mod peers;
// Its `main` is not called here.
#[allow(dead_code)]
#[path = "../examples/serve_tls.rs"]
mod serve_tls;
// A part of it is for the fuzz target only.
#[allow(dead_code)]
#[path = "tls/support.rs"]
mod support;
