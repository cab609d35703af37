//! Faults of a server that starts nevertheless.

use throng_certificates::ServerTls;

use crate::access::AccessSettings;
use crate::nats::NatsAccess;
use crate::outbound;
use crate::settings::{self, Settings};
use crate::tls;

/// Logs a warning for each.
pub(super) fn warn(settings: &Settings, access: &AccessSettings, tls: Option<&ServerTls>) {
    let of_variables = settings::variable_warnings();
    let of_callouts = outbound::warnings(settings);
    let of_tls = tls.map(|tls| tls::warnings(settings, tls)).unwrap_or_default();
    let of_nats = NatsAccess::of(settings).warnings();
    let of_origins = settings::origin_warning(settings);
    let all = [&of_variables, &access.warnings, &of_callouts, &of_tls, &of_nats];
    for warning in
        all.into_iter().flatten().chain(&settings::admin_warning(settings)).chain(&of_origins)
    {
        tracing::warn!("{warning}");
    }
}
