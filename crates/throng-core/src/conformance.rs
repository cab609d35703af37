//! The tests that every journal passes.
//!
//! A journal's crate calls [`run_with`] in one of its tests. No check assumes more about offsets
//! than the trait [`Journal`](crate::Journal) promises: they grow, they may skip numbers, and each
//! message carries its predecessor's. For tests of what asks a journal, [`TestJournal`] answers
//! when they want, and an [`Observer`] sees what is asked.

mod by_time;
mod changes;
mod creations;
mod ends;
mod keys;
mod lists;
mod markers;
mod test_journal;
mod volatile;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::attributes::{Attribute, Attributes};
use crate::channels::Channels;
use crate::connection_name::ConnectionName;
use crate::connection_scan::{ScanAction, WantedTags};
use crate::engine::{Follow, Followed, History};
use crate::id::{Epoch, LocalId, MessageId, WorkerId};
use crate::later::ask;
use crate::message::{Body, Message};
use crate::name::ChannelName;
use crate::publication::{Outcome, Publication, PublishError, Published};
use crate::reading::{Fetched, HistoryQuery, Reading, StartAt};
use crate::rules::{JournalId, Retention, Rule, Rules, StateLimits};
use crate::stamp::{Stamp, Watermark};
use crate::worker_queue::{Notification, QueueLimits, WorkerQueue};

pub use crate::channels::{Coming, Made, Observer};
pub use test_journal::{Fate, JournalNumbers, Lateness, OpenReading, TestJournal};
#[cfg(test)]
pub(crate) use test_journal::{page_in, start_in};

/// Workers of the engine under test.
const WORKERS: usize = 2;

/// Messages that each channel keeps.
const RETAINED: usize = 3;

/// Keys that each channel may have.
const KEYS_MAX: usize = 8;

/// Messages that wait in a worker's queue before publications are refused.
const QUEUED_MAX: usize = 100;

const NOW_MS: u64 = 1_700_000_000_000;

/// How long until what was published counts as not settled.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs all checks on channels in memory, which `make` returns: for each check others. They have to
/// use the given rules and queues, of which worker `n` has the `n`th.
pub fn run(make: impl Fn(Arc<Rules>, Vec<Arc<WorkerQueue>>) -> Channels) {
    run_with(Profile::MEMORY, make);
}

/// Permitted differences between journals.
#[derive(Debug, Clone, Copy)]
pub struct Profile {
    /// The journal that keeps the logs, as the rules say.
    pub journal: Option<JournalId>,
    /// True if logs keep the newest message of each key. The rules say otherwise if not.
    pub keeps_states: bool,
    /// True if notices count among the messages that a log keeps.
    pub counts_notices: bool,
    /// False if a thousand channels take it too long.
    pub has_many_channels: bool,
}

impl Profile {
    /// All in memory.
    const MEMORY: Profile = Profile { journal: None, keeps_states: true, ..Profile::JOURNAL };
    /// In a journal.
    pub const JOURNAL: Profile = Profile {
        journal: Some(JournalId(0)),
        keeps_states: false,
        counts_notices: false,
        has_many_channels: true,
    };
}

