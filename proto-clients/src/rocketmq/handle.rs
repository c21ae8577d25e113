//! Receipt handles: what acknowledges or hides one popped message.

use std::rc::Rc;

/// The eight fields of a receipt handle, and the plain topic it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// The topic as it was popped.
    pub topic: Rc<str>,
    /// The broker that handed it out.
    pub broker: Rc<str>,
    /// The first offset of the popped segment.
    pub start_offset: u64,
    /// When it was popped, by the broker's clock.
    pub pop_time: u64,
    /// How long it stays hidden, in milliseconds.
    pub invisible_ms: u64,
    /// The broker's revive queue.
    pub revive_queue: u32,
    /// 0 the topic itself, 1 and 2 its retry topic in the two naming schemes.
    pub mark: u8,
    /// Its queue.
    pub queue: u32,
    /// Its offset.
    pub offset: u64,
}

impl Handle {
    /// Reads the text form: `startOffset popTime invisibleTime reviveQid mark brokerName queueId msgOffset`.
    pub fn parse(text: &str, topic: &Rc<str>) -> Option<Self> {
        let fields: [&str; 8] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let [start_offset, pop_time, invisible, revive, mark, broker, queue, offset] = fields;
        Some(Self {
            topic: topic.clone(),
            broker: broker.into(),
            start_offset: start_offset.parse().ok()?,
            pop_time: pop_time.parse().ok()?,
            invisible_ms: invisible.parse().ok()?,
            revive_queue: revive.parse().ok()?,
            mark: mark.parse().ok().filter(|mark| *mark <= 2)?,
            queue: queue.parse().ok()?,
            offset: offset.parse().ok()?,
        })
    }

    /// The topic that change-invisible must name.
    pub fn real_topic(&self, group: &str) -> String {
        match self.mark {
            0 => self.topic.to_string(),
            1 => format!("%RETRY%{group}_{}", self.topic),
            _ => format!("%RETRY%{group}+{}", self.topic),
        }
    }
}

impl std::fmt::Display for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { start_offset, pop_time, invisible_ms, revive_queue, mark, broker, queue, offset, .. } = self;
        write!(f, "{start_offset} {pop_time} {invisible_ms} {revive_queue} {mark} {broker} {queue} {offset}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_goes_there_and_back() {
        let topic: Rc<str> = "t".into();
        let text = "0 1796099740234 20000 0 0 broker-a 0 1";
        assert_eq!(Handle::parse(text, &topic).unwrap().to_string(), text);
        for bad in ["", "0 1 2", "0 1 2 3 4 b 5 6", "0 1 2 3 0 b 5 x", "0 1 2 3 0 b 5 6 7"] {
            assert_eq!(Handle::parse(bad, &topic), None, "{bad}");
        }
        let retry = Handle { mark: 1, ..Handle::parse(text, &topic).unwrap() };
        assert_eq!(retry.real_topic("g"), "%RETRY%g_t");
    }
}
