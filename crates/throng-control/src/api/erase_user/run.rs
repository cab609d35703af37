//! Makes the erasures of users, one after another.
//!
//! If something cannot be reached, such as a journal that is away, the steps that need it are tried
//! again later, and all others are made: each may be repeated. If something cannot be erased at
//! all, the report says so.

use std::convert::Infallible;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use throng_access::{KeptChange, Revocation, Subject};
use throng_core::{
    ChannelName, Erase, JournalId, Later, Mark, MarkerKey, MarkersOf, MessageId, ScanAction,
    ScanClose, ScanTarget, clock,
};
use throng_wire::websocket::close_code;
use throng_wire::{ErrorCode, ErrorResponse};

use super::super::connections;
use super::super::erase::{ErasedLog, erase_markers};
use super::search::{erase_published, shows_users};
use crate::control::Control;
use crate::kept_changes::{ChangeOrder, When};
use crate::late_answer::within;
use crate::user_erasures::{Job, Left, Names, Report, Step};

/// Channels whose search waits for a journal, at most. With more, the list of channels waits, too.
const SEARCHES_MAX: usize = 10_000;

/// How long the erasure of a read marker may take.
const MARK_TIMEOUT: Duration = Duration::from_secs(5);

const CLOSED: &str = "everything of this user is being erased";

/// Makes erasures until the control plane is dropped.
pub(crate) async fn run(control: Arc<Control>) {
    let stored = Arc::clone(&control);
    match tokio::task::spawn_blocking(move || stored.user_erasures.read_stored()).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => tracing::error!("erasures of users cannot be read: {error}"),
    }
    loop {
        let job = control.user_erasures.next().await;
        Erasing::new(&control, job).run().await;
    }
}

/// An erasure that is under way.
struct Erasing<'c> {
    control: &'c Control,
    job: Job,
    /// The steps that cannot be made now.
    failed: Vec<Step>,
    /// Searches that were not tried, as their journal is away.
    untried: Vec<Step>,
    /// The journals that are away; `None` is the memory.
    away: Vec<Option<JournalId>>,
}

