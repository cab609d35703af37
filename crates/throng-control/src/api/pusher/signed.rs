//! Whose a request is, by its signature, and what the names in it are on this server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::request::Parts;
use hyper::body::Incoming;
use throng_access::{Apps, ClientApp};
use throng_core::{ChannelName, Kind, clock};
use throng_pusher::Channel;
use throng_pusher::request::{self, NotSigned, Pairs};
use throng_pusher::trigger::TriggerError;
use throng_wire::percent::decode_segment;
use throng_wire::{ErrorCode, check_target_name};

use crate::control::Control;
use crate::http::answer::ApiError;
use crate::http::body::{BodyKind, Whole};
use crate::http::query;

/// A request of an application, which has signed it.
pub(super) struct Signed<'r> {
    pub(super) control: &'r Control,
    pub(super) head: &'r Parts,
    pub(super) app: Arc<ClientApp>,
    pub(super) apps: Arc<Apps>,
    pub(super) pairs: Pairs<'r>,
    /// True once something of other nodes is missing in what is answered.
    pub(super) is_partial: AtomicBool,
}

impl<'r> Signed<'r> {
    /// The request with this head, whose body is still to come, and whose path names an
    /// application by its id, or none.
    pub(super) fn of(
        control: &'r Control,
        head: &'r Parts,
        app: Option<&str>,
    ) -> Result<Signed<'r>, ApiError> {
        let query = head.uri.query().unwrap_or_default();
        let pairs: Pairs<'_> = query::pairs(query).collect::<Result<_, _>>()?;
        let apps = control.authentication.apps();
        let app = match app {
            Some(id) => apps.with_id(id).ok_or_else(|| {
                ApiError::new(ErrorCode::NotFound, "this server has no application with this id")
            })?,
            None => {
                let key = request::key_of(&pairs).map_err(unsigned)?;
                apps.with_key(key).ok_or_else(|| unsigned(NotSigned::Key))?.0
            }
        };
        let app = Arc::clone(app);
        let now_s = clock::wall_ms(clock::now_ms()) / 1000;
        let line = (head.method.as_str(), head.uri.path());
        request::check(app.app(), line, &pairs, now_s).map_err(unsigned)?;
        Ok(Signed { control, head, app, apps, pairs, is_partial: AtomicBool::new(false) })
    }

    /// Notes whether something of other nodes is missing.
    pub(super) fn lacks(&self, is_partial: bool) {
        self.is_partial.fetch_or(is_partial, Ordering::Relaxed);
    }

    /// The value of a parameter.
    pub(super) fn parameter(&self, name: &'static str) -> Result<Option<&str>, ApiError> {
        request::parameter(&self.pairs, name)
            .map_err(|error| ApiError::parameter(error.to_string()))
    }

    /// The server's name of a channel, or of the inbox of its user.
    pub(super) fn own(&self, channel: Channel<'_>) -> Result<ChannelName, ApiError> {
        let kind = if channel.user().is_some() { Kind::User } else { Kind::Channel };
        let name = self.app.app().own(channel.user().unwrap_or(channel.name()));
        check_target_name(&name, kind.noun())?;
        Ok(ChannelName::new(kind, &name))
    }

    /// Reads the body, which has to be the one that is signed.
    pub(super) async fn body(
        &self,
        body: &mut Incoming,
        kind: BodyKind,
    ) -> Result<Whole, ApiError> {
        let Signed { control, head, .. } = self;
        let bytes = control.bodies.read(&control.drain, &head.headers, body, kind).await?;
        request::check_body(&self.pairs, &bytes).map_err(unsigned)?;
        Ok(bytes)
    }
}

fn unsigned(error: NotSigned) -> ApiError {
    let code = match error {
        NotSigned::Disabled => ErrorCode::Forbidden,
        _ => ErrorCode::Unauthorized,
    };
    ApiError::new(code, error.to_string())
}

pub(super) fn malformed(error: TriggerError) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, error.to_string())
}

/// The channel that a segment of a path names.
pub(super) fn named(segment: &str) -> Result<String, ApiError> {
    let name = decode_segment(segment).filter(|name| Channel::of(name).is_some());
    name.map(String::from)
        .ok_or_else(|| ApiError::new(ErrorCode::BadName, "no channel has this name"))
}
