//! The settings, and what they say of the process as a whole: log, memory, pages.

use std::io;

use anyhow::{Context as _, Result};
use throng_access::SharedPages;
use throng_control::Site;
use throng_handover::message::DescriptorKind;
use throng_host::limits::MemoryMeter;
use throng_units::paint::Paint;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::ServeArguments;
use crate::dev::DevSecrets;
use crate::docs;
use crate::load::{Loaded, load};
use crate::log_level::{self, LogLevelHandle};
use crate::log_writer::LogWriter;
use crate::memory::MemoryPlan;
use crate::plane_settings::{allowed_pages, memory_plan};
use crate::settings::Settings;
use crate::upgrade::Arrival;

/// See the module.
pub(super) struct Base {
    pub(super) loaded: Loaded,
    pub(super) meter: Option<MemoryMeter>,
    pub(super) memory: MemoryPlan,
    pub(super) pages: SharedPages,
    /// The documentation.
    pub(super) site: Option<Site>,
    // The last to go.
    pub(super) log: LogUntilEnd,
}

impl Base {
    /// Loads the settings, with the keys of `--dev` that the running server has, and begins to log.
    pub(super) fn load(arguments: &ServeArguments, arrival: Option<&mut Arrival>) -> Result<Base> {
        let dev = arrival.and_then(|arrival| arrival.take(DescriptorKind::DevKeys));
        let dev = dev.map(DevSecrets::receive).transpose().context("the keys of --dev")?;
        let loaded = load(arguments, dev)?;
        let settings = &loaded.settings;
        let log = start_log(settings)?;
        let (meter, memory) = memory_plan(settings);
        let pages = allowed_pages(settings).shared();
        Ok(Base { site: docs::site(settings)?, loaded, meter, memory, pages, log })
    }
}

/// Writes what is logged before the process ends.
pub(super) struct LogUntilEnd {
    pub(super) writer: LogWriter,
    pub(super) level: LogLevelHandle,
}

impl Drop for LogUntilEnd {
    fn drop(&mut self) {
        self.writer.flush();
    }
}

fn start_log(settings: &Settings) -> Result<LogUntilEnd> {
    let is_json = settings.log_format.0;
    let writer = LogWriter::start().context("cannot start the thread that writes the log")?;
    let lines = writer.clone();
    let (filter, level) = log_level::filter(settings.log.0);
    let log = tracing_subscriber::fmt::layer()
        .with_writer(move || lines.line())
        .with_ansi(!is_json && Paint::on(&io::stderr()).is_coloured())
        .with_target(false)
        // By default, errors are printed to standard error, which would block.
        .log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter);
    if is_json {
        let log = log.json().flatten_event(true).with_current_span(false).with_span_list(false);
        registry.with(log).init();
    } else {
        registry.with(log).init();
    }
    Ok(LogUntilEnd { writer, level })
}
