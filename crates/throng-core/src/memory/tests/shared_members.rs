//! Members of channels that several processes serve: pages of parts, who is forgotten when, what
//! finds no room.

use throng_wire::v1::ShownMember;

use super::*;
use crate::later::ask;
use crate::members::exchange::{
    MESSAGE_BYTES, MemberAsk, MemberChange, MemberLink, MemberPart, MemberValue, MemberWant,
};
use crate::rules::{JournalId, MembersRule};

#[derive(Clone, Default)]
struct Out {
    asked: Arc<Mutex<Vec<MemberAsk>>>,
    told: Arc<Mutex<Vec<Told>>>,
}

/// Changes, and the number of the first.
type Told = (u64, Vec<MemberChange>);

impl MemberLink for Out {
    fn tell(&self, first: u64, changes: &[MemberChange]) {
        self.told.lock().unwrap().push((first, changes.to_vec()));
    }

    fn ask(&self, ask: MemberAsk) {
        self.asked.lock().unwrap().push(ask);
    }
}

/// A process with one other, which this test is.
struct One {
    fixture: Fixture,
    out: Out,
    now_ms: u64,
}

fn room() -> ChannelName {
    ChannelName::channel("room")
}

fn shown(user: &str) -> ShownMember<'_> {
    ShownMember { connection: None, user: Some(user), info: None }
}

fn value(user: &str, stamp: u64) -> MemberValue {
    MemberValue { stamp, object: shown(user).object().into() }
}

impl One {
    fn new(max_bytes: usize) -> One {
        One::with_rule(
            max_bytes,
            Rule {
                members: Some(MembersRule { are_connections: false, grace_ms: 0 }),
                ..Rule::default()
            },
        )
    }

    fn with_rule(max_bytes: usize, rule: Rule) -> One {
        let rule = Rule { journal: Some(JournalId(0)), ..rule };
        let fixture = Fixture::with_rule(rule, 1, max_bytes);
        let (out, now_ms) = (Out::default(), crate::clock::now_ms());
        fixture.engine.share_members_from(now_ms, JournalId(0), Box::new(out.clone()));
        fixture.engine.members_connected(now_ms, true);
        fixture.engine.member_node_heard(now_ms, "other");
        One { fixture, out, now_ms }
    }

    fn engine(&self) -> &MemoryEngine {
        &self.fixture.engine
    }

    fn tell(&self, first: u64, users: &[&str]) {
        let change = |user: &&str| MemberChange {
            channel: room(),
            key: (*user).into(),
            value: Some(value(user, 1)),
        };
        let changes = users.iter().map(change).collect();
        self.engine().hear_members(self.now_ms, "other", first, changes);
    }

    /// The other answers all questions, as of a number, with these members.
    fn answer(&self, as_of: u64, users: &[&str]) {
        loop {
            let asked = std::mem::take(&mut *self.out.asked.lock().unwrap());
            if asked.is_empty() {
                return;
            }
            for ask in asked {
                let part = |want: MemberWant| MemberPart {
                    members: users.iter().map(|user| ((*user).into(), value(user, 1))).collect(),
                    channel: want.channel,
                    after: want.after,
                    as_of,
                    next: None,
                };
                let parts = ask.wants.into_iter().map(part).collect();
                let answers = vec![("other".into(), parts)];
                self.engine().members_answered(self.now_ms, ask.id, answers);
            }
        }
    }

    fn users(&self) -> Vec<String> {
        let page = self.engine().members(self.now_ms, &room(), None, 1_000);
        page.users.iter().map(ToString::to_string).collect()
    }
}

#[test]
fn a_list_waits_until_the_other_processes_have_said_who_is_there() {
    let one = One::new(usize::MAX);
    let ready = ask(|later| one.engine().members_ready(one.now_ms, &room(), later));
    assert!(ready.try_recv().is_err());
    one.answer(7, &["ann", "bob"]);
    assert_eq!(
        (ready.try_recv(), one.users()),
        (Ok(Some(false)), vec!["ann".into(), "bob".into()])
    );
    assert!(!one.engine().are_members_partial(one.now_ms, &room()));
    assert!(one.engine().are_members_partial(one.now_ms + 5_000, &room()), "it is silent");
}

#[test]
fn a_list_does_not_wait_for_ever() {
    let mut one = One::new(usize::MAX);
    let ready = ask(|later| one.engine().members_ready(one.now_ms, &room(), later));
    one.now_ms += 1_000;
    one.engine().tick(one.now_ms);
    assert!(ready.try_recv().is_err());
    one.now_ms += 1_000;
    one.engine().tick(one.now_ms);
    assert_eq!(ready.try_recv(), Ok(Some(true)));
}

