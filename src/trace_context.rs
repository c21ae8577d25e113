//! W3C Trace Context, level 1 (<https://www.w3.org/TR/trace-context-1/>): which trace a request belongs to.
//!
//! Ids come from randomness that is passed in, and nothing here allocates but [`TraceContext::to_event`].

use std::fmt;

use crate::domain;

/// The longest `tracestate` that is carried on, in bytes; section 3.3.1.5 asks for at least as much.
pub const TRACESTATE_BYTES_MAX: usize = 512;
/// List members in a `tracestate`, empty ones included (section 3.3.1.1).
pub const TRACESTATE_MEMBERS_MAX: usize = 32;

/// Longest key without a tenant, and longest value (sections 3.3.1.3.1 and 3.3.1.3.2).
const PART_BYTES_MAX: usize = 256;
/// Longest tenant in `tenant@system`.
const TENANT_BYTES_MAX: usize = 241;
/// Longest system in `tenant@system`.
const SYSTEM_BYTES_MAX: usize = 14;

/// The flag of a trace that its starter records (section 3.2.2.5.1); the only one that level 1 defines.
const SAMPLED: u8 = 1;

/// One place in a trace: the trace and the span within it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The whole trace; never all zero.
    pub trace_id: [u8; 16],
    /// The span; never all zero.
    pub span_id: [u8; 8],
    /// Flags, of which only 1 (sampled) is ever set.
    pub flags: u8,
}

impl TraceContext {
    /// Length of a `traceparent` of version 00.
    pub const TEXT_LEN: usize = 55;

    /// Reads a `traceparent`. Version 00 has exactly [`Self::TEXT_LEN`] bytes; of a higher version the parts that
    /// version 00 has are taken and the rest after another dash is left alone (section 3.2.4). Version ff, capital
    /// letters and ids that are all zero are refused. Flags that level 1 does not define are dropped.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (fixed, rest) = text.split_at_checked(Self::TEXT_LEN)?;
        if [fixed[2], fixed[35], fixed[52]] != [b'-'; 3] {
            return None;
        }
        let [version] = hex(&fixed[..2])?;
        let rest_fits = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.is_empty() || rest[0] == b'-',
        };
        let [flags] = hex(&fixed[53..])?;
        let context = Self { trace_id: hex(&fixed[3..35])?, span_id: hex(&fixed[36..52])?, flags: flags & SAMPLED };
        let has_ids = context.trace_id != [0; 16] && context.span_id != [0; 8];
        (rest_fits && has_ids).then_some(context)
    }

    /// A new trace. Zero is not an id: where `random` has it, 1 is taken.
    pub fn start(random: [u64; 3], sampled: bool) -> Self {
        let [high, low, span] = random;
        let trace = (u128::from(high) << 64 | u128::from(low)).max(1);
        Self {
            trace_id: trace.to_be_bytes(),
            span_id: span.max(1).to_be_bytes(),
            flags: if sampled { SAMPLED } else { 0 },
        }
    }

    /// A span within the same trace.
    pub fn child(&self, random: u64) -> Self {
        Self { span_id: random.max(1).to_be_bytes(), ..*self }
    }

    /// Whether the starter of the trace records it.
    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The `traceparent`, version 00.
    pub fn format(&self) -> [u8; Self::TEXT_LEN] {
        let mut text = *b"00-................................-................-..";
        write_hex(&self.trace_id, &mut text[3..35]);
        write_hex(&self.span_id, &mut text[36..52]);
        write_hex(&[self.flags], &mut text[53..]);
        text
    }

    /// The trace id as lower-case hexadecimals, as answers and logs show it.
    pub fn trace_id_text(&self) -> [u8; 32] {
        let mut text = [0; 32];
        write_hex(&self.trace_id, &mut text);
        text
    }

    /// The form in which an order event carries it, with a `tracestate` that came through [`from_headers`].
    pub fn to_event(&self, tracestate: &str) -> domain::TraceContext {
        domain::TraceContext { traceparent: self.to_string(), tracestate: tracestate.to_string() }
    }

    /// Where an order event came from; `None` if it carries no valid `traceparent`.
    pub fn from_event(trace: &domain::TraceContext) -> Option<Self> {
        Self::parse(trace.traceparent.as_bytes())
    }
}

