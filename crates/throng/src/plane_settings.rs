//! Settings of the workers and of the control plane, from the settings of the server.

use std::sync::Arc;

use throng_access::{AllowedPages, SharedPages};
use throng_certificates::ServerTls;
use throng_core::{Admission, AdmissionSettings};
use throng_edge::compression::CompressionSettings;
use throng_edge::{EdgePlan, LateIdentity, Limits};
use throng_host::limits::MemoryMeter;

use crate::memory;
use crate::settings::Settings;

/// The pages that the settings allow.
pub(crate) fn allowed_pages(settings: &Settings) -> AllowedPages {
    AllowedPages::new(settings.allowed_origins.0.clone(), settings.allowed_hosts.0.clone())
}

/// The settings of the workers with what they share: certificates, and the pages that are allowed.
pub(crate) fn shared_edge_settings(
    settings: &Settings,
    tls: Option<&ServerTls>,
    memory: memory::MemoryPlan,
    pages: &SharedPages,
) -> throng_edge::Settings {
    let tls = tls
        .zip(settings.tls_listen.0)
        .map(|(tls, listen)| throng_edge::TlsSettings { listen, acceptor: tls.acceptor() });
    throng_edge::Settings { tls, pages: Arc::clone(pages), ..edge_settings(settings, memory) }
}

/// The settings of the workers, without TLS, and with allowed pages of their own.
pub(crate) fn edge_settings(
    settings: &Settings,
    memory: memory::MemoryPlan,
) -> throng_edge::Settings {
    throng_edge::Settings {
        tls: None,
        refuses_proxies: settings.refuses_proxies(),
        listen: settings.listen.0,
        has_admin_listener: settings.admin_listen.0.is_some(),
        workers: settings.workers.0.unwrap_or(0),
        max_connections: settings.max_connections.0.unwrap_or(0),
        io_uring: settings.io_uring.0,
        pages: allowed_pages(settings).shared(),
        heartbeat: settings.heartbeat.0,
        ping_interval: settings.ping_interval.0,
        late_identity: LateIdentity::default(),
        welcome: settings.welcome.0,
        logs_connections: settings.log_connections.0,
        admission: Arc::new(Admission::new(AdmissionSettings {
            wait: settings.admission_wait.0,
            rate: settings.admission_rate.0.map(|rate| rate as u64),
        })),
        head_timeout: settings.head_timeout.0,
        idle_timeout: settings.idle_timeout.0,
        drain_window: settings.drain_window.0,
        drain_timeout: settings.drain_timeout.0,
        max_head_bytes: settings.max_head_bytes.0,
        max_message_bytes: settings.max_message_bytes.0,
        max_channels_per_connection: settings.max_channels_per_connection.0,
        compression: CompressionSettings {
            is_on: settings.compression.0,
            min_bytes: settings.compression_min_bytes.0,
            // Checked to be 1 to 6.
            level: settings.compression_level.0 as u8,
        },
        limits: Limits {
            max_buffered_bytes: settings.max_buffered_bytes.0.min(memory.buffered),
            max_blocked_bytes: Limits::default().max_blocked_bytes.min(memory.blocked),
            ..Limits::default()
        },
    }
}

/// The settings of the control plane, for the workers of `plan`.
pub(crate) fn control_settings(
    settings: &Settings,
    plan: &EdgePlan,
    memory: memory::MemoryPlan,
    pages: &SharedPages,
) -> throng_control::Settings {
    let limits = throng_control::Limits::default();
    throng_control::Settings {
        refuses_proxies: settings.refuses_proxies(),
        admin_refuses_proxies: settings.admin_refuses_proxies(),
        listen: plan.reachable_ip(),
        has_admin_listener: settings.admin_listen.0.is_some(),
        has_demo: has_demo(settings),
        pages: Arc::clone(pages),
        max_head_bytes: settings.max_head_bytes.0,
        max_message_bytes: settings.max_message_bytes.0,
        max_batch_bytes: settings.max_batch_bytes.0,
        compression_min_bytes: settings.compression.0.then_some(settings.compression_min_bytes.0),
        max_channels_per_connection: settings.max_channels_per_connection.0,
        max_connections: plan.max_connections(),
        // The workers' descriptor limit holds for the process's own table, too.
        max_control_connections: plan.max_worker_connections(),
        head_timeout: settings.head_timeout.0,
        idle_timeout: settings.idle_timeout.0,
        canary_interval: settings.canary_interval.0,
        drain_window: settings.drain_window.0,
        drain_timeout: settings.drain_timeout.0,
        limits: throng_control::Limits {
            max_answer_bytes: limits.max_answer_bytes.min(memory.answers),
            max_partial_messages_bytes: limits.max_partial_messages_bytes.min(memory.messages),
            max_partial_batches_bytes: limits.max_partial_batches_bytes.min(memory.batches),
            ..limits
        },
    }
}

/// True if the demo is served. With `auto`, it is if only this machine can reach the server, and
/// clients may publish, which the demo needs.
pub(crate) fn has_demo(settings: &Settings) -> bool {
    let addresses = [Some(settings.listen.0), settings.tls_listen.0];
    let mut addresses = addresses.into_iter().flatten();
    let is_local = addresses.all(|address| address.ip().to_canonical().is_loopback());
    settings.demo.0.unwrap_or(is_local && settings.clients_publish.0)
}

/// The meter of what is used of the memory, and what each part may take of it.
pub(crate) fn memory_plan(settings: &Settings) -> (Option<MemoryMeter>, memory::MemoryPlan) {
    let meter = MemoryMeter::new(settings.max_memory.0.map(|size| size.0 as u64));
    let plan = meter.as_ref().map(|meter| memory::MemoryPlan::new(meter.limit().bytes));
    let plan = plan.unwrap_or_else(memory::MemoryPlan::unlimited);
    (meter, if settings.data.0.is_some() { plan.with_data() } else { plan })
}
