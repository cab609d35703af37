//! A node of several, whose channels are in a stream of NATS.

mod access;
mod arguments;
mod facts;
mod kept;
mod limits;
mod metrics;
mod node;
mod peer;
mod revocations;
mod seed;
mod status;
mod stream;
mod succession;
mod tables;

use throng_handover::message::DescriptorKind;

use super::interface::Kind;
use crate::settings::{Settings, SettingsError};

pub(crate) use access::NatsAccess;
pub(crate) use arguments::NatsFlags;
pub(crate) use facts::{epoch_of_most, suspicions};
pub(crate) use peer::NatsPeer;
pub(super) use seed::tagger;
pub(crate) use stream::{nonce, stream};
pub(crate) use tables::tables;

pub(super) const KIND: Kind =
    Kind { check, open: node::open, passed_by: DescriptorKind::Node, succeed: succession::succeed };

fn check(settings: &Settings) -> Result<Vec<String>, SettingsError> {
    let access = NatsAccess::of(settings);
    access.check()?;
    Ok(access.warnings())
}
