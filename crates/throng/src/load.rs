//! Loads the settings of `throng serve`, and does so again when they are reloaded.

use std::env;
use std::path::PathBuf;

use anyhow::Result;

use crate::cli::ServeArguments;
use crate::dev::{DevKeys, DevSecrets};
use crate::dev_tls;
use crate::reload;
use crate::settings::{self, Settings, SettingsError, Sources};
use crate::without_ipv6;

/// The settings, and what was made for this run.
pub(crate) struct Loaded {
    pub(crate) settings: Settings,
    pub(crate) dev_keys: Option<DevKeys>,
    pub(crate) dev_certificate: Option<PathBuf>,
}

/// Loads the settings. With `--dev` adds keys to them, new ones or those `before`, with `--dev-tls`
/// a certificate.
pub(crate) fn load(arguments: &ServeArguments, before: Option<DevSecrets>) -> Result<Loaded> {
    let ServeArguments { dev, dev_tls, sources: Sources { config, options } } = arguments;
    let (mut dev_keys, mut dev_certificate) = (None, None);
    let settings =
        settings::load_and(options.clone(), env::vars_os(), config.as_deref(), |settings| {
            without_ipv6::adapt(settings);
            if *dev {
                dev_keys = Some(DevKeys::add_to(settings, before)?);
            }
            if *dev_tls {
                dev_certificate = Some(dev_tls::add_to(settings)?);
            }
            Ok(())
        })?;
    if let Some(message) = settings::missing_state(&settings) {
        return Err(SettingsError(message).into());
    }
    Ok(Loaded { settings, dev_keys, dev_certificate })
}

/// Reads the settings again from where they came from.
pub(crate) fn reader(arguments: ServeArguments) -> reload::Read {
    let ServeArguments { dev, dev_tls, sources: Sources { config, options } } = arguments;
    Box::new(move || {
        if dev || dev_tls {
            let message = "--dev and --dev-tls are for one run, so nothing can be reloaded";
            return Err(SettingsError(message.to_owned()));
        }
        settings::load_and(options.clone(), env::vars_os(), config.as_deref(), |settings| {
            without_ipv6::adapt(settings);
            Ok(())
        })
    })
}
