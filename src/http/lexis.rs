//! Character classes and the values of the fields that decide framing (RFC 9110 sections 5.6 and 8.6, RFC 9112
//! sections 3 and 6).

use super::reject::Reject;

/// `tchar`: methods and field names.
pub(super) const TOKEN: u8 = 1;
/// What a request target may hold: the characters of a URI without a fragment.
pub(super) const TARGET: u8 = 2;
/// `field-vchar`, space and tab.
pub(super) const VALUE: u8 = 4;
/// `uri-host [ ":" port ]`.
pub(super) const HOST: u8 = 8;

const CLASSES: [u8; 256] = classes();

const fn within(set: &[u8], byte: u8) -> bool {
    let mut at = 0;
    while at < set.len() {
        if set[at] == byte {
            return true;
        }
        at += 1;
    }
    false
}

const fn classes() -> [u8; 256] {
    let mut table = [0u8; 256];
    let mut at = 0usize;
    while at < 256 {
        let byte = at as u8;
        let plain = byte.is_ascii_alphanumeric();
        if plain || within(b"!#$%&'*+-.^_`|~", byte) {
            table[at] |= TOKEN;
        }
        if plain || within(b"-._~!$&'()*+,;=:@/?%[]", byte) {
            table[at] |= TARGET;
        }
        if byte == b'\t' || (byte >= b' ' && byte != 0x7f) {
            table[at] |= VALUE;
        }
        if plain || within(b"-._~!$&'()*+,;=:%[]", byte) {
            table[at] |= HOST;
        }
        at += 1;
    }
    table
}

/// Whether `byte` is of `class`.
pub(super) fn is(byte: u8, class: u8) -> bool {
    CLASSES[usize::from(byte)] & class != 0
}

/// How many bytes at the front are of `class`.
pub(super) fn run(bytes: &[u8], class: u8) -> usize {
    bytes.iter().position(|&byte| !is(byte, class)).unwrap_or(bytes.len())
}

/// The value of a hexadecimal digit.
pub(super) fn hex(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// `bytes` without spaces and tabs at either end.
pub(super) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The members of a comma-separated list, empty ones left out.
pub(super) fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim).filter(|member| !member.is_empty())
}

/// A `Content-Length`: digits only. A number that does not fit into 64 bits is `u64::MAX`, which is over any limit.
pub(super) fn content_length(value: &[u8]) -> Result<u64, Reject> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(Reject::Syntax("Content-Length is not a number"));
    }
    let add = |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Ok(value.iter().fold(0, add))
}

/// Accepts `chunked` alone, the only transfer coding known here (RFC 9112 section 6.1).
pub(super) fn transfer_encoding(value: &[u8]) -> Result<(), Reject> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let chunked = members(value).filter(|coding| is_chunked(coding)).count();
    let last = members(value).last().is_some_and(is_chunked);
    let tokens = |coding: &[u8]| coding.iter().all(|&byte| is(byte, TOKEN));
    if members(value).count() == 0 || !members(value).all(tokens) || chunked > 1 || (chunked == 1 && !last) {
        return Err(Reject::Syntax("Transfer-Encoding does not end in one chunked"));
    }
    // A lone "chunked" with an empty list member is legal for a list, but nobody sends it in good faith.
    if members(value).count() == 1 && chunked == 1 {
        return Err(Reject::Syntax("Transfer-Encoding with an empty member"));
    }
    Err(Reject::UnknownCoding)
}

/// Whether a `Content-Type` is JSON in UTF-8: no parameter other than `charset=utf-8`, and that at most once.
pub(super) fn is_json(value: &[u8]) -> bool {
    let mut parts = value.split(|&byte| byte == b';').map(trim);
    let Some(media_type) = parts.next() else { return false };
    let mut charsets = 0;
    let utf8 = |part: &[u8]| {
        charsets += 1;
        part.eq_ignore_ascii_case(b"charset=utf-8") || part.eq_ignore_ascii_case(b"charset=\"utf-8\"")
    };
    media_type.eq_ignore_ascii_case(b"application/json")
        && parts.filter(|part| !part.is_empty()).all(utf8)
        && charsets <= 1
}

/// Finds path and query in the target `bytes[start..end]` (origin-form, absolute-form, or `*` for OPTIONS; RFC 9112
/// section 3.2) and decodes the path where it stands. Returns the path's end points and the query's; an empty path
/// means `/`.
pub(super) type Bounds = (usize, usize);

pub(super) fn target(
    bytes: &mut [u8],
    (start, end): Bounds,
    options: bool,
) -> Result<(Bounds, Option<Bounds>), Reject> {
    let target = &bytes[start..end];
    if target == b"*" && options {
        return Ok(((start, end), None));
    }
    let mut path_start = start;
    if target.first() != Some(&b'/') {
        path_start += authority_end(target).ok_or(Reject::Syntax("target of unknown form"))?;
    }
    let question = bytes[path_start..end].iter().position(|&byte| byte == b'?').map(|at| path_start + at);
    let path_end = question.unwrap_or(end);
    let length = decode_path(&mut bytes[path_start..path_end]).ok_or(Reject::Syntax("path is not decodable"))?;
    Ok(((path_start, path_start + length), question.map(|at| (at + 1, end))))
}

