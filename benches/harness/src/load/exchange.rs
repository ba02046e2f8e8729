//! A repeated request, and the check of its responses.

use std::sync::OnceLock;

use memchr::memmem;
use serde_json::Value;

use super::connection::Response;

/// A request, and the check of its response.
pub(crate) struct Exchange {
    request: Vec<u8>,
    id_at: usize,
    want: Want,
    /// The first response that was parsed and found right.
    known: OnceLock<Known>,
}

/// Expected content of a result.
#[derive(Debug, Clone)]
pub(crate) enum Want {
    /// Exactly this text: of a prompt's one message, or of a call's one content.
    Text(String),
    /// A page of `prompts` with this number of items.
    Prompts(usize),
    /// Any result.
    Anything,
}

/// A right response, and the place of its id.
struct Known {
    body: Vec<u8>,
    id_at: usize,
}

/// Number of digits of all ids, so that every request and every response has one length.
const ID_DIGITS: usize = 10;
/// Smallest id.
pub(crate) const FIRST_ID: u64 = 1_000_000_000;

impl Exchange {
    /// Renders a POST of this message, whose id is [`FIRST_ID`], with these lines in its head.
    pub(crate) fn new(head: &str, message: &str, want: Want) -> Self {
        let length = message.len();
        let request = format!("{head}content-length: {length}\r\n\r\n{message}").into_bytes();
        let id = format!("\"id\":{FIRST_ID}");
        let id_at = memmem::find(&request, id.as_bytes()).map_or(0, |at| at + 5);
        Self { request, id_at, want, known: OnceLock::new() }
    }

    /// Writes the request with an id into a reused buffer.
    pub(crate) fn write(&self, id: u64, buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.extend_from_slice(&self.request);
        if self.id_at > 0 {
            buffer[self.id_at..self.id_at + ID_DIGITS].copy_from_slice(&digits(id));
        }
    }

    /// Checks that this is the right response.
    pub(crate) fn check(&self, id: u64, response: &Response<'_>) -> Result<(), String> {
        let Response { status, head: _, body } = *response;
        if status == 200 && self.known.get().is_some_and(|known| known.is(id, body)) {
            return Ok(());
        }
        self.read(id, status, body)?;
        let text = digits(id);
        let places: Vec<_> = memmem::find_iter(body, &text).collect();
        if let [id_at] = places[..] {
            // If several connections race, any of their responses will do.
            let _ = self.known.set(Known { body: body.to_vec(), id_at });
        }
        Ok(())
    }

    /// Parses and checks the whole response.
    fn read(&self, id: u64, status: u16, body: &[u8]) -> Result<(), String> {
        let shown = || String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
        if status != 200 {
            return Err(format!("status {status}: {}", shown()));
        }
        let message = message(body, id).ok_or_else(|| format!("no answer to {id}: {}", shown()))?;
        if let Some(error) = message.get("error") {
            return Err(format!("an error: {error}"));
        }
        let result = &message["result"];
        if !result.is_object() {
            return Err(format!("no result: {}", shown()));
        }
        match &self.want {
            Want::Anything => Ok(()),
            Want::Text(_) if result["isError"] == true => {
                Err(format!("a failed call: {}", shown()))
            }
            Want::Text(text) => {
                let of_prompt = &result["messages"][0]["content"]["text"];
                let found = of_prompt.as_str().or(result["content"][0]["text"].as_str());
                match found == Some(text) {
                    true => Ok(()),
                    false => Err(format!("another content than {:.20}…: {}", text, shown())),
                }
            }
            Want::Prompts(count) => {
                let items = result["prompts"].as_array().map_or(0, Vec::len);
                let is_whole = result["_meta"]["weir/partial"].is_null();
                match items == *count && is_whole {
                    true => Ok(()),
                    false => Err(format!("{items} prompts instead of {count}: {}", shown())),
                }
            }
        }
    }
}

impl Known {
    fn is(&self, id: u64, body: &[u8]) -> bool {
        let (from, to) = (self.id_at, self.id_at + ID_DIGITS);
        body.len() == self.body.len()
            && body[from..to] == digits(id)
            && body[..from] == self.body[..from]
            && body[to..] == self.body[to..]
    }
}

/// Response to this id in a body: the body itself, or an event in it.
pub(crate) fn message(body: &[u8], id: u64) -> Option<Value> {
    let is_it = |message: &Value| message["id"] == id && message["jsonrpc"] == "2.0";
    if let Ok(message) = serde_json::from_slice::<Value>(body) {
        return is_it(&message).then_some(message);
    }
    let text = std::str::from_utf8(body).ok()?;
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let mut messages = data.filter_map(|data| serde_json::from_str::<Value>(data.trim()).ok());
    messages.find(is_it)
}

fn digits(mut id: u64) -> [u8; ID_DIGITS] {
    let mut digits = [b'0'; ID_DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (id % 10) as u8;
        id /= 10;
    }
    digits
}
