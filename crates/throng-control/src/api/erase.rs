//! `DELETE` of a message, of what a channel keeps, and of a channel.
//!
//! The notice that tells readers of the erasure is in the log before a message is gone: a request
//! that ends between the two can be repeated, and erases the message then.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::request::Parts;
use throng_access::{Action, Client};
use throng_core::{
    ChangeError, ChangeOutcome, ChannelName, Channels, Condition, ConnectionName, Erase, Erased,
    Erasure, History, HistoryQuery, JournalId, Kind, Later, LogChange, LogState, MarkersOf,
    Message, MessageId, PublishError, WantedTags, clock,
};
use throng_wire::envelope::Erased as ErasedShown;
use throng_wire::percent::decode_segment;
use throng_wire::v1;
use throng_wire::{ErrorCode, ErrorResponse};

use super::channel_request::ChannelRequest;
use super::log::{self, FETCH_TIMEOUT};
use super::parameters::WORKERS_TIMEOUT;
use super::publish::OUTCOME_TIMEOUT;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::query;
use crate::late_answer::{ask as ask_workers, within};

/// How often the erasure of a channel begins anew if others publish to it at the same time.
pub(super) const ATTEMPTS_MAX: usize = 8;

/// The messages that a request erases.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target<'r> {
    /// The one with this id, as the path has it.
    Message(&'r str),
    /// All that the channel keeps.
    History,
    /// The same, with everything else that its log has.
    Channel,
}

pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    client: &Client,
    (kind, segment): (Kind, &str),
    target: Target<'_>,
) -> Result<Answer, ApiError> {
    let mut request = ChannelRequest::begin(control, head, client, (kind, segment))?;
    request.permit.ask(Action::Erase(&request.channel)).await?;
    query::of(head, &[])?;
    let channel = &request.channel;
    let log = ErasedLog { control, channel };
    log.check_kept()?;
    let mut body = Vec::with_capacity(128);
    match target {
        Target::Message(id) => {
            let id: MessageId = decode_segment(id).unwrap_or_default().parse()?;
            log.find(id).await?;
            request.permit.recheck(Action::Erase(channel))?;
            let notice = log.erase_message(id).await?;
            let erased = id.to_string();
            let shown = ErasedShown::Message(&erased);
            v1::erased_body(&mut body, shown, (None, None), Some(&notice.to_string()));
        }
        Target::History | Target::Channel => {
            let with_record = matches!(target, Target::Channel);
            let done =
                if with_record { log.erase_all().await? } else { log.erase_history().await? };
            let (head, notice) = (done.head.to_string(), done.notice.map(|id| id.to_string()));
            let rule = control.engine.rule(channel);
            let markers = if with_record && rule.read_markers {
                Some(erase_markers(control, rule.journal, MarkersOf::Channel(channel)).await?)
            } else {
                None
            };
            let shown = ErasedShown::UpTo(&head);
            v1::erased_body(&mut body, shown, (done.messages, markers), notice.as_deref());
        }
    }
    Ok(answer::json(StatusCode::OK, body))
}

/// An erasure of several messages that was made.
struct Done {
    /// The last message that may be erased.
    head: MessageId,
    /// How many these were, if that is known.
    messages: Option<u64>,
    /// The notice of it; `None` if there never was a message.
    notice: Option<MessageId>,
}

/// The log of a channel of which messages are erased.
pub(crate) struct ErasedLog<'r> {
    pub(crate) control: &'r Control,
    pub(crate) channel: &'r ChannelName,
}

