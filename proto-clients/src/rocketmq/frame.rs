//! Frames: length, header form, header, body. Headers are read in both forms, JSON and binary; requests are written in
//! the form that their code allows.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::Value;

/// Our language code: RUST.
const LANGUAGE: u8 = 12;
/// Release 5.3.3. From 401 on route JSON is strict, above 475 a server may answer GO_AWAY.
const VERSION: i16 = 479;
/// Header form: JSON.
const JSON: u8 = 0;
/// Header form: binary.
const BINARY: u8 = 1;
const FLAG_RESPONSE: i32 = 1;
const FLAG_ONEWAY: i32 = 2;

/// Bytes that are no frame, or more than was allowed. The connection cannot be used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A length that is negative or too small for its header.
    #[error("a frame length that is impossible")]
    Length,
    /// A frame over the limit.
    #[error("a frame is longer than allowed")]
    TooLong,
    /// A header that cannot be read.
    #[error("a frame header that cannot be read")]
    Header,
}

/// A frame from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Request or response code.
    pub code: i32,
    /// Bit 0 response, bit 1 oneway.
    pub flag: i32,
    /// Which request it answers.
    pub opaque: i32,
    /// The server's words on an error.
    pub remark: Option<String>,
    /// The fields of the code's own header.
    pub ext: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

impl Frame {
    /// Whether it answers a request.
    pub fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    /// Whether it must not be answered.
    pub fn is_oneway(&self) -> bool {
        self.flag & FLAG_ONEWAY != 0
    }

