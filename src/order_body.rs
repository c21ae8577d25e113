//! The body of a submit: one JSON object with exactly two members (spec section 1).
//!
//! Read by hand because a general reader is too kind: it takes numbers with a fraction, some take doubled names, and all
//! of them allocate. A sold-out answer must do neither.

/// The longest body.
pub const BODY_BYTES_MAX: usize = 4096;

/// What is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderBody {
    /// The activity.
    pub activity_id: i64,
    /// The SKU.
    pub sku_id: i64,
}

/// Why a body is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Not JSON, or not of this shape.
    #[error("{0}")]
    InvalidJson(&'static str),
    /// The shape is right, an id is not.
    #[error("{0}")]
    InvalidArgument(&'static str),
}

use BodyError::{InvalidArgument, InvalidJson};

struct Reader<'a> {
    rest: &'a [u8],
}

/// The two members.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Member {
    Activity,
    Sku,
}

/// Reads a body.
///
/// # Errors
/// [`BodyError`].
pub fn decode(body: &[u8]) -> Result<OrderBody, BodyError> {
    if body.len() > BODY_BYTES_MAX {
        return Err(InvalidJson("the body is too long"));
    }
    if std::str::from_utf8(body).is_err() {
        return Err(InvalidJson("the body is not UTF-8"));
    }
    let mut reader = Reader { rest: body };
    let (mut activity, mut sku) = (None, None);
    reader.expect(b'{', "the body is not an object")?;
    if !reader.take(b'}') {
        loop {
            let member = reader.name()?;
            reader.expect(b':', "a name without a value")?;
            let value = reader.integer()?;
            let slot = if member == Member::Activity { &mut activity } else { &mut sku };
            if slot.replace(value).is_some() {
                return Err(InvalidJson("a name comes twice"));
            }
            if reader.take(b',') {
                continue;
            }
            reader.expect(b'}', "the object does not end")?;
            break;
        }
    }
    reader.skip_space();
    if !reader.rest.is_empty() {
        return Err(InvalidJson("something follows the object"));
    }
    let positive = |id: Option<i64>, text| id.filter(|id| *id > 0).ok_or(InvalidArgument(text));
    Ok(OrderBody {
        activity_id: positive(activity, "activity_id must be a positive integer")?,
        sku_id: positive(sku, "sku_id must be a positive integer")?,
    })
}

