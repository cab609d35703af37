use std::sync::mpsc;

use super::*;
use crate::attributes::{Attributes, Extras};
use crate::id::Epoch;
use crate::message::Body;
use crate::rules::StateLimits;

const STATE: StateLimits = StateLimits { max_keys: 2, max_bytes: 1 << 20, forgets_soon: false };
const LIMITS: Limits = Limits { messages: 3, bytes: 1 << 20, state: STATE };
const LAST: Reading = Reading::Start(StartAt::Last(9));

fn name() -> ChannelName {
    ChannelName::channel("a")
}

fn id(offset: u64) -> MessageId {
    MessageId { epoch: Epoch::numbered(1), offset }
}

fn content(offset: u64) -> Arc<Content> {
    Arc::new(Content::new(id(offset), offset - 1, 0, name(), Body::Text("x".repeat(100).into())))
}

fn start(offsets: std::ops::RangeInclusive<u64>) -> Start {
    let (first, last) = (*offsets.start(), *offsets.end());
    let messages = offsets.map(content).collect();
    Start {
        head: id(last),
        cursor: first - 1,
        is_recovered: Some(true),
        is_sparse: false,
        is_ended: false,
        messages,
    }
}

/// A ticket. The receiver gets what becomes of it.
fn ticket() -> (Ticket<Fetched>, mpsc::Receiver<bool>) {
    let (sender, answers) = mpsc::channel();
    let ticket = Ticket::new(move |fetched: Option<Fetched>| {
        sender.send(fetched.is_some()).expect("the test waits");
    });
    (ticket, answers)
}

fn offsets(backlog: &Backlog) -> Vec<u64> {
    backlog.messages.iter().map(|message| message.id.offset).collect()
}

#[test]
fn many_parts_leave_no_memory_once_they_are_closed() {
    let parts = Arc::<Parts>::default();
    let open = |number: usize| {
        let channel = ChannelName::channel(&number.to_string());
        parts.open(&channel, Reading::Start(StartAt::Live), LIMITS, AskerId::SERVER)
    };
    let held: Vec<_> = (0..4 * CHANNELS_KEPT).map(open).collect();
    assert!(lock(&parts.table).channels.capacity() >= held.len());
    drop(held);
    let table = lock(&parts.table);
    assert!(table.channels.is_empty() && table.channels.capacity() <= CHANNELS_KEPT);
}

#[test]
fn a_part_that_is_being_read_is_read_once_for_all_that_ask() {
    let parts = Arc::<Parts>::default();
    let (asker, others) = (AskerId::next(), AskerId::next());
    let (first, answers) = ticket();
    let held = parts.ask(&name(), LAST, LIMITS, asker, first).expect("it is to be read");
    let (second, more_answers) = ticket();
    assert!(parts.ask(&name(), LAST, LIMITS, others, second).is_none());
    let (other, _other_answers) = ticket();
    let live = Reading::Start(StartAt::Last(8));
    assert!(parts.ask(&name(), live, LIMITS, others, other).is_some(), "another reading");
    held.answer(Part::Start(start(1..=2)));
    assert_eq!((answers.recv(), more_answers.recv()), (Ok(true), Ok(true)));
    let (late, late_answers) = ticket();
    let again = parts.ask(&name(), LAST, LIMITS, others, late).expect("the first one was read");
    drop(again);
    assert_eq!(late_answers.recv(), Ok(false), "it was not read");
}

#[test]
fn all_that_wait_for_a_part_are_told_that_it_is_not_read() {
    let parts = Arc::<Parts>::default();
    let (first, answers) = ticket();
    let held = parts.ask(&name(), LAST, LIMITS, AskerId::next(), first).expect("it is to be read");
    let (second, more_answers) = ticket();
    assert!(parts.ask(&name(), LAST, LIMITS, AskerId::next(), second).is_none());
    assert!(held.is_wanted());
    drop(held);
    assert_eq!((answers.recv(), more_answers.recv()), (Ok(false), Ok(false)));
    assert_eq!(parts.metrics().bytes, 0);
}

