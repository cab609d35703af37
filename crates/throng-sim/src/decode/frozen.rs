//! The unfinished work of a frozen connection, read from its record as
//! `docs/reference/frozen-state.md` describes it.

/// The kind of a connection's record.
const CONNECTION: u8 = 19;

/// Bytes of a subscription.
const SUBSCRIPTION_BYTES: usize = 13;

/// The events that a record of a connection stands for; none for another record.
pub(crate) fn events(record: &[u8]) -> Vec<&'static str> {
    connection_events(record).unwrap_or_default()
}

fn connection_events(record: &[u8]) -> Option<Vec<&'static str>> {
    let mut rest = record;
    if take(&mut rest, 1)? != [CONNECTION] {
        return None;
    }
    // Index, generation, deadline.
    take(&mut rest, 12)?;
    let state = take(&mut rest, 1)?[0];
    let encoding = take(&mut rest, 1)?[0];
    let flags = u32::from_le_bytes(take(&mut rest, 4)?.try_into().ok()?);
    let subscriptions = usize::from(u16::from_le_bytes(take(&mut rest, 2)?.try_into().ok()?));
    let subscriptions = take(&mut rest, subscriptions * SUBSCRIPTION_BYTES)?;
    let what = take(&mut rest, 1)?[0];
    let more = if what & 128 != 0 { take(&mut rest, 1)?[0] } else { 0 };
    let has_flag = |bit: u32| flags & 1 << bit != 0;
    let mut events = vec![match state {
        1 if has_flag(13) => "frozen: waiting for the control plane",
        1 if has_flag(11) => "frozen: between two requests",
        1 => "frozen: before its first request",
        2 => "frozen: streaming",
        3 => "frozen: long-poll waiting",
        _ => "frozen: closing",
    }];
    let is_catching_up = |subscription: &[u8]| subscription[SUBSCRIPTION_BYTES - 1] == 1;
    let facts = [
        (has_flag(6), "frozen: blocked"),
        (has_flag(12), "frozen: read deferred"),
        (has_flag(16), "frozen: delivery deferred"),
        (what & 1 != 0, "frozen: close frame not answered"),
        (what & 8 != 0, "frozen: with an expiry"),
        (what & 16 != 0, "frozen: with a token"),
        (matches!(encoding, 6 | 7), "frozen: with compression"),
        (encoding >= 12, "frozen: with compact envelopes"),
        (what & 64 != 0, "frozen: with TLS"),
        (
            subscriptions.chunks(SUBSCRIPTION_BYTES).any(is_catching_up),
            "frozen: in the middle of a backlog",
        ),
    ];
    events.extend(facts.iter().filter(|(is_so, _)| *is_so).map(|(_, event)| *event));
    if what & 2 != 0 {
        take(&mut rest, 2)?;
    }
    if what & 8 != 0 {
        take(&mut rest, 4)?;
    }
    if more & 1 != 0 {
        take(&mut rest, 4)?;
    }
    if what & 16 != 0 {
        take(&mut rest, 17)?;
    }
    if what & 4 != 0 {
        events.extend(io_events(rest, state)?);
    }
    Some(events)
}

fn io_events(mut rest: &[u8], state: u8) -> Option<Vec<&'static str>> {
    let inbound = u32::from_le_bytes(take(&mut rest, 4)?.try_into().ok()?) as usize;
    take(&mut rest, inbound)?;
    take(&mut rest, 4)?;
    let what = take(&mut rest, 1)?[0];
    let is_half_compressed = what & 1 != 0 && rest.first()? & 16 != 0;
    let facts = [
        (is_half_compressed, "frozen: mid-frame of a compressed message"),
        (what & 16 != 0, "frozen: compressed message partly written"),
        (inbound > 0 && state == 1, "frozen: mid-head"),
        (inbound > 0 && state == 2, "frozen: mid-frame header"),
        (inbound > 0 && state == 3, "frozen: request behind a long-poll"),
        (what & 1 != 0, "frozen: mid-frame"),
        (what & 2 != 0, "frozen: message partly written"),
        (what & 4 != 0, "frozen: answer partly written"),
        (what & 8 != 0, "frozen: long-poll with an origin or a resume"),
        (what & 32 != 0, "frozen: acknowledgements owed"),
    ];
    Some(facts.iter().filter(|(is_so, _)| *is_so).map(|(_, event)| *event).collect())
}

fn take<'b>(rest: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}
