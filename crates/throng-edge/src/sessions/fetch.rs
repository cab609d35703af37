//! Lets the engine fetch what connections read of channels' logs, and lets them wait for it.
//!
//! Of an engine that keeps all logs in memory there is nothing to fetch. Otherwise a subscription
//! begins with what was fetched for it, so that no worker waits for a disk. What has changed since,
//! such as a channel that the server has begun to keep for the user, the engine reads at once.

use std::iter;
use std::sync::Arc;

use throng_core::{
    Answer, AskerId, ChannelName, Fetched, LateAnswer, Later, Mark, MarkerKey, QuestionId,
    ReadMarker, Reading, StartAt, Ticket, WorkerId,
};
use throng_dialect::Encoding;
use throng_wire::subscribe::{ConnectionOption, Request};
use throng_wire::{ErrorCode, ErrorResponse, Kind, Target};

use super::ask::{Stop, Wait, ticket};
use super::client::Client;
use super::kept::user_to_follow;
use crate::connection::{Awaited, ConnectionId, FetchedParts};
use crate::delivery::{name_of, page_before_next};
use crate::net::Net;
use crate::sessions::Sessions;

/// The channels of a subscription, and where they start.
pub(crate) struct Starts<'a> {
    /// The channels in the order of the request.
    pub(crate) names: &'a [ChannelName],
    pub(crate) starts: &'a [StartAt],
    /// The inbox of the user whose kept channels are followed, too.
    pub(crate) kept_of: Option<ChannelName>,
    /// The inbox whose unread messages are counted.
    pub(crate) unread_of: Option<ChannelName>,
}

/// Tells a connection from all others, so that each gets its share.
fn asker_id(worker: WorkerId, id: ConnectionId) -> AskerId {
    AskerId::of_connection(u64::from(worker.0) << 32 | u64::from(id.index()))
}

