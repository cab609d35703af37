//! A node as frozen state: its knowledge of the stream and of other nodes. Its subscribers are in
//! the memory engine, which is frozen beside it. See `docs/reference/frozen-state.md`.

use std::collections::HashSet;

use throng_core::ChannelName;
use throng_core::frozen::{
    Decoder, Encoder, OFFSET_MAX, RecordKind, ThawError, decode_name, encode_name,
};

use crate::journal::HeldState;

/// Whether the head is known.
const IS_LIVE: u8 = 1;
/// Whether messages between the head and the next one are lost.
const HAS_GAP: u8 = 2;
/// Whether it may have subscribers from before the stream lost messages.
const IS_STALE: u8 = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FrozenFollow {
    pub(super) name: ChannelName,
    pub(super) head: u64,
    pub(super) newest: u64,
    /// When the newest message was published, by the machine's clock.
    pub(super) wall_ms: u64,
    pub(super) is_live: bool,
    pub(super) has_gap: bool,
    pub(super) is_stale: bool,
}

/// A node without its channels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FrozenNode {
    pub(super) epoch: u64,
    /// The highest sequence that is known of the stream.
    pub(super) last: u64,
    /// All messages of followed channels up to here are with the workers.
    pub(super) settled: u64,
    pub(super) held: HeldState,
}

impl FrozenNode {
    /// The records in front of the channels.
    pub(super) fn encode(&self) -> impl Iterator<Item = Vec<u8>> {
        let mut first = Encoder::first(RecordKind::Node);
        let fields = [self.epoch, self.last, self.settled, self.held.complete];
        fields.into_iter().for_each(|field| first.u64(field));
        let others = self.held.nodes.iter().map(|(name, silent_ms)| {
            let mut other = Encoder::new(RecordKind::OtherNode);
            other.bytes(name.as_bytes());
            other.u64(*silent_ms);
            other.finish()
        });
        std::iter::once(first.finish()).chain(others)
    }

    /// The record behind the channels.
    pub(super) fn encode_end(&self, channels: u64) -> Vec<u8> {
        let mut end = Encoder::new(RecordKind::NodeEnd);
        end.u64(self.held.nodes.len() as u64);
        end.u64(channels);
        end.finish()
    }
}

impl FrozenFollow {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut record = Encoder::new(RecordKind::StreamChannel);
        encode_name(&mut record, &self.name);
        [self.head, self.newest, self.wall_ms].into_iter().for_each(|field| record.u64(field));
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        record.u8(flag(self.is_live, IS_LIVE)
            | flag(self.has_gap, HAS_GAP)
            | flag(self.is_stale, IS_STALE));
        record.finish()
    }

    fn decode(mut decoder: Decoder<'_>) -> Result<FrozenFollow, ThawError> {
        let name = decode_name(&mut decoder)?;
        let (head, newest, wall_ms) = (decoder.u64()?, decoder.u64()?, decoder.u64()?);
        let flags = decoder.u8()?;
        decoder.finish()?;
        if newest > head || head > OFFSET_MAX {
            return Err(ThawError::Invalid("the head of a channel in the stream"));
        }
        if flags & !(IS_LIVE | HAS_GAP | IS_STALE) != 0 {
            return Err(ThawError::Invalid("the flags of a channel in the stream"));
        }
        let has = |flag| flags & flag != 0;
        let (is_live, has_gap, is_stale) = (has(IS_LIVE), has(HAS_GAP), has(IS_STALE));
        Ok(FrozenFollow { name, head, newest, wall_ms, is_live, has_gap, is_stale })
    }
}

/// Reads a frozen node, record by record.
#[derive(Debug, Default)]
pub struct NodeThaw {
    node: Option<FrozenNode>,
    channels: Vec<FrozenFollow>,
    names: HashSet<ChannelName>,
    is_ended: bool,
}