#[test]
fn a_number_that_is_missing_has_the_parts_asked_for_again() {
    let one = One::new(usize::MAX);
    one.engine().follow_members(one.now_ms, &room());
    one.tell(1, &["ann"]);
    one.answer(1, &["ann"]);
    one.tell(2, &["bob"]);
    assert!(one.out.asked.lock().unwrap().is_empty(), "nothing is missing");
    one.tell(4, &["dee"]);
    assert!(one.engine().are_members_partial(one.now_ms, &room()));
    one.answer(4, &["cy", "dee"]);
    assert_eq!(one.users(), ["cy", "dee"]);
    assert!(!one.engine().are_members_partial(one.now_ms, &room()));
    // What is older than that is known.
    one.tell(3, &["bob"]);
    assert_eq!(one.users(), ["cy", "dee"]);
    assert_eq!(one.engine().member_metrics().news_lost, 2);
}

#[test]
fn an_answer_that_comes_after_a_newer_one_changes_nothing() {
    let one = One::new(usize::MAX);
    one.engine().follow_members(one.now_ms, &room());
    one.engine().tick(one.now_ms);
    let early = std::mem::take(&mut *one.out.asked.lock().unwrap());
    // The first news shows that some before it may be lost.
    one.tell(8, &[]);
    one.answer(7, &["bob"]);
    assert_eq!(one.users(), ["bob"]);
    one.out.asked.lock().unwrap().extend(early);
    one.answer(6, &["ann", "bob"]);
    assert_eq!(one.users(), ["bob"]);
    assert!(!one.engine().are_members_partial(one.now_ms, &room()));
}

#[test]
fn a_part_that_is_large_comes_in_pages() {
    let (here, there) = (One::new(usize::MAX), One::new(usize::MAX));
    let names: Vec<_> = (0..3_000).map(|n| format!("user {n:05}")).collect();
    for name in &names {
        here.engine().begin_member(here.now_ms, &room(), shown(name)).expect("there is room");
    }
    there.engine().follow_members(there.now_ms, &room());
    there.engine().tick(there.now_ms);
    let mut pages = 0;
    loop {
        let asked = std::mem::take(&mut *there.out.asked.lock().unwrap());
        if asked.is_empty() {
            break;
        }
        for ask in asked {
            pages += 1;
            let parts = here.engine().member_parts(here.now_ms, ask.wants);
            let members = parts.iter().flat_map(|part| &part.members);
            let bytes: usize = members.map(|(key, it)| key.len() + it.object.len()).sum();
            assert!(bytes <= MESSAGE_BYTES, "{bytes}");
            let answers = vec![("other".into(), parts)];
            there.engine().members_answered(there.now_ms, ask.id, answers);
        }
    }
    assert!((5..50).contains(&pages), "{pages} pages");
    assert_eq!(there.engine().members_of(&room()), 3_000);
    assert_eq!(there.users(), names[..1_000]);
}

#[test]
fn changes_that_wait_are_told_in_messages_of_bounded_size() {
    let one = One::new(usize::MAX);
    for n in 0..3_000 {
        let user = format!("user {n}");
        one.engine().begin_member(one.now_ms, &room(), shown(&user)).expect("there is room");
    }
    one.engine().tick(one.now_ms);
    let told = one.out.told.lock().unwrap();
    let changes = told.iter().map(|(_, changes)| changes.len()).sum::<usize>();
    assert_eq!(changes, 3_000);
    assert!((5..50).contains(&told.len()), "{} messages", told.len());
    let mut next = told[0].0;
    for (first, changes) in told.iter() {
        assert_eq!(*first, next, "no number is missing");
        next += changes.len() as u64;
    }
}

#[test]
fn the_members_elsewhere_of_a_channel_that_nobody_follows_are_forgotten() {
    let mut one = One::new(usize::MAX);
    one.engine().follow_members(one.now_ms, &room());
    one.tell(1, &["ann"]);
    one.answer(1, &["ann"]);
    let log = ChannelName::members("room");
    let known = one.engine().state(&log).head;
    one.now_ms += 61_000;
    one.fixture.tick_all(one.now_ms);
    assert_eq!((one.users().len(), one.engine().member_metrics().members), (0, 0));
    // Whoever has known the list gets it anew.
    let followed = one.fixture.follow(one.now_ms, &log, 0, StartAt::After(known));
    assert_ne!(followed.is_recovered, Some(true));
    one.engine().follow_members(one.now_ms, &room());
    one.tell(2, &["bob"]);
    one.answer(2, &["ann", "bob"]);
    assert_eq!(one.users(), ["ann", "bob"]);
}