    /// A field of the header.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.ext.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Deserialize)]
struct JsonHeader {
    code: i32,
    #[serde(default)]
    flag: i32,
    #[serde(default)]
    opaque: i32,
    remark: Option<String>,
    #[serde(rename = "extFields")]
    ext_fields: Option<serde_json::Map<String, Value>>,
}

/// Takes the next frame off the front of `buffer`; `None` while it is not all there. Nothing is reserved for a length that
/// is only claimed.
///
/// # Errors
/// [`FrameError`]; the connection must be closed then.
pub fn next(buffer: &mut BytesMut, bytes_max: usize) -> Result<Option<Frame>, FrameError> {
    let Some((head, _)) = buffer.split_first_chunk::<4>() else { return Ok(None) };
    let length = usize::try_from(i32::from_be_bytes(*head)).ok().filter(|length| *length >= 4);
    let length = length.ok_or(FrameError::Length)?;
    if length > bytes_max {
        return Err(FrameError::TooLong);
    }
    if buffer.len() < 4 + length {
        return Ok(None);
    }
    let mut frame = buffer.split_to(4 + length).freeze();
    frame.advance(4);
    let word = frame.get_u32();
    let (form, header_length) = ((word >> 24) as u8, (word & 0x00ff_ffff) as usize);
    if header_length > frame.len() {
        return Err(FrameError::Length);
    }
    let header = frame.split_to(header_length);
    let read = match form {
        JSON => json_header(&header),
        BINARY => binary_header(header),
        _ => None,
    };
    let mut read = read.ok_or(FrameError::Header)?;
    read.body = frame;
    Ok(Some(read))
}

fn json_header(bytes: &[u8]) -> Option<Frame> {
    let header: JsonHeader = serde_json::from_slice(bytes).ok()?;
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let ext = header.ext_fields.unwrap_or_default().into_iter().map(|(key, value)| (key, text(value))).collect();
    let JsonHeader { code, flag, opaque, remark, .. } = header;
    Some(Frame { code, flag, opaque, remark, ext, body: Bytes::new() })
}

fn binary_header(mut bytes: Bytes) -> Option<Frame> {
    if bytes.len() < 21 {
        return None;
    }
    let (code, _language, _version) = (i32::from(bytes.get_i16()), bytes.get_u8(), bytes.get_i16());
    let (opaque, flag) = (bytes.get_i32(), bytes.get_i32());
    let take = |bytes: &mut Bytes, length: i64| {
        let length = usize::try_from(length).ok().filter(|length| *length <= bytes.len())?;
        String::from_utf8(bytes.split_to(length).to_vec()).ok()
    };
    let remark_length = i64::from(bytes.get_i32());
    let remark = take(&mut bytes, remark_length)?;
    if bytes.len() < 4 {
        return None;
    }
    let ext_length = usize::try_from(bytes.get_i32()).ok().filter(|length| *length <= bytes.len())?;
    let mut fields = bytes.split_to(ext_length);
    let mut ext = Vec::new();
    while !fields.is_empty() {
        if fields.len() < 2 {
            return None;
        }
        let key_length = i64::from(fields.get_i16());
        let key = take(&mut fields, key_length)?;
        if fields.len() < 4 {
            return None;
        }
        let value_length = i64::from(fields.get_i32());
        let value = take(&mut fields, value_length)?;
        ext.push((key, value));
    }
    let remark = (!remark.is_empty()).then_some(remark);
    Some(Frame { code, flag, opaque, remark, ext, body: Bytes::new() })
}

/// A request of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its code.
    pub code: i32,
    /// The fields of its header.
    pub ext: Vec<(&'static str, String)>,
    /// The body.
    pub body: Bytes,
}

impl Request {
    /// A request without a body.
    pub fn new(code: i32, ext: Vec<(&'static str, String)>) -> Self {
        Self { code, ext, body: Bytes::new() }
    }

    /// Writes the frame. Codes that fit 16 bits go in the compact binary form, the others in JSON.
    pub fn encode(&self, opaque: i32, out: &mut BytesMut) {
        encode(self.code, 0, opaque, &self.ext, &self.body, out);
    }
}

/// Answers a request of the broker with a bare code.
pub fn answer(opaque: i32, code: i32, out: &mut BytesMut) {
    encode(code, FLAG_RESPONSE, opaque, &[], &Bytes::new(), out);
}

fn encode(code: i32, flag: i32, opaque: i32, ext: &[(&'static str, String)], body: &Bytes, out: &mut BytesMut) {
    let start = out.len();
    out.put_u64(0);
    let form = match i16::try_from(code) {
        Ok(code) => {
            put_binary_header(code, flag, opaque, ext, out);
            BINARY
        }
        Err(_) => {
            put_json_header(code, flag, opaque, ext, out);
            JSON
        }
    };
    let header_length = out.len() - start - 8;
    out.put_slice(body);
    let length = out.len() - start - 4;
    // Both are bounded far below: headers are ours, bodies at most 4 MiB (checked before).
    out[start..start + 4].copy_from_slice(&(length as u32).to_be_bytes());
    let word = u32::from(form) << 24 | header_length as u32 & 0x00ff_ffff;
    out[start + 4..start + 8].copy_from_slice(&word.to_be_bytes());
}

fn put_binary_header(code: i16, flag: i32, opaque: i32, ext: &[(&'static str, String)], out: &mut BytesMut) {
    out.put_i16(code);
    out.put_u8(LANGUAGE);
    out.put_i16(VERSION);
    out.put_i32(opaque);
    out.put_i32(flag);
    out.put_i32(0);
    let at = out.len();
    out.put_u32(0);
    for (key, value) in ext {
        out.put_u16(key.len() as u16);
        out.put_slice(key.as_bytes());
        out.put_u32(value.len() as u32);
        out.put_slice(value.as_bytes());
    }
    let length = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn put_json_header(code: i32, flag: i32, opaque: i32, ext: &[(&'static str, String)], out: &mut BytesMut) {
    let fields: serde_json::Map<String, Value> =
        ext.iter().map(|(key, value)| ((*key).to_owned(), Value::String(value.clone()))).collect();
    let header = serde_json::json!({
        "code": code, "language": "RUST", "version": VERSION, "opaque": opaque, "flag": flag, "extFields": fields,
    });
    out.put_slice(header.to_string().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_form_is_the_one_of_the_java_encoder() {
        let ext = vec![
            ("AccessKey", "rocketmq".to_owned()),
            ("a", "pg".to_owned()),
            ("b", "topicA".to_owned()),
            ("g", "1700000000000".to_owned()),
        ];
        let mut out = BytesMut::new();
        Request::new(310, ext).encode(7, &mut out);
        let expected = "0000005a 01000056 0136 0c 01df 00000007 00000000 00000000 00000041 \
                        0009 4163636573734b6579 00000008 726f636b65746d71 0001 61 00000002 7067 \
                        0001 62 00000006 746f70696341 0001 67 0000000d 31373030303030303030303030";
        let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected.replace(' ', ""));
        let frame = next(&mut out, 1024).unwrap().unwrap();
        assert_eq!((frame.code, frame.opaque, frame.field("b")), (310, 7, Some("topicA")));
    }

    #[test]
    fn codes_over_sixteen_bits_go_as_json() {
        let mut out = BytesMut::new();
        Request::new(200_050, vec![("exp", "a\"\u{1}".to_owned())]).encode(9, &mut out);
        assert_eq!(out[4], JSON);
        let frame = next(&mut out, 1024).unwrap().unwrap();
        assert_eq!((frame.code, frame.opaque, frame.field("exp")), (200_050, 9, Some("a\"\u{1}")));
        assert!(!frame.is_response());
    }

    #[test]
    fn impossible_lengths_are_refused_before_anything_is_reserved() {
        for (bytes, error) in [
            (&[0xff, 0xff, 0xff, 0xff][..], FrameError::Length),
            (&[0, 0, 0, 3], FrameError::Length),
            (&[0x7f, 0xff, 0xff, 0xff], FrameError::TooLong),
            (&[0, 0, 0, 4, 0, 0, 0, 1], FrameError::Length),
            (&[0, 0, 0, 4, 9, 0, 0, 0], FrameError::Header),
            (&[0, 0, 0, 4, 0, 0, 0, 0], FrameError::Header),
        ] {
            assert_eq!(next(&mut BytesMut::from(bytes), 1 << 20), Err(error), "{bytes:?}");
        }
    }
}
