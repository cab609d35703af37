//! Connections that follow what the server keeps for their users.
//!
//! A request for a user's inbox alone, and a `throng.v1` connection that follows an inbox, follow
//! the user's kept channels, too, if it is the user's own: not if its token is of another user, and
//! grants the inbox. All subscriptions of such a connection are
//! [marked](throng_core::SubscriptionTable::is_kept). One whose user has no kept channels is not
//! marked until the user gets some.
//!
//! # Invariants
//!
//! * A user's kept channels are read from the store before anything looks at them: a request that
//!   may follow them waits until they are ([`Sessions::await_kept`]).
//! * The inbox is followed before the kept channels are read, so that a change that comes meanwhile
//!   is announced to this worker.
//! * An announcement names channels only. Whether the user follows them is looked up when the
//!   connection is about to follow them or to cease to, so that the order of announcements and
//!   look-ups does not matter.
//! * What the client has not asked for is [marked](throng_core::SubscriptionTable::is_unasked),
//!   too: it ends once the server does not keep it any more. What the client has asked for, and
//!   its token grants, stays.

use std::ops::Range;
use std::slice;

use throng_access::KeptPage;
use throng_core::{
    AHEAD, Answer, ChannelName, KeptNotice, Kind, LateAnswer, Later, StartAt, SubscriptionId,
};
use throng_dialect::Encoding;
use throng_wire::Target;
use throng_wire::subscribe::Request;

use super::ask::{Wait, ticket};
use crate::connection::{Awaited, ConnectionId, Flags};
use crate::net::Net;
use crate::sessions::Sessions;

/// Kept channels that are read at a time: readers and changes wait for each other.
const PAGE: usize = 256;

/// Channels that one slice looks at for changes, for all connections together.
const CHECKED_PER_SLICE: usize = 256;

/// Subscriptions that take as long to pass as everything else of a look-up.
const PASSED_PER_CHECK: usize = 32;

/// The user whose kept channels a request follows if it is the user's own.
pub(super) fn user_to_follow(request: &Request) -> Option<&str> {
    let has_commands = Encoding::of_request(request).dialect().has_commands();
    request.user().filter(|_| has_commands || !request.is_multiple())
}

/// How the kept channels of a user begin.
pub(crate) struct KeptFollowed {
    /// True if all of them have all messages since the position at which they begin.
    pub(crate) is_recovered: bool,
    /// True if any of them has messages since.
    pub(crate) has_backlog: bool,
}

