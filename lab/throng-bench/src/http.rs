//! Single requests to a server.

use std::time::Duration;

use ureq::{Agent, Body};

/// A client that keeps its connections.
#[derive(Debug, Clone)]
pub(crate) struct Http(Agent);

impl Http {
    /// A client whose requests may take `timeout` each.
    pub(crate) fn new(timeout: Duration) -> Http {
        let config = Agent::config_builder().proxy(None).http_status_as_error(false);
        Http(config.timeout_global(Some(timeout)).build().into())
    }

    /// The body of a response, whatever its status.
    pub(crate) fn get_any(&self, url: &str) -> Result<String, String> {
        let mut response = self.0.get(url).call().map_err(|error| error.to_string())?;
        response.body_mut().read_to_string().map_err(|error| error.to_string())
    }

    /// The body of a response; a status of an error is an error.
    pub(crate) fn get(&self, url: &str) -> Result<String, String> {
        body(self.0.get(url).call())
    }

    /// [`get`](Self::get) with another method and a body; `key` is a server key.
    pub(crate) fn post(&self, url: &str, text: &[u8], key: Option<&str>) -> Result<String, String> {
        let mut request = self.0.post(url).content_type("text/plain");
        if let Some(key) = key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        body(request.send(text))
    }
}

fn body(response: Result<ureq::http::Response<Body>, ureq::Error>) -> Result<String, String> {
    /// Characters of a refusal that are shown.
    const SHOWN_MAX: usize = 300;
    let mut response = response.map_err(|error| error.to_string())?;
    let status = response.status();
    let text = response.body_mut().read_to_string().map_err(|error| error.to_string())?;
    if status.is_success() {
        return Ok(text);
    }
    Err(format!("{status}: {}", text.chars().take(SHOWN_MAX).collect::<String>()))
}