impl fmt::Display for TraceContext {
    /// The `traceparent`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.format()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceContext({self})")
    }
}

/// Where a request stands in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incoming<'a> {
    /// Its own span.
    pub context: TraceContext,
    /// The caller's span, if it sent a valid one.
    pub parent: Option<[u8; 8]>,
    /// The vendors' state that goes on with it, or empty.
    pub tracestate: &'a str,
}

/// The span of a request, and the vendors' state that goes on with it: a child of the caller's span if `traceparent`
/// is valid, else the start of a trace with `sampled` as given. `tracestate` counts only with a valid `traceparent`
/// (section 4.3) and is dropped, empty, if it is not valid itself. A field that comes twice is handed in as `None`:
/// a repeated `traceparent` is invalid, and a `tracestate` over several lines may be dropped.
pub fn from_headers<'a>(
    traceparent: Option<&[u8]>,
    tracestate: Option<&'a [u8]>,
    random: [u64; 3],
    sampled: bool,
) -> Incoming<'a> {
    match traceparent.and_then(TraceContext::parse) {
        Some(parent) => Incoming {
            context: parent.child(random[2]),
            parent: Some(parent.span_id),
            tracestate: tracestate.and_then(valid_tracestate).unwrap_or_default(),
        },
        None => Incoming { context: TraceContext::start(random, sampled), parent: None, tracestate: "" },
    }
}

/// The text itself if it is a `tracestate` of at most [`TRACESTATE_BYTES_MAX`] bytes and [`TRACESTATE_MEMBERS_MAX`]
/// members, each key once (section 3.3.1).
pub fn valid_tracestate(text: &[u8]) -> Option<&str> {
    if text.len() > TRACESTATE_BYTES_MAX {
        return None;
    }
    let mut keys: [&[u8]; TRACESTATE_MEMBERS_MAX] = [b""; TRACESTATE_MEMBERS_MAX];
    for (index, member) in text.split(|&byte| byte == b',').enumerate() {
        let member = trim(member);
        let seen = keys.get(..index)?;
        if member.is_empty() {
            // Allowed (section 3.3.1.1), so that lists can be joined without a look at them.
            keys.get_mut(index)?;
            continue;
        }
        let equals = member.iter().position(|&byte| byte == b'=')?;
        let (key, value) = (&member[..equals], &member[equals + 1..]);
        if !is_key(key) || !is_value(value) || seen.contains(&key) {
            return None;
        }
        *keys.get_mut(index)? = key;
    }
    std::str::from_utf8(text).ok()
}

/// Without spaces and tabs around it.
fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

fn is_key(key: &[u8]) -> bool {
    match key.iter().position(|&byte| byte == b'@') {
        None => key.first().is_some_and(u8::is_ascii_lowercase) && is_key_part(key, PART_BYTES_MAX),
        Some(at) => {
            let (tenant, system) = (&key[..at], &key[at + 1..]);
            is_key_part(tenant, TENANT_BYTES_MAX)
                && (tenant[0].is_ascii_lowercase() || tenant[0].is_ascii_digit())
                && is_key_part(system, SYSTEM_BYTES_MAX)
                && system[0].is_ascii_lowercase()
        }
    }
}

/// 1 to `bytes_max` bytes that may stand within a key.
fn is_key_part(part: &[u8], bytes_max: usize) -> bool {
    let allowed = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/');
    (1..=bytes_max).contains(&part.len()) && part.iter().all(allowed)
}

/// Printable ASCII without comma and equals sign, not ending with a space.
fn is_value(value: &[u8]) -> bool {
    (1..=PART_BYTES_MAX).contains(&value.len())
        && value.iter().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b',' | b'='))
        && value.last() != Some(&b' ')
}

