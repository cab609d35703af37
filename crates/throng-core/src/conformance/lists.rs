//! Checks of lists, in both orders: the one of a process and the one of several.

use super::{NOW_MS, RETAINED, Subject, name};
use crate::later::ask;
use crate::listing::{ListPart, ListPosition, ListQuery, ListedChannel, STEP_CHANNELS_MAX};
use crate::name::{ChannelName, Kind};
use crate::reading::StartAt;

impl Subject {
    pub(super) fn a_list_names_each_channel_once(&self) {
        let rooms: Vec<_> =
            (0..3 * STEP_CHANNELS_MAX).map(|n| ChannelName::channel(&n.to_string())).collect();
        for room in &rooms {
            self.follow(room, 0, StartAt::Live);
        }
        let ids = self.publish_some();
        self.follow(&name(), 1, StartAt::Live);
        self.publish(&ChannelName::user("ann"), "x");
        let (users, channels) = (self.list(Kind::User), self.list(Kind::Channel));
        let [ann] = &users[..] else { panic!("one user, not {users:?}") };
        let user = ChannelName::user("ann");
        assert_eq!((&ann.name, ann.subscribers, ann.messages), (&user, 0, 1));
        let mut names: Vec<_> = channels.iter().map(|listed| listed.name.key()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!((channels.len(), names.len()), (rooms.len() + 1, rooms.len() + 1));
        let news = channels.iter().find(|listed| listed.name == name()).expect("it is listed");
        assert_eq!(news.subscribers, 1);
        assert_eq!(news.messages, RETAINED);
        assert_eq!(Some(&news.head), ids.last());
        assert!(self.list(Kind::Internal).is_empty());
    }

    /// A list, as one process reads it or as several do. A process that is alone can read it in
    /// both ways.
    pub(super) fn list(&self, kind: Kind) -> Vec<ListedChannel> {
        let pages = self.pages(kind);
        if self.engine.is_shared() {
            return pages;
        }
        let mut steps = self.steps(kind);
        let in_order = |listed: &ListedChannel| ListPosition::of(listed.name.name());
        let described = |listed: &ListedChannel| {
            (listed.name.clone(), listed.subscribers, listed.messages, listed.head)
        };
        steps.sort_by_key(in_order);
        let [ways, others] = [&steps, &pages].map(|all| all.iter().map(described));
        assert_eq!(ways.collect::<Vec<_>>(), others.collect::<Vec<_>>());
        steps
    }

    /// All pages of a list that several processes have.
    fn pages(&self, kind: Kind) -> Vec<ListedChannel> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let query = ListQuery { kind, after: after.clone(), pattern: None, limit: 50 };
            let stored = ask(|later| self.engine.list_stored(&query, later));
            let others = ask(|later| self.engine.list_elsewhere(&query, later));
            let own = self.engine.list_part(NOW_MS, &query);
            let stored = stored.recv().expect("it is answered").expect("the log can be read");
            let others = others.recv().expect("it is answered").expect("others have answered");
            assert!(others.is_complete);
            let parts = others.found.into_iter().chain([own, stored]).collect();
            let page = ListPart::merge(parts, query.limit, |_| true);
            assert!(page.channels.len() <= query.limit);
            all.extend(page.channels);
            let Some(reached) = page.reached else { return all };
            assert!(after.is_none_or(|after| reached >= after));
            after = Some(reached);
        }
    }

    /// All steps of a list together.
    fn steps(&self, kind: Kind) -> Vec<ListedChannel> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let step = self.engine.list(NOW_MS, kind, after);
            assert!(step.channels.len() <= STEP_CHANNELS_MAX);
            let mut places = step.channels.iter().map(|listed| listed.place);
            assert!(places.clone().is_sorted() && places.clone().all(|at| Some(at) > after));
            assert!(step.next.is_none() || places.next_back() <= step.next);
            all.extend(step.channels);
            if step.next.is_none() {
                return all;
            }
            after = step.next;
        }
    }
}
