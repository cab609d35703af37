//! The parameter `count` of publications: `all` makes `subscribers` count all nodes.

use std::convert::Infallible;

use throng_core::{ChannelName, Later, OtherNodes, Published};
use throng_wire::v1::{self, Counted};

use super::parameters::WORKERS_TIMEOUT;
use crate::control::Control;
use crate::http::answer::ApiError;
use crate::http::query;
use crate::late_answer::{PendingAnswer, ask};

/// The nodes whose subscribers a request wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountedNodes {
    Own,
    All,
}

impl CountedNodes {
    /// As the query of a request says.
    pub(super) fn of(query: &str) -> Result<CountedNodes, ApiError> {
        match query::find(query, "count")?.as_deref() {
            None => Ok(CountedNodes::Own),
            Some("all") => Ok(CountedNodes::All),
            Some(_) => Err(ApiError::parameter("`count` is `all`, or not given")),
        }
    }
}

/// The subscribers of other nodes, if they are to be counted.
pub(super) struct Elsewhere {
    asked: Option<PendingAnswer<OtherNodes<u64>>>,
    is_local: bool,
}

impl Elsewhere {
    /// Asks the other nodes if they are wanted. Does not wait.
    pub(super) fn ask(control: &Control, wanted: CountedNodes, channel: &ChannelName) -> Elsewhere {
        if wanted == CountedNodes::Own {
            return Elsewhere { asked: None, is_local: false };
        }
        let others = |later: Later<'_, _>| Ok(control.engine.subscribers_elsewhere(channel, later));
        let asked: Result<_, Infallible> = ask(others);
        let Ok(asked) = asked;
        Elsewhere { asked: Some(asked), is_local: control.engine.is_local(channel) }
    }

    /// The number of subscribers, of which this node has `own`.
    pub(super) async fn and(self, own: u64) -> Counted {
        let Some(asked) = self.asked else { return own.into() };
        let none = OtherNodes { found: 0, is_complete: false };
        let OtherNodes { found, is_complete } = asked.within(WORKERS_TIMEOUT).await.unwrap_or(none);
        let (subscribers, is_partial) = (own.saturating_add(found), !is_complete);
        Counted { subscribers, is_partial, is_local: self.is_local }
    }

    /// Writes the result of a publication of a batch. A repeated one has no subscribers.
    pub(super) async fn write(self, out: &mut Vec<u8>, published: &Published) {
        let Published { id, subscribers, is_duplicate } = *published;
        let counted = if is_duplicate { subscribers.into() } else { self.and(subscribers).await };
        v1::published_body(out, Some(&id.to_string()), counted, is_duplicate);
    }
}
