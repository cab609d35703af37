//! What is written about the machine after a run; the readings are those of [`throng_host`].
//! [`whole`] has what a run costs all of it.

pub mod whole;

use crate::report::Environment;

/// The machine as it belongs into a report; `is_loopback` tells that the target is on it too.
pub fn environment(is_loopback: bool) -> Environment {
    let found = throng_host::environment::Environment::look();
    Environment {
        kernel: found.kernel,
        cores: found.cores,
        processor: found.processor,
        memory_bytes: found.memory_bytes,
        descriptors_max: found.descriptors_max,
        sysctl: found.sysctl,
        throng: env!("CARGO_PKG_VERSION").to_owned(),
        is_loopback,
        ..Environment::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_names_this_machine() {
        let found = environment(true);
        assert!(found.is_loopback && found.cores > 0 && !found.kernel.is_empty());
        assert!(!found.throng.is_empty());
    }
}
