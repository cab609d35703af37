//! Checks of read markers.

use super::{NOW_MS, Subject, name, publication};
use crate::attributes::Erasure;
use crate::change::{Erase, LogChange};
use crate::connection_name::ConnectionName;
use crate::id::{Epoch, MessageId, WorkerId};
use crate::later::ask;
use crate::name::ChannelName;
use crate::publication::Publication;
use crate::read_marker::{
    MARKED_CHANNELS_MAX, Mark, MarkerKey, MarkersOf, Mover, ReadMarker, UnreadNotice,
};
use crate::reading::StartAt;

impl Subject {
    fn read_marker(&self, now_ms: u64, of: &MarkerKey, mark: Option<Mark>) -> ReadMarker {
        let answer = ask(|later| self.engine.read_marker(now_ms, of, mark, later)).recv();
        answer.ok().flatten().expect("the engine keeps markers").expect("the journal takes them")
    }

    pub(super) fn a_read_marker_goes_forward_unless_asked(&self) {
        let (inbox, of) = (ChannelName::user("ann"), MarkerKey::inbox("ann"));
        let marker = |mark| {
            let marker = self.read_marker(NOW_MS, &of, mark);
            (marker.read, marker.unread)
        };
        let to = |id, may_go_back| marker(Some(Mark::new(id, may_go_back)));
        assert_eq!(marker(None), (None, 0));
        let ids: Vec<_> = (0..3).map(|n| self.publish(&inbox, &n.to_string()).id).collect();
        assert_eq!(marker(None), (None, 3));
        assert_eq!(to(ids[1], false), (Some(ids[1]), 1));
        assert_eq!(to(ids[0], false), (Some(ids[1]), 1), "it does not go back");
        assert_eq!(to(ids[0], true), (Some(ids[0]), 2));
        let ahead = MessageId { offset: ids[2].offset + 1_000, ..ids[2] };
        let foreign = MessageId { epoch: Epoch::numbered(ids[2].epoch.number() + 1), ..ids[2] };
        for unknown in [ahead, foreign] {
            assert_eq!(to(unknown, true), (Some(ids[0]), 2), "the log never gave out {unknown}");
        }
        assert_eq!(to(ids[2], false), (Some(ids[2]), 0));
        let brief = Publication { expires_in_ms: Some(1000), ..publication(&inbox, "brief") };
        self.outcome(brief).expect("there is room");
        assert_eq!(marker(None), (Some(ids[2]), 1));
        let later = self.read_marker(NOW_MS + 1000, &of, None);
        assert_eq!((later.read, later.unread), (Some(ids[2]), 0), "what expires is not unread");
        self.check_unread_after_an_erasure(&of);
    }

    /// A message that is erased is not unread, nor is the notice of that.
    fn check_unread_after_an_erasure(&self, of: &MarkerKey) {
        let inbox = of.log();
        let now_ms = NOW_MS + 1000;
        let unread = || self.read_marker(now_ms, of, None).unread;
        let ids: Vec<_> = (3..5).map(|n| self.publish(inbox, &n.to_string()).id).collect();
        assert_eq!(unread(), 2);
        let notice = LogChange::notice(inbox.clone(), Erasure::of(ids[0].offset));
        let told = ask(|later| self.engine.change(now_ms, notice, later)).recv();
        assert!(told.ok().flatten().is_some_and(|told| told.is_ok()));
        assert_eq!(unread(), 2);
        let erased = |what| ask(|later| self.engine.erase(now_ms, inbox, what, later)).recv();
        assert!(erased(Erase::Message(ids[0])).ok().flatten().is_some_and(|it| it.is_ok()));
        assert_eq!(unread(), 1);
    }

    fn erase_markers(&self, of: MarkersOf<'_>) -> u64 {
        let place = self.profile.journal;
        let mut count = 0;
        loop {
            let erased = ask(|later| self.engine.erase_markers(place, of, later)).recv();
            let erased = erased.ok().flatten().expect("the journal answers");
            let erased = erased.expect("it can erase them");
            count += erased.count;
            if !erased.are_more {
                return count;
            }
        }
    }

    pub(super) fn a_marker_in_a_channel_is_of_one_user(&self) {
        let [ann, bob] = ["ann", "bob"].map(|user| MarkerKey::channel(name(), user));
        let marker = |of: &MarkerKey, mark| {
            let marker = self.read_marker(NOW_MS, of, mark);
            (marker.read, marker.unread, marker.has_moved)
        };
        assert_eq!(marker(&ann, None), (None, 0, false));
        let ids: Vec<_> = (0..3).map(|n| self.publish(&name(), &n.to_string()).id).collect();
        assert_eq!(marker(&ann, None), (None, 3, false));
        let to = |at: usize, may_go_back| Some(Mark::new(ids[at], may_go_back));
        assert_eq!(marker(&ann, to(1, false)), (Some(ids[1]), 1, true));
        assert_eq!(marker(&ann, to(0, false)), (Some(ids[1]), 1, false), "it does not go back");
        assert_eq!(marker(&bob, None), (None, 3, false), "another user has read nothing");
        assert_eq!(marker(&bob, to(2, false)), (Some(ids[2]), 0, true));
        assert_eq!(marker(&ann, to(0, true)), (Some(ids[0]), 2, true));
        assert_eq!(marker(&ann, None), (Some(ids[0]), 2, false));
        let start = MessageId { offset: 0, ..ids[0] };
        assert_eq!(marker(&ann, Some(Mark::new(start, true))), (None, 3, true));
        let inbox = self.read_marker(NOW_MS, &MarkerKey::inbox("ann"), None);
        assert_eq!(inbox, ReadMarker::default(), "the inbox has a marker of its own");
    }

