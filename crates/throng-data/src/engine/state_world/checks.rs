//! What readers get, compared with the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use throng_core::parts::Start;
use throng_core::{
    Attributes, Body, Content, KeyQuery, MessageId, Publication, StartAt, Watermark, value_bytes,
};

use super::{CHANNELS, LIMITS, Sent, World, name};
use crate::engine::read::LogReader;
use crate::engine::read_keys;
use crate::engine::read_state::{StateToRead, StateTurn};
use crate::logs::{AllStates, Logs};

impl World {
    /// Reads a start; `None` if it takes more turns.
    pub(super) fn read_turns(&self, channel: &str, start: StartAt, turns: usize) -> Option<Start> {
        let name = name(channel);
        let (logs, now_ms) = (&*self.logs, self.now_ms);
        let reader =
            LogReader { logs, name: &name, now_ms, is_known: true, expired: &self.expired };
        match reader.state_to_read(start).expect("it is read") {
            StateToRead::None => return Some(reader.start(start, LIMITS).expect("it is read")),
            StateToRead::Later => return None,
            StateToRead::All(_) => {}
        }
        let mut under_way = None;
        for _ in 0..turns {
            match reader.read_state(start, LIMITS, &mut under_way).expect("it is read") {
                StateTurn::Read(start) => return Some(start),
                StateTurn::Again | StateTurn::Later => {}
                StateTurn::Never => panic!("nobody writes"),
            }
        }
        None
    }

    fn read(&self, channel: &str, start: StartAt) -> Start {
        self.read_turns(channel, start, 100).expect("nobody writes")
    }

    fn values(&self, channel: &str) -> BTreeMap<String, String> {
        let counted = self.counted(channel).into_iter();
        let values = counted.filter(|(_, sent)| sent.can_be_read(self.now_ms));
        values.map(|(key, sent)| (key, sent.text.clone())).collect()
    }

    pub(super) fn check(&mut self) {
        let mut all = AllStates::default();
        for channel in CHANNELS {
            let state = self.read(channel, StartAt::State);
            self.check_state(channel, &state);
            assert_eq!(self.pages(channel), self.values(channel), "{channel}");
            self.check_resume(channel);
            self.check_kept(channel);
            let counted = self.counted(channel);
            all.keys += counted.len() as u64;
            let bytes = counted.iter().map(|(key, sent)| {
                let attributes = Attributes::of(&[(4, key.as_bytes())]).ok();
                let body = Body::Text(sent.text.as_str().into());
                let message = Publication { attributes, ..Publication::new(name(channel), body) };
                value_bytes(key, message.weight_bytes()) as u64
            });
            all.bytes += bytes.sum::<u64>();
        }
        assert_eq!(self.writer().all_states(), all);
        if self.random.percent(30) {
            let at_rest = Logs::at_rest(Arc::new(self.storage.clone())).expect("it opens");
            at_rest.check(&mut |fault| panic!("{fault}"));
        }
    }

    /// As many of the newest messages are within the bounds of their log as it keeps, however many
    /// were erased.
    fn check_kept(&mut self, channel: &'static str) {
        let bounds = self.logs.bounds(&name(channel)).expect("it is read");
        let erased_up_to = self.erased_up_to.get(channel).copied().unwrap_or(0);
        let messages = self.sent(channel).iter().filter(|sent| !sent.is_notice);
        let newest: Vec<_> = messages.rev().take(self.kept.max_messages).collect();
        let is_wanted = |sent: &&&Sent| {
            sent.offset > erased_up_to && sent.time_ms + self.kept.max_age_ms > self.now_ms
        };
        let oldest = newest.iter().filter(is_wanted).map(|sent| sent.offset).min();
        let Some(oldest) = oldest else { return };
        assert!(oldest > bounds.floor, "{channel}: {oldest} is gone, {bounds:?}");
        if bounds.head.offset - bounds.floor > self.kept.max_messages as u64 {
            self.seen.insert("kept: beside notices");
        }
    }