/// Where scheme and authority of an absolute-form target end.
fn authority_end(target: &[u8]) -> Option<usize> {
    let starts = |prefix: &[u8]| target.get(..prefix.len()).is_some_and(|t| t.eq_ignore_ascii_case(prefix));
    let scheme = if starts(b"http://") {
        7
    } else if starts(b"https://") {
        8
    } else {
        return None;
    };
    let rest = &target[scheme..];
    let length = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let good = length > 0 && run(&rest[..length], HOST) == length;
    good.then_some(scheme + length)
}

/// Decodes `%XX` in place and returns the new length; `None` for a broken escape, a control character, or text that
/// is not UTF-8. `%2F` and `%25` stay as they are: decoding them would change what the path means.
pub(super) fn decode_path(path: &mut [u8]) -> Option<usize> {
    if !path.contains(&b'%') {
        return Some(path.len());
    }
    let (mut at, mut to) = (0, 0);
    while at < path.len() {
        let mut byte = path[at];
        at += 1;
        if byte == b'%' {
            let decoded = hex(*path.get(at)?)? << 4 | hex(*path.get(at + 1)?)?;
            if decoded < b' ' || decoded == 0x7f {
                return None;
            }
            if decoded == b'/' || decoded == b'%' {
                path.copy_within(at - 1..at + 1, to);
                to += 2;
                byte = path[at + 1];
            } else {
                byte = decoded;
            }
            at += 2;
        }
        path[to] = byte;
        to += 1;
    }
    std::str::from_utf8(&path[..to]).ok()?;
    Some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_the_grammar() {
        let count = |class| (0..=255u8).filter(|&byte| is(byte, class)).count();
        assert_eq!((count(TOKEN), count(VALUE)), (77, 224));
        for byte in *b"\0\r\n\x0b\x7f" {
            assert!(!is(byte, TOKEN | TARGET | VALUE | HOST), "{byte}");
        }
        for byte in *b" \"<>\\^`{|}#\x80" {
            assert!(!is(byte, TARGET | HOST), "{byte}");
        }
        assert!(!is(b':', TOKEN) && !is(b' ', TOKEN) && !is(b'@', HOST) && !is(b'/', HOST));
    }

    #[test]
    fn a_content_length_is_digits_and_never_wraps() {
        assert_eq!(content_length(b"0034"), Ok(34));
        assert_eq!(content_length(b"18446744073709551650"), Ok(u64::MAX));
        for bad in [&b""[..], b"+34", b"-1", b"0x22", b"3 4", b"34,34", b"34\t", b"3.4", b"\xb2"] {
            assert!(content_length(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_chunked_alone_is_a_known_coding() {
        assert_eq!(transfer_encoding(b"ChunkeD"), Ok(()));
        for unknown in [&b"gzip"[..], b"gzip, chunked", b"identity", b"xchunked"] {
            assert_eq!(transfer_encoding(unknown), Err(Reject::UnknownCoding), "{unknown:?}");
        }
        for bad in [&b""[..], b"chunked, gzip", b"chunked, chunked", b"chunked;q=1", b",", b"chunked,", b"\x0bchunked"]
        {
            assert!(matches!(transfer_encoding(bad), Err(Reject::Syntax(_))), "{bad:?}");
        }
    }

    #[test]
    fn json_is_told_from_other_media_types() {
        for good in
            [&b"application/json"[..], b"Application/JSON ; Charset=UTF-8", b"application/json;charset=\"utf-8\";"]
        {
            assert!(is_json(good), "{good:?}");
        }
        for bad in [
            &b""[..],
            b"application/jsonx",
            b"text/json",
            b"application/json; charset=latin1",
            b"application/json; q=1",
            b"application/json; charset=utf-8; charset=utf-8",
            b"application/json, text/plain",
        ] {
            assert!(!is_json(bad), "{bad:?}");
        }
    }

    fn split(text: &str) -> Option<(String, Option<String>)> {
        let mut bytes = text.as_bytes().to_vec();
        let end = bytes.len();
        let (path, query) = target(&mut bytes, (0, end), false).ok()?;
        let text = |(start, end): Bounds| String::from_utf8(bytes[start..end].to_vec()).unwrap();
        Some((text(path), query.map(text)))
    }

    #[test]
    fn targets_are_split_and_decoded() {
        let owned = |path: &str, query: Option<&str>| Some((path.to_owned(), query.map(str::to_owned)));
        assert_eq!(split("/a/b?x=%41"), owned("/a/b", Some("x=%41")));
        assert_eq!(split("http://shop.example:80/a"), owned("/a", None));
        assert_eq!(split("HTTPS://[::1]?q"), owned("", Some("q")));
        assert_eq!(split("/%61%c3%a9%2f%2F%25z?"), owned("/aé%2f%2F%25z", Some("")));
        for bad in ["a/b", "*", "http://", "http:///a", "http://u@h/", "ftp://h/", "/%", "/%4", "/%zz", "/%00", "/%ff"]
        {
            assert_eq!(split(bad), None, "{bad}");
        }
    }
}