    pub(super) fn markers_are_erased_with_their_user_and_their_channel(&self) {
        let channels = ["a", "b"].map(ChannelName::channel);
        let ids = channels.each_ref().map(|channel| self.publish(channel, "x").id);
        let of = |at: usize, user| MarkerKey::channel(channels[at].clone(), user);
        let mark = |at: usize, user| {
            self.read_marker(NOW_MS, &of(at, user), Some(Mark::new(ids[at], false)))
        };
        let unread = |at: usize, user| self.read_marker(NOW_MS, &of(at, user), None).unread;
        for user in ["ann", "bob", "an"] {
            mark(0, user);
            mark(1, user);
        }
        assert_eq!(self.erase_markers(MarkersOf::User("ann")), 2);
        assert_eq!([unread(0, "ann"), unread(1, "ann")], [1, 1]);
        assert_eq!([unread(0, "bob"), unread(1, "an")], [0, 0], "those of others stay");
        assert_eq!(self.erase_markers(MarkersOf::User("ann")), 0);
        assert_eq!(self.erase_markers(MarkersOf::Channel(&channels[0])), 2);
        assert_eq!([unread(0, "bob"), unread(0, "an"), unread(1, "bob")], [1, 1, 0]);
        assert!(mark(0, "ann").has_moved, "there may be new ones");
        assert_eq!(self.erase_markers(MarkersOf::Channel(&channels[0])), 1);
    }

    pub(super) fn a_user_has_markers_in_so_many_channels(&self) {
        if !self.profile.has_many_channels {
            return;
        }
        let mark = |number: usize| {
            let channel = ChannelName::channel(&format!("channel-{number}"));
            let id = self.publish(&channel, "x").id;
            let of = MarkerKey::channel(channel, "ann");
            let mark = Some(Mark::new(id, false));
            let marked = ask(|later| self.engine.read_marker(NOW_MS, &of, mark, later)).recv();
            marked.ok().flatten().expect("the engine keeps markers")
        };
        (0..MARKED_CHANNELS_MAX).for_each(|number| assert!(mark(number).is_ok(), "{number}"));
        let refused = mark(MARKED_CHANNELS_MAX).expect_err("that is one too many");
        assert_eq!(refused.code, throng_wire::ErrorCode::TooManyChannels);
        assert_eq!(self.engine.metrics().read_markers_refused, 1);
        assert!(mark(0).is_ok(), "those that there are move on");
        self.erase_markers(MarkersOf::User("ann"));
        assert!(mark(MARKED_CHANNELS_MAX).is_ok());
    }

    pub(super) fn a_moved_marker_is_told_to_the_others(&self) {
        let (inbox, of) = (ChannelName::user("ann"), MarkerKey::inbox("ann"));
        let ids: Vec<_> = (0..3).map(|n| self.publish(&inbox, &n.to_string()).id).collect();
        for worker in [0, 1] {
            self.follow(&inbox, worker, StartAt::Live);
        }
        let connection = ConnectionName::numbered(7);
        let mover = Some(Mover { connection, is_follower: true });
        let to = |at: usize| {
            let mark = Mark { mover, ..Mark::new(ids[at], false) };
            self.read_marker(NOW_MS, &of, Some(mark))
        };
        assert!(to(1).has_moved);
        let read = ids[1].to_string();
        for worker in [0, 1] {
            let [message] = &self.messages(worker)[..] else { panic!("each follower is told") };
            let told = Some(UnreadNotice { channel: None, read: Some(&read), unread: 1 });
            assert_eq!((message.unread(), message.is_volatile()), (told, true));
            assert_eq!(message.extras.excluded(), Some(connection));
        }
        assert!(!to(1).has_moved && !to(0).has_moved);
        assert!(self.messages(0).is_empty(), "where it was, and before that, is nothing new");
        let channel = self.engine.audience(&inbox).workers[1].2;
        self.engine.unfollow(NOW_MS, channel, WorkerId(1));
        assert!(to(2).has_moved);
        assert!(self.messages(0).is_empty(), "nobody else is there");
        let back = self.read_marker(NOW_MS, &of, Some(Mark::new(ids[0], true)));
        assert_eq!((back.has_moved, back.unread), (true, 2));
        assert_eq!(self.messages(0).len(), 1, "of another device");
        assert_eq!(self.engine.metrics().volatile, 0, "nobody has published it");
    }

    pub(super) fn a_marker_in_a_channel_is_told_to_the_inbox(&self) {
        let inbox = ChannelName::user("ann");
        self.follow(&inbox, 0, StartAt::Live);
        self.follow(&name(), 1, StartAt::Live);
        let id = self.publish(&name(), "x").id;
        assert_eq!(self.messages(1).len(), 1);
        let of = MarkerKey::channel(name(), "ann");
        assert!(self.read_marker(NOW_MS, &of, Some(Mark::new(id, false))).has_moved);
        let read = id.to_string();
        let [message] = &self.messages(0)[..] else { panic!("the user's device is told") };
        let channel = name();
        let told = UnreadNotice { channel: Some(channel.name()), read: Some(&read), unread: 0 };
        assert_eq!(message.unread(), Some(told));
        assert!(self.messages(1).is_empty(), "others in the channel are not");
        assert_eq!(self.read_marker(NOW_MS, &MarkerKey::inbox("ann"), None).unread, 0);
    }
}
