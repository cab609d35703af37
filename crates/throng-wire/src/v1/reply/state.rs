//! The state of a channel: pages of it, and the notice where it ends.

use super::Object;
use crate::name::Target;

/// Reports that the connection has the state of a channel as it was at the message `id`.
pub fn state(out: &mut Vec<u8>, target: &Target, id: &str) {
    Object::typed(out, "state").target(target).string("id", id).end();
}

/// A page of a channel's state as the body of an HTTP response. `id` is the id of the channel's
/// newest message; behind the key `next` the next page begins, if there may be one.
pub fn state_body(
    out: &mut Vec<u8>,
    target: &Target,
    (id, next): (&str, Option<&str>),
    envelopes: impl IntoIterator<Item = impl FnOnce(&mut Vec<u8>)>,
) {
    let object = Object::new(out).target(target).string("id", id);
    let object = object.array("messages", envelopes, |out, write| write(out));
    match next {
        Some(next) => object.string("next", next).end(),
        None => object.end(),
    }
}