impl Reader<'_> {
    fn skip_space(&mut self) {
        let space = self.rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
        self.rest = &self.rest[space..];
    }

    fn take(&mut self, wanted: u8) -> bool {
        self.skip_space();
        match self.rest.split_first() {
            Some((&byte, rest)) if byte == wanted => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn expect(&mut self, wanted: u8, text: &'static str) -> Result<(), BodyError> {
        if self.take(wanted) { Ok(()) } else { Err(InvalidJson(text)) }
    }

    /// A name with its quotes. Escapes count as what they stand for, so that no name has two spellings.
    fn name(&mut self) -> Result<Member, BodyError> {
        /// One more than the longer name, so that a longer one is seen to be longer.
        const ROOM: usize = "activity_id".len() + 1;
        self.expect(b'"', "a name is not a string")?;
        let (mut name, mut length) = ([0u8; ROOM], 0);
        loop {
            let byte = self.string_byte()?;
            let Some(byte) = byte else { break };
            if length < ROOM {
                name[length] = byte;
            }
            length += 1;
        }
        match name.get(..length) {
            Some(b"activity_id") => Ok(Member::Activity),
            Some(b"sku_id") => Ok(Member::Sku),
            _ => Err(InvalidJson("a name that is not known")),
        }
    }

    fn next(&mut self) -> Result<u8, BodyError> {
        let (&byte, rest) = self.rest.split_first().ok_or(InvalidJson("a string does not end"))?;
        self.rest = rest;
        Ok(byte)
    }

    /// The next byte of a string, `None` at its end. A character beyond ASCII can be in no known name: 0xff stands for it.
    fn string_byte(&mut self) -> Result<Option<u8>, BodyError> {
        match self.next()? {
            b'"' => Ok(None),
            0..=0x1f => Err(InvalidJson("a control character in a string")),
            b'\\' => match self.next()? {
                byte @ (b'"' | b'\\' | b'/') => Ok(Some(byte)),
                b'b' | b'f' | b'n' | b'r' | b't' => Ok(Some(0xff)),
                b'u' => self.unicode_escape().map(Some),
                _ => Err(InvalidJson("an unknown escape")),
            },
            byte => Ok(Some(byte)),
        }
    }

    fn unicode_escape(&mut self) -> Result<u8, BodyError> {
        let mut value = 0u32;
        for _ in 0..4 {
            let digit = char::from(self.next()?).to_digit(16).ok_or(InvalidJson("a bad \\u escape"))?;
            value = value << 4 | digit;
        }
        Ok(u8::try_from(value).ok().filter(u8::is_ascii).unwrap_or(0xff))
    }

    /// An integer as JSON writes it: no plus, no leading zero, no fraction, no exponent. Out of the range of i64 it is no id.
    fn integer(&mut self) -> Result<i64, BodyError> {
        self.skip_space();
        let negative = self.rest.first() == Some(&b'-');
        let digits_at = usize::from(negative);
        let digits = self.rest[digits_at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let end = digits_at + digits;
        let leading_zero = digits > 1 && self.rest[digits_at] == b'0';
        if digits == 0 || leading_zero || matches!(self.rest.get(end), Some(b'.' | b'e' | b'E')) {
            return Err(InvalidJson("a value is not an integer"));
        }
        let text = std::str::from_utf8(&self.rest[..end]).map_err(|_| InvalidJson("a value is not an integer"))?;
        self.rest = &self.rest[end..];
        text.parse().map_err(|_| InvalidArgument("an id is out of range"))
    }
}

/// For fuzzing: any bytes give an answer, and what is accepted means the same to a general reader.
#[doc(hidden)]
pub fn fuzz_order_body(data: &[u8]) {
    if let Ok(body) = decode(data) {
        let value: serde_json::Value = serde_json::from_slice(data).unwrap_or_default();
        assert_eq!(value["activity_id"].as_i64(), Some(body.activity_id));
        assert_eq!(value["sku_id"].as_i64(), Some(body.sku_id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct General {
        activity_id: i64,
        sku_id: i64,
    }

    #[test]
    fn every_case_of_the_json_folder() {
        let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/json"));
        let table = std::fs::read_to_string(folder.join("cases.tsv")).unwrap();
        let header: Vec<&str> = table.lines().next().unwrap().split('\t').collect();
        let column = |name: &str| header.iter().position(|column| *column == name).unwrap();
        let (file, status, code) = (column("file"), column("status"), column("code"));
        let mut count = 0;
        for row in table.lines().skip(1) {
            let row: Vec<&str> = row.split('\t').collect();
            let body = std::fs::read(folder.join(row[file])).unwrap();
            let (seen, name) = match decode(&body) {
                Ok(_) => ("202", "-"),
                Err(InvalidJson(_)) if body.len() > BODY_BYTES_MAX => ("413", "PAYLOAD_TOO_LARGE"),
                Err(InvalidJson(_)) => ("400", "INVALID_JSON"),
                Err(InvalidArgument(_)) => ("400", "INVALID_ARGUMENT"),
            };
            assert!(
                row[status].split('|').any(|allowed| allowed == seen),
                "{}: {seen}, wanted {}",
                row[0],
                row[status]
            );
            let allowed = matches!(row[code], "-" | "*") || row[code].split('|').any(|allowed| allowed == name);
            assert!(allowed || seen == "202", "{}: {name}, wanted {}", row[0], row[code]);
            count += 1;
        }
        assert!(count >= 29, "only {count} cases found");
    }

    #[test]
    fn escaped_names_are_the_same_names() {
        let wanted = OrderBody { activity_id: 1, sku_id: 2 };
        assert_eq!(decode(br#" { "\u0061ctivity_id" : 1 , "sku\u005Fid":2 } "#), Ok(wanted));
        assert_eq!(decode(br#"{"sku_id":2,"activity_id":1}"#), Ok(wanted));
        assert!(matches!(decode(br#"{"activity_id":1,"\u0061ctivity_id":1,"sku_id":2}"#), Err(InvalidJson(_))));
        assert!(matches!(decode(br#"{"activity_id":1,"sku_id":2,"\ud83d\ude00":3}"#), Err(InvalidJson(_))));
    }

    fn piece() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("{".to_owned()),
            Just("}".to_owned()),
            Just(",".to_owned()),
            Just(":".to_owned()),
            Just("\"activity_id\"".to_owned()),
            Just("\"sku_id\"".to_owned()),
            Just("\"sku\\u005fid\"".to_owned()),
            "[ \t\n]{0,2}",
            "-?[0-9]{0,20}",
            "[0-9]\\.[0-9]|1e3|null|true|\"x\"|\\[\\]",
        ]
    }

    proptest! {
        #[test]
        fn it_takes_no_more_than_a_general_reader(pieces in proptest::collection::vec(piece(), 0..14)) {
            let text = pieces.concat();
            let general = serde_json::from_str::<General>(&text);
            match decode(text.as_bytes()) {
                Ok(body) => {
                    let general = general.expect("a general reader takes it too");
                    prop_assert_eq!((body.activity_id, body.sku_id), (general.activity_id, general.sku_id));
                }
                Err(_) => prop_assert!(general.is_err() || general.is_ok_and(|body| body.activity_id <= 0 || body.sku_id <= 0)),
            }
        }

        #[test]
        fn any_bytes_give_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            fuzz_order_body(&bytes);
        }
    }
}
