//! The types of values that only settings of the server have. The others are in [`throng_units`].

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use throng_access::Who;
use throng_access::address::ForwardedHeader;
use throng_certificates::UserField;
use throng_core::{LagPolicy, Sender};
use throng_data::sync_policy::SyncPolicy;
use throng_edge::settings::IoUringSetting;
use throng_tls::LeastVersion;
use throng_units::{Address, Count, Form, Invalid, Size, Value};

/// An address and a port, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OptionalAddress(pub(crate) Option<SocketAddr>);

impl Value for OptionalAddress {
    const PLACEHOLDER: &'static str = <Address as Value>::PLACEHOLDER;
    const EXPECTED: &'static str = <Address as Value>::EXPECTED;
}

impl FromStr for OptionalAddress {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<OptionalAddress, Invalid> {
        if text.trim().eq_ignore_ascii_case("none") {
            return Ok(OptionalAddress(None));
        }
        text.parse::<Address>().map(|address| OptionalAddress(Some(address.0)))
    }
}

impl fmt::Display for OptionalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("none"),
        }
    }
}

/// A whole number of at least 1, or `auto`: derived from this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AutoCount(pub(crate) Option<usize>);

impl Value for AutoCount {
    const PLACEHOLDER: &'static str = "NUMBER";
    const EXPECTED: &'static str =
        "a whole number of at least 1, like 1000, 10k or 1M, or \"auto\"";
    const FORM: Form = Form::Number;

    fn magnitude(&self) -> Option<u128> {
        self.0?.try_into().ok()
    }
}

impl FromStr for AutoCount {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<AutoCount, Invalid> {
        if text.trim().eq_ignore_ascii_case("auto") {
            return Ok(AutoCount(None));
        }
        let count = text.parse::<Count>().ok().filter(|count| count.0 > 0);
        count
            .map(|count| AutoCount(Some(count.0)))
            .ok_or_else(|| Invalid::new(text, AutoCount::EXPECTED))
    }
}

impl fmt::Display for AutoCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(count) => count.fmt(f),
            None => f.write_str("auto"),
        }
    }
}

/// A size, or `auto`: derived from this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AutoSize(pub(crate) Option<Size>);

impl Value for AutoSize {
    const PLACEHOLDER: &'static str = "SIZE";
    const EXPECTED: &'static str = "a size, like 512MiB or 2G, or \"auto\"";
    const FORM: Form = Form::Number;

    fn magnitude(&self) -> Option<u128> {
        self.0?.magnitude()
    }
}

impl FromStr for AutoSize {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<AutoSize, Invalid> {
        if text.trim().eq_ignore_ascii_case("auto") {
            return Ok(AutoSize(None));
        }
        let size = text.parse::<Size>().ok();
        size.map(|size| AutoSize(Some(size))).ok_or_else(|| Invalid::new(text, Self::EXPECTED))
    }
}

impl fmt::Display for AutoSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(size) => size.fmt(f),
            None => f.write_str("auto"),
        }
    }
}

/// The path of a file, or `none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OptionalPath(pub Option<PathBuf>);

impl Value for OptionalPath {
    const PLACEHOLDER: &'static str = "PATH";
    const EXPECTED: &'static str = "the path of a file, or \"none\"";

    fn placed(self, directory: &Path) -> OptionalPath {
        OptionalPath(self.0.map(|path| directory.join(path)))
    }
}

impl FromStr for OptionalPath {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<OptionalPath, Invalid> {
        match text.trim() {
            "" => Err(Invalid::new(text, OptionalPath::EXPECTED)),
            word if word.eq_ignore_ascii_case("none") => Ok(OptionalPath(None)),
            _ => Ok(OptionalPath(Some(text.into()))),
        }
    }
}

impl fmt::Display for OptionalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(path) => path.display().fmt(f),
            None => f.write_str("none"),
        }
    }
}

/// Where the control socket is: at a path, at one derived from the address, or nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ControlChoice {
    Auto,
    None,
    Path(PathBuf),
}

impl Value for ControlChoice {
    const PLACEHOLDER: &'static str = "FILE";
    const EXPECTED: &'static str = "the path of a socket, \"auto\" or \"none\"";

    fn placed(self, directory: &Path) -> ControlChoice {
        match self {
            ControlChoice::Path(path) => ControlChoice::Path(directory.join(path)),
            other => other,
        }
    }
}

impl FromStr for ControlChoice {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<ControlChoice, Invalid> {
        match text.trim().to_ascii_lowercase().as_str() {
            "" => Err(Invalid::new(text, ControlChoice::EXPECTED)),
            "auto" => Ok(ControlChoice::Auto),
            "none" => Ok(ControlChoice::None),
            _ => Ok(ControlChoice::Path(text.into())),
        }
    }
}

impl fmt::Display for ControlChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlChoice::Auto => f.write_str("auto"),
            ControlChoice::None => f.write_str("none"),
            ControlChoice::Path(path) => path.display().fmt(f),
        }
    }
}

