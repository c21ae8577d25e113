//! Who the buyer is (spec section 1): a signed bearer token, or, only where configured, a header that a trusted gateway
//! sets. The setting decides which of the two is looked at; the other one is never a fallback.

mod cache;
mod token;

use std::cell::RefCell;

use crate::config::{Identity as Settings, IdentityMode};
use crate::domain::UserId;
use cache::TokenCache;
use token::Verifier;

/// The longest bearer token, in bytes. Ours are about 200; this leaves room for an issuer's own claims and bounds the
/// work of refusing a hostile one.
pub const TOKEN_BYTES_MAX: usize = 4096;

/// Verified tokens remembered per shard: 64 bytes each, allocated once.
const CACHE_SLOTS: usize = 4096;

/// One request field, as the HTTP side found it, without white space around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderValue<'a> {
    /// Not there.
    Missing,
    /// There once.
    One(&'a [u8]),
    /// There more than once. Two readers may take different ones, so it names nobody.
    Repeated,
}

impl<'a> HeaderValue<'a> {
    fn one(self) -> Result<&'a [u8], Unauthenticated> {
        match self {
            Self::One(value) => Ok(value),
            Self::Missing => Err(Unauthenticated::Missing),
            Self::Repeated => Err(Unauthenticated::Repeated),
        }
    }
}

/// Why nobody is recognised. The client learns only `UNAUTHENTICATED`; the reason is for metrics and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unauthenticated {
    /// The field that names the user is not there.
    #[error("no identity is given")]
    Missing,
    /// The field is there more than once.
    #[error("identity is given more than once")]
    Repeated,
    /// Not `Bearer <token>`, not a token, or not a user id.
    #[error("identity is malformed")]
    Malformed,
    /// Longer than [`TOKEN_BYTES_MAX`].
    #[error("the token is longer than {TOKEN_BYTES_MAX} bytes")]
    TooLong,
    /// Signed, or said to be signed, in another way than the one configured.
    #[error("the token's algorithm is not the configured one")]
    Algorithm,
    /// Not signed by the configured key.
    #[error("the token's signature does not fit")]
    Signature,
    /// Past `exp`.
    #[error("the token has expired")]
    Expired,
    /// Before `nbf`.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// `aud` does not name us.
    #[error("the token is for somebody else")]
    Audience,
    /// `exp`, `aud` or `sub` is missing or not of its type, or `sub` is not a decimal user id > 0.
    #[error("a claim of the token is missing or not valid")]
    Claims,
}

impl Unauthenticated {
    /// The reason as a metric label.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Repeated => "repeated",
            Self::Malformed => "malformed",
            Self::TooLong => "too_long",
            Self::Algorithm => "algorithm",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::Audience => "audience",
            Self::Claims => "claims",
        }
    }
}

/// Why the settings cannot tell anybody apart. No key material is in the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Mode jwt without a key.
    #[error("identity.jwt_key is empty: set it, or SECKILL_JWT_KEY, or use identity.mode = gateway_header")]
    NoKey,
    /// Mode jwt with a key that the algorithm cannot use.
    #[error("identity.jwt_key cannot be used with {algorithm}: {expected}")]
    BadKey {
        /// `identity.jwt_algorithm`.
        algorithm: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// Mode jwt without an audience: tokens made for any other service of the same issuer would do.
    #[error("identity.jwt_audience is empty")]
    NoAudience,
}

/// Tells who the buyer is. One per shard: it remembers the tokens it has verified.
#[derive(Debug)]
pub struct Identity {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Token { verifier: Box<Verifier>, verified: RefCell<TokenCache> },
    Gateway { header: String },
}

impl Identity {
    /// From the settings of section `[identity]`.
    ///
    /// # Errors
    /// [`IdentityError`] when mode jwt has no usable key or no audience.
    pub fn new(settings: &Settings) -> Result<Self, IdentityError> {
        let source = match settings.mode {
            IdentityMode::GatewayHeader => Source::Gateway { header: settings.gateway_header.clone() },
            IdentityMode::Jwt => Source::Token {
                verifier: Box::new(Verifier::new(settings)?),
                verified: RefCell::new(TokenCache::new(CACHE_SLOTS)),
            },
        };
        Ok(Self { source })
    }

    /// The gateway's field to look for, only where one is trusted.
    pub fn gateway_header(&self) -> Option<&str> {
        match &self.source {
            Source::Token { .. } => None,
            Source::Gateway { header } => Some(header),
        }
    }

    /// The buyer, by the wall clock. `authorization` is the field of that name, `gateway` the one that
    /// [`Self::gateway_header`] names.
    ///
    /// # Errors
    /// [`Unauthenticated`].
    pub fn user(&self, authorization: HeaderValue<'_>, gateway: HeaderValue<'_>) -> Result<UserId, Unauthenticated> {
        self.user_at(authorization, gateway, shards::time::unix_micros() / 1_000_000)
    }

    /// As [`Self::user`], at `now` in Unix seconds.
    ///
    /// # Errors
    /// [`Unauthenticated`].
    pub fn user_at(
        &self,
        authorization: HeaderValue<'_>,
        gateway: HeaderValue<'_>,
        now: u64,
    ) -> Result<UserId, Unauthenticated> {
        match &self.source {
            Source::Gateway { .. } => parse_user_id(gateway.one()?).ok_or(Unauthenticated::Malformed),
            Source::Token { verifier, verified } => {
                let token = bearer_token(authorization.one()?)?;
                let mut verified = verified.borrow_mut();
                let digest = TokenCache::digest(token);
                let known = verified.get(&digest);
                let verdict = match known {
                    Some(verdict) => verdict,
                    None => verifier.verify(token)?,
                };
                // Time is asked anew on every use: a remembered token lives no longer than a fresh one.
                verdict.check_time(now, verifier.leeway_s())?;
                if known.is_none() {
                    verified.insert(digest, verdict);
                }
                Ok(verdict.user)
            }
        }
    }
}

/// `Bearer <token>` (RFC 6750 section 2.1); the scheme in any letter case (RFC 9110 section 11.1).
fn bearer_token(value: &[u8]) -> Result<&[u8], Unauthenticated> {
    let scheme_end = value.iter().position(|&byte| byte == b' ').ok_or(Unauthenticated::Malformed)?;
    let (scheme, rest) = value.split_at(scheme_end);
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return Err(Unauthenticated::Malformed);
    }
    let token = rest.trim_ascii_start();
    if token.is_empty() {
        Err(Unauthenticated::Malformed)
    } else if token.len() > TOKEN_BYTES_MAX {
        Err(Unauthenticated::TooLong)
    } else {
        Ok(token)
    }
}

/// A user id in the one way to write it: digits, no sign, no leading zero, 1 to 2^63 - 1.
fn parse_user_id(text: &[u8]) -> Option<UserId> {
    if !matches!(text, [b'1'..=b'9', ..]) {
        return None;
    }
    let mut value: i64 = 0;
    for byte in text {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(i64::from(byte - b'0'))?;
    }
    UserId::new(value)
}

#[cfg(test)]
mod tests;
