//! W3C Trace Context (<https://www.w3.org/TR/trace-context/>): which trace a request belongs to.

use crate::domain;

/// `00-` trace-id `-` parent-id `-` flags.
const TEXT_LEN: usize = 55;
/// Longest tracestate passed on (section 3.3.1.5).
const TRACESTATE_BYTES_MAX: usize = 512;
/// Most members of a tracestate (section 3.3.1.1).
const TRACESTATE_MEMBERS_MAX: usize = 32;

/// A span of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace; never all zero.
    pub trace_id: [u8; 16],
    /// The span; never all zero.
    pub span_id: [u8; 8],
    /// Bit 0: sampled.
    pub flags: u8,
}

/// Lower-case hexadecimal only (section 3.2.2.3).
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

impl TraceContext {
    /// Reads a traceparent; `None` when it is not valid and a new trace has to be started.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let fixed = text.get(..TEXT_LEN)?;
        let [version] = hex::<1>(&fixed[..2])?;
        let dashes = [fixed[2], fixed[35], fixed[52]] == [b'-'; 3];
        // Version 0 ends here; a later one may go on behind a dash. 255 is no version.
        let end = text.len() == TEXT_LEN || (version > 0 && text[TEXT_LEN] == b'-');
        if version == 0xff || !dashes || !end {
            return None;
        }
        let context =
            Self { trace_id: hex(&fixed[3..35])?, span_id: hex(&fixed[36..52])?, flags: hex::<1>(&fixed[53..])?[0] };
        (context.trace_id != [0; 16] && context.span_id != [0; 8]).then_some(context)
    }

    /// A new trace from random numbers, not sampled: nobody has asked for it.
    pub fn start(random: (u64, u64), span: u64) -> Self {
        let mut trace_id = [0; 16];
        trace_id[..8].copy_from_slice(&random.0.to_be_bytes());
        // Only the one value that is not allowed is changed.
        trace_id[8..].copy_from_slice(&random.1.max(1).to_be_bytes());
        Self { trace_id, span_id: span.max(1).to_be_bytes(), flags: 0 }
    }

    /// A span of its own in the same trace.
    pub fn child(self, span: u64) -> Self {
        // Flags beyond those of version 0 mean nothing to us and must be sent as zero.
        Self { span_id: span.max(1).to_be_bytes(), flags: self.flags & 1, ..self }
    }

    /// The traceparent, version 0.
    pub fn text(&self) -> String {
        use std::fmt::Write as _;
        let mut text = String::with_capacity(TEXT_LEN);
        text.push_str("00-");
        let mut put = |bytes: &[u8], end: &str| {
            for byte in bytes {
                // Writing to a String cannot fail.
                let _ = write!(text, "{byte:02x}");
            }
            text.push_str(end);
        };
        put(&self.trace_id, "-");
        put(&self.span_id, "-");
        put(&[self.flags], "");
        text
    }

    /// As the order event carries it, with the caller's tracestate where that is valid.
    pub fn to_event(self, tracestate: Option<&[u8]>) -> domain::TraceContext {
        let tracestate = tracestate.and_then(|text| std::str::from_utf8(text).ok()).filter(|text| is_tracestate(text));
        domain::TraceContext { traceparent: self.text(), tracestate: tracestate.unwrap_or_default().to_owned() }
    }
}

/// Whether a tracestate may be passed on (section 3.3.1).
pub fn is_tracestate(text: &str) -> bool {
    let members = || text.split(',').map(str::trim).filter(|member| !member.is_empty());
    let keys_differ = members().enumerate().all(|(index, member)| {
        let key = member.split('=').next();
        members().take(index).all(|earlier| earlier.split('=').next() != key)
    });
    text.len() <= TRACESTATE_BYTES_MAX
        && members().count() <= TRACESTATE_MEMBERS_MAX
        && members().all(is_member)
        && keys_differ
}

fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else { return false };
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
    let begins = key.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let key_sound = begins && key.len() <= 256 && key.bytes().all(allowed) && key.matches('@').count() <= 1;
    let printable = |byte: u8| (0x20..=0x7e).contains(&byte) && !b",=".contains(&byte);
    key_sound && (1..=256).contains(&value.len()) && value.bytes().all(printable) && !value.ends_with(' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_parent_is_read_and_written() {
        let context = TraceContext::parse(GOOD.as_bytes()).unwrap();
        assert_eq!((context.text().as_str(), context.flags), (GOOD, 1));
        let later = format!("cc{}-what-the-future-brings", &GOOD[2..]);
        assert_eq!(TraceContext::parse(later.as_bytes()), Some(context));
        let child = TraceContext { flags: 0xff, ..context }.child(0);
        assert_eq!((child.trace_id, child.span_id, child.flags), (context.trace_id, [0, 0, 0, 0, 0, 0, 0, 1], 1));
    }

    #[test]
    fn anything_else_starts_a_new_trace() {
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.more",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(bad.as_bytes()), None, "{bad}");
        }
        let fresh = TraceContext::start((0, 0), 0);
        assert_eq!(TraceContext::parse(fresh.text().as_bytes()), Some(fresh));
    }

    #[test]
    fn only_a_valid_tracestate_is_passed_on() {
        let context = TraceContext::parse(GOOD.as_bytes()).unwrap();
        for (state, passed) in [
            ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", true),
            ("fw529a3039@dt=FfAAAA, a=b", true),
            ("", true),
            ("A=b", false),
            ("a=", false),
            ("a", false),
            ("a=1,a=2", false),
            ("a=x=y", false),
            ("a=b\u{e9}", false),
        ] {
            let sent = context.to_event(Some(state.as_bytes())).tracestate;
            assert_eq!(sent, if passed { state } else { "" }, "{state}");
        }
        let many: Vec<String> = (0..33).map(|index| format!("k{index}=v")).collect();
        assert!(is_tracestate(&many[..32].join(",")) && !is_tracestate(&many.join(",")));
        assert_eq!(context.to_event(Some(&[0xff])).tracestate, "");
        assert_eq!(context.to_event(None).traceparent, GOOD);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(trace in any::<(u64, u64)>(), span in any::<u64>()) {
            let context = TraceContext::start(trace, span);
            prop_assert_eq!(TraceContext::parse(context.text().as_bytes()), Some(context));
        }

        #[test]
        fn any_bytes_give_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..70)) {
            if let Some(context) = TraceContext::parse(&bytes) {
                prop_assert!(context.trace_id != [0; 16]);
            }
        }
    }
}
