//! Where users go on after a connection of theirs has died, whose dialect has no way of its own.
//!
//! Who goes on is the user that the application has signed: the member of a channel that has
//! members, elsewhere the user as whom the connection is signed in. Clients may sign in behind
//! their first subscriptions. So where a bookmark waits in a channel, the messages of a
//! subscription of nobody wait for that, too, but not for long.

use throng_core::{
    Answer, ChannelName, Kind, LateAnswer, Later, MessageId, Resumable, StartAt, SubscriptionId,
};
use throng_wire::subscribe::Replay;
use throng_wire::{ErrorResponse, MemberClaim};

use super::ask::{Wait, ticket};
use super::fetch::Starts;
use super::join::start_at;
use crate::connection::{Awaited, ConnectionId, FetchedParts};
use crate::net::Net;
use crate::sessions::Sessions;

/// How often other nodes are asked for a bookmark, until one is here: another page of the user may
/// have taken what they have given.
const ASKED_MAX: u32 = 3;

/// Where a subscription begins.
pub(super) struct Beginning {
    /// The user who goes on, if users do; empty while it is not known.
    user: Option<Box<str>>,
    /// Where it begins anew.
    anew: StartAt,
    replay: Option<Replay>,
    /// True if the client names it itself. Then the user's place stays for another page.
    is_named: bool,
    /// True if its messages wait for the user.
    is_held: bool,
}

impl Beginning {
    /// Where it goes on behind a message.
    fn behind(&self, place: MessageId) -> Option<StartAt> {
        match self.replay {
            _ if self.is_named => None,
            None => Some(StartAt::After(place)),
            // A channel that begins with its newest message does so also if nothing was missed.
            Some(Replay::Newest) => {
                let offset = place.offset.saturating_sub(1);
                Some(StartAt::After(MessageId { offset, ..place }))
            }
            Some(_) => None,
        }
    }

    /// From what the next subscription of the user goes on.
    pub(super) fn resumable(&self) -> Option<Box<Resumable>> {
        let user = self.user.as_ref().filter(|user| !user.is_empty() || self.is_held)?;
        Some(Box::new(Resumable::new(user.clone())))
    }

    /// The user whose place it takes, if it takes any.
    fn goes_on_as(&self) -> Option<&str> {
        self.user.as_deref().filter(|user| !user.is_empty() && !self.is_named)
    }
}

impl<N: Net> Sessions<N> {
    /// Where a subscription of a client begins that asks for `begin`, and says of itself `claim`.
    pub(super) fn beginning(
        &self,
        id: ConnectionId,
        name: &ChannelName,
        claim: Option<&MemberClaim>,
        begin: (Option<&str>, Option<Replay>),
    ) -> Result<Beginning, ErrorResponse> {
        let user = self.goes_on(id, name).then(|| {
            let signed = claim.and_then(|claim| claim.user.clone());
            signed.or_else(|| self.acting_user(id, name)).unwrap_or_default()
        });
        let (since, replay) = begin;
        let is_named = since.is_some() || replay.is_some_and(|it| it != Replay::Newest);
        let is_nobody = user.as_ref().is_some_and(|user| user.is_empty());
        let now_ms = self.clock().unix_ms();
        let is_held = is_nobody && !is_named && self.engine.has_bookmarks_in(now_ms, name);
        let anew = start_at(since, replay)?;
        Ok(Beginning { user, anew, replay, is_named, is_held })
    }

    /// True if users of a connection go on in a channel.
    fn goes_on(&self, id: ConnectionId, name: &ChannelName) -> bool {
        self.cursors().rules().resume(name).is_some()
            && self[id].encoding().dialect().question().is_some()
    }

    /// Lets a subscription wait until what other nodes have of its user's place is here.
    ///
    /// # Errors
    ///
    /// They are asked.
    pub(super) fn await_bookmark(
        &mut self,
        id: ConnectionId,
        name: &ChannelName,
        beginning: &Beginning,
        fetched: &mut FetchedParts,
    ) -> Result<(), Wait> {
        let user = beginning.goes_on_as();
        user.map_or(Ok(()), |user| self.await_bookmark_of(id, (user, name), (0, fetched)))
    }

    /// The same, of the channel at a place of a request. Where others still have bookmarks of the
    /// user, for other pages, they would be asked for ever: so once one is here that is enough.
    fn await_bookmark_of(
        &mut self,
        id: ConnectionId,
        of: (&str, &ChannelName),
        (place, fetched): (usize, &mut FetchedParts),
    ) -> Result<(), Wait> {
        let (last, count) = fetched.bookmarks;
        let count = if last == place { count } else { 0 };
        let is_here = || {
            let now_ms = self.clock().unix_ms();
            self.engine.memory().bookmark(now_ms, of.0, of.1).is_some()
        };
        if place < last || count >= ASKED_MAX || (count > 0 && is_here()) {
            return Ok(());
        }
        fetched.bookmarks = (place, count + 1);
        let question = self.next_question(id);
        let (engine, worker) = (&self.engine, self.metrics().worker());
        let mut issue = || ticket(engine, worker, question, LateAnswer::Bookmark);
        let later = Later::new(&mut issue);
        match self.engine.await_bookmark(self.clock().unix_ms(), of, later) {
            Answer::Now(()) => Ok(()),
            Answer::Later(_) => Err(Wait::new(question, Awaited::Bookmark)),
        }
    }

