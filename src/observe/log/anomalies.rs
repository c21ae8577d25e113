//! The warnings and errors of late, counted by what they say, for whoever looks at the dashboard instead of the log.

use std::collections::VecDeque;
use std::sync::Mutex;

use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::line::Fields;

/// Different ones that are kept; the one that came longest ago makes room.
const KINDS_MAX: usize = 32;
/// Longest text of the fields, in bytes.
const DETAIL_BYTES_MAX: usize = 300;

/// A warning or error, and how often it came.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Anomaly {
    /// WARN or ERROR.
    pub level: &'static str,
    /// Which part said it.
    pub target: &'static str,
    /// What it said.
    pub message: String,
    /// The fields of the last one.
    pub detail: String,
    /// How often since it first came.
    pub count: u64,
    /// When it last came, Unix milliseconds.
    pub last_ms: u64,
}

/// Latest last.
static RECENT: Mutex<VecDeque<Anomaly>> = Mutex::new(VecDeque::new());

/// The warnings and errors of late, latest first.
pub fn recent() -> Vec<Anomaly> {
    RECENT.lock().map(|recent| recent.iter().rev().cloned().collect()).unwrap_or_default()
}

/// Keeps them.
pub(super) struct Watch;

impl<S: Subscriber> Layer<S> for Watch {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        // A shard waits for nobody: where another one writes at this very moment, this one is not counted. The log has it.
        if let Ok(mut recent) = RECENT.try_lock() {
            let mut fields = Fields::default();
            event.record(&mut fields);
            let text = |value: serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let message = fields.0.remove("message").map(text).unwrap_or_default();
            let detail: Vec<String> =
                fields.0.into_iter().map(|(name, value)| format!("{name}={}", text(value))).collect();
            let metadata = event.metadata();
            let new = Anomaly {
                level: metadata.level().as_str(),
                target: metadata.target(),
                message,
                detail: shortened(detail.join(" ")),
                count: 1,
                last_ms: shards::unix_micros() / 1_000,
            };
            note(&mut recent, new);
        }
    }
}

fn note(recent: &mut VecDeque<Anomaly>, mut new: Anomaly) {
    let same = |known: &Anomaly| (known.target, &known.message) == (new.target, &new.message);
    if let Some(known) = recent.iter().position(same).and_then(|at| recent.remove(at)) {
        new.count += known.count;
    } else if recent.len() >= KINDS_MAX {
        recent.pop_front();
    }
    recent.push_back(new);
}

fn shortened(mut text: String) -> String {
    if text.len() > DETAIL_BYTES_MAX {
        let end = (0..=DETAIL_BYTES_MAX).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("..");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anomaly(message: &str) -> Anomaly {
        Anomaly { level: "WARN", target: "t", message: message.to_owned(), detail: String::new(), count: 1, last_ms: 0 }
    }

    #[test]
    fn the_same_is_counted_and_the_oldest_makes_room() {
        let mut recent = VecDeque::new();
        for message in ["one", "two", "one"] {
            note(&mut recent, anomaly(message));
        }
        let shown: Vec<_> = recent.iter().map(|known| (known.message.as_str(), known.count)).collect();
        assert_eq!(shown, [("two", 1), ("one", 2)]);
        (0..KINDS_MAX - 1).for_each(|number| note(&mut recent, anomaly(&number.to_string())));
        assert_eq!((recent.len(), recent[0].message.as_str()), (KINDS_MAX, "one"));
    }

    #[test]
    fn long_fields_are_cut_between_characters() {
        assert_eq!(shortened("short".to_owned()), "short");
        let cut = shortened("\u{e9}".repeat(400));
        assert_eq!((cut.len(), cut.ends_with("..")), (DETAIL_BYTES_MAX + 2, true));
    }
}
