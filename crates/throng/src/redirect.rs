//! The listener that sends clients from http to https, from the settings.

use std::net::TcpListener;
use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result};
use throng_control::Redirect;
use throng_edge::{Plan, StartError};
use throng_handover::message::Listener;
use tokio::runtime::Runtime;

use crate::settings::Settings;
use crate::upgrade::{self, Arrival};

/// Starts the listener that sends clients from http to https, if there is one.
/// Returns a copy of it.
pub(crate) fn start(
    runtime: &Runtime,
    settings: &Settings,
    plan: &Plan,
    arrival: Option<&mut Arrival>,
) -> Result<Option<OwnedFd>> {
    let Some((address, tls)) = settings.redirect_http.0.zip(plan.tls_address()) else {
        return Ok(None);
    };
    let failed = || format!("cannot listen on {address} (redirect-http)");
    let passed = arrival.and_then(|arrival| arrival.take(Listener::Redirect));
    let open = |address| {
        TcpListener::bind(address).map_err(|error| StartError::Listen {
            flag: "redirect-http",
            address,
            error,
        })
    };
    let listener = upgrade::start::listener(address, passed, open)?;
    let copy = listener.try_clone().with_context(failed)?;
    listener.set_nonblocking(true).with_context(failed)?;
    let redirect = Redirect {
        // Checked to be a port.
        port: settings.redirect_port.0.map_or(tls.port(), |port| port as u16),
        max_head_bytes: settings.max_head_bytes.0,
        timeout: settings.head_timeout.0,
    };
    tracing::info!("redirecting to https from http://{}", listener.local_addr()?);
    runtime.spawn(redirect.serve(listener));
    Ok(Some(copy.into()))
}
