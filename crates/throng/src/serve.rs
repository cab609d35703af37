//! The server's life.
use anyhow::Result;
use crate::settings::Settings;
/// Serves.
pub fn serve(_settings: &Settings) -> Result<()> {
    Ok(())
}