/// As [`run`], for channels with a journal.
pub fn run_with(profile: Profile, make: impl Fn(Arc<Rules>, Vec<Arc<WorkerQueue>>) -> Channels) {
    let checks: &[fn(&Subject)] = &[
        Subject::ids_grow_and_messages_name_their_predecessor,
        Subject::a_follower_gets_each_message_once,
        Subject::a_subscription_starts_where_it_asks_to,
        Subject::a_resume_reports_whether_all_messages_are_there,
        Subject::a_watermark_is_a_position_in_all_channels,
        Subject::history_pages_both_ways,
        Subject::a_page_begins_at_a_time,
        Subject::a_page_from_a_time_has_no_expired_messages,
        Subject::an_idempotency_key_publishes_once,
        Subject::a_message_carries_what_was_published,
        Subject::an_expired_message_is_gone_and_leaves_no_gap,
        Subject::a_read_marker_goes_forward_unless_asked,
        Subject::a_marker_in_a_channel_is_of_one_user,
        Subject::markers_are_erased_with_their_user_and_their_channel,
        Subject::a_user_has_markers_in_so_many_channels,
        Subject::channels_and_users_of_one_name_are_apart,
        Subject::followers_are_counted_by_worker,
        Subject::a_list_names_each_channel_once,
        Subject::a_full_queue_refuses_publications_to_its_channels_only,
        Subject::a_volatile_message_reaches_followers_and_leaves_no_trace,
        Subject::a_filling_queue_gets_no_volatile_messages,
        Subject::a_moved_marker_is_told_to_the_others,
        Subject::a_marker_in_a_channel_is_told_to_the_inbox,
        Subject::presence_asks_each_worker,
        Subject::a_follows_query_goes_to_the_connections_worker,
        Subject::a_change_appends_several_messages_in_order,
        Subject::a_change_is_made_only_if_its_condition_holds,
        Subject::a_record_is_kept_beside_the_messages,
        Subject::an_erased_message_is_gone_and_leaves_no_gap,
        Subject::a_notice_tells_everybody_of_an_erasure,
        Subject::an_erased_history_is_a_gap_for_those_who_resume,
        Subject::erasures_push_out_no_other_message,
        Subject::places_and_notices_of_erased_messages_are_bounded,
        Subject::a_log_with_a_record_is_listed,
        Subject::a_channel_that_has_ended_takes_no_messages,
        Subject::a_channel_that_has_ended_may_be_opened_again,
        Subject::ends_take_no_places_of_pages,
        Subject::a_created_channel_takes_messages_of_its_type,
        Subject::a_channel_that_must_exist_takes_nothing_before_its_creation,
        Subject::a_channel_whose_time_is_over_goes_once,
        Subject::a_channel_without_states_refuses_keys,
        Subject::a_state_has_the_newest_of_each_key,
        Subject::a_resume_has_the_newest_of_each_changed_key,
        Subject::a_tombstone_removes_its_key,
        Subject::a_value_that_expires_is_removed,
        Subject::a_key_is_changed_only_if_its_condition_holds,
        Subject::a_full_state_refuses_new_keys,
        Subject::an_erased_value_leaves_no_key,
    ];
    for check in checks {
        let limits = QueueLimits { max_messages: QUEUED_MAX, ..QueueLimits::default() };
        let queue = |_| Arc::new(WorkerQueue::with_limits(limits, || {}));
        let queues: Vec<_> = (0..WORKERS).map(queue).collect();
        let max_keys = if profile.keeps_states { KEYS_MAX } else { 0 };
        let rule = Rule {
            retention: Retention { max_messages: RETAINED, ..Rule::default().retention },
            state: StateLimits { max_keys, ..Rule::default().state },
            journal: profile.journal,
            may_end: true,
            read_markers: true,
            ..Rule::default()
        };
        let pattern = MADE.into();
        let made = Rule { kind: Some(name().kind()), pattern, must_exist: true, ..rule.clone() };
        let engine = make(Arc::new(Rules::new(vec![made], rule)), queues.clone());
        check(&Subject { engine, queues, profile });
    }
}

/// Channels under test, and the queues that they post to.
struct Subject {
    engine: Channels,
    queues: Vec<Arc<WorkerQueue>>,
    profile: Profile,
}

/// Channels with such a name have to be created.
const MADE: &str = "made/*";

fn name() -> ChannelName {
    ChannelName::channel("news")
}

/// Attributes, of which no version has a name for the last one.
fn attributes() -> Attributes {
    let values: [(u16, &[u8]); 2] = [(Attribute::Event as u16, b"price"), (9_999, b"\xff")];
    Attributes::of(&values).expect("they are in order")
}

fn publication(channel: &ChannelName, text: &str) -> Publication {
    Publication::new(channel.clone(), Body::Text(text.into()))
}

fn ids(messages: &[Arc<Message>]) -> Vec<MessageId> {
    messages.iter().map(|message| message.id).collect()
}

impl Subject {
    fn publish(&self, channel: &ChannelName, text: &str) -> Published {
        self.outcome(publication(channel, text)).expect("the queues have room")
    }

    /// Publishes a message, and waits for what becomes of it.
    fn outcome(&self, publication: Publication) -> Outcome {
        self.outcome_at(NOW_MS, publication)
    }

    fn outcome_at(&self, now_ms: u64, publication: Publication) -> Outcome {
        let outcome = ask(|later| self.engine.publish(now_ms, publication, later)).recv();
        outcome.ok().flatten().expect("the engine answers")
    }

