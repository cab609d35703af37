//! Receipts of publications: `Prefer: receipt, wait=SECONDS`.
//!
//! The publisher waits until the message has reached all of its subscribers, or never will, and at
//! most for the time that it names. The workers count meanwhile; see [`throng_core::receipt`].

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use throng_core::{
    ChannelName, Delivered, Later, MessageId, OtherNodes, Publisher, Receipt, ReceiptsBusy, Ticket,
};
use throng_wire::prefer;
use throng_wire::v1::ReceiptFields;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use super::parameters::WORKERS_TIMEOUT;
use crate::control::Control;
use crate::http::answer::{Answer, PREFERENCE_APPLIED};
use crate::late_answer::ask;
use crate::metrics::ReceiptOutcome;

/// How long a publisher waits for a receipt unless it says.
const WAIT_MS: u32 = 5_000;

/// The longest wait, like the idle timeout of common proxies. Longer ones are shortened, because
/// preferences are not binding.
const WAIT_MS_MAX: u32 = 60_000;

/// How long before the end of a drain a receipt is answered, so that the answer is written in time.
const DRAIN_MARGIN: Duration = Duration::from_millis(200);

/// How long the request waits for a receipt; `None` if it does not prefer one.
pub(super) fn preferred(headers: &HeaderMap) -> Option<Duration> {
    let items = || {
        let values = headers.get_all("prefer").iter();
        values.flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
    };
    let wait_ms = || prefer::wait_ms(items(), WAIT_MS_MAX).unwrap_or(WAIT_MS);
    prefer::has(items(), "receipt").then(|| Duration::from_millis(wait_ms().into()))
}

/// Says which preferences the answer obeys.
pub(super) fn set_applied(answer: &mut Answer, max_wait: Duration) {
    let applied = format!("receipt, wait={}", max_wait.as_secs_f64());
    if let Ok(value) = HeaderValue::try_from(applied) {
        answer.headers_mut().insert(PREFERENCE_APPLIED, value);
    }
}

/// A receipt under way. The workers stop counting when it is dropped.
pub(super) struct OpenReceipt {
    channel: ChannelName,
    receipt: Arc<Receipt>,
    is_complete: oneshot::Receiver<()>,
}

impl OpenReceipt {
    /// A receipt for a message that is about to be published.
    pub(super) fn begin(
        control: &Control,
        publisher: Publisher<'_>,
        channel: &ChannelName,
    ) -> Result<OpenReceipt, ReceiptsBusy> {
        let (sender, is_complete) = oneshot::channel();
        let ticket = Ticket::new(move |answer: Option<()>| {
            // Sending fails only if the wait is over.
            let _ = answer.map(|()| sender.send(()));
        });
        let receipt = control.receipts.open(publisher, channel, ticket)?;
        Ok(OpenReceipt { channel: channel.clone(), receipt, is_complete })
    }

    /// The counts that the engine keeps for the message.
    pub(super) fn receipt(&self) -> Arc<Receipt> {
        Arc::clone(&self.receipt)
    }

    /// Waits until nothing is left to happen to the message on any node, at most `max_wait`, and no
    /// longer than a drain, or until what takes long is to end.
    pub(super) async fn finish(
        mut self,
        control: &Control,
        id: MessageId,
        max_wait: Duration,
    ) -> ReceiptFields {
        let wait_ms = u64::try_from(max_wait.as_millis()).unwrap_or(u64::MAX);
        let asked = ask(|later: Later<'_, _>| {
            let answer = control.engine.delivered_elsewhere((&self.channel, id), wait_ms, later);
            Ok::<_, Infallible>(answer)
        });
        let Ok(elsewhere) = asked;
        let drain_ends = async {
            let deadline = control.drain.begun().await;
            sleep_until(deadline.checked_sub(DRAIN_MARGIN).unwrap_or(Instant::now())).await;
        };
        let ends = async {
            tokio::select! {
                () = drain_ends => (),
                () = control.drain.rushed() => (),
            }
        };
        // The other nodes end their wait at the same time, and their answers take some.
        let all = async {
            let (own, others) = tokio::join!(
                timeout(max_wait, &mut self.is_complete),
                elsewhere.within(max_wait + WORKERS_TIMEOUT),
            );
            (own.is_err(), others)
        };
        let (is_over, others) = tokio::select! {
            biased;
            all = all => all,
            () = ends => (true, None),
        };
        let none = OtherNodes { found: Delivered::default(), is_complete: false };
        let OtherNodes { found, is_complete } = others.unwrap_or(none);
        let delivered = self.receipt.close().plus(found);
        let Delivered { matched, written, behind, lagging, skipped, closed, expired, unknown } =
            delivered;
        let outcome = match behind {
            0 if is_complete => ReceiptOutcome::Complete,
            _ if is_over || behind > unknown => ReceiptOutcome::Timeout,
            _ => ReceiptOutcome::Unknown,
        };
        control.metrics.count_receipt(outcome);
        let dropped =
            [("lagging", lagging), ("skipped", skipped), ("closed", closed), ("expired", expired)];
        let (outcome, is_partial) = (outcome.name(), !is_complete);
        let is_local = control.engine.is_local(&self.channel);
        ReceiptFields { outcome, matched, written, behind, unknown, dropped, is_partial, is_local }
    }
}

impl Drop for OpenReceipt {
    fn drop(&mut self) {
        self.receipt.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preferred_ms(values: &[&str]) -> Option<u128> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("prefer", HeaderValue::try_from(*value).unwrap());
        }
        preferred(&headers).map(|wait| wait.as_millis())
    }

    #[test]
    fn a_receipt_is_preferred_with_a_wait_or_without() {
        assert_eq!(preferred_ms(&[]), None);
        assert_eq!(preferred_ms(&["wait=3"]), None);
        assert_eq!(preferred_ms(&["receipt"]), Some(5000));
        assert_eq!(preferred_ms(&["respond-async, receipt; x, wait=0.5"]), Some(500));
        assert_eq!(preferred_ms(&["wait=0", "receipt"]), Some(0));
        assert_eq!(preferred_ms(&["receipt, wait=1000000"]), Some(60_000));
    }
}
