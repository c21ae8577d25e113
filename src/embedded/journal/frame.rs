//! A frame: one commit of the journal.
//!
//! ```text
//! 0   u32  length of the payload, 1..=PAYLOAD_MAX
//! 4   u64  sequence number, from 1, one more each frame
//! 12  u32  CRC-32C (RFC 3720 appendix B.4) of the twelve bytes before and the payload
//! 16  payload
//! ```
//!
//! Numbers are little-endian. A frame is written in one piece and only one is ever under way, so a crash can tear no
//! frame but the last; a damaged frame with a whole one behind it was damaged later.

/// Bytes before the payload.
pub(super) const HEADER: usize = 16;
/// The longest payload.
pub const PAYLOAD_MAX: usize = 4 << 20;

/// A frame in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    /// Its number.
    pub(super) sequence: u64,
    /// What it holds.
    pub(super) payload: &'a [u8],
}

impl Frame<'_> {
    /// Bytes it takes in all.
    pub(super) fn len(&self) -> usize {
        HEADER + self.payload.len()
    }
}

/// Appends a frame to `out`.
///
/// # Panics
/// When the payload is empty or longer than [`PAYLOAD_MAX`]: the writer bounds its commits.
pub(super) fn encode(out: &mut impl bytes::BufMut, sequence: u64, payload: &[u8]) {
    assert!(!payload.is_empty() && payload.len() <= PAYLOAD_MAX, "a payload of {} bytes", payload.len());
    let mut head = [0; HEADER];
    head[..4].copy_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    head[4..12].copy_from_slice(&sequence.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..12]), payload);
    head[12..].copy_from_slice(&crc.to_le_bytes());
    out.put_slice(&head);
    out.put_slice(payload);
}

/// The frame at the front of `bytes`; `None` when there is no whole and sound one.
pub(super) fn decode(bytes: &[u8]) -> Option<Frame<'_>> {
    let head = bytes.get(..HEADER)?;
    let len = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    if len == 0 || len > PAYLOAD_MAX {
        return None;
    }
    let payload = bytes.get(HEADER..HEADER + len)?;
    let crc = u32::from_le_bytes(head[12..].try_into().ok()?);
    if crc32c::crc32c_append(crc32c::crc32c(&head[..12]), payload) != crc {
        return None;
    }
    Some(Frame { sequence: u64::from_le_bytes(head[4..12].try_into().ok()?), payload })
}

/// Where behind the front of `bytes` the next sound frame with a number in `numbers` begins, whatever lies before it.
pub(super) fn find(bytes: &[u8], numbers: std::ops::RangeInclusive<u64>) -> Option<(usize, u64)> {
    (1..bytes.len().saturating_sub(HEADER)).find_map(|at| {
        let sequence = u64::from_le_bytes(bytes[at + 4..at + 12].try_into().ok()?);
        if !numbers.contains(&sequence) {
            return None;
        }
        decode(&bytes[at..]).map(|frame| (at, frame.sequence))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Vec<u8> {
        let mut bytes = Vec::new();
        for (sequence, payload) in [(7, &b"first"[..]), (8, b"second"), (9, b"third")] {
            encode(&mut bytes, sequence, payload);
        }
        bytes
    }

    #[test]
    fn frames_are_read_back() {
        let bytes = three();
        let first = decode(&bytes).unwrap();
        assert_eq!(first, Frame { sequence: 7, payload: b"first" });
        assert_eq!(decode(&bytes[first.len()..]).unwrap(), Frame { sequence: 8, payload: b"second" });
        assert_eq!(decode(&[0; 64]), None);
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_seen() {
        let bytes = three();
        let len = decode(&bytes).unwrap().len();
        for cut in 0..len {
            assert_eq!(decode(&bytes[..cut]), None, "cut at {cut}");
        }
        for bit in 0..len * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&flipped), None, "bit {bit}");
            assert_eq!(find(&flipped, 8..=100), Some((len, 8)), "bit {bit}");
        }
    }
}
