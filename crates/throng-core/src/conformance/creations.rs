//! Checks of channels that somebody has created.

use std::num::NonZeroU64;

use super::{NOW_MS, Subject, ids, name, publication};
use crate::change::{ChangeError, Erase, LogChange, RecordChange};
use crate::creation::Creation;
use crate::later::ask;
use crate::message::{Body, JSON};
use crate::name::ChannelName;
use crate::publication::{Publication, PublishError};
use crate::reading::{HistoryQuery, StartAt};

fn made() -> ChannelName {
    ChannelName::channel("made/a")
}

fn of_type(content_type: &str) -> Creation {
    Creation { content_type: Some(content_type.into()), ..Creation::at(1_000) }
}

impl Subject {
    fn create(&self, channel: &ChannelName, creation: &Creation) {
        let before = self.state_of(channel);
        self.changed(LogChange::create(channel.clone(), creation, &before));
    }

    fn exists(&self, channel: &ChannelName) -> bool {
        let answer = ask(|later| self.engine.exists(NOW_MS, channel, later)).recv();
        answer.ok().flatten().expect("the journal answers")
    }

    fn erase_log(&self, channel: &ChannelName) {
        let erased = ask(|later| self.engine.erase(NOW_MS, channel, Erase::Log, later)).recv();
        erased.ok().flatten().expect("the journal answers").expect("it can be written");
    }

    pub(super) fn a_created_channel_takes_messages_of_its_type(&self) {
        let earlier = self.publish(&name(), "before its creation").id;
        self.create(&name(), &of_type(JSON));
        self.follow(&name(), 0, StartAt::Live);
        let other =
            Publication { content_type: Some("text/html".into()), ..publication(&name(), "<p>") };
        for refused in [publication(&name(), "no JSON"), other.clone()] {
            assert_eq!(self.outcome(refused.clone()), Err(PublishError::OtherType));
            let both = vec![publication(&name(), "[1]"), refused];
            let change = self.change(LogChange::append(name(), both));
            assert_eq!(change, Err(ChangeError::Refused(PublishError::OtherType)));
        }
        // A text without a type is of the channel's.
        let first = self.publish(&name(), "[1]").id;
        let json = Publication::new(name(), Body::Json("{}".into()));
        let second = self.outcome(json).expect("it is JSON").id;
        let change = LogChange::append(name(), vec![publication(&name(), "7")]);
        let third = self.changed(change).ids[0];
        let messages = self.messages(0);
        assert_eq!(ids(&messages), [first, second, third]);
        for message in &messages {
            assert!(matches!(message.body, Body::Json(_)) && message.content_type.is_none());
        }
        let kept = self.history(HistoryQuery::After(earlier), 9);
        assert!(kept.messages.iter().all(|message| matches!(message.body, Body::Json(_))));
        // Its end and its erasure say nothing of that type.
        self.changed(LogChange::end(name(), None, &self.state_of(&name())));
        assert_eq!(self.outcome(other.clone()), Err(PublishError::Ended));
        let open = LogChange::open(name(), &self.state_of(&name())).expect("it has ended");
        self.changed(open);
        assert_eq!(self.state_of(&name()).creation(), Some(of_type(JSON)));
        assert_eq!(self.outcome(other.clone()), Err(PublishError::OtherType));
        self.erase_log(&name());
        assert_eq!(self.state_of(&name()).creation(), None);
        self.outcome(other).expect("it takes any type");
    }

    pub(super) fn a_channel_that_must_exist_takes_nothing_before_its_creation(&self) {
        let refused = Err(PublishError::NotCreated);
        let late = || LogChange::append(made(), vec![publication(&made(), "x")]);
        assert_eq!(self.outcome(publication(&made(), "x")), refused);
        assert_eq!(self.change(late()), Err(ChangeError::Refused(PublishError::NotCreated)));
        assert!(!self.exists(&made()) && self.exists(&name()));
        let before = self.state_of(&made());
        // The first messages come with the creation, or not at all.
        let create = LogChange::create(made(), &of_type(JSON), &before);
        let with =
            |text| LogChange { messages: vec![publication(&made(), text)], ..create.clone() };
        let other = self.change(with("no JSON"));
        assert_eq!(other, Err(ChangeError::Refused(PublishError::OtherType)));
        assert!(!self.exists(&made()));
        let first = self.changed(with("1")).ids[0];
        let again = self.change(create);
        assert!(matches!(again, Err(ChangeError::Conflict(_))), "{again:?}");
        assert!(self.exists(&made()));
        self.publish(&made(), "2");
        assert_eq!(self.outcome(publication(&made(), "x")), Err(PublishError::OtherType));
        let followed = self.follow(&made(), 1, StartAt::After(first));
        assert_eq!((followed.is_recovered, followed.backlog.len()), (Some(true), 1));
        self.erase_log(&made());
        assert!(!self.exists(&made()));
        assert_eq!(self.outcome(publication(&made(), "3")), refused);
    }

    pub(super) fn a_channel_whose_time_is_over_goes_once(&self) {
        let ttl_ms = NonZeroU64::new(500);
        let mortal = Creation { ttl_ms, ..Creation::at(1_000) };
        self.create(&made(), &mortal);
        assert!(self.engine.take_mortal().contains(&made()));
        assert!(self.engine.take_mortal().is_empty());
        let unused = self.state_of(&made());
        assert_eq!(unused.creation(), Some(mortal.clone()));
        let expire = LogChange::expire(made(), &unused, false).expect("it was created");
        let published = self.publish(&made(), "in time").id;
        self.follow(&made(), 0, StartAt::Live);
        // A message comes before that.
        let late = self.change(expire);
        assert!(matches!(late, Err(ChangeError::Conflict(_))), "{late:?}");
        let used = self.state_of(&made());
        assert_eq!(used.head, published);
        let seen = mortal.having_seen(published.offset, 1_400);
        self.changed(LogChange::create(made(), &seen, &used));
        let before = self.state_of(&made());
        let expire = LogChange::expire(made(), &before, false).expect("it was created");
        let end = self.changed(expire.clone()).ids[0];
        let again = self.change(expire);
        assert!(matches!(again, Err(ChangeError::Conflict(_))), "{again:?}");
        // Its subscribers are told, and nothing is left.
        let messages = self.messages(0);
        assert_eq!((ids(&messages), messages[0].is_end()), (vec![end], true));
        let over = self.state_of(&made());
        assert!(over.is_ended() && over.creation().is_some_and(|creation| creation.is_over));
        let again = LogChange::expire(made(), &over, true).expect("it is still there");
        assert!(again.messages.is_empty() && again.record != RecordChange::Keep);
        self.erase_log(&made());
        let gone = self.state_of(&made());
        assert_eq!((gone.is_ended(), gone.creation()), (false, None));
        assert!(self.history(HistoryQuery::Newest, 9).messages.is_empty());
        // The name is free.
        self.create(&made(), &Creation::at(2_000));
        self.publish(&made(), "anew");
    }
}
