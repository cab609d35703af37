//! Subscriptions from which the next one of their user goes on, if the connection dies.
//!
//! What a client has had is known only by what it answers. So where nothing may be lost, the worker
//! asks it behind messages, and its answer confirms all that was written before the question. What
//! nobody has confirmed is written again. Where nothing may come twice, all that was written counts
//! as had.
//!
//! The messages of a subscription may wait for its user, until it lacks half of what it may.

use super::{SubscriptionId, SubscriptionTable};
use crate::id::{LocalId, MessageId};

/// The user whose next subscription goes on, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumable {
    /// The name of the user.
    pub user: Box<str>,
    /// What the client has confirmed; `None` if all that was written counts.
    pub confirmed: Option<Confirmed>,
}

impl Resumable {
    /// Of a subscription that has not begun yet.
    pub fn new(user: Box<str>) -> Resumable {
        Resumable { user, confirmed: None }
    }
}

/// What the client of a subscription has confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmed {
    /// The offset of the last message.
    pub up_to: u64,
    /// The offset that it confirms next, if it is asked.
    pub asked: Option<u64>,
}

impl SubscriptionTable {
    /// What the client of a subscription that begins has confirmed: nothing but the start. `None`
    /// unless its rule needs that.
    pub(super) fn begin_confirmed(&self, id: SubscriptionId) -> Option<Confirmed> {
        let local = self.local(id)?;
        let rule = self.rules.get(self.channels[local.index()].rule).resume?;
        let up_to = self.cursor(id).filter(|_| rule.is_at_least_once)?;
        Some(Confirmed { up_to, asked: None })
    }

    /// Sets from where the next subscription of a user goes on, or that no one does.
    pub fn set_resumable(&mut self, id: SubscriptionId, resumable: Option<Resumable>) {
        debug_assert!(self.live(id).is_some(), "the subscription has ended");
        if let Some(local) = self.local(id) {
            self.awaiting.remove(local, id);
        }
        let confirmed = self.begin_confirmed(id);
        let resumable = resumable.map(|it| Box::new(Resumable { confirmed, ..it }));
        if resumable.is_some() || self.terms.contains_key(&id.index()) {
            self.terms.entry(id.index()).or_default().resumable = resumable;
        }
    }

    /// True if the messages of a subscription wait for its user.
    pub fn awaits_user(&self, id: SubscriptionId) -> bool {
        let resumable = self.terms(id).and_then(|terms| terms.resumable.as_ref());
        resumable.is_some_and(|resumable| resumable.user.is_empty())
    }

    /// Has the messages of a subscription whose user is not known wait for that, until
    /// [`SubscriptionTable::set_resumable`].
    pub fn await_user(&mut self, id: SubscriptionId) {
        self.block(id);
        if let Some(local) = self.local(id) {
            self.awaiting.add(local, id);
        }
    }

    /// Notes which subscriptions of a channel that await their users lack half of what they may.
    pub(super) fn note_overdue(&mut self, local: LocalId) {
        // Mostly none waits.
        if self.awaiting.is_empty() {
            return;
        }
        let overdue: Vec<_> = self.awaiting.of(local).filter(|id| self.lacks_half(*id)).collect();
        for id in overdue {
            self.awaiting.end(local, id);
        }
    }

    /// Takes the subscriptions that await their users no longer, because there is too much for
    /// them.
    pub fn take_overdue(&mut self) -> Vec<SubscriptionId> {
        self.awaiting.take_overdue()
    }

    fn confirmed(&self, id: SubscriptionId) -> Option<Confirmed> {
        // Mostly no subscription has any terms.
        self.terms(id)?.resumable.as_ref()?.confirmed
    }

    fn confirmed_mut(&mut self, id: SubscriptionId) -> Option<&mut Confirmed> {
        self.terms.get_mut(&id.index())?.resumable.as_mut()?.confirmed.as_mut()
    }

    /// True if the client of a subscription has yet to confirm something of what was written.
    pub fn is_unconfirmed(&self, id: SubscriptionId) -> bool {
        self.rules.have_any_resume()
            && self.confirmed(id).is_some_and(|it| self.cursor(id) != Some(it.up_to))
    }

    /// True if the client of a subscription is being asked what it has had.
    pub fn is_asked(&self, id: SubscriptionId) -> bool {
        self.confirmed(id).is_some_and(|confirmed| confirmed.asked.is_some())
    }

    /// The client of a subscription is about to be asked whether it has all that was written.
    /// Returns whether it has anything to confirm.
    pub fn ask(&mut self, id: SubscriptionId) -> bool {
        let cursor = self.cursor(id);
        let Some(confirmed) = self.confirmed_mut(id) else { return false };
        confirmed.asked = cursor.filter(|cursor| *cursor != confirmed.up_to);
        confirmed.asked.is_some()
    }

    /// The client of a subscription has all that was written before it was asked.
    pub fn confirm(&mut self, id: SubscriptionId) {
        if let Some(confirmed) = self.confirmed_mut(id)
            && let Some(asked) = confirmed.asked.take()
        {
            confirmed.up_to = asked;
        }
    }

    /// The user of a subscription whose connection dies, and the last message that the next
    /// subscription need not begin with; `None` if it begins anew.
    pub fn resumable(&self, id: SubscriptionId) -> Option<(&str, MessageId)> {
        let Resumable { user, confirmed } = &**self.terms(id)?.resumable.as_ref()?;
        let position = self.position(id)?;
        let offset = confirmed.map_or(position.offset, |confirmed| confirmed.up_to);
        Some((user, MessageId { offset, ..position }))
    }
}
