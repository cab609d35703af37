//! The receipt in the answer to a publication.

use super::{Counted, Object, published_fields};

/// The outcome of a message, in the answer to its publication.
#[derive(Debug, Clone, Copy)]
pub struct ReceiptFields {
    /// `complete`, `timeout` or `unknown`.
    pub outcome: &'static str,
    /// The subscriptions that the message is for.
    pub matched: u64,
    /// Those whose sockets have taken it whole.
    pub written: u64,
    /// Those for which it still waits, or of which nothing will be known.
    pub behind: u64,
    /// Those of which nothing will be known.
    pub unknown: u64,
    /// Those that do not get it, by reason: `lagging`, `skipped`, `closed`.
    pub dropped: [(&'static str, u64); 4],
    /// True if subscriptions on other nodes are missing.
    pub is_partial: bool,
    /// True if there are other nodes, and the channel is this one's alone.
    pub is_local: bool,
}

/// [`published_body`] with a receipt.
pub fn receipt_body(out: &mut Vec<u8>, id: &str, subscribers: Counted, receipt: &ReceiptFields) {
    let mut object = published_fields(Object::new(out), Some(id), subscribers, false);
    let ReceiptFields { outcome, matched, written, behind, unknown, dropped, .. } = receipt;
    let mut fields = Object::new(object.field("receipt"))
        .string("outcome", outcome)
        .number("matched", *matched)
        .number("written", *written)
        .number("behind", *behind)
        .number("unknown", *unknown)
        .number("dropped", dropped.iter().map(|(_, count)| count).sum());
    let reasons = Object::new(fields.field("dropped_by"));
    dropped.iter().fold(reasons, |reasons, (name, count)| reasons.number(name, *count)).end();
    fields.flag("partial", receipt.is_partial).flag("local", receipt.is_local).end();
    object.end();
}
