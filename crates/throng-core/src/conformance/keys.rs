//! Checks of states: the newest message of each key.

use std::sync::Arc;
use std::time::Duration;

use super::{KEYS_MAX, NOW_MS, PATIENCE, RETAINED, Subject, name, publication};
use crate::attributes::Attributes;
use crate::change::{ChangeError, Condition, Erase, KeyCondition, LogChange};
use crate::id::MessageId;
use crate::later::ask;
use crate::message::Message;
use crate::publication::{Outcome, Publication, PublishError};
use crate::reading::{HistoryQuery, StartAt};
use crate::state::{KeyPage, KeyQuery};

/// A message that sets a key.
fn set(key: &str, text: &str) -> Publication {
    let attributes = Attributes::of(&[(4, key.as_bytes())]).ok();
    Publication { attributes, ..publication(&name(), text) }
}

/// A message that removes a key.
fn removed(key: &str) -> Publication {
    Publication { attributes: Attributes::tombstone(key), ..publication(&name(), "null") }
}

/// Keys and texts of messages; `-` in place of the text of a tombstone.
fn shown(messages: &[Arc<Message>]) -> Vec<String> {
    let text = |message: &Message| String::from_utf8_lossy(message.body.bytes()).into_owned();
    let show = |message: &Arc<Message>| match message.key() {
        None => text(message),
        Some(key) if message.removes_key() => format!("{key}-"),
        Some(key) => format!("{key}={}", text(message)),
    };
    messages.iter().map(show).collect()
}

impl Subject {
    fn set(&self, key: &str, text: &str) -> MessageId {
        self.outcome(set(key, text)).expect("there is room").id
    }

    fn remove(&self, key: &str) -> Outcome {
        self.outcome(removed(key))
    }

    fn page(&self, prefix: &str, after: Option<&str>, limit: usize) -> KeyPage {
        let query = KeyQuery {
            prefix: prefix.into(),
            after: after.map(Into::into),
            limit,
            is_of_one: false,
        };
        let page = ask(|later| self.engine.keys(NOW_MS, &name(), query, later)).recv();
        page.ok().flatten().expect("the journal answers").expect("it keeps states")
    }

    fn keys(&self) -> Vec<String> {
        shown(&self.page("", None, 99).messages)
    }

    /// The backlog of a subscription that begins here.
    fn backlog(&self, start: StartAt) -> (Option<bool>, Vec<String>) {
        let followed = self.follow(&name(), 0, start);
        let offsets: Vec<_> = followed.backlog.iter().map(|message| message.id.offset).collect();
        assert!(offsets.is_sorted_by(|earlier, later| earlier < later), "{offsets:?}");
        assert!(followed.backlog.is_empty() || followed.is_sparse);
        (followed.is_recovered, shown(&followed.backlog))
    }

    /// More messages without keys than are kept.
    fn push_all_out(&self) -> Vec<String> {
        let texts: Vec<_> = (0..RETAINED + 2).map(|n| n.to_string()).collect();
        for text in &texts {
            self.publish(&name(), text);
        }
        texts[texts.len() - RETAINED..].to_vec()
    }

    pub(super) fn a_channel_without_states_refuses_keys(&self) {
        if self.profile.keeps_states {
            return;
        }
        assert_eq!(self.outcome(set("a", "1")).map(drop), Err(PublishError::NoState));
        let change = LogChange::append(name(), vec![set("a", "1")]);
        let refused = ask(|later| self.engine.change(NOW_MS, change, later)).recv();
        let refused = refused.ok().flatten().expect("the journal answers");
        assert_eq!(refused, Err(ChangeError::Refused(PublishError::NoState)));
    }

