//! Keeps clients that publish or read to their limits.

use http::request::Parts;
use throng_access::limit::{ClientKeys, Refusal};
use throng_access::{Client, ClientApp};
use throng_core::{Listener, clock};

use crate::control::Control;
use crate::http::answer::ApiError;
use crate::http::body;
use crate::http::caller::Caller;

/// The limits of the client that sent one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limited<'a> {
    control: &'a Control,
    client: ClientKeys,
}

impl<'a> Limited<'a> {
    /// Clients of the admin listener have no limit per address: many applications share one there.
    pub(super) fn of(
        control: &'a Control,
        head: &Parts,
        client: &Client,
    ) -> Result<Limited<'a>, ApiError> {
        let clients = &control.clients;
        let caller = Caller::of(head);
        let address = match caller.listener {
            Listener::Public if clients.limiter.limits_addresses() => {
                caller.address(&clients.source, head)?
            }
            Listener::Public | Listener::Admin => None,
        };
        let shown = control.authentication.limited_by(client);
        Ok(Limited { control, client: clients.limiter.address(address).and(shown) })
    }

    /// The same, with the limits of an application that has signed the request.
    pub(super) fn of_app(self, app: &ClientApp) -> Limited<'a> {
        let client = self.client.and(self.control.authentication.limited_app(app));
        Limited { client, ..self }
    }

    /// Counts a request that reads, before it is answered.
    pub(super) fn begin_reading(&self) -> Result<(), Refusal> {
        if self.client.is_empty() {
            return Ok(());
        }
        self.control.clients.limiter.begin_reading(self.client, clock::now_ms())
    }

    pub(super) fn charge_read(&self, bytes: usize) {
        if !self.client.is_empty() {
            self.control.clients.limiter.charge_read(self.client, bytes, clock::now_ms());
        }
    }

    /// Counts `messages`, with `bytes` in all.
    pub(super) fn count(&self, messages: u32, bytes: usize) -> Result<(), Refusal> {
        if self.client.is_empty() {
            // Without a look at the clock.
            return Ok(());
        }
        self.control.clients.limiter.publish(self.client, messages, bytes, clock::now_ms())
    }

    /// Counts `messages`, before it is known whether the client may publish. Fails, too, if the
    /// body that the head announces is too much; it is not charged yet.
    pub(super) fn begin(&self, head: &Parts, messages: u32) -> Result<(), Refusal> {
        if self.client.is_empty() {
            return Ok(());
        }
        let bytes = body::announced(&head.headers).unwrap_or(0);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let limiter = &self.control.clients.limiter;
        limiter.begin_publishing(self.client, messages, bytes, clock::now_ms())
    }

    /// Charges the body that the head announces, before it is read. Returns whether its length is
    /// known.
    pub(super) fn charge_body(&self, head: &Parts, kind: body::BodyKind) -> Result<bool, ApiError> {
        let Some(bytes) = self.control.bodies.length(&head.headers, kind)? else {
            return Ok(false);
        };
        if self.client.is_empty() {
            return Ok(true);
        }
        let limiter = &self.control.clients.limiter;
        limiter.charge_published(self.client, bytes, clock::now_ms());
        Ok(true)
    }
}
