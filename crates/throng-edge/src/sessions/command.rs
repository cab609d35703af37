//! The commands of clients, whatever their dialect.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use throng_access::{Action, Details};
use throng_core::{
    Attributes, Body, ChannelName, HistoryQuery, IdempotencyKey, Kind, Mark, MessageId, Mover,
    Outcome, Publication, ReadMarker, Reading, RefusedForMemory, Replacement, RoomHolder,
    SubscriptionTerms, VolatilePublication,
};
use throng_dialect::Saying;
use throng_wire::page_range::PageRange;
use throng_wire::v1::{self, Command, HistoryPage, RawValue, Received};
use throng_wire::{ErrorCode, ErrorResponse, Target};

use super::ask::{Stop, draft_of};
use super::call::{Call, LOOK_COST_BYTES};
use super::join::{Own, not_subscribed, still_kept};
use crate::connection::{Answers, Asked, ConnectionId, Input};
use crate::counters::Counter;
use crate::delivery::{Survey, name_of};
use crate::net::Net;
use crate::sessions::Sessions;

/// The default number of messages of a history page, and of users of a presence answer.
const PAGE: usize = 100;

/// Maximum size of the envelopes of a history page; the rest is on the next page. A quarter of the
/// control plane's, because all connections of this worker wait while it is encoded.
const PAGE_BYTES_MAX: usize = 256 << 10;

impl<N: Net> Sessions<N> {
    /// Executes a command of a client with the answers that it has had, and answers it; or lets it
    /// wait for the next one. `input` begins with its bytes.
    pub(crate) fn command(
        &mut self,
        id: ConnectionId,
        received: Received,
        input: Input<&[u8]>,
        mut answers: Answers,
    ) {
        let call = Call { id, reference: received.reference.as_deref() };
        let identified = received.command.and_then(|command| {
            self.check_identified(id, &command)?;
            Ok(command)
        });
        let done = match identified {
            Ok(Command::Many(list)) => {
                return self.begin_many(id, received.reference, list, input.bytes);
            }
            command => command.map_err(Stop::from),
        };
        let error = match done.and_then(|command| self.execute(call, command, &mut answers)) {
            Ok(()) => return,
            Err(Stop::Later(wait)) => {
                return self.wait(id, wait, Asked::Input(input.to_boxed()), answers);
            }
            Err(Stop::Refused(error)) => error,
            Err(Stop::Limited(refusal)) => {
                self.count(Counter::RefusedLimit);
                refusal.into()
            }
        };
        self.answer_refused(call, &error);
    }

    /// Refuses a command, which its client calls `reference`.
    pub(crate) fn refuse_command(
        &mut self,
        id: ConnectionId,
        reference: Option<&RawValue>,
        error: &ErrorResponse,
    ) {
        self.answer_refused(Call { id, reference }, error);
    }

    pub(super) fn answer(&mut self, call: Call<'_>, saying: &Saying<'_>) {
        self.reply(call.id, saying, call.reference);
    }

    fn answer_refused(&mut self, call: Call<'_>, error: &ErrorResponse) {
        self.count(Counter::RefusedCommand);
        self.tell_refusal(call.id, error);
        self.answer(call, &Saying::Error(error));
    }

    /// Fails unless a command is allowed. One that has waited goes by the present rules; but if its
    /// message is published already, it is answered as it is.
    fn permit_command(
        &mut self,
        call: Call<'_>,
        command: &Command,
        answers: &mut Answers,
    ) -> Result<(), Stop> {
        let Some(name) = name_of_command(command) else { return Ok(()) };
        let client = self.client(call.id, action_of(command, &name));
        if answers.is_allowed {
            return match answers.outcome {
                Some(_) => Ok(()),
                None => Ok(self.ask_again(&client, actions_of(command, &name))?),
            };
        }
        match command {
            Command::Read { id: Some(_), .. } => self.limit_publication(call.id, 0)?,
            // Those who follow the members get it, as that of `subscribe`.
            Command::Update { info, .. } => self.limit_publication(call.id, info.len())?,
            // Before it costs more, such as a decision from elsewhere.
            Command::Publish { publication, .. } => {
                self.check_client_event(call.id, &name)?;
                self.limit_publication(call.id, publication.body.len())?;
            }
            Command::History { .. } | Command::Presence { .. } => self.limit_reading(call.id)?,
            Command::Subscribe { presence, member, .. } => {
                if *presence {
                    self.check_has_presence_events(&name)?;
                }
                if let Some(info) = member.as_ref().and_then(|member| member.info.as_ref()) {
                    self.limit_publication(call.id, info.len())?;
                }
            }
            _ => {}
        }
        let draft = match command {
            Command::Publish { publication, .. } => {
                let action = action_of(command, &name);
                let draft = self.draft(&client, action, || self.content(publication))?;
                draft.map(|draft| (draft, &publication.labels))
            }
            _ => None,
        };
        let content = draft.as_ref().map(|(draft, labels)| draft_of(draft, labels));
        let details = Details { content, ..self.details(call.id, None) };
        self.ask_access(call.id, &client, details, actions_of(command, &name), answers)
    }