    /// Publishes some messages, one more than are kept. Returns their ids.
    fn publish_some(&self) -> Vec<MessageId> {
        (0..=RETAINED).map(|n| self.publish(&name(), &n.to_string()).id).collect()
    }

    /// Waits until a part of a log can be read.
    fn fetch_at(&self, now_ms: u64, channel: &ChannelName, reading: Reading) -> Fetched {
        let fetched = ask(|later| self.engine.fetch(now_ms, channel, reading, later)).recv();
        fetched.ok().flatten().expect("the engine can read its logs")
    }

    fn follow(&self, channel: &ChannelName, worker: u16, start: StartAt) -> Followed {
        self.follow_at(NOW_MS, channel, worker, start)
    }

    fn follow_at(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        worker: u16,
        start: StartAt,
    ) -> Followed {
        let _held = self.fetch_at(now_ms, channel, Reading::Start(start));
        let local_if_new = LocalId(NonZeroU32::MIN.saturating_add(worker.into()));
        let follow = Follow { channel, worker: WorkerId(worker), local_if_new, start };
        self.engine.follow(now_ms, follow)
    }

    fn history(&self, query: HistoryQuery, limit: usize) -> History {
        self.history_at(NOW_MS, query, limit)
    }

    fn history_at(&self, now_ms: u64, query: HistoryQuery, limit: usize) -> History {
        let _held = self.fetch_at(now_ms, &name(), Reading::Page(query, limit));
        self.engine.history(now_ms, &name(), query, limit)
    }

    /// The notifications of a worker, except those which an engine may post at any time: what is
    /// [settled](Notification::Settled), and whether messages are late.
    fn notifications(&self, worker: usize) -> Vec<Notification> {
        let mut notifications = Vec::new();
        self.queues[worker].take(&mut notifications);
        notifications.retain(|it| match it {
            Notification::Settled => false,
            Notification::Scan(scan) => !matches!(scan.action, ScanAction::TellLate(_)),
            _ => true,
        });
        notifications
    }

    /// The messages that a worker was notified of.
    fn messages(&self, worker: usize) -> Vec<Arc<Message>> {
        let message = |notification| match notification {
            Notification::Message { message, .. } => message,
            other => panic!("unexpected {other:?}"),
        };
        self.notifications(worker).into_iter().map(message).collect()
    }

    fn ids_grow_and_messages_name_their_predecessor(&self) {
        let followed = self.follow(&name(), 0, StartAt::Live);
        let published = self.publish_some();
        let mut last = followed.head;
        for (message, id) in self.messages(0).iter().zip(&published) {
            assert_eq!((message.id, message.previous), (*id, last.offset));
            assert!(id.epoch == last.epoch && id.offset > last.offset);
            if followed.are_offsets_consecutive {
                assert_eq!(id.offset, last.offset + 1);
            }
            last = *id;
        }
        assert_eq!(Some(&last), published.last());
    }

    fn a_follower_gets_each_message_once(&self) {
        let early = self.publish(&name(), "early").id;
        let followed = self.follow(&name(), 0, StartAt::Last(9));
        let late = self.publish(&name(), "late").id;
        assert_eq!(ids(&followed.backlog), [early]);
        assert_eq!(followed.head, early);
        let again = self.follow(&name(), 0, StartAt::Last(9));
        assert_eq!((again.channel, again.local), (followed.channel, followed.local));
        assert_eq!(ids(&again.backlog), [early, late]);
        let notifications = self.notifications(0);
        let [Notification::Message { local, channel, message, .. }] = &notifications[..] else {
            panic!("one message, not {notifications:?}");
        };
        assert_eq!((*local, *channel), (followed.local, followed.channel));
        assert_eq!((message.id, message.previous), (late, early.offset));
        assert!(self.notifications(1).is_empty(), "the other worker does not follow the channel");
    }

    fn a_subscription_starts_where_it_asks_to(&self) {
        let published = self.publish_some();
        let kept = &published[published.len() - RETAINED..];
        let last = *published.last().expect("some were published");
        for (start, backlog, cursor) in [
            (StartAt::Live, &kept[RETAINED..], last),
            (StartAt::Last(0), &kept[RETAINED..], last),
            (StartAt::Last(1), &kept[RETAINED - 1..], kept[RETAINED - 2]),
            (StartAt::Last(99), kept, published[0]),
        ] {
            let followed = self.follow(&name(), 0, start);
            assert_eq!(ids(&followed.backlog), backlog, "{start:?}");
            assert_eq!((followed.head, followed.cursor), (last, cursor), "{start:?}");
            assert_eq!(followed.is_recovered, None);
        }
    }

