//! Everything that listens: the public ports, the admin listener, the redirect to https, and the
//! socket of commands.

use std::net::TcpListener;

use anyhow::{Result, anyhow};
use throng_certificates::ServerTls;
use throng_control::AdminListener;
use throng_edge::{EdgePlan, StartError};
use throng_handover::message::DescriptorKind;
use throng_units::Count;

use super::base::Base;
use crate::activation;
use crate::control_socket::ControlSocket;
use crate::plane_settings::shared_edge_settings;
use crate::redirect::{self, RedirectListener};
use crate::settings::Settings;
use crate::upgrade::{self, Arrival};

/// See the module.
pub(super) struct Ports {
    /// The public ports, which the workers get.
    pub(super) plan: EdgePlan,
    pub(super) admin: Option<TcpListener>,
    pub(super) redirect: Option<RedirectListener>,
    /// `None` also while the running server has it.
    pub(super) control_socket: Option<ControlSocket>,
}

impl Ports {
    /// Binds all addresses, or takes the running server's listeners.
    pub(super) fn bind(
        base: &Base,
        tls: Option<&ServerTls>,
        mut arrival: Option<&mut Arrival>,
    ) -> Result<Ports> {
        let settings = &base.loaded.settings;
        let plan = plan(base, tls, arrival.as_deref_mut())?;
        let control_socket = match arrival {
            None => ControlSocket::take(&settings.control, plan.address())?,
            Some(_) => None,
        };
        let admin = admin(settings, arrival.as_deref_mut())?;
        let redirect = redirect::prepare(settings, &plan, arrival)?;
        Ok(Ports { plan, admin, redirect, control_socket })
    }
}

/// Takes the ports, of which the service manager may have passed one.
fn plan(base: &Base, tls: Option<&ServerTls>, arrival: Option<&mut Arrival>) -> Result<EdgePlan> {
    let settings = &base.loaded.settings;
    let with_tls = shared_edge_settings(settings, tls, base.memory, &base.pages);
    if let Some(arrival) = arrival {
        if let Some(tls) = tls {
            tls.take_over_ticket_keys(arrival.ticket_keys());
        }
        return EdgePlan::take_over(with_tls, arrival.ports()).map_err(with_next_step);
    }
    let passed = activation::listener(settings.listen.0)?;
    EdgePlan::new(with_tls, passed).map_err(with_next_step)
}

/// Adds the command that says how to allow as many connections.
fn with_next_step(error: StartError) -> anyhow::Error {
    match &error {
        StartError::TooMany { connections, .. } => {
            let connections = Count(*connections).short();
            anyhow!(
                "{error}; run `throng doctor --connections {connections}` for the necessary changes"
            )
        }
        _ => error.into(),
    }
}

fn admin(
    settings: &Settings,
    arrival: Option<&mut Arrival>,
) -> Result<Option<TcpListener>, StartError> {
    let passed = arrival.and_then(|arrival| arrival.take(DescriptorKind::Admin));
    let open = |address| throng_edge::listen_alone("admin-listen", address, settings.heartbeat.0);
    let listen = |address| upgrade::start::listener(address, passed, open);
    settings.admin_listen.0.map(listen).transpose()
}

/// The admin listener, with TLS if the settings say so.
pub(super) fn with_tls(
    admin: Option<TcpListener>,
    tls: Option<&ServerTls>,
    settings: &Settings,
) -> Option<AdminListener> {
    let tls = tls.filter(|_| settings.admin_tls.0).map(ServerTls::acceptor);
    admin.map(|listener| AdminListener { listener, tls })
}
