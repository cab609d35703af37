//! The lists of a batch: how each of its requests is written.

use std::ops::Range;

use throng_tls::SealedRecord;

use super::slots::Slot;
use crate::net::Transfer;

/// Lists that each batch uses anew.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) plans: Vec<WritePlan>,
    pub(super) transfers: Vec<Transfer>,
}

#[derive(Debug)]
pub(super) enum WritePlan {
    Plain,
    /// As a record that is to be sealed.
    Ready(Slot),
    /// As this part of the scratch.
    Sealed(Slot, SealedRecord, Range<usize>),
    /// It was written already, because something went before it or it needs several records.
    Written(Transfer),
}