/// The name of a cookie (RFC 6265 section 4.1.1), or `none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CookieName(pub Option<String>);

impl Value for CookieName {
    const PLACEHOLDER: &'static str = "NAME";
    const EXPECTED: &'static str = "the name of a cookie: letters, digits, `-`, `_` and `.`, at \
                                    most 64, or \"none\"";
}

impl FromStr for CookieName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<CookieName, Invalid> {
        let name = text.trim();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.eq_ignore_ascii_case("none") {
            Ok(CookieName(None))
        } else if (1..=64).contains(&name.len()) && name.bytes().all(is_plain) {
            Ok(CookieName(Some(name.to_owned())))
        } else {
            Err(Invalid::new(text, CookieName::EXPECTED))
        }
    }
}

impl fmt::Display for CookieName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("none"))
    }
}

/// Declares a value that is one of a few words.
macro_rules! one_of {
    ($(#[$doc:meta])* $name:ident($inner:ty), $placeholder:literal, $expected:literal,
     $($word:literal => $meaning:expr),*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) $inner);

        impl Value for $name {
            const PLACEHOLDER: &'static str = $placeholder;
            const EXPECTED: &'static str = $expected;
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<$name, Invalid> {
                match text.trim().to_ascii_lowercase().as_str() {
                    $($word => Ok($name($meaning)),)*
                    _ => Err(Invalid::new(text, $expected)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let words = [$(($word, $meaning)),*];
                let found = words.iter().find(|(_, meaning)| *meaning == self.0);
                f.write_str(found.map_or("", |(word, _)| word))
            }
        }
    };
}

one_of! {
    /// The publisher that messages show.
    SenderChoice(Sender), "SENDER",
    "one of \"none\", \"user\" (of the token) and \"name\" (its claim `name`)",
    "none" => Sender::Nobody,
    "user" => Sender::User,
    "name" => Sender::Name
}

one_of! {
    /// The members of which the server keeps a list: `Some(true)` if each connection is one.
    MembersChoice(Option<bool>), "MEMBERS", "one of \"none\", \"user\" and \"connection\"",
    "none" => None,
    "user" => Some(false),
    "connection" => Some(true)
}

one_of! {
    /// How users go on after a connection has died: `Some(true)` if nothing may be lost,
    /// `Some(false)` if nothing may come twice.
    ResumeChoice(Option<bool>), "RESUME", "one of \"none\", \"at-least-once\" and \"at-most-once\"",
    "none" => None,
    "at-least-once" => Some(true),
    "at-most-once" => Some(false)
}

one_of! {
    /// What happens to a subscriber beyond its lag limit.
    LagPolicyChoice(LagPolicy), "POLICY", "a policy: \"close\", \"skip\" or \"latest\"",
    "close" => LagPolicy::Close,
    "skip" => LagPolicy::Skip,
    "latest" => LagPolicy::Latest
}

one_of! {
    /// What is promised when a message of a durable channel counts as published.
    SyncChoice(SyncPolicy), "SYNC", "a choice: \"always\", \"interval\" or \"never\"",
    "always" => SyncPolicy::Always,
    "interval" => SyncPolicy::Interval,
    "never" => SyncPolicy::Never
}

/// A place for the logs of channels, and for records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogPlace {
    /// This process, with which they end.
    Memory,
    /// The data directory.
    Disk,
    /// The stream that several nodes share.
    Nats,
}

one_of! {
    /// The journal of a channel's log.
    JournalChoice(LogPlace), "JOURNAL", "a journal: \"memory\", \"disk\" or \"nats\"",
    "memory" => LogPlace::Memory,
    "disk" => LogPlace::Disk,
    "nats" => LogPlace::Nats
}

one_of! {
    /// The journal of what the server keeps beside logs; `None` is `auto`.
    RecordsChoice(Option<LogPlace>), "JOURNAL",
    "a choice: \"auto\", \"memory\", \"disk\" or \"nats\"",
    "auto" => None,
    "memory" => Some(LogPlace::Memory),
    "disk" => Some(LogPlace::Disk),
    "nats" => Some(LogPlace::Nats)
}

one_of! {
    /// Whether several nodes share the logs, over NATS.
    EngineChoice(bool), "ENGINE", "an engine: \"memory\" or \"nats\"",
    "memory" => false,
    "nats" => true
}

one_of! {
    /// The clients that have a permission.
    WhoChoice(Who), "WHO",
    "one of \"anyone\", \"user\", \"granted\" (by the token) and \"nobody\" (server keys only)",
    "anyone" => Who::Anyone,
    "user" => Who::User,
    "granted" => Who::Granted,
    "nobody" => Who::Nobody
}

one_of! {
    /// Whether the log is JSON.
    LogFormatChoice(bool), "FORMAT", "a format: \"text\" or \"json\"",
    "text" => false,
    "json" => true
}

