//! The lines of a conversation.

use serde::{Deserialize, Serialize};

/// The longest line. Requests are a few words, and an answer names at most all settings.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// The request of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "request",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case",
    deny_unknown_fields
)]
pub(crate) enum Request {
    /// Say which server this is.
    About,
    /// Read the settings again.
    Reload,
    /// Ask the clients to leave, then end.
    Drain {
        /// Clients that come back a second; without, as many as servers like this one accept.
        return_rate: Option<u64>,
        /// The time after which the server ends with those who are left.
        deadline_ms: u64,
    },
    CancelDrain,
    /// Copy the data directory as it is now.
    Backup {
        /// The directory to make, by its absolute path.
        directory: String,
    },
    /// Start a new process that takes over.
    Upgrade,
}

/// A server's answer: any number of `Progress`, then one of the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub(super) enum SocketAnswer {
    /// It goes on, in one sentence for a person.
    Progress { message: String },
    /// It should be changed, although it works.
    Warning { message: String },
    /// It has succeeded.
    Done { message: String },
    /// It has failed; the command exits with `code`.
    Failed { message: String, code: u8 },
    /// The server of this socket.
    Server(About),
}

/// Which server it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) process: u32,
    /// The version of its binary.
    pub(crate) version: String,
    /// The address that it listens on.
    pub(crate) listen: String,
    /// The absolute path of its file of settings, if it has read one.
    pub(crate) settings: Option<String>,
    /// Its network namespace, if it knows: servers of two namespaces may have the same address.
    #[serde(default)]
    pub(crate) network: Option<u64>,
}

/// Why a request has failed, in one sentence, and the exit code of the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) code: u8,
}

/// One line, with its end.
pub(super) fn line(value: &impl Serialize) -> Vec<u8> {
    // Fails only for maps whose keys are no texts, and there are none.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_documented() {
        let text = |value: &SocketAnswer| String::from_utf8(line(value)).unwrap();
        let failed = SocketAnswer::Failed { message: "no".into(), code: 78 };
        assert_eq!(text(&failed), "{\"answer\":\"failed\",\"message\":\"no\",\"code\":78}\n");
        let request: Request = serde_json::from_str(r#"{"request":"reload"}"#).unwrap();
        assert_eq!(request, Request::Reload);
    }
}
