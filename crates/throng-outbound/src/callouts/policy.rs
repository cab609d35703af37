//! The access policy that asks the application.

use std::fmt;
use std::sync::Arc;

use throng_access::pattern::Pattern;
use throng_access::{Access, Action, Asker, Credentials, Decision, Passed};
use throng_core::later::{Answer, Later, Ticket};
use throng_core::name::{ChannelName, Kind};
use throng_core::{Listener, clock};
use throng_wire::ErrorCode;

use super::answer::DecisionBounds;
use super::decider::{Decider, Inquiry};
use super::question::{AskedContent, Asks, Facts, body, listed};

/// A decider, and what it decides.
#[derive(Debug)]
pub(super) struct CalloutRoute {
    pub(super) asks: Vec<Asks>,
    /// The channels or users that it decides about; `None` for all.
    pub(super) pattern: Option<Pattern>,
    /// The part of a request that the endpoint gets, besides credentials.
    pub(super) passed: Passed,
    /// The most bytes of a message's content that a question has; 0 if it has none of it.
    pub(super) max_content_bytes: usize,
    pub(super) decider: Decider<Decision>,
}

/// Lets the application decide what the rules allow. The first route that matches is asked. Server
/// keys and the admin listener belong to the application, so it is not asked about them, nor about
/// users who follow their own inbox.
pub(super) struct CalloutPolicy {
    /// The rules, which decide at once.
    pub(super) rules: Arc<dyn Access>,
    pub(super) routes: Vec<CalloutRoute>,
}

impl Access for CalloutPolicy {
    fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        let mut issue = || Ticket::new(drop);
        let Answer::Now(decision) = self.rules.may(asker, action, Later::new(&mut issue)) else {
            debug_assert!(false, "the rules decide at once");
            return Decision::Denied(ErrorCode::Busy.into()).into();
        };
        // The application can only narrow what the rules allow.
        let until_ms = match &decision {
            Decision::Denied(_) => return decision.into(),
            Decision::AllowedUntil(ms) => Some(*ms),
            Decision::AllowedShowing { until_ms, .. } => *until_ms,
            Decision::Allowed | Decision::AllowedAs(_) => None,
        };
        let route = if asker.is_repeated { None } else { self.route(asker, action) };
        let Some((asks, name, route)) = route else {
            return decision.into();
        };
        let headers = listed(&route.passed, asker.details);
        let data = Facts::new(name, asker.credentials);
        let data = data.with(&route.passed, asker.details.address, &headers);
        let draft = asker.details.content.filter(|_| route.reads(asks));
        let content = draft.map(|draft| AskedContent::new(draft, route.max_content_bytes));
        let data = data.with_content(content.as_ref());
        let bounds = DecisionBounds { until_ms, takes_content: content.is_some() };
        let (key, body) = (data.key(asks), |time_ms| body(asks, time_ms, data));
        let holds = |decision: &Decision| match decision {
            Decision::AllowedUntil(ms) => clock::machine_ms() < *ms,
            Decision::AllowedShowing { until_ms, .. } => {
                until_ms.is_none_or(|ms| clock::machine_ms() < ms)
            }
            Decision::Allowed | Decision::AllowedAs(_) | Decision::Denied(_) => true,
        };
        route.decider.decide(
            Inquiry { key, body, bounds, address: asker.details.address },
            holds,
            later,
        )
    }

    fn reads_content(&self, asker: &Asker<'_>, action: Action<'_>) -> bool {
        self.route(asker, action).is_some_and(|(asks, _, route)| route.reads(asks))
    }
}

impl CalloutRoute {
    /// True if its questions of this kind have the content of the message.
    fn reads(&self, asks: Asks) -> bool {
        asks == Asks::Publish && self.max_content_bytes > 0
    }
}

impl CalloutPolicy {
    fn route<'a>(
        &self,
        asker: &Asker<'_>,
        action: Action<'a>,
    ) -> Option<(Asks, &'a ChannelName, &CalloutRoute)> {
        let (asks, name) = match action {
            Action::Subscribe(name) => (Asks::Subscribe, name),
            Action::Publish(name) => (Asks::Publish, name),
            // The lines of a batch are asked about one by one.
            Action::PublishBatch
            | Action::ReadHistory(_)
            | Action::ReadPresence(_)
            | Action::Erase(_)
            | Action::Edit(_)
            | Action::SetState(_)
            | Action::End(_)
            | Action::UpdateMember(_)
            | Action::Create(_) => return None,
        };
        let is_application = asker.listener == Listener::Admin || is_key(asker.credentials);
        let is_known = matches!(asker.credentials, Credentials::Known { .. });
        let is_own = name.kind() == Kind::User && asker.credentials.user() == Some(name.name());
        let is_own_inbox = asks == Asks::Subscribe && is_known && is_own;
        if is_application || is_own_inbox || name.kind() == Kind::Internal {
            return None;
        }
        let matches = |route: &&CalloutRoute| {
            let pattern = route.pattern.as_ref();
            route.asks.contains(&asks) && pattern.is_none_or(|pattern| pattern.matches(name, None))
        };
        Some((asks, name, self.routes.iter().find(matches)?))
    }
}

fn is_key(credentials: Credentials<'_>) -> bool {
    matches!(credentials, Credentials::Known { grants, .. } if grants.is_of_key())
}

impl fmt::Debug for CalloutPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CalloutPolicy").field("routes", &self.routes).finish_non_exhaustive()
    }
}
