//! Changes that several servers share: written to where all of them read, and made when they come
//! back from there.
//!
//! A change that another server's is in the way of is planned again. One that comes to nothing is
//! not written, once what is known here was compared with what the servers share.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use throng_access::KeptPlan;
use throng_access::kept::{KeptWritten, SharedKept};
use throng_access::shared::ShareError;
use throng_core::{ChannelName, Ticket};
use throng_wire::ErrorResponse;

use super::super::job::{ChangeOrder, RefusedChange};
use super::super::live::{self, Held};
use super::{Maker, RunningJob};
use crate::unshared::unshared;

/// How long changes are planned again, and how long comparing may take.
const TRY: Duration = Duration::from_secs(4);

/// How long until a change is planned again after several attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Attempts without a pause: what is in the way is known after the first one mostly.
const QUICK_ATTEMPTS: u32 = 2;

/// A change that is not made yet.
struct Open {
    request: usize,
    order: usize,
    /// The place of an entry of the user that was in the way.
    last: u64,
    /// True if the known records were compared since the change came to nothing.
    is_compared: bool,
}

enum Attempt {
    /// It came to nothing, as far as is known here.
    Nothing(Open),
    Written(Open, KeptPlan, Result<KeptWritten, ShareError>),
}

impl Maker {
    /// Makes the changes of some orders, each by the indexes of its request and itself. No two are
    /// of one user.
    pub(super) fn make_shared(
        &self,
        shared: &SharedKept,
        all: &mut [RunningJob],
        orders: Vec<(usize, usize)>,
    ) {
        let until = Instant::now() + TRY;
        let new = |(request, order)| Open { request, order, last: 0, is_compared: false };
        let mut open: Vec<_> = orders.into_iter().map(new).collect();
        let mut attempts = 0;
        while !open.is_empty() {
            attempts += 1;
            if attempts > QUICK_ATTEMPTS {
                std::thread::sleep(PAUSE);
            }
            let mut again = Vec::new();
            let mut idle = Vec::new();
            for attempt in self.attempt(shared, all, open) {
                match attempt {
                    Attempt::Nothing(of) => idle.push(of),
                    Attempt::Written(of, plan, Ok(KeptWritten::Stored)) => {
                        self.is_made(&mut all[of.request], of.order, &plan);
                    }
                    Attempt::Written(of, _, Ok(KeptWritten::Conflict { last })) => {
                        again.push(Open { last, ..of });
                    }
                    Attempt::Written(of, _, Err(error)) => {
                        all[of.request].failure =
                            Some(unshared(error, "a change of subscriptions"));
                    }
                }
            }
            if !idle.is_empty() {
                let compared = compare(shared);
                for of in idle {
                    match &compared {
                        Ok(()) => again.push(Open { is_compared: true, ..of }),
                        Err(error) => all[of.request].failure = Some(error.clone()),
                    }
                }
            }
            open = again;
            if Instant::now() >= until {
                for of in std::mem::take(&mut open) {
                    let busy = unshared(ShareError::Busy, "a change of subscriptions");
                    all[of.request].failure = Some(busy);
                }
            }
        }
    }

    /// Plans changes, and writes them side by side. What is refused, or comes to nothing for
    /// certain, is noted.
    fn attempt(
        &self,
        shared: &SharedKept,
        all: &mut [RunningJob],
        open: Vec<Open>,
    ) -> Vec<Attempt> {
        let (sender, outcomes) = mpsc::channel();
        let mut attempts = Vec::new();
        let mut written = Vec::new();
        for of in open {
            let running = &mut all[of.request];
            let order = &running.orders[of.order];
            let covered = self.check(running.key.as_deref(), order);
            let plan =
                covered.and_then(|()| Ok(shared.plan(&order.user, &order.change, of.last)?));
            match plan {
                Err(error) => running.made.refused.push(RefusedChange { line: order.line, error }),
                Ok((plan, _)) if plan.added() + plan.removed() == 0 && of.is_compared => {
                    self.is_made(running, of.order, &plan);
                }
                Ok((plan, _)) if plan.added() + plan.removed() == 0 => {
                    attempts.push(Attempt::Nothing(of));
                }
                Ok((plan, entry)) => {
                    let (sender, place) = (sender.clone(), written.len());
                    // It cannot fail: this thread waits for it.
                    let done = move |outcome| drop(sender.send((place, outcome)));
                    shared.write(entry, Ticket::new(done));
                    written.push(Some((of, plan)));
                }
            }
        }
        drop(sender);
        for (place, outcome) in outcomes {
            if let Some((of, plan)) = written[place].take() {
                attempts.push(Attempt::Written(
                    of,
                    plan,
                    outcome.unwrap_or(Err(ShareError::Unknown)),
                ));
            }
        }
        attempts
    }

    /// A change is made here. Its connections have been told: tells them again, to know when they
    /// have acted upon it.
    fn is_made(&self, running: &mut RunningJob, order: usize, plan: &KeptPlan) {
        let RunningJob { orders, made, .. } = running;
        let ChangeOrder { user, .. } = &orders[order];
        let names = plan.named_channels().collect();
        let announced =
            live::announce(&self.engine, &ChannelName::user(user), names, &Held::default());
        made.changed.push(plan.changed());
        made.announced.extend(announced);
    }
}

/// Takes all that the servers share now.
fn compare(shared: &SharedKept) -> Result<(), ErrorResponse> {
    let (sender, compared) = mpsc::channel();
    shared.compare(Ticket::new(move |done| {
        // Fails if it takes too long.
        let _ = sender.send(done);
    }));
    match compared.recv_timeout(TRY) {
        Ok(Some(())) => Ok(()),
        _ => Err(unshared(ShareError::Away, "a change of subscriptions")),
    }
}
