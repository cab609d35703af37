//! Ends and erases created channels whose time is over.
//!
//! The engine names channels that have an end of their time: when they are created, after a start,
//! and when other nodes have created them. The record of each is read when its time may be over.
//! The outcome is written into the record, on condition that it has not changed. So the channel
//! ends once, also with several nodes, and after a restart.
//!
//! Channels without such an end cost nothing.

use std::collections::{BTreeSet, HashMap};
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use throng_core::{
    ChangeError, ChannelName, Creation, Erase, LogChange, LogState, RecordVersion, clock,
};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::api::erase::{ErasedLog, newest_page};
use crate::control::Control;

/// How often it looks which are due: an end is late by this and the erasure.
const TICK: Duration = Duration::from_millis(100);

/// Channels that are looked at at the same time. Others wait, so that a journal which is away does
/// not hold up more.
const LOOKS_MAX: usize = 64;

/// The time until the record of a channel is read again after an error.
const AGAIN_MS: u64 = 1_000;

/// The time that another process has to erase a channel, before this one takes over.
const TAKEN_OVER_AFTER_MS: u64 = 30_000;

/// The longest time between two looks at a channel: the machine's clock may be set.
const LOOK_MS_MAX: u64 = 3_600_000;

/// When channels are due.
#[derive(Default)]
struct Due {
    by_time: BTreeSet<(u64, ChannelName)>,
    times: HashMap<ChannelName, u64>,
}

impl Due {
    fn set(&mut self, channel: ChannelName, at_ms: u64) {
        if let Some(before_ms) = self.times.insert(channel.clone(), at_ms) {
            self.by_time.remove(&(before_ms, channel.clone()));
        }
        self.by_time.insert((at_ms, channel));
    }

    fn next(&mut self, now_ms: u64) -> Option<ChannelName> {
        let (at_ms, _) = self.by_time.first()?;
        if *at_ms > now_ms {
            return None;
        }
        let (_, channel) = self.by_time.pop_first()?;
        self.times.remove(&channel);
        Some(channel)
    }
}

/// The outcome of a look.
enum Looked {
    /// It is not mortal, or gone.
    Done,
    /// It is due at this time.
    Due(u64),
    /// Since then this version of its record says that it is being erased.
    Going(RecordVersion),
}

/// Looks after channels until the control plane is dropped.
pub(crate) async fn run(control: Arc<Control>) {
    let (mut due, mut going) = (Due::default(), HashMap::<ChannelName, RecordVersion>::new());
    let mut looks = JoinSet::new();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // A look that has ended gives room to another one at once.
        let ended = tokio::select! {
            _ = ticks.tick() => None,
            Some(ended) = looks.join_next() => Some(ended),
        };
        let now_ms = clock::machine_ms();
        for channel in control.engine.take_mortal() {
            due.set(channel, now_ms);
        }
        let ended = ended.into_iter().chain(iter::from_fn(|| looks.try_join_next()));
        for (channel, looked) in ended.flatten() {
            let before = going.remove(&channel);
            match looked {
                Looked::Done => {}
                Looked::Due(at_ms) => {
                    let from_ms = now_ms + TICK.as_millis() as u64;
                    due.set(channel, at_ms.clamp(from_ms, now_ms + LOOK_MS_MAX));
                }
                Looked::Going(version) => {
                    let is_known = before == Some(version);
                    going.insert(channel.clone(), version);
                    due.set(
                        channel,
                        now_ms + if is_known { AGAIN_MS } else { TAKEN_OVER_AFTER_MS },
                    );
                }
            }
        }
        while looks.len() < LOOKS_MAX
            && let Some(channel) = due.next(now_ms)
        {
            let (control, given_up) = (Arc::clone(&control), going.get(&channel).copied());
            looks.spawn(async move {
                let looked = look(&control, &channel, given_up).await;
                (channel, looked)
            });
        }
    }
}

/// Looks at a channel. `given_up`: a version of its record that says it is being erased, for too
/// long.
async fn look(control: &Control, channel: &ChannelName, given_up: Option<RecordVersion>) -> Looked {
    let log = ErasedLog { control, channel };
    let again = || Looked::Due(clock::machine_ms() + AGAIN_MS);
    let Ok(state) = log.state().await else { return again() };
    let Some(creation) = state.creation().filter(Creation::is_mortal) else { return Looked::Done };
    let now_ms = clock::machine_ms();
    let is_over_for_good = creation.is_over_for_good(now_ms);
    if creation.is_over {
        if given_up != Some(state.record_version()) {
            return Looked::Going(state.record_version());
        }
    } else if !is_over_for_good {
        let look_ms = look_again_within(control, channel, &creation);
        if creation.until_ms() > now_ms && look_ms.is_none() {
            return Looked::Due(creation.until_ms());
        }
        match newest(control, channel, &state, &creation, now_ms).await {
            None => return again(),
            Some(at_ms) if at_ms > creation.seen_ms => {
                let seen = creation.having_seen(state.head.offset, at_ms);
                let change = LogChange::create(channel.clone(), &seen, &state);
                // Whatever becomes of it: the next look reads the record again.
                let is_made = log.make(change).await.is_ok();
                return if is_made { Looked::Due(now_ms) } else { again() };
            }
            Some(_) if creation.until_ms() > now_ms => {
                let within_ms = look_ms.unwrap_or(LOOK_MS_MAX);
                return Looked::Due(creation.until_ms().min(now_ms + within_ms));
            }
            Some(_) => {}
        }
    }
    let is_for_good = is_over_for_good || creation.is_over;
    let Some(change) = LogChange::expire(channel.clone(), &state, is_for_good) else {
        return Looked::Done;
    };
    match log.make(change).await {
        Ok(changed) => match log.erase(Erase::Log).await {
            Ok(_) => {
                log.wait_for_workers().await;
                Looked::Done
            }
            Err(_) => Looked::Going(changed.record),
        },
        Err(ChangeError::Conflict(_)) => Looked::Due(now_ms),
        Err(_) => again(),
    }
}

/// In how many milliseconds the newest message has to be looked at again, because the log may drop
/// it before the channel's time is over.
fn look_again_within(control: &Control, channel: &ChannelName, creation: &Creation) -> Option<u64> {
    let max_age_ms = control.engine.rule(channel).retention.max_age_ms;
    creation.ttl_ms.filter(|ttl_ms| ttl_ms.get() > max_age_ms).map(|_| (max_age_ms / 2).max(1))
}

/// When the newest message was published, or the one that was seen last; `None` if that cannot be
/// read now.
async fn newest(
    control: &Control,
    channel: &ChannelName,
    state: &LogState,
    creation: &Creation,
    now_ms: u64,
) -> Option<u64> {
    if state.head.offset == creation.seen_offset {
        return Some(creation.seen_ms);
    }
    let page = newest_page(&control.engine, channel).await.ok()?;
    Some(match page.messages.last() {
        Some(message) if message.id == state.head => clock::wall_ms(message.time_ms),
        // It was there, and was dropped or erased since.
        Some(_) => now_ms,
        // A journal whose ids skip numbers has none for a log without messages.
        None if control.engine.has_own_head(channel) => now_ms,
        None => creation.seen_ms,
    })
}
