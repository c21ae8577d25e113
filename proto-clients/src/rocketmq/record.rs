//! Message records, as the broker stores and hands them out.

use std::io::Read as _;

use bytes::{Buf, Bytes};

use super::properties;

const MAGIC_V1: u32 = 0xdaa3_20a7;
const MAGIC_V2: u32 = 0xdaa3_20ab;
/// Bits of sysFlag.
const COMPRESSED: u32 = 0x1;
const BORN_HOST_V6: u32 = 0x10;
const STORE_HOST_V6: u32 = 0x20;
const COMPRESSION_TYPE: u32 = 0x700;
const ZLIB: u32 = 0x300;
/// The broker's limit on a message, which an inflated body must keep too.
const BODY_BYTES_MAX: usize = 4 << 20;

/// A stored message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its queue.
    pub queue: u32,
    /// Its place in the queue.
    pub queue_offset: u64,
    /// Its place in the commit log.
    pub commit_log_offset: u64,
    /// When its producer made it, by the producer's clock.
    pub born_ms: u64,
    /// The broker's id: store host and commit log offset in hexadecimal.
    pub message_id: String,
    /// How often it was delivered before.
    pub reconsume_times: u32,
    /// The body, inflated.
    pub body: Bytes,
    /// The topic.
    pub topic: String,
    /// All properties.
    pub properties: Vec<(String, String)>,
}

/// Why records cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not the layout of a record.
    #[error("not a message record")]
    Malformed,
    /// The body's checksum is wrong.
    #[error("a message body does not match its checksum")]
    Checksum,
    /// Compressed in a way that is not read here.
    #[error("a message body is compressed with a method that is not supported (sysFlag {0:#x})")]
    Compression(u32),
}

impl Record {
    /// A property's value.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Reads records that stand back to back.
///
/// # Errors
/// [`RecordError`] at the first record that cannot be read; what follows it cannot be trusted.
pub fn parse_all(mut bytes: Bytes) -> Result<Vec<Record>, RecordError> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let size = bytes.first_chunk::<4>().map(|size| u32::from_be_bytes(*size) as usize);
        let size = size.filter(|size| (4..=bytes.len()).contains(size)).ok_or(RecordError::Malformed)?;
        records.push(parse(bytes.split_to(size))?);
    }
    Ok(records)
}

/// Fails early where a fixed-size read would panic.
fn need(bytes: &Bytes, count: usize) -> Result<(), RecordError> {
    if bytes.len() >= count { Ok(()) } else { Err(RecordError::Malformed) }
}

fn take(bytes: &mut Bytes, count: usize) -> Result<Bytes, RecordError> {
    need(bytes, count)?;
    Ok(bytes.split_to(count))
}

fn text(bytes: &[u8]) -> Result<&str, RecordError> {
    std::str::from_utf8(bytes).map_err(|_| RecordError::Malformed)
}

fn parse(mut bytes: Bytes) -> Result<Record, RecordError> {
    need(&bytes, 48)?;
    let (_size, magic, checksum) = (bytes.get_u32(), bytes.get_u32(), bytes.get_u32());
    if magic != MAGIC_V1 && magic != MAGIC_V2 {
        return Err(RecordError::Malformed);
    }
    let (queue, _flag, queue_offset) = (bytes.get_u32(), bytes.get_u32(), bytes.get_u64());
    let (commit_log_offset, sys_flag, born_ms) = (bytes.get_u64(), bytes.get_u32(), bytes.get_u64());
    let host = |flag: u32| if sys_flag & flag == 0 { 8 } else { 20 };
    take(&mut bytes, host(BORN_HOST_V6))?;
    need(&bytes, 8)?;
    let _stored_ms = bytes.get_u64();
    let store_host = take(&mut bytes, host(STORE_HOST_V6))?;
    need(&bytes, 16)?;
    let (reconsume_times, _prepared, body_length) = (bytes.get_u32(), bytes.get_u64(), bytes.get_u32() as usize);
    let body = take(&mut bytes, body_length)?;
    if checksum != 0 && crc32fast::hash(&body) & 0x7fff_ffff != checksum {
        return Err(RecordError::Checksum);
    }
    let topic_length = if magic == MAGIC_V1 {
        need(&bytes, 1)?;
        usize::from(bytes.get_u8())
    } else {
        need(&bytes, 2)?;
        usize::from(bytes.get_u16())
    };
    let topic = text(&take(&mut bytes, topic_length)?)?.to_owned();
    need(&bytes, 2)?;
    let properties_length = usize::from(bytes.get_u16());
    let properties = properties::parse(text(&take(&mut bytes, properties_length)?)?);
    Ok(Record {
        queue,
        queue_offset,
        commit_log_offset,
        born_ms,
        message_id: message_id(&store_host, commit_log_offset),
        reconsume_times,
        body: inflated(body, sys_flag)?,
        topic,
        properties,
    })
}

fn message_id(store_host: &[u8], commit_log_offset: u64) -> String {
    use std::fmt::Write as _;
    let mut id = String::with_capacity(56);
    for byte in store_host.iter().chain(&commit_log_offset.to_be_bytes()) {
        // Writing to a String cannot fail.
        let _ = write!(id, "{byte:02X}");
    }
    id
}

fn inflated(body: Bytes, sys_flag: u32) -> Result<Bytes, RecordError> {
    if sys_flag & COMPRESSED == 0 {
        return Ok(body);
    }
    if !matches!(sys_flag & COMPRESSION_TYPE, 0 | ZLIB) {
        return Err(RecordError::Compression(sys_flag));
    }
    let mut out = Vec::new();
    let limit = BODY_BYTES_MAX as u64 + 1;
    let read = flate2::read::ZlibDecoder::new(body.as_ref()).take(limit).read_to_end(&mut out);
    match read {
        Ok(_) if out.len() <= BODY_BYTES_MAX => Ok(out.into()),
        _ => Err(RecordError::Compression(sys_flag)),
    }
}