impl<'c> Erasing<'c> {
    fn new(control: &'c Control, job: Job) -> Erasing<'c> {
        Erasing { control, job, failed: Vec::new(), untried: Vec::new(), away: Vec::new() }
    }

    /// Makes all steps that can be made.
    async fn run(mut self) {
        self.job.report.waits_for = None;
        for step in mem::take(&mut self.job.steps) {
            match step {
                Step::Names(names) => self.search_all(names).await,
                Step::Search(channel) => self.search(channel).await,
                mut step => {
                    let made = self.make(&mut step).await;
                    self.conclude(step, made);
                }
            }
        }
        // First those that were not tried, so that each has its turn.
        self.untried.append(&mut self.failed);
        if !self.untried.is_empty() {
            self.job.steps = self.untried;
            return self.control.user_erasures.defer(self.job);
        }
        let mut report = self.job.report;
        report.done_ms = Some(clock::machine_ms());
        let Report { user, connections, subscriptions, inbox, published, .. } = &report;
        let Report { markers, events, searched, .. } = &report;
        let left = report.left.len();
        tracing::info!(
            %user,
            connections,
            subscriptions,
            inbox,
            published,
            markers,
            events,
            searched,
            left,
            "a user is erased"
        );
        self.control.user_erasures.finish(report).await;
    }

    /// Takes the outcome of a step. One that may succeed later waits, and one that cannot is left.
    fn conclude(&mut self, step: Step, made: Result<(), ErrorResponse>) {
        let report = &mut self.job.report;
        match made {
            Ok(()) => {}
            Err(error) if may_pass(&error) => {
                let why = error.message.to_string();
                report.waits_for.get_or_insert_with(|| Left { what: step.what(), why });
                self.failed.push(step);
            }
            Err(error) => report.leave(step.what(), error.message),
        }
        self.control.user_erasures.note(&self.job.report);
    }

    /// Makes a step that is about no channel. What it has erased is counted also if it fails.
    async fn make(&mut self, step: &mut Step) -> Result<(), ErrorResponse> {
        let (control, report) = (self.control, &mut self.job.report);
        let user = &*report.user;
        match step {
            Step::Tokens => end_tokens(control, user).await,
            Step::Connections => {
                let closed = close(control, user, &mut report.connections).await;
                let (engine, now_ms) = (&control.engine, clock::now_ms());
                // Events of connections that end later tell the application of it.
                report.events += engine.part_with_user(now_ms, user, report.asked_ms);
                closed
            }
            Step::Subscriptions(before) => {
                // A try without an answer may have ended them.
                *before = control.kept_changes.count_of(user).await?.max(*before);
                report.subscriptions += end_subscriptions(control, user).await?.max(*before);
                Ok(())
            }
            Step::Inbox => {
                let messages = erase_inbox(control, user).await?;
                report.inbox = messages.map(|messages| report.inbox.unwrap_or(0) + messages);
                Ok(())
            }
            Step::ReadMarker => reset_marker(control, user).await,
            Step::ChannelMarkers => {
                let _acting = control.hold.acting().await;
                for place in control.engine.marker_places() {
                    let of = MarkersOf::User(user);
                    report.markers += erase_markers(control, place, of).await?;
                }
                Ok(())
            }
            Step::Names(_) | Step::Search(_) => Ok(()),
        }
    }

    /// Searches the channels from this part of the list on.
    async fn search_all(&mut self, names: Names) {
        let mut names = Some(names);
        while let Some(at) = names {
            if self.failed.len() + self.untried.len() >= SEARCHES_MAX {
                return self.failed.push(Step::Names(at));
            }
            match at.clone().read(self.control).await {
                Ok((found, next)) => {
                    for channel in found {
                        self.search(channel).await;
                    }
                    names = next;
                }
                Err(error) => return self.conclude(Step::Names(at), Err(error)),
            }
        }
    }

    /// Erases what the user has published to a channel.
    async fn search(&mut self, channel: ChannelName) {
        let (control, report) = (self.control, &mut self.job.report);
        if control.engine.is_local(&channel) && !mem::replace(&mut self.job.has_local, true) {
            let what = "channels that other nodes have alone, as this node has some";
            report.leave(what, "each node erases in its own: send the request to all nodes");
        }
        if !shows_users(control, &channel) {
            return;
        }
        let journal = control.engine.rule(&channel).journal;
        if self.away.contains(&journal) {
            return self.untried.push(Step::Search(channel));
        }
        let user = report.user.clone();
        let made = erase_published(control, &channel, &user, &mut report.published).await;
        match &made {
            Err(error) if is_away(error) => self.away.push(journal),
            Err(error) if may_pass(error) => {}
            _ => report.searched += 1,
        }
        self.conclude(Step::Search(channel), made);
    }
}

async fn end_tokens(control: &Control, user: &str) -> Result<(), ErrorResponse> {
    if !control.authentication.controls_access() {
        // There are none.
        return Ok(());
    }
    let _acting = control.hold.acting().await;
    control.revoker.revocations()?;
    let now_s = u32::try_from(clock::machine_ms() / 1000).unwrap_or(u32::MAX);
    // Times of issue are whole seconds.
    let revocation = Revocation::of(Subject::User(user.into()), now_s.saturating_add(1));
    control.revoker.revoke(revocation, false).await
}

/// Counts the connections also if some may be left.
async fn close(control: &Control, user: &str, closed: &mut u64) -> Result<(), ErrorResponse> {
    let _acting = control.hold.acting().await;
    let inbox = ChannelName::user(user);
    let target = ScanTarget::User { inbox, tags: control.authentication.tags_of(user) };
    let code = close_code::DISCONNECTED_FOR_GOOD;
    let close = ScanClose { code, reason: CLOSED.into(), may_return: false };
    let scanned = connections::scan(control, target, ScanAction::Close(close)).await;
    let scanned = scanned.map_err(|refused| refused.error)?;
    *closed += scanned.scanned.count;
    if !scanned.is_complete {
        let message = "not all nodes have answered";
        return Err(ErrorResponse::new(ErrorCode::Unavailable, message));
    }
    Ok(())
}

async fn end_subscriptions(control: &Control, user: &str) -> Result<u64, ErrorResponse> {
    let _acting = control.hold.acting().await;
    let change = KeptChange::Replace(Vec::new());
    let order = ChangeOrder { line: 0, user: user.to_owned(), change };
    let made = control.kept_changes.make(None, vec![order], When::Possible).await?;
    if let Some(refused) = made.refused.into_iter().next() {
        return Err(refused.error);
    }
    Ok(made.changed.first().map_or(0, |changed| changed.removed as u64))
}

/// Returns how many messages it had, if they are counted.
async fn erase_inbox(control: &Control, user: &str) -> Result<Option<u64>, ErrorResponse> {
    let inbox = ChannelName::user(user);
    let log = ErasedLog { control, channel: &inbox };
    if log.check_kept().is_err() {
        return Ok(Some(0));
    }
    let _acting = control.hold.acting().await;
    log.check_erasable().await?;
    Ok(log.erase(Erase::Log).await?.messages)
}

async fn reset_marker(control: &Control, user: &str) -> Result<(), ErrorResponse> {
    let inbox = ChannelName::user(user);
    // Other journals have erased it with the log.
    if !control.engine.is_shared() || control.engine.is_local(&inbox) {
        return Ok(());
    }
    let log = ErasedLog { control, channel: &inbox };
    if log.check_kept().is_err() {
        return Ok(());
    }
    let _acting = control.hold.acting().await;
    let id = MessageId { offset: 0, ..log.state().await?.head };
    let mark = Some(Mark::new(id, true));
    let of = MarkerKey::inbox(user);
    let ask = |later: Later<'_, _>| {
        Ok::<_, Infallible>(control.engine.read_marker(clock::now_ms(), &of, mark, later))
    };
    let Ok(marked) = within(MARK_TIMEOUT, ask).await;
    marked.ok_or_else(ErrorResponse::unanswered)??;
    Ok(())
}

/// True if what failed may be the journal of a channel, and not the channel.
fn is_away(error: &ErrorResponse) -> bool {
    may_pass(error) && error.code != ErrorCode::Busy
}

/// True if what failed may succeed later.
fn may_pass(error: &ErrorResponse) -> bool {
    let others = [ErrorCode::OutcomeUnknown, ErrorCode::NotStored];
    error.code.retry().is_some() || others.contains(&error.code)
}