one_of! {
    /// Whether fan-outs go through io_uring.
    IoUringChoice(IoUringSetting), "WHEN", "a choice: \"auto\", \"on\" or \"off\"",
    "auto" => IoUringSetting::Auto,
    "on" => IoUringSetting::On,
    "off" => IoUringSetting::Off
}

one_of! {
    /// Whether connections begin with a PROXY header.
    ProxyProtocolChoice(bool), "always|never", "a choice: \"always\" or \"never\"",
    "always" => true,
    "never" => false
}

one_of! {
    /// The header in which proxies name the client, if they do.
    AddressHeaderChoice(Option<ForwardedHeader>), "HEADER",
    "a header: \"forwarded\", \"x-forwarded-for\" or \"none\"",
    "none" => None,
    "forwarded" => Some(ForwardedHeader::Forwarded),
    "x-forwarded-for" => Some(ForwardedHeader::XForwardedFor)
}

one_of! {
    /// The lowest version of TLS.
    TlsVersionChoice(LeastVersion), "VERSION", "a version of TLS: \"1.2\" or \"1.3\"",
    "1.2" => LeastVersion::Tls12,
    "1.3" => LeastVersion::Tls13
}

one_of! {
    /// Whether clients must show a certificate.
    ClientCertificateChoice(bool), "CHOICE", "a choice: \"required\" or \"optional\"",
    "required" => true,
    "optional" => false
}

one_of! {
    /// What in a client's certificate names the user; `None` if nothing does.
    ClientUserChoice(Option<UserField>), "FIELD",
    "a choice: \"none\", \"cn\", \"dns\", \"email\" or \"uri\"",
    "none" => None,
    "cn" => Some(UserField::CommonName),
    "dns" => Some(UserField::Dns),
    "email" => Some(UserField::Email),
    "uri" => Some(UserField::Uri)
}

one_of! {
    /// Whether the demo is served; `None` is `auto`.
    DemoChoice(Option<bool>), "WHEN", "a choice: \"auto\", \"on\" or \"off\"",
    "auto" => None,
    "on" => Some(true),
    "off" => Some(false)
}

one_of! {
    /// The least severe messages that are logged.
    LogLevel(tracing::Level), "LEVEL",
    "a level: \"error\", \"warn\", \"info\", \"debug\" or \"trace\"",
    "error" => tracing::Level::ERROR,
    "warn" => tracing::Level::WARN,
    "info" => tracing::Level::INFO,
    "debug" => tracing::Level::DEBUG,
    "trace" => tracing::Level::TRACE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_may_be_left_to_the_machine() {
        for (text, expected) in [
            ("auto", None),
            ("AUTO", None),
            ("12", Some(12)),
            ("1M", Some(1_000_000)),
            ("1,000,000", Some(1_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(AutoCount(expected)), "{text}");
        }
        for bad in ["0", "0k", "-1", "", "automatic", "1.5"] {
            assert!(bad.parse::<AutoCount>().is_err(), "{bad}");
        }
    }

    #[test]
    fn cookies_have_plain_names() {
        for (text, expected) in [("none", None), ("__Host-throng", Some("__Host-throng"))] {
            assert_eq!(text.parse(), Ok(CookieName(expected.map(str::to_owned))));
        }
        for bad in ["", "a b", "a;b", "a=b", &"a".repeat(65), "é"] {
            assert!(bad.parse::<CookieName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_path_is_relative_to_the_file_of_settings() {
        let path = |text: &str| text.parse::<OptionalPath>().unwrap();
        let placed = |text| path(text).placed(Path::new("/etc/throng")).to_string();
        assert_eq!(placed("revoked"), "/etc/throng/revoked");
        assert_eq!(placed("/var/revoked"), "/var/revoked");
        assert_eq!(placed("None"), "none");
        assert!("".parse::<OptionalPath>().is_err());
    }

    #[test]
    fn a_control_socket_is_at_a_path_or_found_or_missing() {
        let placed = |text: &str| {
            let choice = text.parse::<ControlChoice>().unwrap();
            choice.placed(Path::new("/etc/throng")).to_string()
        };
        assert_eq!(placed("a.sock"), "/etc/throng/a.sock");
        assert_eq!((placed("Auto"), placed("none")), ("auto".into(), "none".into()));
        assert!(" ".parse::<ControlChoice>().is_err());
    }

    #[test]
    fn an_optional_address_may_be_none() {
        assert_eq!("None".parse(), Ok(OptionalAddress(None)));
        let address: OptionalAddress = "9090".parse().unwrap();
        assert_eq!(address.to_string(), "127.0.0.1:9090");
        assert!("nowhere".parse::<OptionalAddress>().is_err());
    }

    #[test]
    fn an_error_names_the_accepted_words() {
        let error = "drop".parse::<LagPolicyChoice>().unwrap_err();
        assert_eq!(error.0, "\"drop\" is not a policy: \"close\", \"skip\" or \"latest\"");
        assert_eq!("skip".parse::<LagPolicyChoice>().unwrap().to_string(), "skip");
    }
}