#[test]
fn members_elsewhere_that_find_no_room_are_missing_and_that_is_said() {
    let one = One::new(20_000);
    one.engine().follow_members(one.now_ms, &room());
    let users: Vec<_> = (100..600).map(|n| format!("user {n}")).collect();
    let users: Vec<_> = users.iter().map(|user| &**user).collect();
    one.tell(1, &users);
    one.answer(500, &users);
    let members = one.engine().member_metrics();
    assert!((5..200).contains(&members.members), "{members:?}");
    assert_eq!(one.engine().members_of(&room()), members.members);
    assert!(members.refused >= 300, "{members:?}");
    assert!(one.engine().are_members_partial(one.now_ms, &room()));
}

#[test]
fn a_process_that_was_halted_takes_nobody_for_gone() {
    let mut one = One::new(usize::MAX);
    one.engine().follow_members(one.now_ms, &room());
    one.engine().part_with_silent_nodes(one.now_ms);
    one.tell(1, &["ann"]);
    one.answer(1, &["ann"]);
    one.now_ms += 20_000;
    one.engine().part_with_silent_nodes(one.now_ms);
    one.engine().tick(one.now_ms);
    assert_eq!(one.users(), ["ann"]);
    for _ in 0..8 {
        one.now_ms += 1_000;
        one.engine().part_with_silent_nodes(one.now_ms);
        one.engine().tick(one.now_ms);
    }
    assert_eq!(one.users().len(), 0);
}

#[test]
fn departures_are_forgotten_although_others_leave_all_the_time() {
    let mut one = One::new(usize::MAX);
    one.engine().begin_member(one.now_ms, &room(), shown("me")).expect("there is room");
    let remembered = |one: &One| {
        let engine = one.engine();
        let state = engine.members.lock(engine.find(&room()).0);
        state.shared[&room()].removed_count()
    };
    let mut most = 0;
    for number in 1..200 {
        one.now_ms += 1_000;
        let key = format!("user {number}").into();
        let gone = MemberChange { channel: room(), key, value: None };
        one.engine().hear_members(one.now_ms, "other", number, vec![gone]);
        one.fixture.tick_all(one.now_ms);
        most = most.max(remembered(&one));
    }
    assert!((10..30).contains(&most), "{most} departures");
    // One that a part under way does not know of is among them.
    one.answer(100, &["user 199"]);
    assert_eq!(one.users(), ["me"]);
}

#[test]
fn numbers_that_would_overflow_are_of_nobody() {
    let one = One::new(usize::MAX);
    one.engine().follow_members(one.now_ms, &room());
    one.answer(u64::MAX, &[]);
    for first in [u64::MAX, u64::MAX - 1, u64::MAX - 2] {
        one.tell(first, &["ann", "bob"]);
        one.tell(first, &[]);
    }
    assert_eq!(one.users().len(), 0);
    one.tell(1, &["ann"]);
    assert!(one.engine().are_members_partial(one.now_ms, &room()));
}

#[test]
fn processes_with_names_that_none_has_are_not_known() {
    let one = One::new(usize::MAX);
    one.engine().follow_members(one.now_ms, &room());
    let ann = MemberChange { channel: room(), key: "ann".into(), value: Some(value("ann", 1)) };
    for (length, is_known) in [(65, false), (64, true)] {
        one.engine().hear_members(one.now_ms, &"x".repeat(length), 1, vec![ann.clone()]);
        assert_eq!(one.users().len(), usize::from(is_known), "{length}");
    }
}

/// What those who follow the members are told of their list: whether others may be missing.
fn heard(one: &One) -> Vec<bool> {
    let mut notifications = Vec::new();
    one.fixture.queues[0].take(&mut notifications);
    let heard = notifications.iter().filter_map(|notification| match notification {
        Notification::Message { message, .. } => message.is_list_partial(),
        _ => None,
    });
    heard.collect()
}

/// One of which somebody follows the members, as of a list with `users`.
fn followed(users: &[&str]) -> One {
    let one = One::new(usize::MAX);
    one.engine().follow_members(one.now_ms, &room());
    one.tell(1, users);
    one.answer(users.len() as u64, users);
    one.fixture.follow(one.now_ms, &ChannelName::members("room"), 0, StartAt::State);
    one
}

