//! The commands of `throng.v1`.

use std::{iter, slice};

use throng_access::Action;
use throng_core::{
    Body, ChannelName, HistoryQuery, Kind, Mark, MessageId, Outcome, Presence, Publication,
    ReadMarker, Reading, RefusedForMemory, StartAt, SubscriptionId,
};
use throng_wire::credential::Token;
use throng_wire::v1::{self, Command, Present, RawValue};
use throng_wire::{ErrorCode, ErrorResponse, Target};

use super::ask::{Known, Permission, Wait};
use super::fetch::Starts;
use super::identify::Unidentified;
use super::subscribe::write_subscribed;
use crate::connection::{Asked, ConnectionId, FetchedParts};
use crate::counters::Counter;
use crate::net::Net;
use crate::worker::Worker;
use crate::worker::subscriptions::name_of;

/// The default number of messages of a history page, and of users of a presence answer.
const PAGE: usize = 100;

/// Maximum size of the envelopes of a history page; the rest is on the next page. A quarter of the
/// control plane's, because all connections of this worker wait while it is encoded.
const PAGE_BYTES_MAX: usize = 256 << 10;

/// A command that awaits its answer.
#[derive(Debug, Clone, Copy)]
struct Call<'a> {
    id: ConnectionId,
    text: &'a str,
    /// The client's own name for it, which the answer repeats.
    reference: Option<&'a RawValue>,
}

impl<N: Net> Worker<N> {
    /// Executes a command of a client, and answers it; or lets it wait until that is possible.
    pub(in crate::worker) fn command(&mut self, id: ConnectionId, text: &str) {
        let received = v1::parse(text);
        let call = Call { id, text, reference: received.reference.as_deref() };
        let done = received.command.and_then(|command| self.execute_allowed(call, command));
        self.conclude_command(call, done);
    }

    /// Executes a command that has waited.
    pub(in crate::worker) fn resume_command(&mut self, id: ConnectionId, text: &str, known: Known) {
        let received = v1::parse(text);
        let call = Call { id, text, reference: received.reference.as_deref() };
        let done = received.command.and_then(|command| {
            self.check_again(call, &command, &known)?;
            self.execute(call, command, known)
        });
        self.conclude_command(call, done);
    }

    /// Fails if a command that has waited is not allowed any more: the rules may have been replaced
    /// meanwhile. What is published already is answered as it is.
    fn check_again(
        &self,
        call: Call<'_>,
        command: &Command,
        known: &Known,
    ) -> Result<(), ErrorResponse> {
        if let Known::Published(_) | Known::Keys(_) | Known::Client(_) = known {
            return Ok(());
        }
        let Some(name) = name_of_command(command) else { return Ok(()) };
        let client = self.client(call.id, action_of(command, &name));
        self.ask_again(&client, actions_of(command, &name))
    }

    /// Refuses a command that has waited.
    pub(in crate::worker) fn refuse_command(
        &mut self,
        id: ConnectionId,
        text: &str,
        error: ErrorResponse,
    ) {
        let reference = v1::parse(text).reference;
        self.conclude_command(Call { id, text, reference: reference.as_deref() }, Err(error));
    }

    fn conclude_command(&mut self, call: Call<'_>, done: Result<(), ErrorResponse>) {
        if let Err(error) = done {
            self.count(Counter::RefusedCommand);
            self.tell_refusal(call.id, &error);
            self.reply(call.id, |out| v1::error(out, &error, call.reference));
        }
    }

