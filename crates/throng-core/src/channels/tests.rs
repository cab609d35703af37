//! Channels of several journals, and of the memory.

use std::num::NonZeroU32;

use super::*;
use crate::conformance::TestJournal;
use crate::engine::Follow;
use crate::id::{Epoch, LocalId, WorkerId};
use crate::later::ask;
use crate::message::Body;
use crate::publication::Published;
use crate::reading::StartAt;
use crate::rules::Rules;
use crate::stamp::Stamp;
use crate::worker_queue::WorkerQueue;

const NOW_MS: u64 = 1_700_000_000_000;

/// Channels whose logs begin with the name of the place that has them: `memory`, `first`, `second`.
struct Fixture {
    channels: Channels,
    journals: [Arc<TestJournal>; 2],
    queue: Arc<WorkerQueue>,
}

fn rule(pattern: &str, journal: Option<u8>) -> Rule {
    Rule { pattern: pattern.into(), journal: journal.map(JournalId), ..Rule::default() }
}

fn fixture() -> Fixture {
    let specific = vec![rule("first*", Some(0)), rule("second*", Some(1))];
    let rules = Arc::new(Rules::new(specific, rule("*", None)));
    let queue = Arc::new(WorkerQueue::new(|| {}));
    let queues = vec![Arc::clone(&queue)];
    let memory = MemoryEngine::new(Epoch::numbered(7), rules, queues, usize::MAX);
    let memory = Arc::new(memory);
    let journals = [11, 12].map(|epoch| {
        let epoch = Epoch::numbered(epoch);
        Arc::new(TestJournal::with_epoch(epoch, Arc::clone(&memory), usize::MAX))
    });
    let all = journals.iter().map(|journal| Arc::clone(journal) as _).collect();
    Fixture { channels: Channels::new(memory, all), journals, queue }
}

fn channels() -> [ChannelName; 3] {
    ["memory-a", "first-a", "second-a"].map(ChannelName::channel)
}

impl Fixture {
    fn publish(&self, channel: &ChannelName, text: &str) -> Published {
        let publication = Publication::new(channel.clone(), Body::Text(text.into()));
        let outcome = ask(|later| self.channels.publish(NOW_MS, publication, later)).recv();
        outcome.ok().flatten().expect("it answers").expect("it is published")
    }

    fn follow(&self, channel: &ChannelName, start: StartAt) -> Followed {
        let (worker, local_if_new) = (WorkerId(0), LocalId(NonZeroU32::MIN));
        self.channels.follow(NOW_MS, Follow { channel, worker, local_if_new, start })
    }
}

#[test]
fn each_log_is_where_its_rule_says() {
    let fixture = fixture();
    for (channel, epoch) in channels().iter().zip([7, 11, 12]) {
        let id = fixture.publish(channel, "a").id;
        assert_eq!(id, MessageId { epoch: Epoch::numbered(epoch), offset: 1 });
        let query = HistoryQuery::Newest;
        let history = fixture.channels.history(NOW_MS, channel, query, 9);
        let found = history.messages.iter().map(|message| message.id).collect::<Vec<_>>();
        assert_eq!((found, history.head), (vec![id], id), "{channel:?}");
        let in_memory = fixture.channels.memory().history(NOW_MS, channel, query, 9).messages;
        assert_eq!(in_memory.len(), usize::from(epoch == 7), "{channel:?}");
    }
    for (journal, own) in fixture.journals.iter().zip(&channels()[1..]) {
        let listed = journal.list(Kind::Channel, 0).channels;
        let names: Vec<_> = listed.into_iter().map(|listed| listed.name).collect();
        assert_eq!(names, std::slice::from_ref(own));
    }
    let counted = fixture.channels.metrics();
    assert_eq!((counted.messages, counted.published), (3, 3));
}

#[test]
fn a_follower_gets_messages_of_all_journals() {
    let fixture = fixture();
    let followed = channels().map(|channel| fixture.follow(&channel, StartAt::Live).channel);
    let ids = channels().map(|channel| fixture.publish(&channel, "a").id);
    let mut came = Vec::new();
    fixture.queue.take(&mut came);
    let came: Vec<_> = came
        .iter()
        .filter_map(|notification| match notification {
            crate::Notification::Message { channel, message, .. } => Some((*channel, message.id)),
            _ => None,
        })
        .collect();
    assert_eq!(came, followed.into_iter().zip(ids).collect::<Vec<_>>());
}

#[test]
fn a_list_has_the_channels_of_all_journals_once() {
    let fixture = fixture();
    let mut expected = Vec::new();
    for n in 0..300 {
        for place in ["memory", "first", "second"] {
            let name = ChannelName::channel(&format!("{place}-{n:03}"));
            fixture.publish(&name, "a");
            if n % 7 == 0 {
                fixture.follow(&name, StartAt::Live);
            }
            expected.push(name);
        }
    }
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let step = fixture.channels.list(NOW_MS, Kind::Channel, after);
        found.extend(step.channels.into_iter().map(|listed| listed.name));
        after = step.next;
        if after.is_none() {
            break;
        }
    }
    let sorted = |mut names: Vec<ChannelName>| {
        names.sort_by(|one, other| one.key().cmp(other.key()));
        names
    };
    assert_eq!(sorted(found), sorted(expected));
    let beyond = Some(ListPlace(u64::MAX));
    assert_eq!(fixture.channels.list(NOW_MS, Kind::Channel, beyond), ListStep::default());
}

#[test]
fn positions_are_in_one_order() {
    let fixture = fixture();
    let [memory, first, second] = channels();
    for channel in [&memory, &first, &second] {
        fixture.publish(channel, "a");
    }
    let position = fixture.channels.watermark();
    assert_eq!(position, Watermark { epoch: Epoch::numbered(11), stamp: Stamp(1) });
    for (channel, has_positions) in [(&memory, false), (&first, true), (&second, false)] {
        assert_eq!(fixture.channels.has_positions(channel), has_positions);
        let followed = fixture.follow(channel, StartAt::Since(position));
        assert_eq!(followed.is_recovered, Some(has_positions), "{channel:?}");
    }
    let channels = fixture.channels.with_order_of_memory();
    assert_eq!(channels.watermark().epoch, Epoch::numbered(7));
    assert!(channels.has_positions(&memory) && !channels.has_positions(&first));
}