/// Exactly `N` bytes from twice as many lower-case hexadecimals.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_chunks::<2>().0) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn write_hex(bytes: &[u8], text: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, pair) in bytes.iter().zip(text.as_chunks_mut::<2>().0) {
        *pair = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn parse(text: &str) -> Option<TraceContext> {
        TraceContext::parse(text.as_bytes())
    }

    #[test]
    fn the_example_of_the_specification() {
        let context = parse(PARENT).unwrap();
        assert_eq!(context.trace_id, 0x4bf92f3577b34da6a3ce929d0e0e4736u128.to_be_bytes());
        assert_eq!(context.span_id, 0x00f067aa0ba902b7u64.to_be_bytes());
        assert!(context.is_sampled());
        assert_eq!(context.to_string(), PARENT);
        assert_eq!(&context.trace_id_text(), b"4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(!parse(&PARENT.replace("-01", "-00")).unwrap().is_sampled());
    }

    #[test]
    fn what_is_no_traceparent() {
        let traces =
            ["0".repeat(32), "4BF92F3577B34DA6A3CE929D0E0E4736".into(), "4bf92f3577b34da6a3ce929d0e0e473g".into()];
        let bad = traces.map(|trace| PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &trace)).into_iter().chain([
            String::new(),
            PARENT[..54].into(),
            format!("{PARENT}-"),
            format!("{PARENT}-00"),
            format!("{PARENT} "),
            format!(" {PARENT}"),
            PARENT.replace("00f067aa0ba902b7", "0000000000000000"),
            PARENT.replace('-', "_"),
            PARENT.replacen("00-", "ff-", 1),
            PARENT.replacen("00-", "0-0", 1),
            PARENT.replacen("00-", "0x-", 1),
            PARENT.replacen("00-", "CC-", 1),
            PARENT.replace("-01", "-0."),
            PARENT.replace("-01", "-0A"),
        ]);
        for text in bad {
            assert_eq!(parse(&text), None, "{text:?}");
        }
    }

    #[test]
    fn higher_versions_are_read_as_far_as_they_are_known() {
        let expected = parse(PARENT);
        let higher = PARENT.replacen("00-", "cc-", 1);
        for text in [higher.clone(), format!("{higher}-"), format!("{higher}-what-the-future-will-be-like")] {
            assert_eq!(parse(&text), expected, "{text}");
            assert_eq!(parse(&text).unwrap().to_string(), PARENT, "passed on as version 00");
        }
        for text in [format!("{higher}."), format!("{higher}what-the-future-will-be-like"), higher[..54].into()] {
            assert_eq!(parse(&text), None, "{text}");
        }
    }

    #[test]
    fn flags_that_are_not_defined_are_not_passed_on() {
        assert_eq!(parse(&PARENT.replace("-01", "-ff")).unwrap().flags, 1);
        assert_eq!(parse(&PARENT.replace("-01", "-fe")).unwrap().flags, 0);
    }

    #[test]
    fn a_start_never_has_a_zero_id() {
        let context = TraceContext::start([0; 3], false);
        assert_eq!(context.to_string(), "00-00000000000000000000000000000001-0000000000000001-00");
        assert_eq!(parse(&context.to_string()), Some(context));
        assert_eq!(context.child(0).span_id, 1u64.to_be_bytes());
    }

    fn state(text: &str) -> bool {
        valid_tracestate(text.as_bytes()) == Some(text)
    }

    #[test]
    fn tracestates_that_are_carried_on() {
        for text in [
            "",
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
            "foo=1 \t , \t bar=2,\tbaz=3",
            "foo=1,,bar=2,",
            ",",
            "a-_*/9=!~ %",
            "foo= leading",
            "fw529a3039@dt=FfAAAAIDAw",
            "0tenant@system=1",
            "foo=1,bar=1",
        ] {
            assert!(state(text), "{text:?}");
        }
        assert!(state(&format!("{}=1", "z".repeat(256))));
        assert!(state(&format!("{}@{}=1", "t".repeat(241), "v".repeat(14))));
        assert!(state(&format!("a={}", "v".repeat(256))));
        let members: Vec<String> = (0..32).map(|index| format!("k{index}=1")).collect();
        assert!(state(&members.join(",")));
        assert!(!state(&format!("{},last=1", members.join(","))), "33 members");
        assert!(!state(&format!("{},", members.join(","))), "33 members, the last one empty");
        let half = format!("a={}", "v".repeat(252));
        let longest = format!("{half},b={}", "v".repeat(TRACESTATE_BYTES_MAX - half.len() - 3));
        assert!(longest.len() == TRACESTATE_BYTES_MAX && state(&longest));
        assert!(!state(&format!("{longest}v")), "513 bytes");
    }

    #[test]
    fn tracestates_that_are_dropped() {
        for text in [
            "foo",
            "=1",
            "foo=",
            "foo=,bar=1",
            "foo =1",
            "Foo=1",
            "0foo=1",
            "_foo=1",
            "foo.bar=1",
            "foo@=1",
            "@foo=1",
            "foo@@bar=1",
            "foo@bar@baz=1",
            "foo@0bar=1",
            "foo=1;bar=2",
            "foo=1=2",
            "foo=\u{e9}",
            "foo=1,foo=1",
            "foo=1,bar=2,foo=3",
            "foo=\u{7f}",
            "foo=a\tb",
            "f\u{0}=1",
        ] {
            // `;` is a character of a value: that text is one member, and its value holds an equals sign.
            assert!(!state(text), "{text:?}");
        }
        assert!(!state(&format!("{}=1", "z".repeat(257))));
        assert!(!state(&format!("{}@v=1", "t".repeat(242))));
        assert!(!state(&format!("t@{}=1", "v".repeat(15))));
        assert!(!state(&format!("a={}", "v".repeat(257))));
        assert_eq!(valid_tracestate(b"foo=\xff"), None);
    }

    #[test]
    fn a_request_joins_the_trace_of_its_caller_or_starts_one() {
        let take = |parent: &str, state| from_headers(Some(parent.as_bytes()), Some(state), [1, 2, 3], true);
        let caller = parse(PARENT).unwrap();
        let joined = take(PARENT, b"rojo=1");
        assert_eq!(joined, Incoming { context: caller.child(3), parent: Some(caller.span_id), tracestate: "rojo=1" });
        assert_eq!(joined.context.span_id, 3u64.to_be_bytes());
        assert_eq!(take(PARENT, b"Rojo=1").tracestate, "");
        let started = Incoming { context: TraceContext::start([1, 2, 3], true), parent: None, tracestate: "" };
        assert_eq!(take("nonsense", b"rojo=1"), started);
        assert_eq!(from_headers(None, None, [1, 2, 3], true), started);
    }

    #[test]
    fn an_order_event_carries_it() {
        let context = parse(PARENT).unwrap();
        let carried = context.to_event("rojo=1");
        assert_eq!((carried.traceparent.as_str(), carried.tracestate.as_str()), (PARENT, "rojo=1"));
        assert_eq!(TraceContext::from_event(&carried), Some(context));
        assert_eq!(TraceContext::from_event(&domain::TraceContext::default()), None);
    }

    proptest! {
        #[test]
        fn text_round_trips(random: [u64; 3], span: u64, sampled: bool) {
            let context = TraceContext::start(random, sampled).child(span);
            prop_assert_eq!(TraceContext::parse(&context.format()), Some(context));
            prop_assert_eq!(context.is_sampled(), sampled);
            prop_assert_eq!(context.trace_id, TraceContext::start(random, sampled).trace_id);
        }

        #[test]
        fn a_changed_traceparent_is_refused_or_means_something_else(at in 0usize..55, by: u8) {
            let mut text = PARENT.as_bytes().to_vec();
            text[at] = by;
            if let Some(context) = TraceContext::parse(&text) {
                prop_assert!(by.is_ascii_digit() || (b'a'..=b'f').contains(&by) || text == PARENT.as_bytes());
                // Versions and flags aside, what was read is what stood there.
                prop_assert_eq!(&context.format()[3..53], &text[3..53]);
            }
        }

        #[test]
        fn garbage_is_refused_without_a_panic(text in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert_eq!(TraceContext::parse(&text), None);
            prop_assert!(valid_tracestate(&text).is_none_or(|state| state.is_ascii()));
        }

        #[test]
        fn lists_of_members_are_carried_on(keys in proptest::collection::hash_set("[a-z][a-z0-9_*/-]{0,5}", 0..32), value in "[!-+.-<>-~]{1,8}") {
            let members: Vec<String> = keys.iter().map(|key| format!("{key}={value}")).collect();
            let text = members.join(" , ");
            prop_assert_eq!(state(&text), text.len() <= TRACESTATE_BYTES_MAX, "{}", text);
        }
    }
}
