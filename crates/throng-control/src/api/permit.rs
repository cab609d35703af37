//! Asks the access policy for a request, and whether its client is still to be believed after it
//! has waited.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::request::Parts;
use throng_access::{Action, Asker, Client, Credentials, Decision, Details, Draft};
use throng_core::{
    Attributes, ChannelName, Later, Listener, Publisher, Replacement, RoomHolder, Sender,
    WantedTags,
};
use throng_wire::{ErrorResponse, Labels};

use crate::authentication::PassedOn;
use crate::control::Control;
use crate::http::caller::Caller;
use crate::late_answer::{PendingAnswer, ask};

/// How long a request waits for the access policy to decide before it is refused with `busy`.
const DECISION_TIMEOUT: Duration = Duration::from_secs(5);

/// A request that needs permissions. All its decisions together have one time limit.
pub(super) struct Permit<'r> {
    control: &'r Control,
    client: &'r Client,
    credentials: Credentials<'r>,
    listener: Listener,
    /// The part of the request that policies and callouts see.
    passed: PassedOn,
    wait_left: Duration,
}

impl<'r> Permit<'r> {
    /// The request with this head, of `client`.
    pub(super) fn of(
        control: &'r Control,
        head: &Parts,
        client: &'r Client,
    ) -> Result<Permit<'r>, ErrorResponse> {
        Ok(Permit {
            control,
            client,
            credentials: client.credentials(),
            listener: Caller::of(head).listener,
            passed: control.authentication.passed(&control.settings, head)?,
            wait_left: DECISION_TIMEOUT,
        })
    }

    /// The same, of a client that says it is `user`.
    pub(super) fn with_user(self, user: Option<&'r str>) -> Permit<'r> {
        let credentials = self.control.authentication.credentials(self.client, user);
        Permit { credentials, ..self }
    }

    /// The user that the client is.
    pub(super) fn user(&self) -> Option<&'r str> {
        self.credentials.user()
    }

    /// Fails unless the client may do this.
    pub(super) async fn ask(&mut self, action: Action<'_>) -> Result<(), ErrorResponse> {
        match self.decide(action, None).await? {
            // Nothing was asked about content.
            Some(_) => Err(ErrorResponse::unanswered()),
            None => Ok(()),
        }
    }

    /// Fails unless the client may publish this to the channel. If the policy does not decide by
    /// content, the client was [asked about](Permit::ask_before_content) already. Returns the
    /// content to publish.
    pub(super) async fn ask_about(
        &mut self,
        channel: &ChannelName,
        content: Replacement,
        labels: &Labels,
    ) -> Result<Replacement, ErrorResponse> {
        let action = Action::Publish(channel);
        if !self.reads_content(action) {
            return Ok(content);
        }
        let Replacement { body, content_type } = &content;
        let draft = Draft { body, content_type: content_type.as_deref(), labels };
        let replaced = self.decide(action, Some(draft)).await?;
        Ok(replaced.map_or(content, Arc::unwrap_or_clone))
    }

    /// Fails unless the client may publish to the channel, as far as that is decided before the
    /// content is known. A client that may not must not occupy memory.
    pub(super) async fn ask_before_content(
        &mut self,
        channel: &ChannelName,
    ) -> Result<(), ErrorResponse> {
        let action = Action::Publish(channel);
        if self.reads_content(action) { self.recheck(action) } else { self.ask(action).await }
    }

    /// Fails if a publication with these labels sets or removes a key, and the client may not.
    pub(super) async fn ask_about_key(
        &mut self,
        channel: &ChannelName,
        labels: &Labels,
    ) -> Result<(), ErrorResponse> {
        if labels.key.is_some() { self.ask(Action::SetState(channel)).await } else { Ok(()) }
    }

    fn reads_content(&self, action: Action<'_>) -> bool {
        self.control.authentication.reads_content(&self.asker(None), action)
    }

    /// Asks the policy. Returns the content with which a publication is allowed, if that is not its
    /// own.
    async fn decide(
        &mut self,
        action: Action<'_>,
        content: Option<Draft<'_>>,
    ) -> Result<Option<Arc<Replacement>>, ErrorResponse> {
        let asked = match self.ask_policy(&self.asker(content), action) {
            PendingAnswer::Answered(decision) => return replacement(decision),
            waits @ PendingAnswer::Waits(..) => waits,
        };
        let started = Instant::now();
        let decision = asked.within(self.wait_left).await;
        self.wait_left = self.wait_left.saturating_sub(started.elapsed());
        let replaced = replacement(decision.ok_or_else(ErrorResponse::unanswered)?)?;
        self.recheck(action)?;
        Ok(replaced)
    }

    /// Fails if what the client has shown has ended or was revoked while the request waited, or if
    /// the rules that hold now do not allow `action` any more. What was asked elsewhere is not
    /// asked again.
    pub(super) fn recheck(&self, action: Action<'_>) -> Result<(), ErrorResponse> {
        self.control.authentication.recheck(self.client)?;
        let asker = Asker { is_repeated: true, ..self.asker(None) };
        match self.ask_policy(&asker, action) {
            PendingAnswer::Answered(decision) => decision.allowed_until_ms().map(drop),
            PendingAnswer::Waits(..) => Ok(()),
        }
    }

    /// The publisher to whom the request's idempotency keys belong.
    pub(super) fn publisher(&self) -> Publisher<'r> {
        match self.client {
            Client::Token(identity) => identity.user().map_or(Publisher::Token, Publisher::User),
            Client::Key(key) => Publisher::ServerKey(key.name()),
            Client::Anonymous if self.listener == Listener::Admin => Publisher::Operator,
            Client::Anonymous => Publisher::Anonymous,
        }
    }

    /// The account to which the client's values and creations are charged.
    pub(super) fn holder(&self) -> RoomHolder {
        self.control.engine.memory().holder(self.publisher())
    }

    /// The same of a message, which may have no key.
    pub(super) fn holder_of(&self, labels: &Labels) -> RoomHolder {
        if labels.key.is_some() { self.holder() } else { RoomHolder::NOBODY }
    }

    /// The attributes of a message that the client publishes: its labels, and the client as the
    /// channel's rule shows it.
    pub(super) fn attributes(&self, channel: &ChannelName, labels: &Labels) -> Option<Attributes> {
        let shown = self.control.engine.memory().rules().sender(channel);
        Attributes::of_publication(labels, self.client.sender(shown))
    }

    /// The client as the channel shows it, if that tells it from all other clients: names do not.
    pub(super) fn author(&self, channel: &ChannelName) -> Option<&'r str> {
        let shown = self.control.engine.memory().rules().sender(channel);
        self.client.sender(shown).filter(|_| shown == Sender::User)
    }

    fn asker<'a>(&'a self, content: Option<Draft<'a>>) -> Asker<'a> {
        let Permit { listener, credentials, .. } = *self;
        let (address, headers) = (self.passed.address, Some(&self.passed.headers));
        let details = Details { address, headers, content };
        Asker { listener, credentials, details, is_repeated: false }
    }

    fn ask_policy(&self, asker: &Asker<'_>, action: Action<'_>) -> PendingAnswer<Decision> {
        let may = |later: Later<'_, _>| {
            Ok::<_, Infallible>(self.control.authentication.may(asker, action, later))
        };
        let Ok(asked) = ask(may);
        asked
    }

    /// The connections of which the client may learn what they follow: its own. `None` if it is
    /// not known which these are.
    pub(super) fn own_connections(&self) -> Option<WantedTags> {
        let authentication = &self.control.authentication;
        match self.client {
            _ if !authentication.controls_access() => Some(WantedTags::ALL),
            Client::Key(_) => Some(WantedTags::ALL),
            _ if self.listener == Listener::Admin => Some(WantedTags::ALL),
            Client::Token(identity) => identity.user().map(|user| authentication.tags_of(user)),
            Client::Anonymous => None,
        }
    }
}

/// The content with which a publication is allowed, if that is not its own.
fn replacement(decision: Decision) -> Result<Option<Arc<Replacement>>, ErrorResponse> {
    match decision {
        Decision::AllowedAs(content) => Ok(Some(content)),
        decision => decision.allowed_until_ms().map(|_| None),
    }
}