#[test]
fn those_who_follow_members_are_told_that_others_may_be_missing_and_when_not() {
    let mut one = followed(&["ann", "bob"]);
    assert_eq!(one.engine().members_listed(one.now_ms, &room()), (2, false));
    one.engine().members_connected(one.now_ms, false);
    one.engine().tick(one.now_ms);
    assert!(heard(&one).is_empty(), "it may be over at once");
    one.now_ms += 1_000;
    one.engine().tick(one.now_ms);
    assert_eq!(heard(&one), [true]);
    one.engine().begin_member(one.now_ms, &room(), shown("cy")).expect("there is room");
    one.engine().tick(one.now_ms + 5_000);
    assert!(heard(&one).is_empty(), "they know");
    one.now_ms += 60_000;
    one.engine().members_connected(one.now_ms, true);
    one.tell(9, &[]);
    one.engine().tick(one.now_ms);
    assert!(heard(&one).is_empty());
    // The end comes behind the difference.
    one.answer(9, &["bob", "dee", "eve"]);
    one.engine().tick(one.now_ms);
    one.now_ms += 500;
    one.engine().tick(one.now_ms);
    let mut told = Vec::new();
    one.fixture.queues[0].take(&mut told);
    let told = told.iter().filter_map(|notification| match notification {
        Notification::Message { message, .. } => message.key(),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), ["ann", "dee", "eve", "/list"]);
}

#[test]
fn a_list_that_is_partial_for_a_moment_is_not_told() {
    let mut one = followed(&["ann"]);
    for number in 2..6 {
        one.tell(2 * number, &[]);
        assert!(one.engine().are_members_partial(one.now_ms, &room()));
        one.now_ms += 900;
        one.engine().tick(one.now_ms);
        one.answer(2 * number, &["ann"]);
        one.engine().tick(one.now_ms);
    }
    assert!(heard(&one).is_empty());
}

#[test]
fn a_list_that_was_partial_when_it_came_is_told_to_be_whole() {
    let mut one = followed(&["ann"]);
    one.tell(9, &[]);
    assert_eq!(one.engine().members_listed(one.now_ms, &room()), (1, true));
    assert_eq!(heard(&one), [true], "so are all others");
    one.answer(9, &["ann"]);
    for _ in 0..3 {
        one.engine().tick(one.now_ms);
        one.now_ms += 500;
    }
    assert_eq!(heard(&one), [false]);
}

#[test]
fn whoever_comes_back_is_told_of_the_list_what_has_changed() {
    let mut one = followed(&["ann"]);
    let log = ChannelName::members("room");
    let told = |one: &One, start| {
        let followed = one.fixture.follow(one.now_ms, &log, 0, start);
        let told = followed.backlog.iter().map(|message| message.is_list_partial());
        (followed.is_recovered, told.collect::<Vec<_>>())
    };
    let heads = [false, true].map(|is_connected| {
        let head = one.engine().state(&log).head;
        one.engine().members_connected(one.now_ms, is_connected);
        one.tell(2, &[]);
        one.answer(1, &["ann"]);
        for _ in 0..3 {
            one.engine().tick(one.now_ms);
            one.now_ms += 500;
        }
        head
    });
    assert_eq!(told(&one, StartAt::After(heads[0])), (Some(true), vec![Some(false)]));
    assert_eq!(told(&one, StartAt::After(heads[1])), (Some(true), vec![Some(false)]));
    let now = one.engine().state(&log).head;
    assert_eq!(told(&one, StartAt::After(now)), (Some(true), vec![]));
    assert_eq!(one.users(), ["ann"]);
    let page = one.engine().members(one.now_ms, &room(), None, 1);
    assert_eq!((page.members.len(), page.next), (1, None));
}

#[test]
fn a_page_of_a_partial_list_has_members_alone() {
    let mut one = followed(&["+a", "zoe"]);
    one.engine().members_connected(one.now_ms, false);
    for _ in 0..2 {
        one.engine().tick(one.now_ms);
        one.now_ms += 1_000;
    }
    assert_eq!((heard(&one), one.users()), (vec![true], vec!["+a".into(), "zoe".into()]));
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = one.engine().members(one.now_ms, &room(), after.as_deref(), 1);
        found.extend(page.users.iter().map(ToString::to_string));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, ["+a", "zoe"]);
    assert_eq!(one.engine().members_of(&room()), 2);
}