impl<N: Net> Sessions<N> {
    /// The user whose kept channels a request follows, if there are any. The connection has its
    /// session already.
    pub(crate) fn kept_user<'r>(&self, id: ConnectionId, request: &'r Request) -> Option<&'r str> {
        user_to_follow(request).filter(|user| self.has_kept_of(id, user))
    }

    /// True if the connection is to follow kept channels with the inbox of a user: it is the user's
    /// own, and there are some.
    pub(crate) fn has_kept_of(&self, id: ConnectionId, user: &str) -> bool {
        // A client of an application knows only what it has asked for.
        self.keeps_any_of(user) && self.is_own(id, user) && !self[id].confirms_with_members()
    }

    /// True if channels are kept for a user, and the inbox has positions.
    pub(crate) fn keeps_any_of(&self, user: &str) -> bool {
        self.access.kept.channels_of(user) > 0
            && self.engine.has_positions(&ChannelName::user(user))
    }

    /// Lets a request wait until the kept channels of a user are read from the store.
    ///
    /// # Errors
    ///
    /// They are read later.
    pub(crate) fn await_kept(&mut self, id: ConnectionId, user: &str) -> Result<(), Wait> {
        if self.access.kept.is_read(user) {
            return Ok(());
        }
        let question = self.next_question(id);
        let (engine, worker) = (&self.engine, self.metrics().worker());
        let mut issue = || ticket(engine, worker, question, LateAnswer::Kept);
        match self.access.kept.ask(user, Later::new(&mut issue)) {
            Answer::Now(_) => Ok(()),
            Answer::Later(_) => Err(Wait::new(question, Awaited::Kept)),
        }
    }

    /// True if the connection is the user's own. Without keys it is whose it says.
    fn is_own(&self, id: ConnectionId, user: &str) -> bool {
        match self.connections().session(id) {
            Some(session) => session.is_of_user(user, &self.access.tagger),
            None => !self.access.has_keys(),
        }
    }

    /// A page of the channels that the server keeps for a user, without those whose logs a reload
    /// of the rules has put into another order than positions have.
    fn kept_page(&self, user: &str, after: Option<u32>) -> KeptPage<ChannelName> {
        let mut page = self.access.kept.channel_names_page(user, after, PAGE);
        page.names.retain(|name| self.engine.has_positions(name));
        page
    }

    /// The channels that the server keeps for a user.
    pub(crate) fn kept_channels(&self, user: &str) -> Vec<ChannelName> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let mut page = self.kept_page(user, after);
            all.append(&mut page.names);
            after = page.next;
            if after.is_none() {
                return all;
            }
        }
    }

    /// Follows the kept channels of a user, from `start` on. The connection already follows the
    /// user's inbox.
    pub(crate) fn follow_kept(
        &mut self,
        id: ConnectionId,
        user: &str,
        start: StartAt,
    ) -> KeptFollowed {
        let mut all = KeptFollowed { is_recovered: true, has_backlog: false };
        let own: Vec<_> = self.subscriptions(id).filter_map(|own| self.target_of(own)).collect();
        let mut after = None;
        loop {
            let mut page = self.kept_page(user, after);
            page.names.retain(|name| {
                !own.iter().any(|own| own.kind == Kind::Channel && own.name == name.name())
            });
            for names in page.names.chunks(AHEAD) {
                let followed = self.follow_kept_channels(id, names, start);
                all.is_recovered &= followed.is_recovered;
                all.has_backlog |= followed.has_backlog;
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        self.mark_kept(id);
        all
    }

    /// Follows more channels, at most [`AHEAD`], beyond the limits of clients.
    fn follow_kept_channels(
        &mut self,
        id: ConnectionId,
        names: &[ChannelName],
        start: StartAt,
    ) -> KeptFollowed {
        // Before they begin, as each that a client asks for.
        let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
        self.access
            .clients
            .limiter
            .resume_subscriptions(self.connections().limited_client(id), count);
        self.look_ahead(names);
        let mut all = KeptFollowed { is_recovered: true, has_backlog: false };
        for name in names {
            let followed = self.follow(id, name, start);
            all.is_recovered &= followed.is_recovered != Some(false);
            all.has_backlog |= !followed.backlog.is_empty();
            if let Some(newest) = self.newest_subscription(id) {
                self.leave_unasked(newest);
                // One that the list does not take follows the channel all the same.
                let member = self.begin_member(id, name, &self.known(id, name), (None, None));
                self.note_member(newest, member.ok().flatten());
            }
        }
        all
    }

    /// The inbox of the user for whom the server keeps subscriptions of the connection; `None` if
    /// it keeps none.
    pub(crate) fn keeper_of(&self, id: ConnectionId) -> Option<ChannelName> {
        self.is_marked(id).then(|| self.user_of(id)).flatten()
    }

    /// Leaves to the server a subscription that the client may not, or does not want to, ask for
    /// any more. `inbox` is the connection's [keeper](Sessions::keeper_of). Returns false if the
    /// server does not keep it.
    pub(crate) fn leave_to_server(
        &mut self,
        inbox: Option<&ChannelName>,
        subscription: SubscriptionId,
        target: &Target,
    ) -> bool {
        let is_kept = inbox.is_some_and(|user| {
            target.kind == Kind::Channel && self.access.kept.has(user.name(), &target.name)
        });
        if is_kept {
            self.leave_unasked(subscription);
        }
        is_kept
    }

    /// Goes on with the changes of kept channels for one slice, in their order. One that ends
    /// subscriptions waits until they have what was published before; for what is not settled only
    /// if it `may_wait`. Returns whether one waits.
    pub(crate) fn continue_kept_changes(&mut self, may_wait: bool) -> bool {
        let mut checks = CHECKED_PER_SLICE;
        while checks > 0
            && let Some(mut change) = self.kept_changes.pop_front()
        {
            let mut is_done = false;
            // Each look-up passes the connection's subscriptions.
            let user = change.notice().inbox.name();
            let cost = 1 + self.access.kept.channels_of(user) / PASSED_PER_CHECK;
            while checks > 0 && !is_done {
                let place = change.place();
                let KeptNotice { inbox, channel, .. } = change.notice();
                // Without the user's connections, the ids may be another inbox's by now.
                let next = if self.engine.is_named(*channel, inbox) {
                    let name_of = |id| self.connections().name(id);
                    change.next(self.cursors(), name_of, checks / cost)
                } else {
                    None
                };
                match next {
                    Some((id, names)) => {
                        checks = checks.saturating_sub(names.len() * cost);
                        let notice = change.notice();
                        let apply = |sessions: &mut Sessions<N>| {
                            sessions.apply_kept_change(id, notice, names, may_wait)
                        };
                        if !self.turn(apply) {
                            change.go_back_to(place);
                            self.kept_changes.push_front(change);
                            return true;
                        }
                    }
                    None => is_done = true,
                }
            }
            // Done or not, the next slice finds out: dropped, it counts as done.
            if !is_done {
                self.kept_changes.push_front(change);
            }
        }
        false
    }

    /// Makes a connection follow the channels among these that its user follows, and none of the
    /// others. Returns false if that has to wait.
    fn apply_kept_change(
        &mut self,
        id: ConnectionId,
        notice: &KeptNotice,
        names: Range<usize>,
        may_wait: bool,
    ) -> bool {
        let user = notice.inbox.name();
        let connection = &self[id];
        if !connection.is_parked() {
            return true;
        }
        let (has_commands, is_multiple) =
            (connection.has_commands(), connection.has(Flags::MULTIPLE));
        let Some(newest) = connection.newest_subscription else { return true };
        let is_marked = self.cursors().is_kept(newest);
        if !is_marked && !has_commands && is_multiple {
            // Its request names its channels.
            return true;
        }
        if !is_marked && !self.is_own(id, user) {
            return true;
        }
        for name in &notice.names[names] {
            let is_wanted =
                self.access.kept.has(user, name.name()) && self.engine.has_positions(name);
            match (is_wanted, self.own_subscription(id, name)) {
                (true, None) => {
                    self.follow_kept_channels(id, slice::from_ref(name), StartAt::Live);
                    self.subscriptions_changed(id);
                    let newest = self.newest_subscription(id);
                    self.tell_numbers(id, |own| Some(own) == newest);
                }
                (true, Some(_)) => self.subscriptions_changed(id),
                (false, Some(subscription)) if self.cursors().is_unasked(subscription) => {
                    let lacks_some = self.lacks_what_came_before(id, subscription);
                    // An answered poll has no subscriptions.
                    if !self[id].is_parked() {
                        return true;
                    }
                    if lacks_some && (may_wait || self.budget().is_slice_spent()) {
                        return false;
                    }
                    self.unfollow_channel(id, subscription, name);
                }
                (false, _) => {}
            }
        }
        true
    }
}