impl ErasedLog<'_> {
    /// Fails if the channel keeps no messages.
    pub(super) fn check_kept(&self) -> Result<(), ErrorResponse> {
        if self.control.engine.rule(self.channel).retention.is_none() {
            let message = "the channel keeps no messages, so there is nothing to erase or replace: \
                           see `messages` of its rule";
            return Err(ErrorResponse::new(ErrorCode::NotFound, message));
        }
        Ok(())
    }

    /// The message with this id.
    ///
    /// # Errors
    ///
    /// It cannot be read, now or at all, or is a notice: those take no room from messages, so they
    /// are not erased for more of them.
    pub(super) async fn find(&self, id: MessageId) -> Result<Arc<Message>, ErrorResponse> {
        let engine = &self.control.engine;
        let before = MessageId { offset: id.offset.saturating_sub(1), ..id };
        let query = HistoryQuery::After(before);
        let page = log::read(engine, self.channel, query, 1, &mut { FETCH_TIMEOUT }).await?;
        let mut found = page.messages.into_iter();
        match found.next().filter(|message| message.id == id && !message.is_notice()) {
            Some(message) => Ok(message),
            None => {
                // It may be there, but cannot be read.
                self.state().await?;
                Err(gone())
            }
        }
    }

    /// Erases a message, of which its readers are told before. Returns the id of the notice.
    pub(super) async fn erase_message(&self, id: MessageId) -> Result<MessageId, ErrorResponse> {
        self.check_erasable().await?;
        let notice = LogChange::notice(self.channel.clone(), Erasure::of(id.offset));
        let notice = self.change(notice).await.map_err(error_of)?;
        self.erase(Erase::Message(id)).await?;
        self.wait_for_workers().await;
        Ok(notice)
    }

    async fn erase_history(&self) -> Result<Done, ErrorResponse> {
        let LogState { head, .. } = self.state().await?;
        let Erased { messages } = self.erase(Erase::History).await?;
        let done = Done { head, messages, notice: None };
        if head.offset == 0 {
            return Ok(done);
        }
        // Readers that were away see the gap: a notice before would be erased with the others.
        let notice = LogChange::notice(self.channel.clone(), Erasure::up_to(head.offset));
        let notice = self.change(notice).await.map_err(error_of)?;
        self.wait_for_workers().await;
        Ok(Done { notice: Some(notice), ..done })
    }

    /// Erases the log, with a notice for those who follow it now.
    async fn erase_all(&self) -> Result<Done, ErrorResponse> {
        self.check_erasable().await?;
        let (head, notices) = self.note_end().await?;
        let Erased { messages } = self.erase(Erase::Log).await?;
        self.wait_for_workers().await;
        // Of a channel without messages nothing is erased.
        let notice = notices.first().copied().filter(|_| head.offset > 0);
        Ok(Done { head, messages, notice })
    }

    /// Appends a notice that all messages up to the head are erased, if there was one, and that a
    /// created channel ends. Returns the head, and the ids of the notices.
    async fn note_end(&self) -> Result<(MessageId, Vec<MessageId>), ErrorResponse> {
        for _ in 0..ATTEMPTS_MAX {
            let state = self.state().await?;
            let head = state.head;
            let notice = LogChange::notice(self.channel.clone(), Erasure::up_to(head.offset));
            let condition = Condition { head: Some(head), ..Condition::default() };
            // The channel goes together with its creation, so its subscribers are told the end.
            let change = match LogChange::expire(self.channel.clone(), &state, false) {
                Some(end) => {
                    LogChange { messages: [notice.messages, end.messages].concat(), ..end }
                }
                None if head.offset == 0 => return Ok((head, Vec::new())),
                None => LogChange { condition, ..notice },
            };
            match self.make(change).await {
                Ok(changed) => return Ok((head, changed.ids)),
                Err(ChangeError::Conflict(_)) => {}
                Err(error) => return Err(error_of(error)),
            }
        }
        Err(busy())
    }

    /// Waits until the workers that follow the channel have come to the notice in their queues:
    /// from then on they begin no message that it tells of. One that is far behind is not waited
    /// for.
    pub(crate) async fn wait_for_workers(&self) {
        let engine = &self.control.engine;
        let followers = engine.audience(self.channel).workers;
        let asked: Vec<_> = followers
            .into_iter()
            .map(|(worker, ..)| {
                // Whatever the answer is: questions and messages are taken in one order.
                let nobody = (ConnectionName::new(worker, 0, 0), WantedTags::ALL);
                let ask = |later: Later<'_, _>| Ok(engine.follows(self.channel, nobody, later));
                let asked: Result<_, Infallible> = ask_workers(ask);
                let Ok(asked) = asked;
                asked
            })
            .collect();
        let all = async {
            for answer in asked {
                answer.within(WORKERS_TIMEOUT).await;
            }
        };
        // Sends nothing on: it is about the time alone.
        let _ = tokio::time::timeout(WORKERS_TIMEOUT, all).await;
    }

    /// Fails if the journal of the channel cannot erase: before a notice says that it has.
    pub(super) async fn check_erasable(&self) -> Result<(), ErrorResponse> {
        let LogState { head, .. } = self.state().await?;
        // No message has this id.
        self.erase(Erase::Message(MessageId { offset: u64::MAX, ..head })).await.map(drop)
    }

    /// The state of the log.
    pub(crate) async fn state(&self) -> Result<LogState, ErrorResponse> {
        let engine = &self.control.engine;
        let ask = |later: Later<'_, _>| Ok(engine.state(clock::now_ms(), self.channel, later));
        answered(FETCH_TIMEOUT, ask).await?.map_err(error_of)
    }

    /// Appends the one message of a change. Returns its id.
    pub(super) async fn change(&self, change: LogChange) -> Result<MessageId, ChangeError> {
        let changed = self.make(change).await?;
        changed.ids.first().copied().ok_or(ChangeError::Refused(PublishError::Unknown))
    }

    /// Makes a change.
    pub(crate) async fn make(&self, change: LogChange) -> ChangeOutcome {
        let engine = &self.control.engine;
        let ask = |later: Later<'_, _>| {
            Ok::<_, Infallible>(engine.change(clock::now_ms(), change, later))
        };
        let Ok(outcome) = within(OUTCOME_TIMEOUT, ask).await;
        outcome.unwrap_or(Err(PublishError::Unknown.into()))
    }

    pub(crate) async fn erase(&self, what: Erase) -> Result<Erased, ErrorResponse> {
        let engine = &self.control.engine;
        let ask =
            |later: Later<'_, _>| Ok(engine.erase(clock::now_ms(), self.channel, what, later));
        answered(OUTCOME_TIMEOUT, ask).await?.map_err(error_of)
    }
}