#[test]
fn the_next_process_knows_which_lists_are_told_to_be_partial() {
    let mut one = followed(&[]);
    one.engine().members_connected(one.now_ms, false);
    for _ in 0..2 {
        one.now_ms += 1_000;
        one.engine().tick(one.now_ms);
    }
    assert_eq!(heard(&one), [true]);
    one.fixture.follow(one.now_ms, &room(), 0, StartAt::Live);
    one.fixture.freeze_and_thaw();
    one.engine().share_members_from(one.now_ms, JournalId(0), Box::new(one.out.clone()));
    one.engine().members_connected(one.now_ms, true);
    one.tell(1, &["ann"]);
    one.answer(1, &["ann"]);
    one.engine().tick(one.now_ms);
    one.engine().tick(one.now_ms + 500);
    assert_eq!((heard(&one), one.users()), (vec![false], vec!["ann".to_owned()]));
}

/// The keys of channels that the others were told to have changed, and the number behind the last.
fn told_changed(one: &One) -> (Vec<String>, u64) {
    one.engine().tell_changed_presence(one.now_ms);
    one.engine().tick(one.now_ms + 1_000);
    let (mut keys, mut next) = (Vec::new(), 0);
    for (first, changes) in one.out.told.lock().unwrap().drain(..) {
        next = first + changes.len() as u64;
        keys.extend(changes.into_iter().filter(|it| it.channel.name() == "/presence"));
    }
    let mut keys: Vec<_> = keys.into_iter().map(|change| change.key.to_string()).collect();
    keys.sort();
    (keys, next)
}

#[test]
fn processes_tell_each_other_which_channels_have_presence_events_to_come() {
    let mut one = One::with_rule(usize::MAX, Rule { presence_events: true, ..Rule::default() });
    let cache = Arc::clone(one.engine().presence_cache());
    let key = room().key().to_owned();
    cache.watched.mark(&key);
    cache.watched.mark(&key);
    cache.watched.mark(ChannelName::user("ann").key());
    let (keys, next) = told_changed(&one);
    assert_eq!(keys, [&*key]);
    // More than can be noted: the others find out that something is missing.
    one.now_ms += 10_000;
    for nth in 0..20_000 {
        cache.watched.mark(ChannelName::channel(&format!("room/{nth}")).key());
    }
    let (keys, behind) = told_changed(&one);
    assert!(next + (keys.len() as u64) < behind, "{next} {} {behind}", keys.len());
    // A change elsewhere leads to a look, if the channel is watched here.
    let mut changed = Vec::new();
    let hear = |number: u64, name: &str| {
        let name = ChannelName::channel(name);
        let change = MemberChange {
            channel: ChannelName::channel("/presence"),
            key: name.key().into(),
            value: None,
        };
        one.engine().hear_members(one.now_ms, "other", number, vec![change]);
    };
    cache.watched.watch(&room());
    cache.watched.take_changed(&mut changed);
    changed.clear();
    hear(7, "room");
    hear(8, "hall");
    cache.watched.take_changed(&mut changed);
    assert_eq!((changed, told_changed(&one).0), (vec![room()], Vec::new()));
}

#[test]
fn it_shows_when_others_may_have_changed_without_telling() {
    let one = One::with_rule(usize::MAX, Rule { presence_events: true, ..Rule::default() });
    let contact = |after_ms: u64| one.engine().contact(one.now_ms + after_ms).expect("others");
    let silent = contact(0);
    one.engine().members_connected(one.now_ms, false);
    assert_ne!(contact(0), silent, "this one is cut off before it has heard anybody");
    one.engine().members_connected(one.now_ms, true);
    assert_eq!(contact(0), silent);
    one.engine().hear_members(one.now_ms, "other", 5, Vec::new());
    let heard = contact(0);
    assert_ne!(silent, heard);
    one.engine().hear_members(one.now_ms + 1_000, "other", 5, Vec::new());
    assert_eq!(contact(1_000), heard);
    assert_ne!(contact(5_000), heard, "it is silent");
    one.engine().hear_members(one.now_ms + 2_000, "other", 9, Vec::new());
    let again = contact(2_000);
    assert_ne!(again, heard, "some news was lost");
    one.engine().members_connected(one.now_ms + 2_000, false);
    assert_ne!(contact(2_000), again, "this one is cut off");
    one.engine().members_connected(one.now_ms + 2_000, true);
    for after_ms in (2_000..=12_000).step_by(1_000) {
        one.engine().part_with_silent_nodes(one.now_ms + after_ms);
    }
    assert_eq!((contact(12_000).gone, again.gone), (1, 0));
}
