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
mod tables;

use throng_handover::message::DescriptorKind;

use super::interface::Kind;
use crate::settings::{LogPlace, Settings, SettingsError};

pub(crate) use access::NatsAccess;
pub(crate) use arguments::NatsFlags;
pub(crate) use facts::{epoch_of_most, suspicions};
pub(crate) use peer::NatsPeer;
pub(super) use seed::tagger;
pub(crate) use stream::{nonce, stream};
pub(crate) use tables::tables;

pub(super) const KIND: Kind = Kind {
    place: LogPlace::Nats,
    states: ["engine = memory", "engine = nats"],
    check,
    passed_by: DescriptorKind::Node,
    prepare: node::prepare,
};

fn check(settings: &Settings) -> Result<Vec<String>, SettingsError> {
    let access = NatsAccess::of(settings);
    access.check()?;
    Ok(access.warnings())
}
