//! A plain WebSocket server that sends what one client says to all of them, as examples of `ws`,
//! Bun, uWebSockets and most frameworks do. The publisher is one more client.

use super::{Choice, Profile, ProfileError};
use crate::plan::{PublishBy, PublishTarget, Target, Transport};
use crate::template::Template;

pub(super) fn target(choice: &Choice<'_>) -> Result<Target, ProfileError> {
    let transport = choice.transport_among(Profile::WebSocket, &[Transport::WebSocket])?;
    let mut room = String::new();
    let address = choice.address(&mut room)?;
    if let Some(channel) = choice.channel {
        return Err(ProfileError::Channel(format!(
            "a plain WebSocket server has no channels, so there is no channel {channel:?}; if it \
             takes one from the URL, write the URL"
        )));
    }
    let mut target = choice.connect(transport, &address, "/")?;
    target.publish = Some(PublishTarget {
        by: PublishBy::WebSocket { frame: Template::parse("{payload}")? },
        connections: 1,
        pipeline: 1,
        refused: None,
    });
    Ok(target)
}
