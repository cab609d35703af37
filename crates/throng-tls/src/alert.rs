//! The alerts that the record layer sends (RFC 8446, section 6).

/// Why a connection ends, as the peer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Alert {
    /// The end of what is sent; no error.
    CloseNotify = 0,
    /// A record or message that may not come now, or too many without data.
    UnexpectedMessage = 10,
    /// A record that was not sealed with the expected key and number.
    BadRecordMac = 20,
    /// A record with more than 2^14 bytes of content.
    RecordOverflow = 22,
    /// A field with a value that is not allowed.
    IllegalParameter = 47,
    /// A message of the wrong length.
    DecodeError = 50,
    /// An error of this server.
    InternalError = 80,
    /// A new handshake on a connection of TLS 1.2.
    NoRenegotiation = 100,
}

/// The number of `user_canceled`, which is no error.
pub(crate) const USER_CANCELED: u8 = 90;

const WARNING: u8 = 1;
const FATAL: u8 = 2;

impl Alert {
    /// The content of the alert's record: level and description.
    pub(crate) fn content(self) -> [u8; 2] {
        let level = if self == Self::CloseNotify { WARNING } else { FATAL };
        [level, self as u8]
    }
}

/// The name of an alert, as the registry of TLS has it; `None` for a number without one.
pub fn alert_name(number: u8) -> Option<&'static str> {
    Some(match number {
        0 => "close_notify",
        10 => "unexpected_message",
        20 => "bad_record_mac",
        21 => "decryption_failed",
        22 => "record_overflow",
        30 => "decompression_failure",
        40 => "handshake_failure",
        41 => "no_certificate",
        42 => "bad_certificate",
        43 => "unsupported_certificate",
        44 => "certificate_revoked",
        45 => "certificate_expired",
        46 => "certificate_unknown",
        47 => "illegal_parameter",
        48 => "unknown_ca",
        49 => "access_denied",
        50 => "decode_error",
        51 => "decrypt_error",
        70 => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        86 => "inappropriate_fallback",
        90 => "user_canceled",
        100 => "no_renegotiation",
        109 => "missing_extension",
        110 => "unsupported_extension",
        112 => "unrecognized_name",
        113 => "bad_certificate_status_response",
        115 => "unknown_psk_identity",
        116 => "certificate_required",
        120 => "no_application_protocol",
        121 => "ech_required",
        _ => return None,
    })
}

/// The meaning of a peer's alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceivedAlert {
    /// The peer sends no more.
    Closed,
    /// A warning without consequences.
    Ignored,
    /// The peer ends the connection for this reason.
    Fatal(u8),
}

/// Reads the content of an alert's record.
pub(crate) fn read(content: &[u8], is_tls13: bool) -> Result<ReceivedAlert, Alert> {
    let &[level, description] = content else {
        return Err(Alert::DecodeError);
    };
    match (level, description) {
        (WARNING | FATAL, description) if description == Alert::CloseNotify as u8 => {
            Ok(ReceivedAlert::Closed)
        }
        (WARNING, USER_CANCELED) => Ok(ReceivedAlert::Ignored),
        // TLS 1.3 knows no warnings besides these two.
        (WARNING, _) if is_tls13 => Err(Alert::DecodeError),
        (WARNING, _) => Ok(ReceivedAlert::Ignored),
        (FATAL, description) => Ok(ReceivedAlert::Fatal(description)),
        _ => Err(Alert::IllegalParameter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_mean_what_the_version_says() {
        assert_eq!(read(&[1, 0], true), Ok(ReceivedAlert::Closed));
        assert_eq!(read(&[2, 0], false), Ok(ReceivedAlert::Closed));
        assert_eq!(read(&[1, 90], true), Ok(ReceivedAlert::Ignored));
        assert_eq!(read(&[1, 100], false), Ok(ReceivedAlert::Ignored));
        assert_eq!(read(&[1, 100], true), Err(Alert::DecodeError));
        assert_eq!(read(&[2, 40], true), Ok(ReceivedAlert::Fatal(40)));
        assert_eq!(read(&[3, 40], true), Err(Alert::IllegalParameter));
        assert_eq!(read(&[], true), Err(Alert::DecodeError));
        assert_eq!(read(&[2, 40, 2, 40], true), Err(Alert::DecodeError));
        assert_eq!(Alert::CloseNotify.content(), [1, 0]);
        assert_eq!(Alert::BadRecordMac.content(), [2, 20]);
    }
}