    /// Executes a command if it is allowed, or lets it wait until that is decided.
    fn execute_allowed(&mut self, call: Call<'_>, command: Command) -> Result<(), ErrorResponse> {
        let Some(name) = name_of_command(&command) else {
            return self.execute(call, command, Known::Allowed(None));
        };
        if let Command::Read { id: Some(_), .. } = &command {
            self.limit_publication(call.id, 0)?;
        }
        if let Command::Publish { publication, .. } = &command {
            // Before it costs more, such as a decision from elsewhere.
            self.limit_publication(call.id, publication.body.len())?;
        }
        if let Command::History { .. } | Command::Presence { .. } = &command {
            self.limit_reading(call.id)?;
        }
        if let Command::Subscribe { presence: true, .. } = &command {
            self.check_has_presence_events(&name)?;
        }
        let client = self.client(call.id, action_of(&command, &name));
        let details = self.details(call.id, None);
        match self.ask_access(call.id, &client, details, actions_of(&command, &name)) {
            Permission::Granted(until_ms) => self.execute(call, command, Known::Allowed(until_ms)),
            Permission::Refused(error) => Err(error),
            Permission::Later(wait) => {
                self.wait(call.id, wait, Asked::Command(call.text.into()));
                Ok(())
            }
        }
    }

    fn execute(
        &mut self,
        call: Call<'_>,
        command: Command,
        known: Known,
    ) -> Result<(), ErrorResponse> {
        match command {
            Command::Subscribe { target, since, history, presence } => {
                let begin = (since.as_deref(), history);
                self.subscribe_command(call, &target, presence, begin, known)
            }
            Command::Unsubscribe { target } => self.unsubscribe_command(call, &target),
            Command::Publish { target, publication, echo } => {
                self.publish_command(call, &target, publication, echo, known)
            }
            Command::History { target, limit, before, after } => {
                let range = (before.as_deref(), after.as_deref());
                self.history_command(call, &target, range, limit, known)
            }
            Command::Presence { target, limit } => {
                self.presence_command(call, &target, limit, known)
            }
            Command::Read { target, id, back } => {
                self.read_command(call, &target, id.as_deref(), back, known)
            }
            Command::Auth { token } => self.auth_command(call, &token, known),
            Command::Ping => {
                self.reply(call.id, |out| v1::pong(out, call.reference));
                Ok(())
            }
        }
    }

    /// Takes a newer token, or lets the command wait until it is known whether it counts.
    fn auth_command(
        &mut self,
        call: Call<'_>,
        token: &Token,
        known: Known,
    ) -> Result<(), ErrorResponse> {
        // It has waited for keys before.
        let has_keys = matches!(known, Known::Keys(_) | Known::Client(_));
        match self.refresh(call.id, token, &known, call.reference) {
            Ok(()) => Ok(()),
            Err(Unidentified::Refused(error)) => Err(error),
            Err(Unidentified::Limited(refusal)) => {
                self.count(Counter::RefusedLimit);
                Err(refusal.into())
            }
            Err(Unidentified::Later(wait)) if has_keys && !wait.is_for_client() => {
                Err(ErrorResponse::unanswered())
            }
            Err(Unidentified::Later(wait)) => {
                self.wait(call.id, wait, Asked::Command(call.text.into()));
                Ok(())
            }
        }
    }

    /// The answer once the engine can read the part of a log that a command needs; `None` if the
    /// command waits for it.
    fn fetch_for_command(
        &mut self,
        call: Call<'_>,
        name: &ChannelName,
        reading: Reading,
        known: Known,
    ) -> Option<Known> {
        if matches!(known, Known::Fetched(_)) {
            return Some(known);
        }
        let fetched = FetchedParts::until(known.until_ms());
        match self.fetch(call.id, fetched, None, iter::once((name, reading))) {
            Ok(fetched) => Some(Known::Fetched(fetched)),
            Err(wait) => {
                self.wait(call.id, wait, Asked::Command(call.text.into()));
                None
            }
        }
    }

    /// Parts that the engine has fetched for a subscription to `name` and to its user's kept
    /// channels; `None` if the command waits for them.
    fn fetch_for_subscription(
        &mut self,
        call: Call<'_>,
        name: &ChannelName,
        start: StartAt,
        is_of_kept: bool,
        known: Known,
    ) -> Option<FetchedParts> {
        let fetched = match known {
            Known::Fetched(fetched) => fetched,
            known => FetchedParts::until(known.until_ms()),
        };
        let wanted = Starts {
            names: slice::from_ref(name),
            starts: &[start],
            kept_of: (is_of_kept && self.engine.fetches()).then(|| name.clone()),
            unread_of: None,
        };
        match self.fetch_starts(call.id, &wanted, fetched) {
            Ok(fetched) => Some(fetched),
            Err(wait) => {
                self.wait(call.id, wait, Asked::Command(call.text.into()));
                None
            }
        }
    }

