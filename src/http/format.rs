//! Numbers and ids as text, appended to a buffer without allocating.

use bytes::{BufMut, BytesMut};

use crate::domain::Uuid;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends `value` in decimal.
pub fn put_decimal(buf: &mut BytesMut, mut value: u64) {
    // u64::MAX has 20 digits.
    let mut text = [0u8; 20];
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    buf.put_slice(&text[at..]);
}

/// Appends `bytes` in lower-case hexadecimal.
pub fn put_hex(buf: &mut BytesMut, bytes: &[u8]) {
    for &byte in bytes {
        buf.put_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
}

/// Appends a UUID in its canonical form.
pub fn put_uuid(buf: &mut BytesMut, id: &[u8; 16]) {
    buf.put_slice(&Uuid(*id).text());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ids_are_written_as_text() {
        let mut buf = BytesMut::new();
        for value in [0, 7, 10, 4096, u64::MAX] {
            put_decimal(&mut buf, value);
            buf.put_u8(b' ');
        }
        put_hex(&mut buf, &[0x00, 0xa5, 0xff]);
        buf.put_u8(b' ');
        put_uuid(&mut buf, &[0x12; 16]);
        assert_eq!(&buf[..], b"0 7 10 4096 18446744073709551615 00a5ff 12121212-1212-1212-1212-121212121212");
    }
}