    /// The content of a publication, checked.
    fn content(&self, publication: &v1::Publication) -> Result<Replacement, ErrorResponse> {
        let max_bytes = self.settings.max_message_bytes;
        if publication.body.len() > max_bytes {
            return Err(ErrorResponse::message_too_large(max_bytes));
        }
        let content_type = publication.content_type.as_deref();
        let (body, content_type) = Body::parse(&publication.body, content_type)?;
        Ok(Replacement { body, content_type })
    }

    fn execute(
        &mut self,
        call: Call<'_>,
        command: Command,
        answers: &mut Answers,
    ) -> Result<(), Stop> {
        self.permit_command(call, &command, answers)?;
        match command {
            Command::Subscribe {
                target,
                since,
                replay,
                presence,
                member,
                expires_in_s,
                pace_ms,
            } => {
                let begin = (since.as_deref(), replay);
                let left = expires_in_s.map(|left_s| Duration::from_secs(left_s.into()));
                let expires = left.map(|left| self.clock().deadline(left));
                let terms = SubscriptionTerms { expires, pace_ms, ..SubscriptionTerms::default() };
                let own = Own { has_presence: presence, claim: member.as_deref(), terms };
                self.subscribe_command(call, &target, own, begin, answers)
            }
            Command::Unsubscribe { target } => self.unsubscribe_command(call, &target),
            Command::Publish { target, publication, echo } => {
                self.publish_command(call, &target, publication, echo, answers)
            }
            Command::History { target, page, limit } => {
                self.history_command(call, &target, &page, limit, answers)
            }
            Command::Presence { target, limit, after } => {
                self.presence_command(call, &target, limit, after.as_deref(), answers)
            }
            Command::Update { target, info } => {
                self.update_member(call.id, &name_of(&target), &info)?;
                self.answer(call, &Saying::Updated(&target));
                Ok(())
            }
            Command::Read { target, id, back } => {
                self.read_command(call, &target, id.as_deref(), back, answers)
            }
            Command::SignIn { user, watchlist } => {
                self.sign_in_by_app(call, (&user, &watchlist), answers)
            }
            Command::Auth { token } => self.auth_command(call.id, &token, answers, call.reference),
            Command::Ack { frames } => {
                self.acknowledged(call.id, frames);
                Ok(())
            }
            Command::Ping => {
                self.answer(call, &Saying::Pong);
                Ok(())
            }
            Command::Many(_) => Err(ErrorResponse::from(ErrorCode::NotImplemented).into()),
        }
    }

    fn unsubscribe_command(&mut self, call: Call<'_>, target: &Target) -> Result<(), Stop> {
        let Survey { asked, found, .. } = self.survey(call.id, &[Some(name_of(target))]);
        self.budget().charge(asked * LOOK_COST_BYTES);
        let Some(subscription) = found[0] else {
            return Err(not_subscribed(target).into());
        };
        if self.leave_to_server(self.keeper_of(call.id).as_ref(), subscription, target) {
            return Err(still_kept().into());
        }
        if target.kind == Kind::User {
            self.unfollow_kept(call.id);
        }
        self.charge_departures(call.id, &[subscription]);
        self.pace_departure(call.id, subscription);
        self.unfollow_channel(call.id, subscription, &name_of(target));
        self.answer(call, &Saying::Unsubscribed(target));
        Ok(())
    }

