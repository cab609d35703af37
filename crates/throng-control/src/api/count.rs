//! The parameter `count` of publications: `all` makes `subscribers` count all nodes.

use std::convert::Infallible;

use throng_core::{ChannelName, Later, OtherNodes};
use throng_wire::v1::Counted;

use super::parameters::WORKERS_TIMEOUT;
use crate::control::Control;
use crate::http::answer::ApiError;
use crate::http::query;
use crate::late_answer::{PendingAnswer, ask};

/// The subscribers of other nodes, if they are to be counted.
pub(super) struct Elsewhere(Option<PendingAnswer<OtherNodes<u64>>>);

impl Elsewhere {
    /// Asks the other nodes, if the query of a request wants that. Does not wait.
    pub(super) fn ask(
        control: &Control,
        query: &str,
        channel: &ChannelName,
    ) -> Result<Elsewhere, ApiError> {
        match query::find(query, "count")?.as_deref() {
            None => Ok(Elsewhere(None)),
            Some("all") => {
                let others =
                    |later: Later<'_, _>| Ok(control.engine.subscribers_elsewhere(channel, later));
                let asked: Result<_, Infallible> = ask(others);
                let Ok(asked) = asked;
                Ok(Elsewhere(Some(asked)))
            }
            Some(_) => Err(ApiError::parameter("`count` is `all`, or not given")),
        }
    }

    /// The number of subscribers, of which this node has `own`.
    pub(super) async fn and(self, own: u64) -> Counted {
        let Some(asked) = self.0 else { return own.into() };
        let none = OtherNodes { found: 0, is_complete: false };
        let OtherNodes { found, is_complete } = asked.within(WORKERS_TIMEOUT).await.unwrap_or(none);
        Counted { subscribers: own.saturating_add(found), is_partial: !is_complete }
    }
}
