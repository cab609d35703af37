//! `throng version`: version, build and machine, for bug reports.

use throng_host::environment::Environment;
use throng_units::format::{bytes, counted};

/// Version, commit (if built from a checkout), target, profile and compiler. Also in `--version`.
pub(crate) const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("THRONG_BUILD"), ")");

/// One line about the build and one about the machine.
pub(crate) fn text() -> String {
    let machine = Environment::read();
    format!(
        "throng {BUILD}\nLinux {}, {}, {} memory\n",
        machine.kernel,
        counted(machine.cores as u64, "core", "cores"),
        bytes(machine.memory_bytes as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_version_target_and_compiler() {
        let text = text();
        assert!(text.starts_with(concat!("throng ", env!("CARGO_PKG_VERSION"), " (")), "{text}");
        for part in [std::env::consts::ARCH, "linux", "rustc 1.", "\nLinux ", " core"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
