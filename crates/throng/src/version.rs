//! `throng version`: what a bug report needs to say.

use throng_host::environment::Environment;
use throng_units::format::{bytes, counted};

/// Version, commit (if built from a checkout), target, profile and compiler; as `--version` has it.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("THRONG_BUILD"), ")");

/// The build, and the machine it runs on, a line each.
pub fn text() -> String {
    let machine = Environment::look();
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
    fn names_version_target_and_compiler() {
        let text = text();
        assert!(text.starts_with(concat!("throng ", env!("CARGO_PKG_VERSION"), " (")), "{text}");
        for part in [std::env::consts::ARCH, "linux", "rustc 1.", "\nLinux ", " core"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
