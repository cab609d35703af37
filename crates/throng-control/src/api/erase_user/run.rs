//! Makes the erasures of users, one after another.
//!
//! If something cannot be reached, such as a journal that is away, the erasure waits and tries
//! again: each step may be repeated. If something cannot be erased at all, the report says so.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use throng_access::{KeptChange, Revocation, Subject};
use throng_core::{
    ChannelName, Erase, Later, Mark, MessageId, ScanAction, ScanClose, ScanTarget, clock,
};
use throng_wire::websocket::close_code;
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::time::sleep;

use super::super::connections;
use super::super::erase::ErasedLog;
use super::search::{Names, erase_published, shows_users};
use crate::control::Control;
use crate::kept_changes::{ChangeOrder, When};
use crate::late_answer::within;
use crate::user_erasures::{Left, Report};

/// How long it waits before it tries again: first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

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
        let report = control.user_erasures.next().await;
        Erasing { control: &control, report, has_local: false }.run().await;
    }
}

/// An erasure that is under way.
struct Erasing<'c> {
    control: &'c Control,
    report: Report,
    /// True if a channel was found that this node alone has, as others have theirs.
    has_local: bool,
}

impl Erasing<'_> {
    async fn run(mut self) {
        let (control, user) = (self.control, self.report.user.to_string());
        self.retry("the tokens of the user", || end_tokens(control, &user)).await;
        let count = self.retry("the user's connections", || close(control, &user)).await;
        self.report.connections = count.unwrap_or(0);
        control.engine.memory().part_with_user(clock::now_ms(), &user);
        let kept = "the subscriptions that the server keeps for the user";
        let count = self.retry(kept, || end_subscriptions(control, &user)).await;
        self.report.subscriptions = count.unwrap_or(0);
        let count = self.retry("the inbox", || erase_inbox(control, &user)).await;
        self.report.inbox = count.flatten();
        let mut names = Some(Names::FIRST);
        while let Some(at) = names {
            let list = "the list of all channels";
            let read = self.retry(list, || at.clone().read(control)).await;
            let Some((found, next)) = read else { break };
            for channel in found {
                self.search(&channel, &user).await;
            }
            names = next;
        }
        self.report.done_ms = Some(clock::machine_ms());
        let Report { connections, subscriptions, inbox, published, searched, .. } = self.report;
        let left = self.report.left.len();
        tracing::info!(
            user,
            connections,
            subscriptions,
            inbox,
            published,
            searched,
            left,
            "a user is erased"
        );
        control.user_erasures.finish(self.report).await;
    }

    /// Erases what the user has published to a channel.
    async fn search(&mut self, channel: &ChannelName, user: &str) {
        let control = self.control;
        if control.engine.is_local(channel) && !std::mem::replace(&mut self.has_local, true) {
            let what = "channels that other nodes have alone, as this node has some";
            self.report.leave(what, "each node erases in its own: send the request to all nodes");
        }
        if !shows_users(control, channel) {
            return;
        }
        let what = format!("messages in {} {}", channel.kind().noun(), channel.name());
        let erased = self.retry(&what, || erase_published(control, channel, user)).await;
        self.report.searched += 1;
        self.report.published += erased.unwrap_or(0);
    }

    /// Does something until it succeeds, or cannot: then it is left. Between two of its steps
    /// another process may take over.
    async fn retry<T, F: Future<Output = Result<T, ErrorResponse>>>(
        &mut self,
        what: &str,
        act: impl Fn() -> F,
    ) -> Option<T> {
        let (mut wait, longest) = AGAIN;
        loop {
            let done = act().await;
            self.report.waits_for = None;
            let error = match done {
                Ok(done) => {
                    self.control.user_erasures.note(&self.report);
                    return Some(done);
                }
                Err(error) => error,
            };
            if !may_pass(&error) {
                self.report.leave(what, error.message);
                self.control.user_erasures.note(&self.report);
                return None;
            }
            let why = error.message.to_string();
            self.report.waits_for = Some(Left { what: what.into(), why });
            self.control.user_erasures.note(&self.report);
            sleep(wait).await;
            wait = (wait * 2).min(longest);
        }
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

async fn close(control: &Control, user: &str) -> Result<u64, ErrorResponse> {
    let _acting = control.hold.acting().await;
    let inbox = ChannelName::user(user);
    let target = ScanTarget::User { inbox, tags: control.authentication.tags_of(user) };
    let code = close_code::DISCONNECTED_FOR_GOOD;
    let close = ScanClose { code, reason: CLOSED.into(), may_return: false };
    let scanned = connections::scan(control, target, ScanAction::Close(close)).await;
    let scanned = scanned.map_err(|refused| refused.error)?;
    if !scanned.is_complete {
        let message = "not all nodes have answered";
        return Err(ErrorResponse::new(ErrorCode::Unavailable, message));
    }
    Ok(scanned.scanned.count)
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
    let messages = log.erase(Erase::Log).await?.messages;
    // Other journals have erased it with the log.
    if control.engine.is_shared() && !control.engine.is_local(&inbox) {
        let id = MessageId { offset: 0, ..log.state().await?.head };
        let mark = Some(Mark { id, may_go_back: true });
        let ask = |later: Later<'_, _>| {
            Ok::<_, Infallible>(control.engine.read_marker(clock::now_ms(), &inbox, mark, later))
        };
        let Ok(marked) = within(MARK_TIMEOUT, ask).await;
        marked.ok_or_else(ErrorResponse::unanswered)??;
    }
    Ok(messages)
}

/// True if what failed may succeed later.
fn may_pass(error: &ErrorResponse) -> bool {
    let others = [ErrorCode::OutcomeUnknown, ErrorCode::NotStored];
    error.code.retry().is_some() || others.contains(&error.code)
}
