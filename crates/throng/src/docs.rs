//! The site of the documentation, from the settings.

use anyhow::Result;
use throng_control::Site;

use crate::settings::{Settings, SettingsError};

/// The site in the directory of the setting `docs`, if it names one.
pub(crate) fn site(settings: &Settings) -> Result<Option<Site>> {
    let Some(directory) = &settings.docs.0 else { return Ok(None) };
    let site = Site::read(directory);
    site.map(Some).map_err(|error| SettingsError(format!("docs: {error}")).into())
}
