//! The values of the settings of NATS.

use std::fmt;
use std::str::FromStr;

use throng_nats::client::ServerAddress;
use throng_units::{Form, Invalid, Value};

use super::lists::list;

/// Names of streams and subjects begin with it, and have limits of their own.
const PREFIX_BYTES_MAX: usize = 32;

list! {
    /// Servers of NATS.
    NatsServers, "SERVER,…",
    "a NATS server, like nats://10.0.0.1:4222, tls://nats.example.com or tls-first://10.0.0.1, \
     without a user, which nats-login has",
    read_server
}

impl NatsServers {
    /// Where each server is.
    pub(crate) fn addresses(&self) -> Vec<ServerAddress> {
        self.0.iter().filter_map(|server| ServerAddress::parse(server)).collect()
    }
}

fn read_server(text: &str) -> Option<String> {
    ServerAddress::parse(text).map(|server| server.to_string())
}

/// What names of streams and subjects begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NatsPrefix(pub(crate) String);

impl Value for NatsPrefix {
    const PLACEHOLDER: &'static str = "PREFIX";
    const EXPECTED: &'static str = "a prefix of letters, digits, `-` and `_`, at most 32";
    const FORM: Form = Form::Text;
}

impl FromStr for NatsPrefix {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<NatsPrefix, Invalid> {
        let prefix = text.trim();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if (1..=PREFIX_BYTES_MAX).contains(&prefix.len()) && prefix.bytes().all(is_plain) {
            Ok(NatsPrefix(prefix.to_owned()))
        } else {
            Err(Invalid::new(text, NatsPrefix::EXPECTED))
        }
    }
}

impl fmt::Display for NatsPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// On how many servers the stream is: a majority of them has to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NatsReplicas(pub(crate) u8);

impl Value for NatsReplicas {
    const PLACEHOLDER: &'static str = "COPIES";
    const EXPECTED: &'static str = "1, 3 or 5";
    const FORM: Form = Form::Number;
}

impl FromStr for NatsReplicas {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<NatsReplicas, Invalid> {
        let number = text.trim().parse().ok().filter(|number| [1, 3, 5].contains(number));
        number.map(NatsReplicas).ok_or_else(|| Invalid::new(text, NatsReplicas::EXPECTED))
    }
}

impl fmt::Display for NatsReplicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_a_list() {
        let servers: NatsServers = "tls://10.0.0.1, Nats.Example:4300".parse().unwrap();
        assert_eq!(servers.to_string(), "tls://10.0.0.1:4222,nats://nats.example:4300");
        assert_eq!(servers.to_string().parse(), Ok(servers.clone()));
        assert_eq!(servers.addresses().len(), 2);
        assert_eq!("none".parse::<NatsServers>(), Ok(NatsServers(Vec::new())));
        for bad in ["nats://ann:secret@a", "wss://a", "a,b/c"] {
            assert!(bad.parse::<NatsServers>().is_err(), "{bad}");
        }
    }

    #[test]
    fn replicas_have_a_majority() {
        assert_eq!(" 3".parse(), Ok(NatsReplicas(3)));
        for bad in ["", "0", "2", "4", "7", "-1", "three"] {
            assert!(bad.parse::<NatsReplicas>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_prefix_is_one_token_of_a_subject() {
        assert_eq!(" Push-1_a".parse(), Ok(NatsPrefix("Push-1_a".into())));
        for bad in ["", "a.b", "a*", ">", "a b", "é", &"a".repeat(33)] {
            assert!(bad.parse::<NatsPrefix>().is_err(), "{bad}");
        }
    }
}
