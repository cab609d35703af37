//! The servers that have copies of a stream, beside the one that leads it.

use serde::Serialize;
use serde_json::Value;
use throng_units::format::count;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct NatsPeer {
    pub(crate) name: String,
    #[serde(rename = "offline")]
    pub(crate) is_offline: bool,
    #[serde(rename = "current")]
    pub(crate) is_current: bool,
    /// Operations that it lacks.
    pub(crate) lag: u64,
}

impl NatsPeer {
    /// All that an answer about a stream names.
    pub(crate) fn all(answer: &Value) -> Vec<NatsPeer> {
        let is = |value: &Value| value.as_bool().unwrap_or(false);
        let peers = answer["cluster"]["replicas"].as_array().into_iter().flatten();
        let peers = peers.map(|peer| NatsPeer {
            name: peer["name"].as_str().unwrap_or_default().to_owned(),
            is_offline: is(&peer["offline"]),
            is_current: is(&peer["current"]),
            lag: peer["lag"].as_u64().unwrap_or(0),
        });
        peers.collect()
    }

    /// A fault of it, in a sentence that begins with its name.
    pub(crate) fn fault(&self) -> Option<String> {
        let state = match (self.is_offline, self.is_current) {
            (true, _) => "is offline",
            (false, false) => "is not up to date",
            (false, true) => return None,
        };
        Some(format!("{} {state}, {} behind", self.name, count(self.lag)))
    }
}
