//! Checks of volatile messages.

use super::{NOW_MS, QUEUED_MAX, Subject, attributes, ids, name};
use crate::connection_name::ConnectionName;
use crate::message::Body;
use crate::name::ChannelName;
use crate::publication::VolatilePublication;
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
}