    /// Where a subscription begins, if nobody else goes on there first.
    pub(super) fn likely_start(&self, name: &ChannelName, beginning: &Beginning) -> StartAt {
        let now_ms = self.clock().unix_ms();
        let memory = self.engine.memory();
        let place = beginning.goes_on_as().and_then(|user| memory.bookmark(now_ms, user, name));
        place.and_then(|place| beginning.behind(place)).unwrap_or(beginning.anew)
    }

    /// Where a subscription begins, and whether it has to know if anything is missing.
    pub(super) fn settle_start(
        &self,
        name: &ChannelName,
        beginning: &Beginning,
    ) -> (StartAt, bool) {
        let now_ms = self.clock().unix_ms();
        let memory = self.engine.memory();
        let place =
            beginning.goes_on_as().and_then(|user| memory.take_bookmark(now_ms, user, name));
        match place.and_then(|place| beginning.behind(place)) {
            Some(start) => (start, beginning.replay.is_none()),
            None => (beginning.anew, false),
        }
    }

    /// Lets a connection wait until what its user goes on from can be read.
    ///
    /// # Errors
    ///
    /// Some of it comes later.
    pub(super) fn fetch_bookmarks(
        &mut self,
        id: ConnectionId,
        user: &str,
        fetched: &mut FetchedParts,
    ) -> Result<(), Wait> {
        let all = self.subscriptions_without_user(id);
        let names: Vec<_> = all.into_iter().map(|(_, name)| name).collect();
        for (place, name) in names.iter().enumerate() {
            self.await_bookmark_of(id, (user, name), (place, fetched))?;
        }
        let (memory, now_ms) = (self.engine.memory(), self.clock().unix_ms());
        let place = |name| memory.bookmark(now_ms, user, name);
        let starts = names.iter().map(|name| place(name).map_or(StartAt::Live, StartAt::After));
        let starts: Vec<_> = starts.collect();
        let wanted = Starts { names: &names, starts: &starts, kept_of: None, unread_of: None };
        self.fetch_starts(id, &wanted, fetched)
    }

    /// A connection belongs to a user now, who goes on in its subscriptions.
    pub(super) fn go_on_as(&mut self, id: ConnectionId, user: &str) {
        for (subscription, name) in self.subscriptions_without_user(id) {
            let is_held = self.awaits_user(subscription);
            self.set_resumable(subscription, user);
            // Others have begun already.
            if is_held {
                if let Some(place) = self.take_place(id, subscription, (user, &name)) {
                    self.begin_again(id, subscription, (&name, StartAt::After(place)));
                }
                self.flush_subscriptions(id);
            }
        }
    }

    /// The place of a user from which a subscription that has begun is to go on instead, with one
    /// more that counts already. If that would be one too many, the place stays for another
    /// connection.
    fn take_place(
        &self,
        id: ConnectionId,
        subscription: SubscriptionId,
        (user, name): (&str, &ChannelName),
    ) -> Option<MessageId> {
        let (memory, now_ms) = (self.engine.memory(), self.clock().unix_ms());
        memory.bookmark(now_ms, user, name)?;
        self.limit_subscriptions(id, 1).ok()?;
        let place = memory.take_bookmark(now_ms, user, name);
        let place = place.filter(|place| self.lies_before(*place, subscription));
        if place.is_none() {
            self.connections().end_subscriptions(id, 1);
        }
        place
    }

    /// The subscriptions of a connection in channels where users go on, while it has none.
    fn subscriptions_without_user(&self, id: ConnectionId) -> Vec<(SubscriptionId, ChannelName)> {
        if !self.cursors().rules().have_any_resume() {
            return Vec::new();
        }
        let is_without = |one: SubscriptionId| match self.cursors().terms(one) {
            None => true,
            Some(terms) => {
                let has_user = |it: &Resumable| !it.user.is_empty();
                terms.member.is_none() && !terms.resumable.as_deref().is_some_and(has_user)
            }
        };
        let own = self.subscriptions_in_order(id).into_iter().filter(|one| is_without(*one));
        let named = own.filter_map(|one| {
            let (channel, _) = self.cursors().channel(one)?;
            Some((one, self.engine.name(channel)?))
        });
        let is_public = |name: &ChannelName| name.kind() != Kind::Internal;
        named.filter(|(_, name)| is_public(name) && self.goes_on(id, name)).collect()
    }
}
