//! The server's announcement of its start, on standard output and in the log.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};

use throng_edge::{EdgePlan, SendMethod};
use throng_host::limits::MemoryMeter;
use throng_host::preflight::{self, Demand, Preflight, TableDemand};
use throng_units::paint::Paint;

use super::ports::Ports;
use crate::banner::{Banner, Keys};
use crate::load::Loaded;
use crate::memory::MemoryPlan;
use crate::plane_settings::has_demo;
use crate::settings::Settings;
use crate::start_line::StartLine;

/// Checks whether the machine allows the planned number of connections.
fn preflight(settings: &Settings, plan: &EdgePlan) -> Preflight {
    let mut demand = Demand::server(plan.max_connections() as u64);
    if let Some(server) = &mut demand.server {
        server.tables =
            Some(TableDemand { threads_least: plan.workers() as u64, ..TableDemand::server() });
        // Port 0 lets the kernel choose, so the port of the next start is unknown.
        server.port = Some(settings.listen.0.port()).filter(|&port| port > 0);
    }
    preflight::check(&demand)
}

/// What is printed and logged once the server serves.
pub(super) struct Announcement<'a> {
    banner: String,
    start_line: StartLine<'a>,
}

impl<'a> Announcement<'a> {
    /// The announcement of a server that is about to use these ports.
    pub(super) fn new(
        loaded: &'a Loaded,
        ports: &Ports,
        meter: Option<&MemoryMeter>,
        plan_of_parts: MemoryPlan,
    ) -> io::Result<Announcement<'a>> {
        let (settings, plan) = (&loaded.settings, &ports.plan);
        let admin = ports.admin.as_ref().map(TcpListener::local_addr).transpose()?;
        let start_line = StartLine {
            settings,
            listen: plan.address(),
            tls_listen: plan.tls_address(),
            admin_listen: admin,
            max_connections: plan.max_connections(),
            memory: meter.map(|meter| meter.limit().clone()),
            plan: plan_of_parts,
        };
        Ok(Announcement { banner: banner(loaded, plan, admin), start_line })
    }

    /// Logs the first line, and how fan-outs are written. A new server prints the banner before.
    pub(super) fn make(&self, is_new: bool, method: &SendMethod) {
        if is_new {
            let mut out = io::stdout().lock();
            // A closed standard output is no reason to stop the server.
            let _ = out.write_all(self.banner.as_bytes()).and_then(|()| out.flush());
        }
        self.start_line.log();
        log_send_method(method);
    }
}

/// The text printed at the start.
fn banner(loaded: &Loaded, plan: &EdgePlan, admin: Option<SocketAddr>) -> String {
    let Loaded { settings, dev_keys, dev_certificate } = loaded;
    let apps: Vec<_> = settings.apps.iter().filter_map(|app| app.own.key.clone()).collect();
    let banner = Banner {
        address: plan.address(),
        admin,
        is_admin_tls: settings.admin_tls.0,
        tls: plan.tls_address(),
        demands_certificates: settings.demands_client_certificates(),
        has_demo: has_demo(settings),
        has_docs: settings.docs.0.is_some(),
        do_clients_publish: settings.clients_publish.0,
        origins: &settings.allowed_origins.0,
        hosts: &settings.allowed_hosts.0,
        workers: plan.workers(),
        descriptors_max: plan.descriptors_max(),
        max_connections: plan.max_connections(),
        preflight: &preflight(settings, plan),
        requested: settings.max_connections.0,
        allows_anyone: settings.allow_anyone.0,
        keys: Keys::of(settings),
        apps: &apps,
        dev_keys: dev_keys.as_ref(),
        dev_certificate: dev_certificate.as_deref(),
    };
    banner.text(Paint::on(&io::stdout()))
}

/// Logs how fan-outs are written.
fn log_send_method(method: &SendMethod) {
    let how = match method {
        SendMethod::IoUring => "fan-outs go through io_uring",
        SendMethod::LinuxAio { .. } => "fan-outs go through Linux AIO",
        SendMethod::Single { .. } => "fan-outs take a call for each subscriber",
    };
    tracing::debug!("{how}");
    if let SendMethod::LinuxAio { without_io_uring: Some(reason) }
    | SendMethod::Single { without_io_uring: Some(reason), .. } = method
    {
        tracing::info!("io_uring cannot be used: {reason}; {how}");
    }
    if let SendMethod::Single { without_aio, .. } = method {
        tracing::info!("Linux AIO cannot be used: {without_aio}; {how}");
    }
}
