//! The answers to an erasure, and to the end of a channel.

use super::Object;
use crate::envelope::Erased;
use crate::name::Target;

/// The answer to a replacement, as the body of an HTTP response: both ids.
pub fn replaced_body(out: &mut Vec<u8>, replaces: &str, id: &str) {
    Object::new(out).string("replaces", replaces).string("id", id).end();
}

/// The answer to an erasure, as the body of an HTTP response: the messages that are gone, how many
/// these were and how many read markers if that is known, and the id of the notice.
pub fn erased_body(
    out: &mut Vec<u8>,
    erased: Erased<'_>,
    (messages, markers): (Option<u64>, Option<u64>),
    notice: Option<&str>,
) {
    let object = match erased {
        Erased::Message(id) => Object::new(out).string("erased", id),
        Erased::UpTo(id) => Object::new(out).string("erased_up_to", id),
    };
    let counted = [("messages", messages), ("markers", markers)];
    let object = counted.into_iter().fold(object, |object, (name, count)| match count {
        Some(count) => object.number(name, count),
        None => object,
    });
    match notice {
        Some(id) => object.string("id", id).end(),
        None => object.end(),
    }
}

/// The answer to the end of a channel, as the body of an HTTP response: the ids of the notice, and
/// of the last message if there is one.
pub fn ended_body(out: &mut Vec<u8>, ended: &str, last: Option<&str>) {
    let object = Object::new(out).string("ended", ended);
    match last {
        Some(last) => object.string("id", last).end(),
        None => object.end(),
    }
}

/// The answer to the opening of a channel, as the body of an HTTP response. `id` is the id of its
/// newest message.
pub fn opened_body(out: &mut Vec<u8>, target: &Target, id: &str) {
    Object::new(out).target(target).string("id", id).end();
}
