//! `postgres://user:password@host:port/database?setting=value`

use super::PoolConfig;

/// Why a URL cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another form.
    #[error("must be postgres://user[:password]@host[:port]/database[?setting=value&..]: {0}")]
    Form(&'static str),
    /// TLS was asked for.
    #[error("sslmode={0} asks for TLS, which is not built in; use sslmode=disable on a network you trust")]
    Tls(String),
}

impl PoolConfig {
    /// Reads a URL. `connect_timeout` and `sslmode=disable|allow|prefer` are accepted as other clients do; every other
    /// parameter becomes a run-time setting of the session.
    ///
    /// # Errors
    /// [`UrlError`], which never repeats the password.
    pub fn from_url(url: &str) -> Result<Self, UrlError> {
        let rest = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://"));
        let rest = rest.ok_or(UrlError::Form("it begins otherwise"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, rest) = rest.rsplit_once('@').ok_or(UrlError::Form("there is no user"))?;
        let (host, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (decoded(user)?, Some(decoded(password)?)),
            None => (decoded(login)?, None),
        };
        if user.is_empty() || host.is_empty() {
            return Err(UrlError::Form("user and host must not be empty"));
        }
        let port_at = host.rfind(':').filter(|at| !host[*at..].contains(']'));
        let endpoint = match port_at {
            Some(at) => {
                host[at + 1..].parse::<u16>().map_err(|_| UrlError::Form("the port is no number"))?;
                host.to_owned()
            }
            None => format!("{host}:5432"),
        };
        let mut config = Self { endpoint, user: user.clone(), password, ..Self::default() };
        config.database = if database.is_empty() { user } else { decoded(database)? };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or(UrlError::Form("a setting has no value"))?;
            let (name, value) = (decoded(name)?, decoded(value)?);
            match name.as_str() {
                "sslmode" if matches!(value.as_str(), "disable" | "allow" | "prefer") => {}
                "sslmode" => return Err(UrlError::Tls(value)),
                "application_name" => config.application_name = value,
                "connect_timeout" => {
                    let seconds =
                        value.parse().map_err(|_| UrlError::Form("connect_timeout is no number of seconds"))?;
                    config.dial_timeout = std::time::Duration::from_secs(seconds);
                }
                _ => config.options.push((name, value)),
            }
        }
        Ok(config)
    }
}

/// Percent-decodes (RFC 3986 section 2.1).
fn decoded(text: &str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        let (high, low) = (digit(rest.next()), digit(rest.next()));
        match (high, low) {
            (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
            _ => return Err(UrlError::Form("a % is not followed by two hexadecimal digits")),
        }
    }
    String::from_utf8(bytes).map_err(|_| UrlError::Form("it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_read() {
        let config = PoolConfig::from_url(
            "postgres://sale%40x:p%3Aw@db.example:5433/se%20ckill?sslmode=disable&lock_timeout=1s",
        )
        .unwrap();
        assert_eq!((config.user.as_str(), config.password.as_deref()), ("sale@x", Some("p:w")));
        assert_eq!((config.endpoint.as_str(), config.database.as_str()), ("db.example:5433", "se ckill"));
        assert_eq!(config.options, [("lock_timeout".to_owned(), "1s".to_owned())]);
        let short = PoolConfig::from_url("postgresql://u@h").unwrap();
        assert_eq!((short.endpoint.as_str(), short.database.as_str(), short.password), ("h:5432", "u", None));
        assert_eq!(PoolConfig::from_url("postgres://u@[::1]").unwrap().endpoint, "[::1]:5432");
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        for url in ["mysql://u@h/d", "postgres://h/d", "postgres://u@h:x/d", "postgres://u%2@h/d", "postgres://@h/d"] {
            let error = PoolConfig::from_url(url).unwrap_err().to_string();
            assert!(error.contains("postgres://user"), "{error}");
        }
        let error = PoolConfig::from_url("postgres://u:secret@h/d?sslmode=require").unwrap_err().to_string();
        assert!(error.contains("TLS") && !error.contains("secret"), "{error}");
    }
}