    pub(super) fn a_state_has_the_newest_of_each_key(&self) {
        if !self.profile.keeps_states {
            return;
        }
        assert!(self.keys().is_empty());
        for (key, text) in [("b/1", "old"), ("a", "1"), ("b/1", "2"), ("b/2", "3")] {
            self.set(key, text);
        }
        assert_eq!(self.keys(), ["a=1", "b/1=2", "b/2=3"]);
        let rest = self.push_all_out();
        assert_eq!(self.keys(), ["a=1", "b/1=2", "b/2=3"], "they are kept whatever comes");
        assert_eq!(shown(&self.page("b/", None, 9).messages), ["b/1=2", "b/2=3"]);
        let page = self.page("", None, 2);
        assert_eq!((shown(&page.messages).len(), page.next.as_deref()), (2, Some("b/1")));
        let page = self.page("", page.next.as_deref(), 2);
        assert_eq!((shown(&page.messages), page.next), (vec!["b/2=3".to_owned()], None));
        let expected = [&["a=1", "b/1=2", "b/2=3"].map(String::from)[..], &rest].concat();
        assert_eq!(self.backlog(StartAt::State), (None, expected.clone()));
        let newest = self.history(HistoryQuery::Newest, RETAINED).messages;
        assert_eq!(shown(&newest), rest);
        for query in [HistoryQuery::Newest, HistoryQuery::From(0)] {
            assert_eq!(shown(&self.history(query, 99).messages), expected, "{query:?}");
        }
        let first = &self.history(HistoryQuery::From(0), 1).messages[0];
        let after = self.history(HistoryQuery::After(first.id), 99);
        assert_eq!((shown(&after.messages), after.is_recovered), (expected, Some(false)));
        let head = after.head;
        self.set("a", "4");
        self.set("a", "5");
        let after = self.history(HistoryQuery::After(head), 99);
        assert_eq!(
            (shown(&after.messages).last(), after.is_recovered),
            (Some(&"a=5".into()), Some(true))
        );
        // The superseded one is among the last, and left out.
        let last = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(self.backlog(StartAt::Last(2)), (None, last(&["a=5"])));
        let before = rest.last().expect("some are kept");
        assert_eq!(self.backlog(StartAt::Last(3)), (None, last(&[before, "a=5"])));
    }

    pub(super) fn a_resume_has_the_newest_of_each_changed_key(&self) {
        if !self.profile.keeps_states {
            return;
        }
        let before = self.set("a", "1");
        let first = self.set("b", "1");
        for n in 2..20 {
            self.set("a", &n.to_string());
        }
        let last = self.set("c", "1");
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(self.backlog(StartAt::After(first)), (Some(true), texts(&["a=19", "c=1"])));
        let all = texts(&["b=1", "a=19", "c=1"]);
        assert_eq!(self.backlog(StartAt::After(before)), (Some(true), all));
        assert_eq!(self.backlog(StartAt::After(last)), (Some(true), Vec::new()));
        let rest = self.push_all_out();
        let all = [texts(&["b=1", "a=19", "c=1"]), rest.clone()].concat();
        // Some of those without keys are lost.
        assert_eq!(self.backlog(StartAt::After(last)), (Some(false), all));
        let head = self.page("", None, 1).head;
        self.set("a", "20");
        assert_eq!(self.backlog(StartAt::After(head)), (Some(true), texts(&["a=20"])));
    }

    pub(super) fn a_tombstone_removes_its_key(&self) {
        if !self.profile.keeps_states {
            return;
        }
        assert_eq!(self.remove("a").map(drop), Err(PublishError::NoKey));
        let set = self.set("a", "1");
        self.set("b", "1");
        self.follow(&name(), 0, StartAt::Live);
        self.remove("a").expect("it is there");
        assert_eq!(self.remove("a").map(drop), Err(PublishError::NoKey), "it is gone");
        assert_eq!(shown(&self.messages(0)), ["a-"]);
        assert_eq!(self.keys(), ["b=1"]);
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(self.backlog(StartAt::After(set)), (Some(true), texts(&["b=1", "a-"])));
        for n in 0..2 * RETAINED {
            self.set("b", &n.to_string());
        }
        // The tombstone is kept longer than the value.
        assert_eq!(self.backlog(StartAt::After(set)), (Some(true), texts(&["a-", "b=5"])));
        assert_eq!(self.backlog(StartAt::State), (None, texts(&["b=5"])));
        self.set("a", "2");
        assert_eq!(self.keys(), ["a=2", "b=5"]);
    }

    pub(super) fn a_value_that_expires_is_removed(&self) {
        if !self.profile.keeps_states {
            return;
        }
        let before = self.set("a", "1");
        let expires = Publication { expires_in_ms: Some(1_000), ..set("b", "1") };
        self.outcome(expires.clone()).expect("there is room");
        self.outcome(Publication { expires_in_ms: Some(1_000), ..set("c", "1") }).expect("room");
        self.set("c", "stays");
        self.follow(&name(), 0, StartAt::Live);
        self.engine.tick(NOW_MS + 999);
        assert!(self.messages(0).is_empty());
        let told = self.messages_after(NOW_MS + 1_000);
        assert_eq!(shown(&told), ["b-"]);
        assert_eq!(self.keys(), ["a=1", "c=stays"]);
        let expected = ["c=stays", "b-"].map(String::from).to_vec();
        assert_eq!(self.backlog(StartAt::After(before)), (Some(true), expected));
        // A newer value puts the expiry off.
        let at = |now_ms: u64| {
            let outcome = ask(|later| self.engine.publish(now_ms, expires.clone(), later)).recv();
            outcome.ok().flatten().expect("the journal answers").expect("there is room")
        };
        at(NOW_MS + 2_000);
        at(NOW_MS + 2_500);
        self.messages(0);
        self.engine.tick(NOW_MS + 3_000);
        assert!(self.messages(0).is_empty());
        assert_eq!(shown(&self.messages_after(NOW_MS + 3_500)), ["b-"]);
    }

