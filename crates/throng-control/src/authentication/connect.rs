//! Asks the application who a client is that shows no credential, and whether one with a token is
//! let in.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderValue;
use http::request::Parts;
use throng_access::{
    Connect, ConnectVerdict, Details, Identity, Newcomer, PassedHeaders, ShownToken,
};
use throng_core::{Later, Listener, clock};
use throng_wire::credential::check_scheme;
use throng_wire::{ErrorCode, ErrorResponse};

use super::verification::now_s;
use super::{Authentication, Client, values};
use crate::http::answer::ApiError;
use crate::http::caller::Caller;
use crate::http::origin;
use crate::late_answer::within;
use crate::settings::Settings;

/// How long a request waits until it is known who its client is, before it is refused with `busy`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The word for a request that does not subscribe.
const TRANSPORT: &str = "http";

/// The part of a request that policies and callouts see, besides its credential.
#[derive(Debug, Default)]
pub(crate) struct PassedOn {
    /// The client's address, if it is passed on.
    pub(crate) address: Option<IpAddr>,
    pub(crate) headers: PassedHeaders,
}

impl Authentication {
    /// The sender of a request without a credential. The admin listener is the application's own.
    pub(super) async fn identify_elsewhere(
        &self,
        settings: &Settings,
        head: &Parts,
    ) -> Result<Client, ApiError> {
        let Some(connect) = &self.access.connect else {
            check_scheme(values(&head.headers, "authorization"))?;
            return Ok(Client::Anonymous);
        };
        if Caller::of(head).listener == Listener::Admin {
            return Ok(Client::Anonymous);
        }
        let PassedOn { address, headers } = self.passed(head)?;
        if connect.passes_ambient(&headers) {
            origin::check_cookie(settings, head)?;
        }
        let details = Details { address, headers: Some(&headers) };
        let newcomer = Newcomer { transport: TRANSPORT, details, token: None };
        // Ahead of the limit: strangers at the same address lock out nobody who was let in.
        if let Some(identity) = connect.known(newcomer) {
            return Ok(Client::Token(identity));
        }
        let limiter = &self.access.clients.limiter;
        let client = self.limited_address(head)?;
        limiter.may_verify(client, clock::now_ms()).map_err(ApiError::limited)?;
        match ask(&**connect, newcomer).await {
            Ok(identity) => Ok(Client::Token(identity)),
            Err(error) => {
                // The application has refused the client. A failure of its own is not held against
                // the client.
                if error.code == ErrorCode::Unauthorized {
                    limiter.charge_bad_token(client, clock::now_ms());
                }
                Err(error.into())
            }
        }
    }

    /// The sender of a request with a verified token, as far as the application lets it in, if it
    /// decides that too.
    pub(super) async fn confirm(
        &self,
        settings: &Settings,
        head: &Parts,
        token: ShownToken<'_>,
    ) -> Result<Arc<Identity>, ApiError> {
        let connect = self.access.connect.as_ref().filter(|connect| connect.decides_tokens());
        let (Some(connect), Listener::Public) = (connect, Caller::of(head).listener) else {
            return Ok(Arc::clone(token.identity));
        };
        let PassedOn { address, mut headers } = self.passed(head)?;
        // The token says who it is. What a foreign page made the browser send besides does not.
        headers.keep_ambient_if(|| origin::check_cookie(settings, head).is_ok());
        let details = Details { address, headers: Some(&headers) };
        let newcomer = Newcomer { transport: TRANSPORT, details, token: Some(token) };
        Ok(ask(&**connect, newcomer).await?)
    }

    /// The part of this request that policies and callouts see, besides its credential.
    pub(crate) fn passed(&self, head: &Parts) -> Result<PassedOn, ErrorResponse> {
        let passed = &self.access.passed;
        let address = if passed.address { self.address(head)? } else { None };
        let values = |name: &str| {
            let values: Vec<_> = head.headers.get_all(name).iter().collect();
            values.into_iter().map(HeaderValue::as_bytes)
        };
        Ok(PassedOn { address, headers: passed.pick(values)? })
    }

    /// The address of the client: kept from an earlier request, or the peer of the connection.
    fn address(&self, head: &Parts) -> Result<Option<IpAddr>, ErrorResponse> {
        let (caller, source) = (Caller::of(head), &self.access.clients.source);
        let known = caller.address(source, head).map_err(|refused| refused.error)?;
        Ok(known.or_else(|| source.of_connection(caller.peer?.ip())))
    }
}

/// Asks who a client is, or whether one with a token is let in.
async fn ask(connect: &dyn Connect, newcomer: Newcomer<'_>) -> ConnectVerdict {
    let ask = |later: Later<'_, _>| Ok::<_, Infallible>(connect.who(newcomer, later));
    let Ok(verdict) = within(CONNECT_TIMEOUT, ask).await;
    let identity = verdict.unwrap_or_else(|| Err(ErrorResponse::unanswered()))?;
    // It may have been revoked while the application was asked.
    connect.recheck(&identity, now_s())?;
    Ok(identity)
}
