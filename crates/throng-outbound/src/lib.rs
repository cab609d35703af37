//! Requests that the server makes: for key sets at URLs, callouts and webhooks to applications.
//!
//! Requests go to the URLs of the configuration only: `https`, or `http` on loopback. This crate
//! runs on the control plane's runtime.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `endpoint` | the URLs that may be requested |
//! | `client` | a client for HTTP/1.1 and TLS |
//! | `key_sets` | fetches key sets, and keeps them fresh |
//! | `callouts` | lets the application decide, and notifies it of events |
//! | `webhooks` | tells applications of the Pusher protocol what happens on their channels |
//! | `delivery`, `retry` | requests that have to arrive |
//! | `requests` | single requests, for other protocols |
//! | `outcomes` | counts what comes of requests |
//!
//! # Invariants
//!
//! * Every request has a deadline, and every response a maximum size.
//! * No redirect is followed, and no proxy is used.
//! * Logs name an endpoint without its query.

mod callouts;
mod client;
mod delivery;
mod endpoint;
#[cfg(test)]
mod fake_server;
mod key_sets;
mod outcomes;
mod requests;
mod retry;
mod webhooks;

pub use callouts::{
    Asks, CalloutMetrics, CalloutSettings, Callouts, Notifies, RunningCallouts, SECRETS_MAX,
    Secret, SecretError,
};
pub use client::Trust;
pub use delivery::DeliveryMetrics;
pub use endpoint::{Endpoint, EndpointError};
pub use key_sets::{KeySetError, KeySetMetrics, KeySetTask, fetch_key_set};
pub use requests::{NoResponse, send};
pub use webhooks::{Webhook, WebhookSettings, Webhooks};
