//! The body of a submit request: `{"activity_id": int64 > 0, "sku_id": int64 > 0}` and nothing else (spec section 1).
//!
//! A strict reader of exactly this shape rather than a JSON library: it allocates nothing, never recurses, and refuses
//! what readers disagree about (duplicate names, other letter case, unknown fields, fractions, a byte order mark), so
//! that no proxy before us can have understood another order than we do. Grammar: RFC 8259.

/// The largest body, in bytes.
pub const BODY_BYTES_MAX: usize = 4096;

/// What the buyer asks for. Both ids are > 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderBody {
    /// The sale.
    pub activity_id: i64,
    /// The thing on sale.
    pub sku_id: i64,
}

/// Why a body is refused. The reason is a fixed text without anything of the body in it; the first fault is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// Not exactly one JSON object with known fields of type int64: `INVALID_JSON`.
    #[error("{0}")]
    InvalidJson(&'static str),
    /// JSON of the right shape, but an id is missing or not > 0: `INVALID_ARGUMENT`.
    #[error("{0}")]
    InvalidArgument(&'static str),
}

use BodyError::{InvalidArgument, InvalidJson};

/// The fields, in the order in which [`Fields`] keeps their values.
const NAMES: [&[u8]; 2] = [b"activity_id", b"sku_id"];

/// Reads a body.
///
/// # Errors
/// [`BodyError`]. A body that is both malformed and short of an id is malformed. A body over [`BODY_BYTES_MAX`] is
/// malformed too; the HTTP side refuses it earlier, with 413.
pub fn decode(body: &[u8]) -> Result<OrderBody, BodyError> {
    if body.len() > BODY_BYTES_MAX {
        return Err(InvalidJson("the body is longer than 4096 bytes"));
    }
    let mut reader = Reader { rest: body };
    let values = reader.object()?;
    reader.skip_whitespace();
    if !reader.rest.is_empty() {
        return Err(InvalidJson("there is something after the object"));
    }
    let [Some(activity_id), Some(sku_id)] = values else {
        return Err(InvalidArgument("activity_id and sku_id are both needed"));
    };
    if activity_id <= 0 || sku_id <= 0 {
        return Err(InvalidArgument("activity_id and sku_id must be greater than 0"));
    }
    Ok(OrderBody { activity_id, sku_id })
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn next(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.rest.first() == Some(&byte);
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    fn skip_whitespace(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    fn object(&mut self) -> Result<[Option<i64>; 2], BodyError> {
        let mut values = [None; 2];
        self.skip_whitespace();
        if !self.take(b'{') {
            return Err(InvalidJson("the body is not a JSON object"));
        }
        self.skip_whitespace();
        if self.take(b'}') {
            return Ok(values);
        }
        loop {
            self.skip_whitespace();
            let field = self.name()?;
            self.skip_whitespace();
            if !self.take(b':') {
                return Err(InvalidJson("there is no colon after a field name"));
            }
            self.skip_whitespace();
            let value = self.integer()?;
            if values[field].replace(value).is_some() {
                return Err(InvalidJson("a field is given twice"));
            }
            self.skip_whitespace();
            match self.next() {
                Some(b',') => {}
                Some(b'}') => return Ok(values),
                _ => return Err(InvalidJson("the object is not closed")),
            }
        }
    }

    /// A field name: its index in [`NAMES`]. Each character is compared as it is read, escapes resolved, so nothing
    /// has to be stored: both names stay candidates until a character rules them out.
    fn name(&mut self) -> Result<usize, BodyError> {
        if !self.take(b'"') {
            return Err(InvalidJson("a field name is not a string"));
        }
        let mut fits = [true; NAMES.len()];
        let mut length = 0;
        loop {
            let byte = match self.next() {
                Some(b'"') => break,
                Some(b'\\') => self.escape()?,
                // Control characters must be escaped. All names are ASCII: any other byte starts an unknown name, or
                // one that is not UTF-8, and either is refused.
                Some(byte @ 0x20..=0x7f) => byte,
                _ => return Err(InvalidJson("a field is unknown or its name is not valid")),
            };
            for (fits, name) in fits.iter_mut().zip(NAMES) {
                *fits &= name.get(length) == Some(&byte);
            }
            if fits == [false; NAMES.len()] {
                return Err(InvalidJson("a field is unknown or its name is not valid"));
            }
            length += 1;
        }
        (0..NAMES.len())
            .find(|&field| fits[field] && NAMES[field].len() == length)
            .ok_or(InvalidJson("a field is unknown or its name is not valid"))
    }

    /// The character that an escape stands for, if it is `\uXXXX` below 256. Known names are ASCII letters and `_`, which
    /// no short escape (`\n`, `\/`) and no surrogate, paired or lone, can stand for.
    fn escape(&mut self) -> Result<u8, BodyError> {
        const NOT_VALID: BodyError = InvalidJson("a field is unknown or its name is not valid");
        match self.next() {
            Some(b'u') => {
                let mut code: u32 = 0;
                for _ in 0..4 {
                    let digit = self.next().and_then(|byte| char::from(byte).to_digit(16)).ok_or(NOT_VALID)?;
                    code = code << 4 | digit;
                }
                u8::try_from(code).map_err(|_| NOT_VALID)
            }
            _ => Err(NOT_VALID),
        }
    }

    /// A JSON number that is an int64: no fraction, no exponent, no leading zero.
    fn integer(&mut self) -> Result<i64, BodyError> {
        const TOO_LARGE: BodyError = InvalidJson("an id does not fit into 64 bits");
        let negative = self.take(b'-');
        let first = match self.next() {
            Some(byte @ b'0'..=b'9') => byte,
            _ => return Err(InvalidJson("an id is not an integer")),
        };
        // Counted downwards, because the negative side reaches one further.
        let mut value = -i64::from(first - b'0');
        while let [byte @ b'0'..=b'9', rest @ ..] = self.rest {
            if first == b'0' {
                return Err(InvalidJson("an id starts with a zero"));
            }
            let digit = i64::from(byte - b'0');
            value = value.checked_mul(10).and_then(|value| value.checked_sub(digit)).ok_or(TOO_LARGE)?;
            self.rest = rest;
        }
        if let [b'.' | b'e' | b'E', ..] = self.rest {
            return Err(InvalidJson("an id is not an integer"));
        }
        if negative { Ok(value) } else { value.checked_neg().ok_or(TOO_LARGE) }
    }
}

/// What a fuzzer calls: any bytes are answered, and what is accepted means the same to another JSON reader.
///
/// # Panics
/// When [`decode`] and `serde_json` disagree, which is what is looked for.
#[doc(hidden)]
pub fn fuzz_order_body(body: &[u8]) {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Peer {
        activity_id: Option<i64>,
        sku_id: Option<i64>,
    }
    let typed = serde_json::from_slice::<Peer>(body);
    match decode(body) {
        Ok(OrderBody { activity_id, sku_id }) => {
            let peer = typed.expect("accepted here, refused by the peer");
            assert_eq!((peer.activity_id, peer.sku_id), (Some(activity_id), Some(sku_id)));
        }
        // The peer reads -0 as a float, because integers have no negative zero.
        Err(InvalidArgument(_)) => assert!(typed.is_ok() || body.windows(2).any(|pair| pair == b"-0"), "not JSON"),
        Err(InvalidJson(reason)) => {
            // The peer takes null for an absent id, and fills a struct from an array too.
            let peer = serde_json::from_slice::<serde_json::Value>(body).unwrap_or_default();
            let has_null = ["activity_id", "sku_id"].iter().any(|name| peer.get(name).is_some_and(|id| id.is_null()));
            let excused = body.len() > BODY_BYTES_MAX || has_null || peer.is_array();
            assert!(typed.is_err() || excused, "refused here only: {reason}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ok(activity_id: i64, sku_id: i64) -> Result<OrderBody, BodyError> {
        Ok(OrderBody { activity_id, sku_id })
    }

    /// The `code` that the answer carries.
    fn code(body: &[u8]) -> &'static str {
        match decode(body) {
            Ok(_) => "-",
            Err(InvalidJson(_)) => "INVALID_JSON",
            Err(InvalidArgument(_)) => "INVALID_ARGUMENT",
        }
    }

    #[test]
    fn every_case_of_the_collection() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/json/");
        let table = std::fs::read_to_string(format!("{folder}cases.tsv")).unwrap();
        let mut seen = 0;
        for row in table.lines().skip(1) {
            let columns: Vec<&str> = row.split('\t').collect();
            let [id, file, status, expected] = columns[..4] else { panic!("{row}") };
            let found = code(&std::fs::read(format!("{folder}{file}")).unwrap());
            match (id, expected) {
                // Legal as a body; that there is no such activity is found out later.
                ("j-i64-max", _) => assert_eq!(found, "-", "{id}"),
                (_, "*") => assert_ne!(found, "-", "{id}: {status}"),
                _ => assert_eq!(found, expected, "{id}: {status}"),
            }
            seen += 1;
        }
        assert_eq!(seen, 29);
    }

    #[test]
    fn whitespace_order_and_escapes_make_no_difference() {
        for body in [
            r#"{"activity_id":1,"sku_id":2}"#,
            "\r\n\t {\n\"sku_id\"\t:\r2 , \"activity_id\" : 1\n}\n",
            r#"{"\u0061ctivity_id":1,"sku\u005Fid":2}"#,
            r#"{"\u0061\u0063\u0074\u0069\u0076\u0069\u0074\u0079\u005f\u0069\u0064":1,"sku_id":2}"#,
        ] {
            assert_eq!(decode(body.as_bytes()), ok(1, 2), "{body}");
        }
        let largest = format!("{{\"activity_id\":{0},\"sku_id\":{0}}}", i64::MAX);
        assert_eq!(decode(largest.as_bytes()), ok(i64::MAX, i64::MAX));
    }

    #[test]
    fn what_is_not_json_of_this_shape() {
        for body in [
            r#"{"activity_id":1,"\u0061ctivity_id":1,"sku_id":2}"#,
            r#"{"Activity_id":1,"sku_id":2}"#,
            r#"{"activity_id":1,"SKU_ID":2}"#,
            r#"{"activity_i":1,"sku_id":2}"#,
            r#"{"activity_idd":1,"sku_id":2}"#,
            r#"{"activity_id\u0000":1,"sku_id":2}"#,
            r#"{"":1,"sku_id":2}"#,
            r#"{"activity_id":1,"sku\_id":2}"#,
            r#"{"activity_id":1,"sku\u005id":2}"#,
            r#"{"activity_id":null,"sku_id":2}"#,
            r#"{"activity_id":true,"sku_id":2}"#,
            r#"{"activity_id":{},"sku_id":2}"#,
            r#"{"activity_id":+1,"sku_id":2}"#,
            r#"{"activity_id":-,"sku_id":2}"#,
            r#"{"activity_id":-01,"sku_id":2}"#,
            r#"{"activity_id":1E2,"sku_id":2}"#,
            r#"{"activity_id":0x1,"sku_id":2}"#,
            r#"{"activity_id":1 000,"sku_id":2}"#,
            r#"{"activity_id":-9223372036854775809,"sku_id":2}"#,
            r#"{"activity_id" 1,"sku_id":2}"#,
            r#"{,"activity_id":1,"sku_id":2}"#,
            r#"{"activity_id":1,,"sku_id":2}"#,
            "{\"activity_id\":1,\"sku_id\":2}\0",
            "{\"activity_id\":1,\"sku_id\":2}\u{a0}",
            "{\u{b}\"activity_id\":1,\"sku_id\":2}",
            r#"{"#,
            r#"""#,
        ] {
            assert_eq!(code(body.as_bytes()), "INVALID_JSON", "{body}");
        }
    }

    #[test]
    fn ids_that_are_missing_or_not_positive() {
        for body in [
            r#"{}"#,
            r#"{ }"#,
            r#"{"sku_id":2}"#,
            r#"{"activity_id":1,"sku_id":0}"#,
            r#"{"activity_id":1,"sku_id":-0}"#,
            r#"{"activity_id":-9223372036854775808,"sku_id":2}"#,
        ] {
            assert_eq!(code(body.as_bytes()), "INVALID_ARGUMENT", "{body}");
        }
    }

    #[test]
    fn the_bound_is_4096_bytes() {
        let mut body = br#"{"activity_id":1,"sku_id":2}"#.to_vec();
        body.resize(BODY_BYTES_MAX, b' ');
        assert_eq!(decode(&body), ok(1, 2));
        body.push(b' ');
        assert_eq!(code(&body), "INVALID_JSON");
    }

    #[test]
    fn every_cut_of_a_good_body_is_refused() {
        let body = br#"{"activity_id":1001,"sku_id":2001}"#;
        for end in 0..body.len() {
            assert_eq!(code(&body[..end]), "INVALID_JSON", "{end}");
        }
    }

    /// Pieces that such bodies are made of, right and nearly right.
    fn piece() -> impl Strategy<Value = &'static str> {
        proptest::sample::select(vec![
            "{",
            "}",
            ":",
            ",",
            " ",
            "\n",
            "\"activity_id\"",
            "\"sku_id\"",
            "\"sku\\u005fid\"",
            "\"Sku_id\"",
            "\"x\"",
            "1",
            "-1",
            "0",
            "01",
            "1.0",
            "1e3",
            "null",
            "[",
            "]",
            "9223372036854775807",
            "9223372036854775808",
            "\"1\"",
        ])
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn good_bodies_are_read(activity_id in 1i64.., sku_id in 1i64.., spaces in "[ \t\r\n]{0,6}", swapped: bool) {
            let fields = [format!("\"activity_id\"{spaces}:{spaces}{activity_id}"), format!("\"sku_id\":{sku_id}{spaces}")];
            let [first, second] = if swapped { [&fields[1], &fields[0]] } else { [&fields[0], &fields[1]] };
            let body = format!("{spaces}{{{spaces}{first}{spaces},{spaces}{second}}}{spaces}");
            prop_assert_eq!(decode(body.as_bytes()), ok(activity_id, sku_id));
            fuzz_order_body(body.as_bytes());
        }

        #[test]
        fn random_bytes_mean_the_same_to_serde(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            fuzz_order_body(&body);
        }

        #[test]
        fn random_pieces_mean_the_same_to_serde(pieces in proptest::collection::vec(piece(), 0..14)) {
            fuzz_order_body(pieces.concat().as_bytes());
        }

        #[test]
        fn mutated_bodies_mean_the_same_to_serde(
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), 0u8..3, any::<u8>()), 1..4),
            escaped: bool,
        ) {
            let mut body = if escaped {
                br#"{"\u0061ctivity_id":-10,"sku\u005fid":9223372036854775807}"#.to_vec()
            } else {
                br#"{"activity_id":1001,"sku_id":2001}"#.to_vec()
            };
            for (at, kind, byte) in changes {
                let at = at.index(body.len());
                match kind {
                    0 => body[at] = byte,
                    1 => body.insert(at, b" \t{}\":,0e.-1\\u"[usize::from(byte) % 14]),
                    _ => {
                        body.remove(at);
                    }
                }
            }
            fuzz_order_body(&body);
        }

        #[test]
        fn swapped_pieces_of_a_good_body_mean_the_same_to_serde(at in 0usize..9, by in piece(), also in 0usize..9, with in piece()) {
            let mut pieces = ["{", "\"activity_id\"", ":", "1", ",", "\"sku_id\"", ":", "2", "}"];
            pieces[at] = by;
            pieces[also] = with;
            fuzz_order_body(pieces.concat().as_bytes());
        }
    }
}