    /// Subscribes to a channel. `begin` is the id after which it starts, or the number of messages
    /// before the next one.
    fn subscribe_command(
        &mut self,
        call: Call<'_>,
        target: &Target,
        has_presence: bool,
        begin: (Option<&str>, Option<u32>),
        known: Known,
    ) -> Result<(), ErrorResponse> {
        let id = call.id;
        let count = 1 + usize::from(has_presence);
        let name = name_of(target);
        if self.relief.refuses(RefusedForMemory::Subscription) {
            return Err(ErrorResponse::short_of_memory());
        }
        let max_channels = self.settings.max_channels_per_connection;
        let is_marked = self.is_marked(id);
        let is_asked = |&one: &SubscriptionId| !self.subscriptions.is_unasked(one);
        if self.subscriptions(id).filter(is_asked).count() + count > max_channels {
            return Err(ErrorResponse::too_many_channels(max_channels));
        }
        if self.find_subscription(id, &name).is_some() {
            let message = format!("this connection follows {} already", target.name);
            return Err(ErrorResponse::new(ErrorCode::AlreadySubscribed, message));
        }
        if name.kind() == Kind::User && self.user_of(id).is_some() {
            let message = "a connection belongs to at most one user";
            return Err(ErrorResponse::new(ErrorCode::BadRequest, message));
        }
        let start = match begin {
            (Some(since), _) => StartAt::of_position(since)?,
            (None, Some(count)) => StartAt::Last(count as usize),
            (None, None) => StartAt::Live,
        };
        let is_of_kept = name.kind() == Kind::User && self.has_kept_of(id, name.name());
        let fetched = self.fetch_for_subscription(call, &name, start, is_of_kept, known);
        let Some(fetched) = fetched else { return Ok(()) };
        // After all that may refuse or wait, so that each subscription is counted once.
        self.limit_subscriptions(id, count).inspect_err(|_| self.count(Counter::RefusedLimit))?;
        let position = || fetched.position.unwrap_or_else(|| self.kept_position(&name, start));
        let kept = is_of_kept.then(position);
        let kept_start = kept.map(|position| self.start_of_kept(start, position));
        let start = kept.map_or(start, |position| self.start_in_kept(start, position));
        let resumes = begin.0.is_some();
        let mut followed = self.follow(id, &name, start);
        let joined = self.newest_subscription(id);
        let presence = has_presence.then(|| self.follow_presence_of(id, &name)).flatten();
        followed.is_recovered = followed.is_recovered.filter(|_| resumes);
        if let Some(kept_start) = kept_start {
            let are_recovered = self.follow_kept(id, name.name(), kept_start).is_recovered;
            followed.is_recovered = followed.is_recovered.map(|own| own && are_recovered);
        } else if is_marked {
            self.mark_kept(id);
        }
        if followed.is_recovered == Some(false) {
            self.count(Counter::Gaps);
        }
        // The client learns of the subscription before its first message comes.
        self.reply(id, |out| write_subscribed(out, target, &followed, call.reference));
        if let Some(state) = presence {
            self.tell_presence(id, &state);
        }
        if let Some(joined) = joined {
            self.catch_up(id, joined);
            self.subscriptions.trim_channel_of(joined);
        }
        self.limit(id, fetched.until_ms);
        Ok(())
    }

