//! A hash as `DUMP` would give it, for `RESTORE`.
//!
//! One `RESTORE` writes a whole hash with its expiry, where `HSET` and `PEXPIREAT` look the key up twice and insert field by
//! field. The bytes are those of Redis 7.0, which every later version and Valkey read (they accept older RDB versions):
//!
//! ```text
//! 16                 RDB_TYPE_HASH_LISTPACK
//! length, listpack   the hash: u32 bytes in all, u16 elements, elements, 0xff
//! 10 00              RDB version of Redis 7.0
//! u64                CRC-64 (Jones) of everything before
//! ```
//!
//! An element is a string: its length (6 or 12 bits, or 32), its bytes, and how long that was, readable from behind.
//! Sources: `rdb.h`, `listpack.c`, `crc64.c` and `cluster.c` (`createDumpPayload`) of Redis 7.0.

const RDB_TYPE_HASH_LISTPACK: u8 = 16;
const RDB_VERSION: u16 = 10;
/// Total bytes and number of elements stand before the elements, an end mark behind them.
const LISTPACK_HEADER: usize = 6;
const LISTPACK_END: u8 = 0xff;

/// Appends the dump of a hash with these fields, in this order. Names must differ from each other.
///
/// Redis keeps a hash as a listpack up to `hash-max-listpack-entries` (128) fields of `hash-max-listpack-value` (64) bytes, and
/// converts one that is larger by itself.
///
/// # Panics
/// With 2^15 fields or more; they would not fit the format's counter.
pub fn hash<'a>(out: &mut Vec<u8>, fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) {
    let mut listpack = vec![0; LISTPACK_HEADER];
    let mut elements = 0_u16;
    for (name, value) in fields {
        element(&mut listpack, name);
        element(&mut listpack, value);
        elements = elements.checked_add(2).filter(|count| *count < u16::MAX).expect("fewer than 2^15 fields");
    }
    listpack.push(LISTPACK_END);
    let total = u32::try_from(listpack.len()).expect("a hash below 4 GiB");
    listpack[..4].copy_from_slice(&total.to_le_bytes());
    listpack[4..6].copy_from_slice(&elements.to_le_bytes());

    let start = out.len();
    out.push(RDB_TYPE_HASH_LISTPACK);
    rdb_length(out, total);
    out.extend_from_slice(&listpack);
    out.extend_from_slice(&RDB_VERSION.to_le_bytes());
    let crc = crc64(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// A length in RDB: 6 bits, 14 bits or 32.
fn rdb_length(out: &mut Vec<u8>, length: u32) {
    let bytes = length.to_be_bytes();
    match length {
        0..64 => out.push(bytes[3]),
        64..16_384 => out.extend_from_slice(&[0x40 | bytes[2], bytes[3]]),
        _ => {
            out.push(0x80);
            out.extend_from_slice(&bytes);
        }
    }
}

/// A string element of a listpack.
fn element(out: &mut Vec<u8>, text: &[u8]) {
    let start = out.len();
    let length = u32::try_from(text.len()).expect("a field below 4 GiB");
    let bytes = length.to_le_bytes();
    match length {
        0..64 => out.push(0x80 | bytes[0]),
        64..4_096 => out.extend_from_slice(&[0xe0 | bytes[1], bytes[0]]),
        _ => {
            out.push(0xf0);
            out.extend_from_slice(&bytes);
        }
    }
    out.extend_from_slice(text);
    back_length(out, out.len() - start);
}

/// How long an element was, seven bits a byte, most significant first; all but the first have the top bit set.
fn back_length(out: &mut Vec<u8>, length: usize) {
    let groups = (1..5).find(|groups| length < 1 << (7 * groups)).unwrap_or(5);
    for group in (0..groups).rev() {
        let bits = (length >> (7 * group)) as u8 & 0x7f;
        out.push(if group + 1 == groups { bits } else { bits | 0x80 });
    }
}

/// CRC-64 by Jones, reflected, as Redis has it: polynomial 0xad93d23594c935a9, no initial value, nothing added at the end.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| CRC64[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

static CRC64: [u64; 256] = {
    const REFLECTED: u64 = 0xad93_d235_94c9_35a9_u64.reverse_bits();
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { REFLECTED ^ (crc >> 1) } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value that Redis itself tests with.
    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn a_small_hash_byte_by_byte() {
        let mut dump = Vec::new();
        hash(&mut dump, [(&b"a"[..], &b"xyz"[..])]);
        let listpack = [15, 0, 0, 0, 2, 0, 0x81, b'a', 2, 0x83, b'x', b'y', b'z', 4, 0xff];
        assert_eq!(dump[..2], [16, 15]);
        assert_eq!(dump[2..17], listpack);
        assert_eq!(dump[17..19], [10, 0]);
        assert_eq!(dump.len(), 27);
    }

    #[test]
    fn lengths_read_from_behind() {
        for (length, expected) in
            [(5, &[5][..]), (127, &[127]), (128, &[1, 0x80]), (300, &[2, 0xac]), (16_384, &[1, 0x80, 0x80])]
        {
            let mut out = Vec::new();
            back_length(&mut out, length);
            assert_eq!(out, expected, "{length}");
        }
    }
}