#[test]
fn parts_share_a_tail_as_long_as_the_oldest_needs() {
    let parts = Arc::<Parts>::default();
    let open = || parts.open(&name(), LAST, LIMITS, AskerId::next());
    let first = open();
    parts.append(&content(1));
    let one = parts.metrics().bytes;
    assert!(one > 100);
    let second = open();
    second.fill(Part::Start(start(1..=1)));
    first.fill(Part::Start(Start { head: id(0), messages: Vec::new(), ..start(1..=1) }));
    parts.append(&content(2));
    let backlog = |held: &HeldPart| {
        let open = &held.0.part;
        let Some(Part::Start(start)) = open.part() else { panic!("it was read") };
        open.backlog(start, true)
    };
    assert_eq!((offsets(&backlog(&first)), offsets(&backlog(&second))), (vec![1, 2], vec![1, 2]));
    drop(first);
    assert_eq!(offsets(&backlog(&second)), [1, 2]);
    (3..6).for_each(|offset| parts.append(&content(offset)));
    let over = backlog(&second);
    assert_eq!((over.cursor, over.is_recovered), (5, Some(false)), "it lags too far behind");
    assert!(offsets(&over).is_empty());
    drop(second);
    assert_eq!(parts.metrics().bytes, 0);
}

#[test]
fn a_client_that_holds_its_share_gets_no_messages_and_others_do() {
    let parts = Arc::new(Parts::new(4 * content(1).weight_bytes() * 2));
    let client = AskerId::next();
    let open = |asker| parts.open(&name(), LAST, LIMITS, asker);
    let wanted = Limits { messages: 9, bytes: content(1).weight_bytes(), ..LIMITS };
    let read = |held: &HeldPart| {
        assert_eq!(held.reserve(wanted), Reserved::Yes);
        let Limits { messages, bytes, .. } = held.limits();
        let offsets = 1..=(bytes / wanted.bytes).min(messages) as u64;
        let messages: Vec<_> = offsets.map(content).collect();
        let count = messages.len();
        held.fill(Part::Start(Start { messages, ..start(1..=1) }));
        count
    };
    let held: Vec<_> = (0..3).map(|_| open(client)).collect();
    assert_eq!(held.iter().map(&read).collect::<Vec<_>>(), [1, 1, 0]);
    let other = open(AskerId::next());
    assert_eq!(read(&other), 1);
    drop((held, other));
    assert_eq!(parts.metrics().bytes, 0);
}

/// A message that sets a key.
fn keyed(offset: u64, key: &str) -> Arc<Content> {
    let attributes = Attributes::of(&[(4, key.as_bytes())]).ok();
    let content = Arc::into_inner(content(offset)).expect("it is new");
    Arc::new(Content { extras: Extras::new(None, attributes), ..content })
}

fn backlog(held: &HeldPart) -> Backlog {
    let open = held.open();
    let Some(Part::Start(start)) = open.part() else { panic!("it was read") };
    open.backlog(start, true)
}

#[test]
fn no_key_is_lost_because_much_is_published_while_a_state_is_read() {
    let parts = Arc::<Parts>::default();
    let open = |start_at| {
        let held = parts.open(&name(), Reading::Start(start_at), LIMITS, AskerId::next());
        held.fill(Part::Start(Start { is_sparse: true, ..start(1..=2) }));
        held
    };
    let (state, resumed) = (open(StartAt::State), open(StartAt::After(id(0))));
    for offset in 3..100 {
        let key = ["a", "b", "c"][offset as usize % 3];
        parts.append(&if offset % 2 == 0 { content(offset) } else { keyed(offset, key) });
    }
    let expected = [1, 2, 94, 95, 96, 97, 98, 99];
    let both = [backlog(&state), backlog(&resumed)];
    assert_eq!((offsets(&both[0]), both[0].is_sparse), (expected.to_vec(), true));
    assert!(!state.open().lacks_keys());
    assert_eq!(both[1].is_recovered, Some(false), "messages without keys are lost");
    assert!(resumed.open().lacks_keys(), "so that its state is read again");
    (100..110).for_each(|offset| parts.append(&keyed(offset, &offset.to_string())));
    assert!(state.open().lacks_keys(), "there are more keys than may be");
    drop((state, resumed));
    assert_eq!(parts.metrics().bytes, 0);
}

#[test]
fn a_key_that_is_set_while_a_plain_log_is_read_makes_no_hole() {
    let parts = Arc::<Parts>::default();
    let held = parts.open(&name(), LAST, LIMITS, AskerId::next());
    held.fill(Part::Start(start(1..=2)));
    (3..=5).for_each(|offset| parts.append(&keyed(offset, "a")));
    let backlog = backlog(&held);
    assert_eq!((offsets(&backlog), backlog.is_sparse), (vec![1, 2, 5], true));
}