impl NodeThaw {
    /// Reads the next record.
    ///
    /// # Errors
    ///
    /// It is not the next record of a node that this build can read.
    pub fn record(&mut self, record: &[u8]) -> Result<(), ThawError> {
        let (kind, mut decoder) = Decoder::new(record)?;
        let Some(node) = self.node.as_mut().filter(|_| !self.is_ended) else {
            if kind != RecordKind::Node || self.is_ended {
                return Err(ThawError::Invalid("the order of records"));
            }
            decoder.version()?;
            let (epoch, last) = (decoder.u64()?, decoder.u64()?);
            let (settled, complete) = (decoder.u64()?, decoder.u64()?);
            let held = HeldState { complete, nodes: Vec::new() };
            self.node = Some(FrozenNode { epoch, last, settled, held });
            return decoder.finish();
        };
        match kind {
            RecordKind::OtherNode => {
                let (name, silent_ms) = (decoder.text()?.into(), decoder.u64()?);
                node.held.nodes.push((name, silent_ms));
                decoder.finish()
            }
            RecordKind::StreamChannel => {
                let channel = FrozenFollow::decode(decoder)?;
                if !self.names.insert(channel.name.clone()) {
                    return Err(ThawError::Invalid("a channel is there twice"));
                }
                self.channels.push(channel);
                Ok(())
            }
            RecordKind::NodeEnd => {
                let counts = (decoder.u64()?, decoder.u64()?);
                if counts != (node.held.nodes.len() as u64, self.channels.len() as u64) {
                    return Err(ThawError::Invalid("the end of a node"));
                }
                self.is_ended = true;
                decoder.finish()
            }
            _ => Err(ThawError::Invalid("the record is no part of a node")),
        }
    }

    /// The node and its channels, once its last record was read.
    pub(super) fn finish(self) -> Result<(FrozenNode, Vec<FrozenFollow>), ThawError> {
        let node = self.node.filter(|_| self.is_ended).ok_or(ThawError::Truncated)?;
        Ok((node, self.channels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> (FrozenNode, Vec<FrozenFollow>) {
        let nodes = vec![("a".into(), 7), ("b".into(), 9_000)];
        let held = HeldState { complete: 13, nodes };
        let channel = |name, head| FrozenFollow {
            name: ChannelName::channel(name),
            head,
            newest: head / 2,
            wall_ms: 1_700_000_000_000,
            is_live: head % 2 == 0,
            has_gap: head % 3 == 0,
            is_stale: head % 5 == 0,
        };
        let channels = [("x", 0), ("y", 15), ("z", 22)].map(|(name, head)| channel(name, head));
        (FrozenNode { epoch: 11, last: 22, settled: 21, held }, channels.to_vec())
    }

    fn records() -> Vec<Vec<u8>> {
        let (node, channels) = node();
        let of_channels = channels.iter().map(FrozenFollow::encode);
        let end = node.encode_end(channels.len() as u64);
        node.encode().chain(of_channels).chain([end]).collect()
    }

    fn thaw(records: &[Vec<u8>]) -> Result<(FrozenNode, Vec<FrozenFollow>), ThawError> {
        let mut thaw = NodeThaw::default();
        records.iter().try_for_each(|record| thaw.record(record))?;
        thaw.finish()
    }

    #[test]
    fn a_node_comes_out_as_it_went_in() {
        assert_eq!(thaw(&records()), Ok(node()));
    }

    #[test]
    fn records_that_are_cut_or_missing_or_repeated_are_refused() {
        let all = records();
        for at in 0..all.len() {
            for end in 0..all[at].len() {
                let mut cut = all.clone();
                cut[at].truncate(end);
                assert!(thaw(&cut).is_err(), "{at} {end}");
            }
            let mut longer = all.clone();
            longer[at].push(0);
            assert!(thaw(&longer).is_err(), "{at}");
            let mut missing = all.clone();
            missing.remove(at);
            assert!(thaw(&missing).is_err(), "{at}");
            let mut twice = all.clone();
            twice.insert(at, all[at].clone());
            assert!(thaw(&twice).is_err(), "{at}");
        }
        let mut beyond = node().1[2].clone();
        beyond.newest = beyond.head + 1;
        let mut odd = all.clone();
        odd[4] = beyond.encode();
        assert_eq!(thaw(&odd), Err(ThawError::Invalid("the head of a channel in the stream")));
    }
}
