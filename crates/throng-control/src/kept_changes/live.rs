//! Brings changes to open connections: workers are told, and channels that they are about to follow
//! are fetched before.

use std::iter;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use throng_core::{
    Answer, ChannelName, Channels, Fetched, KeptNotice, Later, Notification, Reading, StartAt,
    Ticket, clock,
};
use tokio::sync::oneshot;

use super::job::Announced;

/// How long a change waits for the engine to fetch what live connections need for it.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Fetched logs, for as long as workers need them.
pub(super) type Held = Arc<Mutex<Vec<Fetched>>>;

pub(super) fn has_connections(engine: &Channels, inbox: &ChannelName) -> bool {
    !engine.audience(inbox).workers.is_empty()
}

/// Lets the engine fetch what live connections need to follow more channels, and waits for it.
pub(super) fn fetch(engine: &Channels, channels: impl Iterator<Item = ChannelName>) -> Held {
    if !engine.fetches() {
        return Held::default();
    }
    let (sender, fetched) = mpsc::channel();
    for channel in channels {
        let mut issue = || {
            let sender = sender.clone();
            // The send fails only if it takes too long.
            Ticket::new(move |part| drop(part.map(|part| sender.send(part))))
        };
        let reading = Reading::Start(StartAt::Live);
        let later = Later::new(&mut issue);
        if let Answer::Now(part) = engine.fetch(clock::now_ms(), &channel, reading, later) {
            let _ = sender.send(part);
        }
    }
    drop(sender);
    let until = Instant::now() + FETCH_TIMEOUT;
    let next = || fetched.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
    Arc::new(Mutex::new(iter::from_fn(next).collect()))
}

/// Tells the workers that have connections of a user that the user begins or ceases to follow some
/// channels. `held` is kept until they have done it.
pub(super) fn announce(
    engine: &Channels,
    inbox: &ChannelName,
    channels: Vec<ChannelName>,
    held: &Held,
) -> Announced {
    let channels: Arc<[ChannelName]> = channels.into();
    let mut announced = Announced::default();
    for (worker, local, channel) in engine.audience(inbox).workers {
        let (sender, receiver) = oneshot::channel();
        let held = Arc::clone(held);
        // Dropped by the worker when it is done, which is an answer, too.
        let done = Ticket::new(move |_| drop((sender, held)));
        let (inbox, names) = (inbox.clone(), Arc::clone(&channels));
        let notice = KeptNotice { inbox, local, channel, names, done };
        engine.post(worker, Notification::Kept(Box::new(notice)));
        announced.push(receiver);
    }
    announced
}
