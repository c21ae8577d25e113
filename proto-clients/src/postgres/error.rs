//! What the server complains about (protocol manual, "Error and Notice Message Fields").

/// A SQLSTATE.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SqlState([u8; 5]);

/// What a SQLSTATE means for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// 40001, 40P01, and prepared statements that the server outdated (26000, 0A000): the whole transaction again.
    Retry,
    /// 23505: somebody else was first.
    Conflict,
    /// The rest of 23xxx: the data breaks a rule.
    Integrity,
    /// 57014, 55P03: took too long.
    Timeout,
    /// 57P01-57P05, 08xxx, 53xxx: the server does not serve now.
    Unavailable,
    /// 28xxx: not let in.
    Auth,
    /// Anything else.
    Other,
}

impl SqlState {
    /// From its five characters; anything else becomes XX000 (internal error).
    pub fn new(text: &[u8]) -> Self {
        match <[u8; 5]>::try_from(text) {
            Ok(code) if code.iter().all(|byte| byte.is_ascii_alphanumeric()) => Self(code),
            _ => Self(*b"XX000"),
        }
    }

    /// Its five characters.
    pub fn as_str(&self) -> &str {
        // Only ASCII gets in.
        std::str::from_utf8(&self.0).unwrap_or("XX000")
    }

    /// What it means for the caller.
    pub fn class(&self) -> ErrorClass {
        match &self.0 {
            b"40001" | b"40P01" | b"26000" | b"0A000" => ErrorClass::Retry,
            b"23505" => ErrorClass::Conflict,
            [b'2', b'3', ..] => ErrorClass::Integrity,
            b"57014" | b"55P03" => ErrorClass::Timeout,
            b"57P01" | b"57P02" | b"57P03" | b"57P04" | b"57P05" => ErrorClass::Unavailable,
            [b'0', b'8', ..] | [b'5', b'3', ..] => ErrorClass::Unavailable,
            [b'2', b'8', ..] => ErrorClass::Auth,
            _ => ErrorClass::Other,
        }
    }
}

impl std::fmt::Display for SqlState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::fmt::Debug for SqlState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SqlState({})", self.as_str())
    }
}

/// An ErrorResponse or NoticeResponse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{severity} {sqlstate}: {message}{}", .detail.as_ref().map(|text| format!(" ({text})")).unwrap_or_default())]
pub struct PgError {
    /// ERROR, FATAL, PANIC, or of a notice WARNING, NOTICE, ..; never translated.
    pub severity: String,
    /// The code.
    pub sqlstate: SqlState,
    /// The message.
    pub message: String,
    /// More about it.
    pub detail: Option<String>,
    /// The constraint that was broken.
    pub constraint: Option<String>,
    /// The table it is about.
    pub table: Option<String>,
}

impl PgError {
    /// From the fields of the message: a type byte and a zero-terminated string each, closed by a zero byte.
    pub(crate) fn parse(mut body: &[u8]) -> Option<Self> {
        let mut error = Self {
            severity: String::new(),
            sqlstate: SqlState(*b"XX000"),
            message: String::new(),
            detail: None,
            constraint: None,
            table: None,
        };
        loop {
            let (&kind, rest) = body.split_first()?;
            if kind == 0 {
                return Some(error);
            }
            let end = rest.iter().position(|&byte| byte == 0)?;
            let (text, rest) = (&rest[..end], &rest[end + 1..]);
            let owned = || String::from_utf8_lossy(text).into_owned();
            match kind {
                b'V' => error.severity = owned(),
                b'S' if error.severity.is_empty() => error.severity = owned(),
                b'C' => error.sqlstate = SqlState::new(text),
                b'M' => error.message = owned(),
                b'D' => error.detail = Some(owned()),
                b'n' => error.constraint = Some(owned()),
                b't' => error.table = Some(owned()),
                _ => {}
            }
            body = rest;
        }
    }

    /// Whether the connection ends with it.
    pub fn is_fatal(&self) -> bool {
        matches!(self.severity.as_str(), "FATAL" | "PANIC")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_classes() {
        for (code, class) in [
            ("40001", ErrorClass::Retry),
            ("40P01", ErrorClass::Retry),
            ("23505", ErrorClass::Conflict),
            ("23514", ErrorClass::Integrity),
            ("57014", ErrorClass::Timeout),
            ("57P01", ErrorClass::Unavailable),
            ("08006", ErrorClass::Unavailable),
            ("53300", ErrorClass::Unavailable),
            ("28P01", ErrorClass::Auth),
            ("SK001", ErrorClass::Other),
        ] {
            assert_eq!(SqlState::new(code.as_bytes()).class(), class, "{code}");
        }
        assert_eq!(SqlState::new(b"4000").as_str(), "XX000");
        assert_eq!(SqlState::new(b"4000\xff").as_str(), "XX000");
    }

    #[test]
    fn a_message_that_ends_early_is_none() {
        assert_eq!(PgError::parse(b"SERROR\0C23505"), None);
        assert_eq!(PgError::parse(b""), None);
        let error = PgError::parse(b"SFEHLER\0VERROR\0C23505\0Mdouble\0nuq_orders\0\0").unwrap();
        assert_eq!((error.severity.as_str(), error.constraint.as_deref()), ("ERROR", Some("uq_orders")));
    }
}