    fn a_resume_reports_whether_all_messages_are_there(&self) {
        let lost = self.publish(&name(), "lost").id;
        let published = self.publish_some();
        let kept = &published[published.len() - RETAINED..];
        let last = kept[RETAINED - 1];
        // Not the next place: a journal may have written there what is no message.
        let ahead = MessageId { offset: last.offset + 1_000, ..last };
        let foreign = MessageId { epoch: Epoch::random(), ..last };
        for (id, backlog, is_recovered) in [
            (last, &kept[RETAINED..], true),
            (kept[0], &kept[1..], true),
            (published[0], kept, true),
            (lost, kept, false),
            (ahead, kept, false),
            (foreign, kept, false),
        ] {
            let followed = self.follow(&name(), 0, StartAt::After(id));
            assert_eq!(ids(&followed.backlog), backlog, "after {id}");
            assert_eq!(followed.is_recovered, Some(is_recovered), "after {id}");
        }
    }

    /// The watermark, once the last message of a channel is settled: an engine that shares its
    /// channels finds out some time later.
    fn settled(&self, channel: &ChannelName) -> Watermark {
        let backlog = self.follow(channel, 0, StartAt::Last(1)).backlog;
        let newest = backlog.last().expect("the channel has a message").stamp;
        let until = Instant::now() + PATIENCE;
        loop {
            let watermark = self.engine.watermark();
            if watermark.stamp >= newest {
                return watermark;
            }
            assert!(Instant::now() < until, "{newest:?} is not settled, only {watermark:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn a_watermark_is_a_position_in_all_channels(&self) {
        let other = ChannelName::channel("another channel");
        self.publish(&name(), "lost");
        let begin = self.settled(&name());
        let published = self.publish_some();
        let kept = &published[published.len() - RETAINED..];
        let between = self.settled(&name());
        let late = [self.publish(&other, "a").id, self.publish(&other, "b").id];
        let end = self.settled(&other);
        let ahead = Watermark { stamp: Stamp(end.stamp.0 + 1_000), ..end };
        let foreign = Watermark { epoch: Epoch::random(), ..between };
        for (channel, position, backlog, is_recovered) in [
            (name(), between, &[][..], true),
            (name(), end, &[], true),
            (name(), begin, kept, false),
            (name(), ahead, kept, false),
            (name(), foreign, kept, false),
            (other.clone(), begin, &late, true),
            (other.clone(), between, &late, true),
            (other.clone(), end, &[], true),
            (other.clone(), foreign, &late, false),
        ] {
            let followed = self.follow(&channel, 0, StartAt::Since(position));
            assert_eq!(ids(&followed.backlog), backlog, "{channel:?} since {position}");
            assert_eq!(followed.is_recovered, Some(is_recovered), "{channel:?} since {position}");
        }
        let stamps = |channel: &ChannelName| -> Vec<Stamp> {
            let backlog = self.follow(channel, 0, StartAt::Last(9)).backlog;
            backlog.iter().map(|message| message.stamp).collect()
        };
        let all: Vec<_> = stamps(&name()).into_iter().chain(stamps(&other)).collect();
        assert!(all.is_sorted() && all.last() == Some(&end.stamp), "{all:?}");
    }

    fn history_pages_both_ways(&self) {
        let lost = self.publish(&name(), "lost").id;
        let published = self.publish_some();
        let kept = &published[published.len() - RETAINED..];
        let page = |query, limit| {
            let History { head, messages, has_more, is_recovered, .. } = self.history(query, limit);
            assert_eq!(head, kept[RETAINED - 1]);
            (ids(&messages), has_more, is_recovered)
        };
        let newest = (kept[1..].to_vec(), true, None);
        assert_eq!(page(HistoryQuery::Newest, RETAINED - 1), newest);
        assert_eq!(page(HistoryQuery::Before(kept[1]), 9), (kept[..1].to_vec(), false, None));
        assert_eq!(page(HistoryQuery::Before(kept[0]), 9), (vec![], false, None));
        assert_eq!(page(HistoryQuery::After(kept[0]), 1), (kept[1..2].to_vec(), true, Some(true)));
        assert_eq!(page(HistoryQuery::After(lost), 9), (kept.to_vec(), false, Some(false)));
    }

    fn an_idempotency_key_publishes_once(&self) {
        let publish = |channel: &ChannelName, key: &str| {
            let idempotency_key = Some(key.into());
            let publication = Publication { idempotency_key, ..publication(channel, "a") };
            let published = self.outcome(publication).expect("there is room");
            (published.id, published.is_duplicate)
        };
        let (first, is_duplicate) = publish(&name(), "key");
        assert!(!is_duplicate);
        assert_eq!(publish(&name(), "key"), (first, true));
        let (second, is_duplicate) = publish(&name(), "another key");
        assert!(!is_duplicate && second.offset > first.offset);
        assert!(!publish(&ChannelName::channel("another channel"), "key").1);
        assert_eq!(ids(&self.history(HistoryQuery::Newest, 9).messages), [first, second]);
        assert_eq!(self.engine.metrics().duplicates, 1);
    }

    fn a_message_carries_what_was_published(&self) {
        self.follow(&name(), 0, StartAt::Live);
        let excluded = Some(ConnectionName::new(WorkerId(0), 3, 7));
        let body = Body::Binary((*b"\0\xff").into());
        let attributes = attributes();
        let publication = Publication {
            content_type: Some("image/png".into()),
            excluded,
            attributes: Some(attributes.clone()),
            ..Publication::new(name(), body.clone())
        };
        self.outcome(publication).expect("there is room");
        let kept = self.history(HistoryQuery::Newest, 9).messages;
        for message in self.messages(0).iter().chain(&kept) {
            assert_eq!((&message.body, message.content_type()), (&body, "image/png"));
            assert_eq!((&message.channel, message.extras.excluded()), (&name(), excluded));
            assert_eq!(message.extras.attributes(), Some(&attributes));
            assert_eq!(message.time_ms, NOW_MS);
        }
        assert_eq!(kept.len(), 1);
    }

    fn an_expired_message_is_gone_and_leaves_no_gap(&self) {
        let start = self.publish(&name(), "before").id;
        let brief = Publication { expires_in_ms: Some(1000), ..publication(&name(), "brief") };
        let brief = self.outcome(brief).expect("there is room").id;
        let after = self.publish(&name(), "after").id;
        let expires_ms = NOW_MS + 1000;
        let page = |now_ms, query, limit| {
            let history = self.history_at(now_ms, query, limit);
            assert_ne!(history.is_recovered, Some(false));
            (ids(&history.messages), history.has_more)
        };
        let all = vec![start, brief, after];
        assert_eq!(page(expires_ms - 1, HistoryQuery::Newest, 9), (all, false));
        for query in [HistoryQuery::Newest, HistoryQuery::Before(after), HistoryQuery::After(start)]
        {
            let (found, _) = page(expires_ms, query, 9);
            assert!(!found.contains(&brief) && !found.is_empty(), "{query:?}: {found:?}");
        }
        assert_eq!(page(expires_ms, HistoryQuery::Newest, 1), (vec![after], true));
        assert_eq!(page(expires_ms, HistoryQuery::After(start), 1), (vec![after], false));
        let starts = [
            (StartAt::After(start), Some(true), vec![after]),
            (StartAt::Last(2), None, vec![start, after]),
        ];
        for (start, is_recovered, expected) in starts {
            let _held = self.fetch_at(expires_ms, &name(), Reading::Start(start));
            let (name, local_if_new) = (name(), LocalId(NonZeroU32::MIN));
            let follow = Follow { channel: &name, worker: WorkerId(0), local_if_new, start };
            let followed = self.engine.follow(expires_ms, follow);
            assert_eq!(followed.is_recovered, is_recovered);
            // Expired messages keep their places, so that the worker sees no hole.
            let (gone, found): (Vec<_>, Vec<_>) =
                followed.backlog.iter().partition(|message| message.is_expired(expires_ms));
            assert!(gone.iter().all(|message| message.body.bytes().is_empty()));
            let found: Vec<_> = found.iter().map(|message| message.id).collect();
            assert_eq!(found, expected);
            let mut last = followed.cursor.offset;
            for message in &followed.backlog {
                assert_eq!(message.previous, last);
                last = message.id.offset;
            }
        }
        // Counted are messages that end in memory.
        assert_eq!(self.engine.metrics().expired, u64::from(self.profile.journal.is_none()));
    }

    fn channels_and_users_of_one_name_are_apart(&self) {
        let user = ChannelName::user("news");
        let followed =
            [self.follow(&name(), 0, StartAt::Live), self.follow(&user, 1, StartAt::Live)];
        assert_ne!(followed[0].channel, followed[1].channel);
        self.publish(&user, "a");
        assert_eq!((self.messages(0).len(), self.messages(1).len()), (0, 1));
        assert_eq!(self.engine.name(followed[1].channel), Some(user));
        let mut names = Vec::new();
        let mut channels = followed.map(|followed| followed.channel);
        self.engine.names(&mut channels, &mut |name| names.push(name.kind()));
        assert_eq!(names.len(), 2);
    }

    fn followers_are_counted_by_worker(&self) {
        let followed = [0, 1, 1].map(|worker| self.follow(&name(), worker, StartAt::Live));
        let channel = followed[0].channel;
        assert!(followed.iter().all(|followed| followed.channel == channel));
        assert_eq!(self.publish(&name(), "a").subscribers, 3);
        assert_eq!((self.messages(0).len(), self.messages(1).len()), (1, 1));
        for (worker, subscribers, workers) in [(1, 2, 2), (0, 1, 1), (1, 0, 0)] {
            self.engine.unfollow(NOW_MS, channel, WorkerId(worker));
            let audience = self.engine.audience(&name());
            assert_eq!((audience.subscribers, audience.workers.len()), (subscribers, workers));
        }
        self.publish(&name(), "b");
        assert!(self.messages(0).is_empty() && self.messages(1).is_empty());
    }

    fn a_full_queue_refuses_publications_to_its_channels_only(&self) {
        let other = ChannelName::channel("other");
        self.follow(&name(), 0, StartAt::Live);
        self.follow(&name(), 1, StartAt::Live);
        self.follow(&other, 1, StartAt::Live);
        for n in 0..QUEUED_MAX {
            self.publish(&name(), &n.to_string());
        }
        self.notifications(1);
        let refused = self.outcome(publication(&name(), "refused"));
        assert_eq!(refused, Err(PublishError::Busy));
        assert!(self.notifications(1).is_empty(), "all workers get a message, or none");
        assert_eq!(self.publish(&other, "a").subscribers, 1);
        assert_eq!(self.engine.metrics().busy, 1);
        self.notifications(0);
        assert_eq!(self.publish(&name(), "there is room again").subscribers, 2);
    }

    fn presence_asks_each_worker(&self) {
        let ask = || ask(|later| self.engine.presence(NOW_MS, &name(), 9, later).expect("few ask"));
        assert_eq!(ask().recv(), Ok(Some(crate::Presence::default())), "no one is there");
        self.follow(&name(), 0, StartAt::Live);
        self.follow(&name(), 1, StartAt::Live);
        let answered = ask();
        for worker in 0..WORKERS {
            assert!(answered.try_recv().is_err(), "not all have answered");
            let notifications = self.notifications(worker);
            let [Notification::Presence { query, .. }] = &notifications[..] else {
                panic!("one query, not {notifications:?}");
            };
            query.answer([Arc::from(format!("user-{worker}"))], false);
        }
        // Other nodes may be asked, too, so that the answer comes later.
        let presence = answered.recv().ok().flatten().expect("all have answered");
        assert_eq!((presence.connections, presence.users.len()), (2, WORKERS));
    }

    fn a_follows_query_goes_to_the_connections_worker(&self) {
        let connection = ConnectionName::new(WorkerId(1), 3, 7);
        let ask =
            || ask(|later| self.engine.follows(&name(), (connection, WantedTags::ALL), later));
        assert_eq!(ask().recv(), Ok(Some(false)), "its worker does not follow the channel");
        self.follow(&name(), 1, StartAt::Live);
        let answered = ask();
        let Some(Notification::Follows { connection: asked, ticket, .. }) =
            self.notifications(1).pop()
        else {
            panic!("its worker is asked");
        };
        assert_eq!(asked, connection);
        ticket.answer(true);
        assert_eq!(answered.try_recv(), Ok(Some(true)));
    }
}
