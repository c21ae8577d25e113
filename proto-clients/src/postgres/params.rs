//! Parameter values in binary format.

use bytes::{BufMut, BytesMut};

use super::Type;
use super::types::EPOCH_MICROS;

/// The values of one execution, in the order of the statement's parameters.
#[derive(Debug, Clone, Default)]
pub struct Params {
    bytes: BytesMut,
    count: u16,
}

impl Params {
    /// No values yet.
    pub fn new() -> Self {
        Self { bytes: BytesMut::with_capacity(128), count: 0 }
    }

    /// How many there are.
    pub fn len(&self) -> u16 {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn value(&mut self, bytes: &[u8]) -> &mut Self {
        put_element(&mut self.bytes, Some(bytes));
        self.count += 1;
        self
    }

    /// NULL of any type.
    pub fn null(&mut self) -> &mut Self {
        put_element(&mut self.bytes, None);
        self.count += 1;
        self
    }

    /// boolean
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.value(&[u8::from(value)])
    }

    /// smallint
    pub fn i16(&mut self, value: i16) -> &mut Self {
        self.value(&value.to_be_bytes())
    }

    /// integer
    pub fn i32(&mut self, value: i32) -> &mut Self {
        self.value(&value.to_be_bytes())
    }

    /// bigint
    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.value(&value.to_be_bytes())
    }

    /// text; the server refuses the character U+0000 in it.
    pub fn text(&mut self, value: &str) -> &mut Self {
        self.value(value.as_bytes())
    }

    /// json
    pub fn json(&mut self, value: &str) -> &mut Self {
        self.value(value.as_bytes())
    }

    /// jsonb, which has a version byte in front.
    pub fn jsonb(&mut self, value: &str) -> &mut Self {
        self.value(&[&[1], value.as_bytes()].concat())
    }

    /// bytea
    pub fn bytea(&mut self, value: &[u8]) -> &mut Self {
        self.value(value)
    }

    /// uuid
    pub fn uuid(&mut self, value: [u8; 16]) -> &mut Self {
        self.value(&value)
    }

    /// timestamptz, as Unix microseconds; saturates at the ends of i64.
    pub fn timestamptz_micros(&mut self, unix_micros: i64) -> &mut Self {
        self.value(&unix_micros.saturating_sub(EPOCH_MICROS).to_be_bytes())
    }

    /// integer[]
    pub fn i32_array(&mut self, values: impl ExactSizeIterator<Item = i32>) -> &mut Self {
        self.array(Type::Int4, values, |out, value| put_element(out, Some(&value.to_be_bytes())))
    }

    /// bigint[]
    pub fn i64_array(&mut self, values: impl ExactSizeIterator<Item = i64>) -> &mut Self {
        self.array(Type::Int8, values, |out, value| put_element(out, Some(&value.to_be_bytes())))
    }

    /// text[]; elements may be NULL.
    pub fn text_array<'a>(&mut self, values: impl ExactSizeIterator<Item = Option<&'a str>>) -> &mut Self {
        self.array(Type::Text, values, |out, value| put_element(out, value.map(str::as_bytes)))
    }

    /// bytea[]
    pub fn bytea_array<'a>(&mut self, values: impl ExactSizeIterator<Item = &'a [u8]>) -> &mut Self {
        self.array(Type::Bytea, values, |out, value| put_element(out, Some(value)))
    }

    /// uuid[]
    pub fn uuid_array(&mut self, values: impl ExactSizeIterator<Item = [u8; 16]>) -> &mut Self {
        self.array(Type::Uuid, values, |out, value| put_element(out, Some(&value)))
    }

    /// timestamptz[], as Unix microseconds.
    pub fn timestamptz_array(&mut self, values: impl ExactSizeIterator<Item = i64>) -> &mut Self {
        self.array(Type::Timestamptz, values, |out, value| {
            put_element(out, Some(&value.saturating_sub(EPOCH_MICROS).to_be_bytes()));
        })
    }

    /// One dimension, lower bound 1; no dimension when there are no elements.
    fn array<T>(
        &mut self,
        element: Type,
        values: impl ExactSizeIterator<Item = T>,
        put: impl Fn(&mut BytesMut, T),
    ) -> &mut Self {
        let at = self.bytes.len();
        self.bytes.put_i32(0);
        let count = i32::try_from(values.len()).unwrap_or(i32::MAX);
        self.bytes.put_i32(i32::from(count > 0));
        // The flag says that there may be NULLs; the server looks at the elements anyway.
        self.bytes.put_i32(1);
        self.bytes.put_u32(element.oid());
        if count > 0 {
            self.bytes.put_i32(count);
            self.bytes.put_i32(1);
        }
        for value in values {
            put(&mut self.bytes, value);
        }
        let length = i32::try_from(self.bytes.len() - at - 4).unwrap_or(i32::MAX);
        self.bytes[at..at + 4].copy_from_slice(&length.to_be_bytes());
        self.count += 1;
        self
    }
}

fn put_element(out: &mut BytesMut, value: Option<&[u8]>) {
    match value {
        Some(bytes) => {
            out.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
            out.put_slice(bytes);
        }
        None => out.put_i32(-1),
    }
}
