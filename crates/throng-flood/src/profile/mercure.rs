//! A Mercure hub: SSE at `/.well-known/mercure?match=TOPIC`, publishing by a form.
//!
//! The hub must let anonymous clients subscribe, or be given a subscriber's token in a header;
//! publishing takes a publisher's token in any case. Hubs before version 1 ask for `topic=`, and
//! either refuses the other's word.

use super::{Choice, Profile, ProfileError, post};
use crate::plan::{Target, Transport};

const PATH: &str = "/.well-known/mercure";

pub(super) fn target(
    choice: &Choice<'_>,
    profile: Profile,
    key: &str,
) -> Result<Target, ProfileError> {
    let transport = choice.transport_among(profile, &[Transport::Sse])?;
    let mut room = String::new();
    let address = choice.address(&mut room)?;
    let channel = choice.channel();
    if channel.contains(['&', '=', '+', '%', '#', ' ']) {
        return Err(ProfileError::Channel(format!(
            "the topic {channel:?} would have to be escaped in a form: use other characters"
        )));
    }
    let hub = address.path.split('?').next().filter(|path| !path.is_empty()).unwrap_or(PATH);
    let topics = format!("{key}={}", choice.channels(&format!("&{key}=")));
    let mut target = choice.connect(transport, &address, &format!("{PATH}?{topics}"))?;
    if !address.path.is_empty() && !address.path.contains('?') {
        target.url = choice.template(&format!("{}?{topics}", choice.url))?;
    }
    let body = choice.template(&format!("topic={channel}&data={{payload}}"))?;
    let headers = [("Content-Type", "application/x-www-form-urlencoded")];
    target.publish = Some(post(choice.template(&address.http(hub))?, &headers, body));
    Ok(target)
}