    fn publish_command(
        &mut self,
        call: Call<'_>,
        target: &Target,
        publication: v1::Publication,
        is_echoed: bool,
        answers: &mut Answers,
    ) -> Result<(), Stop> {
        if publication.is_volatile {
            let content = match answers.replacement.take() {
                Some(replacement) => Arc::unwrap_or_clone(replacement),
                None => self.content(&publication)?,
            };
            let attributes = self.attributes(call.id, &name_of(target), &publication.labels);
            let content = (content, attributes);
            return self.publish_volatile_command(call, target, content, is_echoed);
        }
        let outcome = match answers.outcome.take() {
            Some(outcome) => outcome,
            None => {
                let replacement = answers.replacement.take();
                self.begin_publish(call, target, publication, is_echoed, replacement)?
            }
        };
        let published = outcome.map_err(ErrorResponse::from)?;
        self.count(Counter::MessagesPublished);
        // The answer counts the subscribers that get the message. Without an echo the sender does
        // not.
        let is_excluded = !is_echoed && self.own_subscription(call.id, &name_of(target)).is_some();
        let message_id = published.id.to_string();
        // Of an engine that answers at once, it precedes the echo, which the worker takes from its
        // queue later.
        let subscribers = published.subscribers.saturating_sub(u64::from(is_excluded));
        let (id, is_duplicate) = (Some(&*message_id), published.is_duplicate);
        self.answer(call, &Saying::Published { target, id, subscribers, is_duplicate });
        Ok(())
    }

    /// Publishes a volatile message, which engines answer at once.
    fn publish_volatile_command(
        &mut self,
        call: Call<'_>,
        target: &Target,
        (content, attributes): (Replacement, Option<Attributes>),
        is_echoed: bool,
    ) -> Result<(), Stop> {
        let Replacement { body, content_type } = content;
        let channel = name_of(target);
        let is_excluded = !is_echoed && self.own_subscription(call.id, &channel).is_some();
        let excluded = (!is_echoed).then(|| self.connections().name(call.id));
        let volatile = VolatilePublication { channel, body, content_type, excluded, attributes };
        let told = self.tells_client_events(call.id).then(|| volatile.clone());
        let outcome = self.engine.publish_volatile(self.clock().unix_ms(), volatile);
        let subscribers = outcome.map_err(ErrorResponse::from)?;
        if let Some(told) = told {
            self.notify_client_event(call.id, &told);
        }
        self.count(Counter::MessagesPublished);
        let subscribers = subscribers.saturating_sub(u64::from(is_excluded));
        let (id, is_duplicate) = (None, false);
        self.answer(call, &Saying::Published { target, id, subscribers, is_duplicate });
        Ok(())
    }

    /// Publishes the message of a command, or its `replacement`. Returns what became of it.
    fn begin_publish(
        &mut self,
        call: Call<'_>,
        target: &Target,
        publication: v1::Publication,
        is_echoed: bool,
        replacement: Option<Arc<Replacement>>,
    ) -> Result<Outcome, Stop> {
        let Replacement { body, content_type } = match replacement {
            Some(replacement) => Arc::unwrap_or_clone(replacement),
            None => self.content(&publication)?,
        };
        let channel = name_of(target);
        let (key, is_value) = (publication.key.as_deref(), publication.labels.key.is_some());
        let as_key = |key| {
            self.as_publisher(call.id, &channel, |publisher| IdempotencyKey::new(publisher, key))
        };
        let memory = self.engine.memory();
        let as_holder = || self.as_publisher(call.id, &channel, |it| memory.holder(it));
        let publication = Publication {
            idempotency_key: key.map(as_key),
            holder: if is_value { as_holder() } else { RoomHolder::NOBODY },
            content_type,
            excluded: (!is_echoed).then(|| self.connections().name(call.id)),
            attributes: self.attributes(call.id, &channel, &publication.labels),
            expires_in_ms: publication.expires_in_s.map(|seconds| u64::from(seconds) * 1000),
            ..Publication::new(channel, body)
        };
        Ok(self.publish(call.id, publication)?)
    }

    /// Answers with a page of the messages that a channel keeps.
    fn history_command(
        &mut self,
        call: Call<'_>,
        target: &Target,
        range: &PageRange,
        limit: Option<u32>,
        answers: &mut Answers,
    ) -> Result<(), Stop> {
        let name = name_of(target);
        if self.relief.refuses(RefusedForMemory::History) {
            return Err(ErrorResponse::short_of_memory().into());
        }
        let query = HistoryQuery::of_page(&range.start)?;
        let limit = limit.map_or(PAGE, |limit| limit as usize);
        if !std::mem::replace(&mut answers.fetched.is_complete, true) {
            let page = iter::once((&name, Reading::Page(query, limit)));
            self.fetch(call.id, &mut answers.fetched, (None, 1), page)?;
        }
        answers.fetched.check()?;
        let mut history = self.engine.history(self.clock().unix_ms(), &name, query, limit);
        let envelopes = history.encode(query, PAGE_BYTES_MAX, range.is_newest_first);
        self.charge_read(call.id, envelopes.iter().map(Vec::len).sum());
        let page = HistoryPage {
            target,
            id: &history.head.to_string(),
            has_more: history.has_more,
            is_recovered: history.is_recovered,
            is_ended: history.is_ended,
            is_local: self.engine.is_local(&name),
        };
        self.answer(call, &Saying::History(page, &envelopes));
        Ok(())
    }

