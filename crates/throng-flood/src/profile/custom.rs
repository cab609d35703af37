//! No server in particular: the URL as it was given, and what the flags or the file say.

use super::{Choice, ProfileError};
use crate::plan::{Target, Transport};

pub(super) fn target(choice: &Choice<'_>) -> Result<Target, ProfileError> {
    let mut room = String::new();
    let address = choice.address(&mut room)?;
    let is_websocket = address.scheme.eq_ignore_ascii_case("ws");
    let transport = match choice.transport {
        Some(transport) => transport,
        None if is_websocket => Transport::WebSocket,
        None => {
            let what = "say how messages come: websocket, sse, stream or long-poll (--transport)";
            return Err(ProfileError::Url(format!("of {:?} nothing is known: {what}", choice.url)));
        }
    };
    if let Some(channel) = choice.channel {
        return Err(ProfileError::Channel(format!(
            "the profile custom does not know where the channel {channel:?} belongs: write it into \
             the URL or the hello message"
        )));
    }
    choice.connect(transport, &address, "/")
}