impl<N: Net> Sessions<N> {
    /// The starts of a request's subscriptions, of a client whose session has not begun.
    pub(crate) fn starts_of<'a>(
        &self,
        request: &Request,
        client: &Client,
        names: &'a [ChannelName],
        starts: &'a [StartAt],
    ) -> Starts<'a> {
        let fetches = self.engine.fetches();
        let is_own = |user: &str| match client {
            Client::Known(throng_access::Client::Token(_) | throng_access::Client::Key(_)) => {
                client.credentials().user() == Some(user)
            }
            _ => !self.access.has_keys(),
        };
        let has_commands = Encoding::of_request(request).dialect().has_commands();
        let has_kept = |user: &&str| fetches && self.keeps_any_of(user);
        let is_welcome = request.options.flag(ConnectionOption::Welcome);
        let is_greeted = has_commands || is_welcome.unwrap_or(self.settings.welcome);
        let kept_of = user_to_follow(request).filter(has_kept).filter(|user| is_own(user));
        let kept_of = kept_of.map(ChannelName::user);
        let unread_of = request.user().filter(|_| fetches && is_greeted).map(ChannelName::user);
        Starts { names, starts, kept_of, unread_of }
    }

    /// The same as [`Sessions::fetch_starts`], of channels that all have to exist.
    pub(crate) fn fetch_existing(
        &mut self,
        id: ConnectionId,
        wanted: &Starts<'_>,
        fetched: &mut FetchedParts,
    ) -> Result<(), Stop> {
        self.fetch_starts(id, wanted, fetched)?;
        Ok(fetched.check()?)
    }

    /// Lets the engine fetch all that subscriptions begin with, beside what was `fetched` before.
    ///
    /// # Errors
    ///
    /// Some of it comes later.
    pub(crate) fn fetch_starts(
        &mut self,
        id: ConnectionId,
        wanted: &Starts<'_>,
        fetched: &mut FetchedParts,
    ) -> Result<(), Wait> {
        if fetched.is_complete {
            return Ok(());
        }
        let Starts { names, starts, kept_of, unread_of } = wanted;
        let all = names.iter().zip(starts.iter().copied());
        let (mut kept, mut kept_start) = (Vec::new(), StartAt::Live);
        if let Some(inbox) = kept_of {
            let start = all.clone().find(|(name, _)| *name == inbox);
            let start = start.map_or(StartAt::Live, |(_, start)| start);
            if let StartAt::After(last) = start
                && !std::mem::replace(&mut fetched.has_position, true)
            {
                let (query, limit) = page_before_next(last);
                let page = iter::once((inbox, Reading::Page(query, limit)));
                self.fetch(id, fetched, (None, 0), page)?;
            }
            let position = self.kept_position(inbox, start);
            fetched.position = Some(position);
            kept_start = self.start_of_kept(start, position);
            kept = self.kept_channels(inbox.name());
        }
        fetched.is_complete = true;
        let position = fetched.position;
        let starts = all.map(|(name, start)| {
            (name, position.map_or(start, |position| self.start_in_kept(name, start, position)))
        });
        let starts: Vec<_> = starts.chain(kept.iter().map(|name| (name, kept_start))).collect();
        let readings = starts.into_iter().map(|(name, start)| (name, Reading::Start(start)));
        // Those that the server keeps for the user are followed whether they exist or not.
        self.fetch(id, fetched, (unread_of.as_ref(), names.len() as u32), readings)
    }

    /// Lets the engine fetch what is read of these channels' logs, and count what is unread in an
    /// inbox, beside what it has `fetched` before. Asks whether the first `used` of the channels
    /// exist.
    ///
    /// # Errors
    ///
    /// Some of it comes later.
    pub(crate) fn fetch<'a>(
        &mut self,
        id: ConnectionId,
        fetched: &mut FetchedParts,
        (unread_of, used): (Option<&ChannelName>, u32),
        readings: impl Iterator<Item = (&'a ChannelName, Reading)>,
    ) -> Result<(), Wait> {
        let question = self.next_question(id);
        let (engine, worker) = (&self.engine, self.metrics().worker());
        let (now_ms, asker_id) = (self.clock().unix_ms(), asker_id(worker, id));
        let mut left = 0;
        if let Some(inbox) = unread_of {
            let mut issue = || ticket(engine, worker, question, LateAnswer::Marker);
            let later = Later::new(&mut issue).of(asker_id);
            match self.engine.read_marker(now_ms, &MarkerKey::inbox(inbox.name()), None, later) {
                Answer::Now(marker) => fetched.unread = marker.ok().map(|marker| marker.unread),
                Answer::Later(_) => left += 1,
            }
        }
        for (part, (channel, reading)) in (0..).zip(readings) {
            let question = QuestionId { part, ..question };
            let asker = &mut fetched.asker;
            let mut issue = || {
                let asker = Arc::downgrade(asker.get_or_insert_default());
                ticket(engine, worker, question, LateAnswer::Fetched).for_asker(asker)
            };
            let later = Later::new(&mut issue).of(asker_id);
            match self.engine.fetch(now_ms, channel, reading, later) {
                // Of an engine in memory there is nothing to keep, and nothing is allocated.
                Answer::Now(part) => fetched.held.extend(Some(part).filter(Fetched::is_held)),
                Answer::Later(_) => left += 1,
            }
            if part >= used {
                continue;
            }
            let mut issue = || ticket(engine, worker, question, LateAnswer::Exists);
            let later = Later::new(&mut issue).of(asker_id);
            match self.engine.exists(now_ms, channel, later) {
                Answer::Now(true) => {}
                Answer::Now(false) => fetched.missing.push(part),
                Answer::Later(_) => left += 1,
            }
        }
        match left {
            0 => Ok(()),
            _ => Err(Wait::new(question, Awaited::Fetch { left })),
        }
    }

    /// The marker of an inbox, or of the user of a connection in a channel.
    pub(super) fn marker_of(
        &self,
        id: ConnectionId,
        target: &Target,
    ) -> Result<MarkerKey, ErrorResponse> {
        if target.kind == Kind::User {
            return Ok(MarkerKey::inbox(&target.name));
        }
        let channel = name_of(target);
        let user = self.acting_user(id, &channel).ok_or_else(|| {
            let message = "a read marker is a user's, and this connection has no user";
            ErrorResponse::new(ErrorCode::Forbidden, message)
        })?;
        Ok(MarkerKey::channel(channel, &user))
    }

    /// Asks how far a user has read the inbox or a channel, after `mark`.
    ///
    /// # Errors
    ///
    /// There is no such marker, the journal does not take the marker, or the answer comes later.
    pub(crate) fn ask_marker(
        &mut self,
        id: ConnectionId,
        of: &MarkerKey,
        mark: Option<Mark>,
    ) -> Result<ReadMarker, Stop> {
        let question = self.next_question(id);
        let (engine, worker) = (&self.engine, self.metrics().worker());
        let mut issue = || ticket(engine, worker, question, LateAnswer::Marker);
        let later = Later::new(&mut issue).of(asker_id(worker, id));
        match self.engine.read_marker(self.clock().unix_ms(), of, mark, later) {
            Answer::Now(marker) => Ok(marker?),
            Answer::Later(_) => Err(Wait::new(question, Awaited::Marker).into()),
        }
    }

    /// The count of unread messages in a welcome, of the user of a request; `None` without a user.
    /// `fetched` has the engine's earlier answers.
    pub(crate) fn unread_of(&self, request: &Request, fetched: Option<u64>) -> Option<u64> {
        let of = MarkerKey::inbox(request.user()?);
        fetched.or_else(|| {
            // An engine that answers later has been asked.
            let mut issue = || Ticket::new(drop);
            let later = Later::new(&mut issue);
            let answer = self.engine.read_marker(self.clock().unix_ms(), &of, None, later);
            answer.now()?.ok().map(|marker| marker.unread)
        })
    }
}