    /// The messages that come once it is this time.
    fn messages_after(&self, now_ms: u64) -> Vec<Arc<Message>> {
        let until = std::time::Instant::now() + PATIENCE;
        loop {
            self.engine.tick(now_ms);
            let messages = self.messages(0);
            if !messages.is_empty() {
                return messages;
            }
            assert!(std::time::Instant::now() < until, "nothing comes");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn a_key_is_changed_only_if_its_condition_holds(&self) {
        if !self.profile.keeps_states {
            return;
        }
        let change = |text: &str, newest: Option<MessageId>| {
            let key = KeyCondition { key: "a".into(), newest };
            let condition = Condition { key: Some(key), ..Condition::default() };
            let change = LogChange { condition, ..LogChange::append(name(), vec![set("a", text)]) };
            let outcome = ask(|later| self.engine.change(NOW_MS, change, later)).recv();
            outcome.ok().flatten().expect("the journal answers").map(|changed| changed.ids[0])
        };
        let foreign = MessageId { offset: 1, ..self.set("b", "1") };
        assert_eq!(change("1", Some(foreign)), Err(ChangeError::KeyConflict(None)));
        let first = change("1", None).expect("there is none");
        assert_eq!(change("2", None), Err(ChangeError::KeyConflict(Some(first))));
        let second = change("2", Some(first)).expect("it is the newest");
        assert_eq!(change("3", Some(first)), Err(ChangeError::KeyConflict(Some(second))));
        assert_eq!(self.keys(), ["a=2", "b=1"]);
        self.remove("a").expect("it is there");
        assert_eq!(change("3", Some(second)), Err(ChangeError::KeyConflict(None)));
        change("3", None).expect("there is none");
    }

    pub(super) fn a_full_state_refuses_new_keys(&self) {
        if !self.profile.keeps_states {
            return;
        }
        for n in 0..KEYS_MAX {
            self.set(&n.to_string(), "x");
        }
        assert_eq!(self.outcome(set("more", "x")).map(drop), Err(PublishError::StateFull));
        self.set("1", "y");
        self.publish(&name(), "without a key");
        self.remove("0").expect("it is there");
        self.set("more", "x");
        let change = |messages| {
            let change = LogChange::append(name(), messages);
            let outcome = ask(|later| self.engine.change(NOW_MS, change, later)).recv();
            match outcome.ok().flatten().expect("the journal answers") {
                Ok(_) => Ok(()),
                Err(ChangeError::Refused(refused)) => Err(refused),
                Err(other) => panic!("{other:?}"),
            }
        };
        let several = (0..2).map(|n| set(&format!("new {n}"), "x")).collect();
        assert_eq!(change(several), Err(PublishError::StateFull));
        // What counts is the end of a change.
        let remove = |key: &str| Publication::tombstone(name(), key);
        assert_eq!(change(vec![set("new", "x"), remove("1"), set("newer", "x")]), {
            Err(PublishError::StateFull)
        });
        assert_eq!(change(vec![set("new", "x"), remove("1")]), Ok(()));
        assert_eq!(change(vec![set("passing", "x"), remove("passing")]), Ok(()));
        assert_eq!(
            change(vec![remove("2"), set("newest", "x"), set("2", "y"), remove("3")]),
            Ok(())
        );
        for there_is_not in [vec![remove("1")], vec![remove("2"), remove("2")]] {
            assert_eq!(change(there_is_not), Err(PublishError::NoKey));
        }
        let keys = ["2=y", "4=x", "5=x", "6=x", "7=x", "more=x", "new=x", "newest=x"];
        assert_eq!(self.keys(), keys);
    }

    pub(super) fn an_erased_value_leaves_no_key(&self) {
        if !self.profile.keeps_states {
            return;
        }
        let id = self.set("a", "1");
        self.set("b", "1");
        let erase = |what| {
            let outcome = ask(|later| self.engine.erase(NOW_MS, &name(), what, later)).recv();
            outcome.ok().flatten().expect("the journal answers").expect("it can be written")
        };
        erase(Erase::Message(id));
        assert_eq!(self.keys(), ["b=1"]);
        self.set("a", "2");
        erase(Erase::History);
        assert!(self.keys().is_empty());
        self.set("a", "3");
        assert_eq!(self.keys(), ["a=3"]);
    }
}