    /// A subscription that begins with the state has all values, and no other message with a key
    /// but the newest one of all.
    pub(super) fn check_state(&self, channel: &str, start: &Start) {
        let newest = self.sent(channel).last().map_or(0, |sent| sent.offset);
        // A channel that was forgotten begins after others.
        let is_forgotten = start.messages.is_empty() && start.head.offset > newest;
        assert!(start.head.offset == newest || is_forgotten, "{channel}: {start:?}");
        assert_eq!(start.is_recovered, None);
        let offsets: Vec<_> = start.messages.iter().map(|content| content.id.offset).collect();
        assert!(offsets.is_sorted_by(|earlier, later| earlier < later), "{offsets:?}");
        assert!(offsets.first().is_none_or(|first| start.cursor < *first));
        let is_value = |content: &&Arc<Content>| content.sets_key();
        let found: BTreeMap<_, _> = start.messages.iter().filter(is_value).map(shown).collect();
        assert_eq!(found, self.values(channel), "{channel}");
    }

    /// The pages of a state.
    fn pages(&self, channel: &str) -> BTreeMap<String, String> {
        let (mut all, mut after) = (BTreeMap::new(), None);
        loop {
            let query = KeyQuery { prefix: "".into(), after, limit: 2, is_of_one: false };
            let of = (&name(channel), &query);
            let page = read_keys::page(&self.logs, self.now_ms, of, &mut None);
            let page = page.expect("it is read").expect("nobody writes");
            all.extend(page.messages.iter().map(|message| shown(&message.content())));
            after = page.next;
            if after.is_none() {
                return all;
            }
        }
    }

    /// Whoever resumes gets all that has changed since, or the whole state.
    fn check_resume(&mut self, channel: &'static str) {
        let sent = self.sent(channel).to_vec();
        let Some(at) = (!sent.is_empty()).then(|| self.random.below(sent.len() as u64)) else {
            return;
        };
        let position = &sent[at as usize];
        let id = MessageId { epoch: self.logs.epoch(), offset: position.offset };
        let since = Watermark { epoch: id.epoch, stamp: position.stamp };
        let by_stamp = self.random.percent(40);
        let at = if by_stamp { StartAt::Since(since) } else { StartAt::After(id) };
        let start = self.read(channel, at);
        let now_ms = self.now_ms;
        let is_newest = |it: &&Sent| {
            let is_later = |later: &Sent| later.key == it.key && later.offset > it.offset;
            it.key.is_none() || !sent.iter().any(is_later)
        };
        let is_lacking =
            |it: &&Sent| it.offset > position.offset && it.can_be_read(now_ms) && is_newest(it);
        let lacking: Vec<_> = sent.iter().filter(is_lacking).map(|it| it.offset).collect();
        let is_shown = |content: &&Arc<Content>| !content.is_expired(now_ms);
        let found: Vec<_> = start.messages.iter().filter(is_shown).map(|it| it.id.offset).collect();
        let bounds = self.logs.bounds(&name(channel)).expect("it is read");
        match start.is_recovered {
            Some(true) => {
                assert_eq!(found, lacking, "{channel} after {id}");
                if position.offset < bounds.floor {
                    self.seen.insert("resume: recovered from before the history");
                }
            }
            Some(false) => {
                self.seen.insert("resume: not recovered");
                let is_erased = self.erased_up_to.get(channel) > Some(&position.offset);
                let expired = sent.iter().any(|it| {
                    it.offset > position.offset && it.key.is_none() && !it.can_be_read(now_ms)
                });
                let lacks = lacking.iter().any(|offset| !found.contains(offset));
                // A log without a state does not tell what had expired when it was dropped.
                let is_plain = !bounds.has_keys || bounds.floor >= position.offset;
                assert!(is_erased || expired || lacks || is_plain, "{channel} after {id}");
                let values = start.messages.iter().filter(|it| it.sets_key()).map(shown);
                assert_eq!(values.collect::<BTreeMap<_, _>>(), self.values(channel));
            }
            None => panic!("it resumes"),
        }
    }
}

fn shown(content: &Arc<Content>) -> (String, String) {
    let key = content.key().expect("it has one").to_owned();
    (key, String::from_utf8_lossy(content.body.bytes()).into_owned())
}
