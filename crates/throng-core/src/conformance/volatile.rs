//! Checks of volatile messages.

use super::{NOW_MS, QUEUED_MAX, Subject, attributes, ids, name};
use crate::connection_name::ConnectionName;
use crate::id::WorkerId;
use crate::message::Body;
use crate::name::ChannelName;
use crate::publication::VolatilePublication;
use crate::read_marker::{Mark, Mover, UnreadNotice};
use crate::reading::{HistoryQuery, StartAt};
use crate::worker_queue::Notification;

impl Subject {
    fn publish_volatile(&self, channel: &ChannelName, text: &str) -> u64 {
        let publication = VolatilePublication {
            content_type: Some("text/html".into()),
            excluded: Some(ConnectionName::numbered(7)),
            attributes: Some(attributes()),
            ..VolatilePublication::new(channel.clone(), Body::Text(text.into()))
        };
        self.engine.publish_volatile(NOW_MS, publication).expect("the engine is whole")
    }

    pub(super) fn a_volatile_message_reaches_followers_and_leaves_no_trace(&self) {
        assert_eq!(self.publish_volatile(&name(), "nobody is there"), 0);
        let followed = self.follow(&name(), 0, StartAt::Live);
        let kept = self.publish(&name(), "kept").id;
        self.follow(&name(), 0, StartAt::Live);
        self.follow(&name(), 1, StartAt::Live);
        assert_eq!(self.publish_volatile(&name(), "typing"), 3);
        let next = self.publish(&name(), "next").id;
        let notifications = self.notifications(0);
        let [_, Notification::Message { local, channel, message, receipt: None }, last] =
            &notifications[..]
        else {
            panic!("three messages, not {notifications:?}");
        };
        assert_eq!((*local, *channel), (followed.local, followed.channel));
        assert!(message.is_volatile() && message.body == Body::Text("typing".into()));
        assert_eq!((&message.channel, message.content_type()), (&name(), "text/html"));
        assert_eq!(message.extras.excluded(), Some(ConnectionName::numbered(7)));
        assert_eq!(message.extras.attributes(), Some(&attributes()));
        let Notification::Message { message: last, .. } = last else { panic!("{last:?}") };
        assert_eq!((last.id, last.previous), (next, kept.offset), "it leaves no hole");
        assert_eq!(self.messages(1).len(), 2, "the other worker has both, too");
        assert_eq!(ids(&self.history(HistoryQuery::Newest, 9).messages), [kept, next]);
        let again = self.follow(&name(), 0, StartAt::After(kept));
        assert_eq!((ids(&again.backlog), again.is_recovered), (vec![next], Some(true)));
        assert_eq!(self.engine.metrics().volatile, 2);
    }

    pub(super) fn a_filling_queue_gets_no_volatile_messages(&self) {
        self.follow(&name(), 0, StartAt::Live);
        for n in 0..QUEUED_MAX / 2 {
            assert_eq!(self.publish_volatile(&name(), &n.to_string()), 1);
        }
        self.follow(&name(), 1, StartAt::Live);
        assert_eq!(self.publish_volatile(&name(), "lost"), 1, "the other worker has room");
        assert_eq!(self.queues[0].take_volatile_lost(), 1);
        assert_eq!(self.publish(&name(), "kept").subscribers, 2);
        self.notifications(0);
        assert_eq!(self.publish_volatile(&name(), "there is room again"), 2);
        assert_eq!(self.queues[0].take_volatile_lost(), 0);
    }

    pub(super) fn a_moved_marker_is_told_to_the_others(&self) {
        let inbox = ChannelName::user("ann");
        let ids: Vec<_> = (0..3).map(|n| self.publish(&inbox, &n.to_string()).id).collect();
        for worker in [0, 1] {
            self.follow(&inbox, worker, StartAt::Live);
        }
        let connection = ConnectionName::numbered(7);
        let mover = Some(Mover { connection, is_follower: true });
        let to = |at: usize| {
            let mark = Mark { mover, ..Mark::new(ids[at], false) };
            self.read_marker(NOW_MS, &inbox, Some(mark))
        };
        assert!(to(1).has_moved);
        let read = ids[1].to_string();
        for worker in [0, 1] {
            let [message] = &self.messages(worker)[..] else { panic!("each follower is told") };
            let told = Some(UnreadNotice { read: Some(&read), unread: 1 });
            assert_eq!((message.unread(), message.is_volatile()), (told, true));
            assert_eq!(message.extras.excluded(), Some(connection));
        }
        assert!(!to(1).has_moved && !to(0).has_moved);
        assert!(self.messages(0).is_empty(), "where it was, and before that, is nothing new");
        let channel = self.engine.audience(&inbox).workers[1].2;
        self.engine.unfollow(NOW_MS, channel, WorkerId(1));
        assert!(to(2).has_moved);
        assert!(self.messages(0).is_empty(), "nobody else is there");
        let back = self.read_marker(NOW_MS, &inbox, Some(Mark::new(ids[0], true)));
        assert_eq!((back.has_moved, back.unread), (true, 2));
        assert_eq!(self.messages(0).len(), 1, "of another device");
        assert_eq!(self.engine.metrics().volatile, 0, "nobody has published it");
    }
}
