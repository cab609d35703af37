//! When the authority wants a certificate to be renewed (renewal information, RFC 9773).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use instant_acme::{Error, RenewalInfo};

use crate::error::{AcmeError, line, sorted};
use crate::order::Orders;

/// The shortest and the longest time until the authority is asked again, whatever it says
/// (RFC 9773, section 4.3.2).
const AGAIN_MIN: Duration = Duration::from_secs(60);
const AGAIN_MAX: Duration = Duration::from_secs(86_400);

/// After a failure, the authority is asked again after this time.
pub(crate) const AGAIN_AFTER_FAILURE: Duration = Duration::from_secs(6 * 3600);

/// The last second that a date of HTTP, as in the log, can name.
const SECOND_MAX: i64 = 253_402_300_799;

/// How long the authority may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// The time in which a certificate is to be renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) from: SystemTime,
    pub(crate) until: SystemTime,
    /// A page of the authority that says why, in one line.
    pub(crate) page: Option<String>,
}

impl Orders {
    /// The window for the stored certificate of `name`, and when to ask again. `None` if there is
    /// no such certificate, or the authority names no windows.
    pub(crate) async fn window(
        &mut self,
        name: &str,
    ) -> Result<Option<(Window, Duration)>, AcmeError> {
        let Some(identifier) = self.store.identifier(name)? else { return Ok(None) };
        // Without an account the certificate is not one of this authority.
        let Some(account) = self.known_account().await? else { return Ok(None) };
        let asked = tokio::time::timeout(ANSWER_TIME_MAX, account.renewal_info(&identifier)).await;
        let late = |_| AcmeError::Unreachable("it did not answer within a minute".into());
        match asked.map_err(late)? {
            Ok((information, again)) => {
                let window = read(&information)?;
                self.names_windows = true;
                Ok(Some((window, again.clamp(AGAIN_MIN, AGAIN_MAX))))
            }
            Err(Error::Unsupported(_)) => Ok(None),
            Err(error) => Err(sorted(error)),
        }
    }
}

fn read(information: &RenewalInfo) -> Result<Window, AcmeError> {
    let at = |second: i64| UNIX_EPOCH + Duration::from_secs(second.clamp(0, SECOND_MAX) as u64);
    let window = &information.suggested_window;
    let [from, until] = [window.start, window.end].map(|time| at(time.unix_timestamp()));
    if from > until {
        return Err(AcmeError::Refused("the window for a renewal ends before it begins".into()));
    }
    let page = information.explanation_url.as_deref().map(line);
    Ok(Window { from, until, page })
}