/// The newest message of a log.
pub(crate) async fn newest_page(
    engine: &Channels,
    channel: &ChannelName,
) -> Result<History, ErrorResponse> {
    log::read(engine, channel, HistoryQuery::Newest, 1, &mut { FETCH_TIMEOUT }).await
}

/// Erases markers in channels that the memory or a journal has. Returns how many there were.
pub(super) async fn erase_markers(
    control: &Control,
    place: Option<JournalId>,
    of: MarkersOf<'_>,
) -> Result<u64, ErrorResponse> {
    let mut count = 0;
    loop {
        let ask = |later: Later<'_, _>| Ok(control.engine.erase_markers(place, of, later));
        let erased = answered(OUTCOME_TIMEOUT, ask).await??;
        count += erased.count;
        if !erased.are_more {
            return Ok(count);
        }
    }
}

/// The answer to a question about a log.
async fn answered<T: Send + 'static>(
    max_wait: Duration,
    ask: impl FnOnce(Later<'_, T>) -> Result<throng_core::Answer<T>, Infallible>,
) -> Result<T, ErrorResponse> {
    let Ok(answer) = within(max_wait, ask).await;
    answer.ok_or_else(ErrorResponse::unanswered)
}

/// The error of a request about a message that is not there.
pub(super) fn gone() -> ErrorResponse {
    let message =
        "there is no such message: it never was, has expired or was dropped, or is erased";
    ErrorResponse::new(ErrorCode::NotFound, message)
}

/// The error of a change that others have come before each time.
pub(super) fn busy() -> ErrorResponse {
    let message = "others publish to the channel at the same time; try again later";
    ErrorResponse::new(ErrorCode::Busy, message)
}

/// The error of an erasure that was not made, or not in full. Each may be repeated.
pub(super) fn error_of(error: ChangeError) -> ErrorResponse {
    match error {
        ChangeError::Conflict(_) => busy(),
        ChangeError::KeyConflict(_) => error.into(),
        ChangeError::Unsupported(reason) => ErrorResponse::new(ErrorCode::NotImplemented, reason),
        ChangeError::Refused(PublishError::Away) => {
            let message = "the channel's journal is away; repeat this later";
            ErrorResponse::new(ErrorCode::Unavailable, message)
        }
        ChangeError::Refused(PublishError::Unknown) => {
            let message = "it is not known whether this is done; repeat it";
            ErrorResponse::new(ErrorCode::OutcomeUnknown, message)
        }
        ChangeError::Refused(error) => error.into(),
    }
}
