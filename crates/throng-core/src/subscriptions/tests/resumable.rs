//! From where the next subscription of a user goes on.

use super::*;
use crate::frozen::{Decoder, Encoder, RecordKind, ThawError};
use crate::rules::ResumeRule;

/// A table in whose only channel users go on, with a subscription of ann's at offset 0.
fn table(is_at_least_once: bool) -> (SubscriptionTable, LocalId, SubscriptionId) {
    let resume = Some(ResumeRule { is_at_least_once, for_ms: 1 });
    let rules = Rules::new(Vec::new(), Rule { resume, ..Rule::default() });
    let mut table = SubscriptionTable::new(Arc::new(rules));
    let local = table.next_local();
    let followed = model::followed(ChannelId(0), local, 0);
    let id = table.join(ConnectionId::new(7), &followed, false, None);
    let resumable = Some(Box::new(Resumable::new("ann".into())));
    table.set_terms(id, Terms { resumable, ..Terms::default() });
    (table, local, id)
}

fn write(table: &mut SubscriptionTable, local: LocalId, id: SubscriptionId, offset: u64) {
    table.append(local, ChannelId(0), &model::message(offset, offset - 1));
    table.advance(id, offset);
}

fn place(table: &SubscriptionTable, id: SubscriptionId) -> Option<u64> {
    table.resumable(id).map(|(_, place)| place.offset)
}

#[test]
fn an_answer_confirms_what_was_written_before_the_question() {
    let (mut table, local, id) = table(true);
    assert!(!table.is_unconfirmed(id) && !table.ask(id) && !table.is_asked(id));
    write(&mut table, local, id, 1);
    assert!(table.is_unconfirmed(id) && table.ask(id) && table.is_asked(id));
    write(&mut table, local, id, 2);
    assert_eq!(place(&table, id), Some(0));
    table.confirm(id);
    assert_eq!((place(&table, id), table.is_asked(id)), (Some(1), false));
    table.confirm(id);
    assert!(table.is_unconfirmed(id) && place(&table, id) == Some(1));
    assert!(table.ask(id));
    table.confirm(id);
    assert!(!table.is_unconfirmed(id) && place(&table, id) == Some(2));
    table.set_resumable(id, None);
    assert_eq!(place(&table, id), None);
}

#[test]
fn where_nothing_comes_twice_there_is_nothing_to_confirm() {
    let (mut table, local, id) = table(false);
    write(&mut table, local, id, 1);
    assert!(!table.is_unconfirmed(id) && !table.ask(id));
    assert_eq!(table.resumable(id).map(|(user, place)| (user, place.offset)), Some(("ann", 1)));
}

#[test]
fn what_is_confirmed_is_frozen() {
    for (is_at_least_once, is_asked) in [(true, true), (true, false), (false, false)] {
        let (mut table, local, id) = table(is_at_least_once);
        write(&mut table, local, id, 1);
        assert!(!is_asked || table.ask(id));
        let frozen = table.take_frozen(id).expect("it is there");
        let mut encoder = Encoder::new(RecordKind::Connection);
        frozen.encode(&mut encoder);
        let mut bytes = encoder.finish();
        let read = |bytes: &[u8]| FrozenSubscription::decode(&mut Decoder::new(bytes).unwrap().1);
        assert_eq!(read(&bytes).as_ref(), Ok(&frozen));
        let flags = bytes.len() - 1 - 8 * (usize::from(is_at_least_once) + usize::from(is_asked));
        bytes[flags] = 2;
        assert_eq!(read(&bytes), Err(ThawError::Invalid("what a client has confirmed")));
    }
}
