//! Limits of publications, and of the messages that a client's joins and leaves cause.

use super::super::refusal::{Quantity, Refusal};
use super::{ClientKeys, Limiter, saturated};

impl Limiter {
    /// The client publishes `messages`, of `bytes` together.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if it publishes too often or too much.
    pub fn publish(
        &self,
        client: ClientKeys,
        messages: u32,
        bytes: usize,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        self.begin_publishing(client, messages, bytes, now_ms)?;
        self.charge_published(client, bytes, now_ms);
        Ok(())
    }

    /// As [`Limiter::publish`], but `bytes` are only announced. They are charged by
    /// [`Limiter::charge_published`] once it is clear that the client may publish them: a head
    /// alone can announce any number.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if it publishes too often or too much.
    pub fn begin_publishing(
        &self,
        client: ClientKeys,
        messages: u32,
        bytes: usize,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        if client.is_empty() {
            return Ok(());
        }
        self.check(client, Quantity::Publishes, messages, now_ms)?;
        self.check(client, Quantity::PublishedBytes, saturated(bytes), now_ms)?;
        self.charge(client, Quantity::Publishes, messages, now_ms);
        Ok(())
    }

    /// The client publishes these `bytes`, whether it has them left or not.
    pub fn charge_published(&self, client: ClientKeys, bytes: usize, now_ms: u64) {
        self.charge(client, Quantity::PublishedBytes, saturated(bytes), now_ms);
    }

    /// Charges the client for messages that it has caused, of `bytes` together, as if it had
    /// published them. They may exceed its limit: then it waits.
    pub fn charge_told(&self, client: ClientKeys, messages: u32, bytes: usize, now_ms: u64) {
        self.charge(client, Quantity::Publishes, messages, now_ms);
        self.charge_published(client, bytes, now_ms);
    }

    /// Whether the client may do what makes others get messages.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if it owes what [`Limiter::charge_told`] has counted.
    pub fn check_told(&self, client: ClientKeys, now_ms: u64) -> Result<(), Refusal> {
        self.check(client, Quantity::Publishes, 0, now_ms)?;
        self.check(client, Quantity::PublishedBytes, 0, now_ms)
    }
}
