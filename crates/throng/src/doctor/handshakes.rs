//! How many TLS handshakes a second this machine can do.

use std::time::Duration;

use throng_tls::{TimedHandshake, handshakes_per_second};
use throng_units::format::count;

/// How long each kind is measured: long enough for some dozen of the slowest.
const TIME: Duration = Duration::from_millis(60);

/// Handshakes a second of one core, as a server, without sockets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Handshakes {
    pub(super) ecdsa_p256: f64,
    pub(super) rsa_2048: f64,
    pub(super) resumed: f64,
    pub(super) cores: usize,
}

impl Handshakes {
    /// Measures for 0.2 seconds. `None` if TLS does not work in this build.
    pub(super) fn measure() -> Option<Handshakes> {
        let of = |kind| handshakes_per_second(kind, TIME).ok();
        Some(Handshakes {
            ecdsa_p256: of(TimedHandshake::EcdsaP256)?,
            rsa_2048: of(TimedHandshake::Rsa2048)?,
            resumed: of(TimedHandshake::Resumed)?,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        })
    }

    /// Two lines of the report, with two digits each: other programs disturb the measurement.
    pub(super) fn text(&self) -> String {
        let [ecdsa, rsa, resumed] = [self.ecdsa_p256, self.rsa_2048, self.resumed].map(rounded);
        let cores = match self.cores {
            1 => "its one core".to_owned(),
            cores => format!("each of its {cores} cores"),
        };
        format!(
            "TLS handshakes a second, measured now, of {cores}: {ecdsa} with an\n\
             ECDSA certificate (P-256), {rsa} with RSA (2048 bits), {resumed} resumed.\n"
        )
    }
}

fn rounded(rate: f64) -> String {
    let rate = rate.max(0.0) as u64;
    let unit = 10_u64.pow(rate.checked_ilog10().unwrap_or(0).saturating_sub(1));
    count(rate / unit * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_two_digits() {
        let found =
            Handshakes { ecdsa_p256: 9_031.4, rsa_2048: 1_316.0, resumed: 9_870.1, cores: 2 };
        let text = found.text();
        assert!(text.contains("of each of its 2 cores: 9,000 with an\nECDSA"), "{text}");
        assert!(text.contains("1,300 with RSA (2048 bits), 9,800 resumed.\n"), "{text}");
        assert_eq!([rounded(7.5), rounded(0.0)], ["7", "0"]);
    }
}
