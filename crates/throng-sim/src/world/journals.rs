//! Where the logs of a world are: all in memory, all in a stream whose offsets skip, or some in
//! each of them and some on a disk.

use std::sync::Arc;

use throng_core::conformance::TestJournal;
use throng_core::{Epoch, JournalId, MemoryEngine};

use super::BEGINNING_MS;
use crate::client::view::Terms;
use crate::model::Ids;
use crate::random::Random;
use crate::recorder::Parts;
use crate::stream_ids::{self, StreamIds};
use crate::topics::Topic;

/// The number of the stream, and of the disk beside it.
const STREAM: JournalId = JournalId(0);
const DISK: JournalId = JournalId(1);

/// The epoch of logs on the disk.
const DISK_EPOCH: u64 = BEGINNING_MS + 500;

/// Says where the log of each channel is. If they are in memory, the seed may say otherwise for
/// some of them.
pub(super) fn assign(topics: &mut [Topic], terms: &Terms, (are_in_memory, seed): (bool, u64)) {
    let mut random = Random::new(seed + 9);
    // The limit of all logs together is one for each place.
    let are_mixed = are_in_memory && terms.max_logs_bytes.is_none() && random.percent(40);
    for topic in topics.iter_mut().filter(|topic| !topic.is_changing) {
        topic.rule.journal = match (are_in_memory, are_mixed) {
            (_, true) => random.pick(&[None, Some(STREAM), Some(DISK)]),
            (true, false) => None,
            (false, false) => Some(STREAM),
        };
    }
}

/// The memory, the journals that deliver to it, and the ids of each channel.
pub(super) fn open(
    parts: &Parts,
    topics: &[Topic],
    numbers: Random,
) -> (Arc<MemoryEngine>, Vec<Arc<TestJournal>>, Vec<Ids>) {
    let Parts { rules, queues, max_logs_bytes, heard } = parts;
    let epoch = Epoch::numbered(BEGINNING_MS);
    let memory = MemoryEngine::new(epoch, Arc::clone(rules), queues.clone(), *max_logs_bytes);
    let memory = memory.with_hash_seed(epoch.number()).with_events(Some(Arc::clone(heard) as _));
    let memory = Arc::new(memory);
    let journal = |ids| {
        let epoch = stream_ids::HIDDEN_EPOCH;
        let journal = TestJournal::with_epoch(epoch, Arc::clone(&memory), *max_logs_bytes);
        Arc::new(journal.with_numbers(Arc::new(ids)))
    };
    let stream = || journal(StreamIds::new(BEGINNING_MS, numbers));
    let uses = |id| topics.iter().any(|topic| topic.rule.journal == Some(id));
    let journals = match (uses(STREAM), uses(DISK)) {
        (false, false) => Vec::new(),
        (true, false) => vec![stream()],
        (_, true) => vec![stream(), journal(StreamIds::of_disk(DISK_EPOCH))],
    };
    let ids = topics.iter().map(|topic| {
        let epoch = match topic.rule.journal {
            Some(STREAM) => stream_ids::epoch_of(&topic.channel_name(), BEGINNING_MS),
            Some(_) => Epoch::numbered(DISK_EPOCH),
            None => epoch,
        };
        Ids { epoch: epoch.to_string(), are_consecutive: topic.rule.journal != Some(STREAM) }
    });
    (Arc::clone(&memory), journals, ids.collect())
}