    fn unsubscribe_command(
        &mut self,
        call: Call<'_>,
        target: &Target,
    ) -> Result<(), ErrorResponse> {
        let Some(subscription) = self.find_subscription(call.id, &name_of(target)) else {
            let message = format!("this connection does not follow {}", target.name);
            return Err(ErrorResponse::new(ErrorCode::NotSubscribed, message));
        };
        if self.leave_to_server(call.id, subscription, target) {
            let message = "the server keeps this subscription for the user; the application ends \
                it";
            return Err(ErrorResponse::new(ErrorCode::Forbidden, message));
        }
        if target.kind == Kind::User {
            self.unfollow_kept(call.id);
        }
        self.unfollow_channel(call.id, subscription, &name_of(target));
        self.reply(call.id, |out| v1::unsubscribed(out, target, call.reference));
        Ok(())
    }

    fn publish_command(
        &mut self,
        call: Call<'_>,
        target: &Target,
        publication: v1::Publication,
        is_echoed: bool,
        known: Known,
    ) -> Result<(), ErrorResponse> {
        let outcome = match known {
            Known::Published(outcome) => outcome,
            _ => match self.begin_publish(call, target, publication, is_echoed)? {
                Ok(outcome) => outcome,
                Err(wait) => {
                    self.wait(call.id, wait, Asked::Command(call.text.into()));
                    return Ok(());
                }
            },
        };
        let published = outcome?;
        self.count(Counter::MessagesPublished);
        // The answer counts the subscribers that get the message. Without an echo the sender does
        // not.
        let is_excluded = !is_echoed && self.find_subscription(call.id, &name_of(target)).is_some();
        let message_id = published.id.to_string();
        // Of an engine that answers at once, it precedes the echo, which the worker takes from its
        // queue later.
        self.reply(call.id, |out| {
            let subscribers = published.subscribers.saturating_sub(u64::from(is_excluded));
            let is_duplicate = published.is_duplicate;
            v1::published(out, target, &message_id, subscribers, is_duplicate, call.reference);
        });
        Ok(())
    }

    /// Publishes the message of a command. Returns what became of it, or what to wait for.
    fn begin_publish(
        &mut self,
        call: Call<'_>,
        target: &Target,
        publication: v1::Publication,
        is_echoed: bool,
    ) -> Result<Result<Outcome, Wait>, ErrorResponse> {
        let max_bytes = self.settings.max_message_bytes;
        if publication.body.len() > max_bytes {
            return Err(ErrorResponse::message_too_large(max_bytes));
        }
        let (body, content_type) =
            Body::parse(&publication.body, publication.content_type.as_deref())?;
        let channel = name_of(target);
        let key = publication.key.as_deref();
        let publication = Publication {
            idempotency_key: key.map(|key| self.idempotency_key(call.id, &channel, key)),
            channel,
            body,
            content_type,
            excluded: (!is_echoed).then(|| self.connections.name(call.id)),
            expires_in_ms: publication.expires_in_s.map(|seconds| u64::from(seconds) * 1000),
            receipt: None,
        };
        Ok(self.publish(call.id, publication))
    }

    /// Answers with a page of the messages before or after an id, which `range` gives in this
    /// order.
    fn history_command(
        &mut self,
        call: Call<'_>,
        target: &Target,
        range: (Option<&str>, Option<&str>),
        limit: Option<u32>,
        known: Known,
    ) -> Result<(), ErrorResponse> {
        let name = name_of(target);
        if self.relief.refuses(RefusedForMemory::History) {
            return Err(ErrorResponse::short_of_memory());
        }
        let query = match range {
            (Some(_), Some(_)) => {
                let message = "give either before or after";
                return Err(ErrorResponse::new(ErrorCode::BadRequest, message));
            }
            (Some(before), None) => HistoryQuery::Before(before.parse::<MessageId>()?),
            (None, Some(after)) => HistoryQuery::After(after.parse::<MessageId>()?),
            (None, None) => HistoryQuery::Newest,
        };
        let limit = limit.map_or(PAGE, |limit| limit as usize);
        let known = self.fetch_for_command(call, &name, Reading::Page(query, limit), known);
        // Held until the page is read: the engine may drop the messages after that.
        let Some(_held) = known else { return Ok(()) };
        let mut history = self.engine.history(self.clock.unix_ms(), &name, query, limit);
        let envelopes = history.encode(query, PAGE_BYTES_MAX);
        self.charge_read(call.id, envelopes.iter().map(Vec::len).sum());
        let page = v1::HistoryPage {
            target,
            id: &history.head.to_string(),
            has_more: history.has_more,
            is_recovered: history.is_recovered,
        };
        let writers = envelopes.iter();
        let writers = writers.map(|envelope| |out: &mut Vec<u8>| out.extend_from_slice(envelope));
        self.reply(call.id, |out| v1::history(out, page, writers, call.reference));
        Ok(())
    }

