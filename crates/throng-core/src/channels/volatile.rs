//! Volatile messages, which no journal hears of.

use super::Channels;
#[cfg(any(test, feature = "conformance"))]
use super::{Coming, Made};
use crate::publication::{PublishError, VolatilePublication};

impl Channels {
    /// Posts a volatile message to the workers that follow its channel, in the order of the calls
    /// and of its other messages. It is in no log, so nothing that is kept changes, and no
    /// journal hears of it. Workers whose queues fill do not get it, and count that.
    ///
    /// Returns the number of subscriptions that it is posted for.
    ///
    /// # Errors
    ///
    /// Why it was not posted at all.
    pub fn publish_volatile(
        &self,
        now_ms: u64,
        publication: VolatilePublication,
    ) -> Result<u64, PublishError> {
        self.check_exists(&publication.channel)?;
        if let Some(cluster) = self.cluster_of(&publication.channel) {
            cluster.pass_on(&publication)?;
        }
        #[cfg(any(test, feature = "conformance"))]
        self.before(now_ms, Coming::Volatile(&publication));
        let subscribers = self.memory.publish_volatile(now_ms, publication);
        #[cfg(any(test, feature = "conformance"))]
        self.after(Made::PostedVolatile(subscribers));
        Ok(subscribers)
    }
}