    /// Answers how far a user has read the inbox or a channel, after moving the marker if there is
    /// an id.
    fn read_command(
        &mut self,
        call: Call<'_>,
        target: &Target,
        id: Option<&str>,
        may_go_back: bool,
        answers: &mut Answers,
    ) -> Result<(), Stop> {
        let id = id.map(parse_id).transpose()?;
        let ReadMarker { read, unread, .. } = match answers.marker.take() {
            Some(marker) => marker,
            None => {
                let of = self.marker_of(call.id, target)?;
                let mark = id.map(|id| {
                    let is_follower = self.own_subscription(call.id, &of.told()).is_some();
                    let mover = Mover { connection: self.connections().name(call.id), is_follower };
                    Mark { id, may_go_back, mover: Some(mover) }
                });
                self.ask_marker(call.id, &of, mark)?
            }
        };
        let read = read.map(|id| id.to_string());
        self.answer(call, &Saying::Read(target, read.as_deref(), unread));
        Ok(())
    }

    /// Answers who is in a channel, mostly after other workers have scanned their subscriptions.
    fn presence_command(
        &mut self,
        call: Call<'_>,
        target: &Target,
        limit: Option<u32>,
        after: Option<&str>,
        answers: &mut Answers,
    ) -> Result<(), Stop> {
        let limit = limit.map_or(PAGE, |limit| limit as usize);
        let name = name_of(target);
        if self.cursors().rules().members(&name).is_some() {
            return self.members_command(call, target, (limit, after), answers);
        }
        let found = match answers.presence.take() {
            Some(presence) => presence,
            None => self.ask_presence(call.id, &name, limit)?,
        };
        self.charge_read(call.id, found.users.iter().map(|user| user.len()).sum());
        let present = found.answer(self.engine.is_local(&name));
        self.answer(call, &Saying::Present(target, present));
        Ok(())
    }

    /// Answers with a page of the members of a channel.
    fn members_command(
        &mut self,
        call: Call<'_>,
        target: &Target,
        (limit, after): (usize, Option<&str>),
        answers: &mut Answers,
    ) -> Result<(), Stop> {
        let name = name_of(target);
        let (subscribers, is_partial) = if self.engine.memory().shares_members(&name) {
            // First the others say who is there.
            let found = match answers.presence.take() {
                Some(presence) => presence,
                None => self.ask_presence(call.id, &name, 0)?,
            };
            (found.connections as u64, found.is_partial)
        } else {
            (self.engine.audience(&name).subscribers, false)
        };
        let page = self.engine.memory().members(self.clock().unix_ms(), &name, after, limit);
        self.charge_read(call.id, page.members.iter().map(|member| member.len()).sum());
        let present = page.answer(subscribers, (is_partial, self.engine.is_local(&name)));
        self.answer(call, &Saying::Present(target, present));
        Ok(())
    }
}

fn parse_id(text: &str) -> Result<MessageId, ErrorResponse> {
    Ok(text.parse::<MessageId>()?)
}

/// The channel or user that a command needs a permission for; `None` if it is always allowed.
fn name_of_command(command: &Command) -> Option<ChannelName> {
    match command {
        Command::Subscribe { target, .. }
        | Command::Publish { target, .. }
        | Command::History { target, .. }
        | Command::Presence { target, .. }
        | Command::Update { target, .. }
        | Command::Read { target, .. } => Some(name_of(target)),
        Command::Unsubscribe { .. }
        | Command::Auth { .. }
        | Command::SignIn { .. }
        | Command::Ack { .. }
        | Command::Ping => None,
        // It asks about each of its channels.
        Command::Many(_) => None,
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
    let sets_key =
        matches!(command, Command::Publish { publication, .. } if publication.labels.key.is_some());
    let state = sets_key.then_some(Action::SetState(name));
    // What its application has signed is not its own word.
    let shows_itself = match command {
        Command::Subscribe { member: Some(member), .. } => member.user.is_none(),
        Command::Update { .. } => true,
        _ => false,
    };
    let update = shows_itself.then_some(Action::UpdateMember(name));
    iter::once(action_of(command, name)).chain(presence).chain(state).chain(update)
}