    /// Answers how far a user has read the inbox, after moving the marker if there is an id.
    fn read_command(
        &mut self,
        call: Call<'_>,
        target: &Target,
        id: Option<&str>,
        may_go_back: bool,
        known: Known,
    ) -> Result<(), ErrorResponse> {
        let id = id.map(str::parse::<MessageId>).transpose()?;
        let mark = id.map(|id| Mark { id, may_go_back });
        let found = match known {
            Known::Marker(marker) => Ok(marker),
            _ => self.ask_marker(call.id, &name_of(target), mark)?,
        };
        let ReadMarker { read, unread } = match found {
            Ok(marker) => marker,
            Err(wait) => {
                self.wait(call.id, wait, Asked::Command(call.text.into()));
                return Ok(());
            }
        };
        let read = read.map(|id| id.to_string());
        self.reply(call.id, |out| v1::read(out, target, (read.as_deref(), unread), call.reference));
        Ok(())
    }

    /// Answers who is in a channel, mostly after other workers have scanned their subscriptions.
    fn presence_command(
        &mut self,
        call: Call<'_>,
        target: &Target,
        limit: Option<u32>,
        known: Known,
    ) -> Result<(), ErrorResponse> {
        let limit = limit.map_or(PAGE, |limit| limit as usize);
        let found = match known {
            Known::Presence(presence) => Ok(presence),
            Known::Allowed(_)
            | Known::Published(_)
            | Known::Keys(_)
            | Known::Client(_)
            | Known::Marker(_)
            | Known::Fetched(_) => self.ask_presence(call.id, &name_of(target), limit)?,
        };
        match found {
            Ok(Presence { connections, users, is_cut, is_partial }) => {
                self.charge_read(call.id, users.iter().map(|user| user.len()).sum());
                let present = Present { connections, users: &users, more: is_cut, is_partial };
                self.reply(call.id, |out| v1::presence(out, target, present, call.reference));
            }
            Err(wait) => self.wait(call.id, wait, Asked::Command(call.text.into())),
        }
        Ok(())
    }
}

/// The channel or user that a command needs a permission for; `None` if it is always allowed.
fn name_of_command(command: &Command) -> Option<ChannelName> {
    match command {
        Command::Subscribe { target, .. }
        | Command::Publish { target, .. }
        | Command::History { target, .. }
        | Command::Presence { target, .. }
        | Command::Read { target, .. } => Some(name_of(target)),
        Command::Unsubscribe { .. } | Command::Auth { .. } | Command::Ping => None,
    }
}

/// The action of a command about `name`, for the access policy.
fn action_of<'n>(command: &Command, name: &'n ChannelName) -> Action<'n> {
    match command {
        Command::Publish { .. } => Action::Publish(name),
        Command::History { .. } => Action::ReadHistory(name),
        Command::Presence { .. } => Action::ReadPresence(name),
        _ => Action::Subscribe(name),
    }
}

/// All that a command about `name` asks the access policy for.
fn actions_of<'n>(command: &Command, name: &'n ChannelName) -> impl Iterator<Item = Action<'n>> {
    let sees_presence = matches!(command, Command::Subscribe { presence: true, .. });
    let presence = sees_presence.then_some(Action::ReadPresence(name));
    iter::once(action_of(command, name)).chain(presence)
}
