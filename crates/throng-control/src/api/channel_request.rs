//! The beginning of requests that create, end, edit or erase something of one channel.

use http::request::Parts;
use hyper::body::Incoming;
use throng_access::Client;
use throng_core::{ChannelName, Kind};
use throng_wire::{ErrorCode, check_target_name};

use super::limit::Limited;
use super::permit::Permit;
use crate::control::Control;
use crate::drain::PublicationGuard;
use crate::http::answer::ApiError;
use crate::http::body::{BodyKind, Whole};
use crate::http::{names, query};

/// A request about one channel. It counts as a publication towards the limits of its client.
pub(super) struct ChannelRequest<'r> {
    control: &'r Control,
    /// Until it is dropped, the drain of the workers does not begin.
    _in_progress: PublicationGuard<'r>,
    pub(super) publisher: Limited<'r>,
    pub(super) channel: ChannelName,
    pub(super) permit: Permit<'r>,
}

impl<'r> ChannelRequest<'r> {
    pub(super) fn begin(
        control: &'r Control,
        head: &Parts,
        client: &'r Client,
        (kind, segment): (Kind, &str),
    ) -> Result<ChannelRequest<'r>, ApiError> {
        let _in_progress = control.drain.begin_publication()?;
        let publisher = Limited::of(control, head, client)?;
        publisher.begin(head, 1).map_err(ApiError::limited)?;
        let channel = names::from_segment(kind, segment)?;
        check_target_name(channel.name(), kind.noun())?;
        let permit = Permit::of(control, head, client)?;
        Ok(ChannelRequest { control, _in_progress, publisher, channel, permit })
    }

    /// Fails if the request has parameters, or the channel has no log. `cannot` is the end of that
    /// error's sentence.
    pub(super) fn check_log(&self, head: &Parts, cannot: &str) -> Result<(), ApiError> {
        query::of(head, &[])?;
        if self.control.engine.rule(&self.channel).retention.is_none() {
            let message = format!(
                "the channel keeps no messages, so it cannot {cannot}: see `messages` of its \
                 rule"
            );
            return Err(ApiError::new(ErrorCode::BadRequest, message));
        }
        Ok(())
    }

    /// Reads the body, which counts towards the limits of the client.
    pub(super) async fn read_body(
        &self,
        head: &Parts,
        body: &mut Incoming,
        kind: BodyKind,
    ) -> Result<Whole, ApiError> {
        let is_counted = self.publisher.charge_body(head, kind)?;
        let bodies = &self.control.bodies;
        let bytes = bodies.read(&self.control.drain, &head.headers, body, kind).await?;
        if !is_counted {
            self.publisher.count(0, bytes.len()).map_err(ApiError::limited)?;
        }
        Ok(bytes)
    }
}
