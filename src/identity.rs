//! Who the buyer is: a signed bearer token, or a header that a trusted gateway sets. Never the body (spec section 1).

use std::cell::RefCell;

use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::config::{Identity as Settings, IdentityMode, JwtAlgorithm};
use crate::domain::UserId;

/// Longest token looked at.
const TOKEN_BYTES_MAX: usize = 4096;
/// Verified tokens remembered a shard: a buyer who clicks again costs a digest, not a signature.
const REMEMBERED: usize = 4096;

/// A header's value, as far as it can say who somebody is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderValue<'a> {
    /// Not there.
    Missing,
    /// There once.
    One(&'a [u8]),
    /// There more than once: which one counts is anybody's guess.
    Repeated,
}

/// Nobody we know. Deliberately without a reason: it would tell a forger what to mend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no valid identity")]
pub struct Unauthenticated;

/// Why identity cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// No key.
    #[error(
        "identity.jwt_key is not set, so nobody could be let in: set SECKILL_JWT_KEY, or identity.mode = \"gateway_header\" \
         behind a gateway that authenticates"
    )]
    NoKey,
    /// A key that cannot be used.
    #[error("identity.jwt_key cannot be used: {0}")]
    Key(String),
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: u64,
}

/// A verified token.
#[derive(Clone, Copy)]
struct Verified {
    digest: [u8; 32],
    user: UserId,
    /// Not valid from this Unix second on, leeway included.
    until: u64,
}

/// Finds out who sends a request. One a shard.
pub struct Identity {
    mode: IdentityMode,
    tokens: Option<Tokens>,
}

struct Tokens {
    key: DecodingKey,
    validation: Validation,
    leeway_s: u64,
    /// Direct-mapped: fixed memory, the newest token of a slot wins.
    remembered: RefCell<Vec<Option<Verified>>>,
}

impl Identity {
    /// As the settings say.
    ///
    /// # Errors
    /// [`IdentityError`] when tokens are wanted and there is no usable key.
    pub fn new(settings: &Settings) -> Result<Self, IdentityError> {
        let tokens = match settings.mode {
            IdentityMode::GatewayHeader => None,
            IdentityMode::Jwt => Some(Tokens::new(settings)?),
        };
        Ok(Self { mode: settings.mode, tokens })
    }

    /// The user, from the one source that is configured; the other is not looked at.
    ///
    /// # Errors
    /// [`Unauthenticated`].
    pub fn user(&self, authorization: HeaderValue<'_>, gateway: HeaderValue<'_>) -> Result<UserId, Unauthenticated> {
        match (self.mode, &self.tokens) {
            (IdentityMode::GatewayHeader, _) => match gateway {
                HeaderValue::One(text) => user_id(text).ok_or(Unauthenticated),
                HeaderValue::Missing | HeaderValue::Repeated => Err(Unauthenticated),
            },
            (IdentityMode::Jwt, Some(tokens)) => match authorization {
                HeaderValue::One(text) => tokens.user(bearer(text).ok_or(Unauthenticated)?),
                HeaderValue::Missing | HeaderValue::Repeated => Err(Unauthenticated),
            },
            (IdentityMode::Jwt, None) => Err(Unauthenticated),
        }
    }
}

/// Digits only, so that no user has two spellings; leading zeros would give one more.
fn user_id(text: &[u8]) -> Option<UserId> {
    let plain = !text.is_empty() && text[0] != b'0' && text.iter().all(u8::is_ascii_digit);
    plain.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten().and_then(UserId::new)
}

/// The token of `Bearer <token>` (RFC 6750 section 2.1); the scheme in any case (RFC 9110 section 11.1).
fn bearer(text: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = text.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii()).filter(|token| token.len() <= TOKEN_BYTES_MAX)
}

impl Tokens {
    fn new(settings: &Settings) -> Result<Self, IdentityError> {
        if settings.jwt_key.is_empty() {
            return Err(IdentityError::NoKey);
        }
        let key = settings.jwt_key.as_bytes();
        // The algorithm comes from the settings, never from the token.
        let (algorithm, key) = match settings.jwt_algorithm {
            JwtAlgorithm::HS256 => (Algorithm::HS256, DecodingKey::from_secret(key)),
            JwtAlgorithm::EdDSA => (Algorithm::EdDSA, DecodingKey::from_ed_pem(key)),
        };
        let key = key.map_err(|error| IdentityError::Key(error.to_string()))?;
        let mut validation = Validation::new(algorithm);
        validation.validate_nbf = true;
        validation.leeway = settings.jwt_leeway_s;
        validation.set_audience(&[&settings.jwt_audience]);
        validation.set_required_spec_claims(&["exp", "aud", "sub"]);
        let remembered = RefCell::new(vec![None; REMEMBERED]);
        Ok(Self { key, validation, leeway_s: settings.jwt_leeway_s, remembered })
    }

    fn user(&self, token: &[u8]) -> Result<UserId, Unauthenticated> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let slot = usize::from(u16::from_be_bytes([digest[0], digest[1]])) % REMEMBERED;
        let now = shards::unix_micros() / 1_000_000;
        let known = self.remembered.borrow()[slot].filter(|known| known.digest == digest && now < known.until);
        if let Some(known) = known {
            return Ok(known.user);
        }
        let claims = decode::<Claims>(token, &self.key, &self.validation).map_err(|_| Unauthenticated)?.claims;
        let user = user_id(claims.sub.as_bytes()).ok_or(Unauthenticated)?;
        let until = claims.exp.saturating_add(self.leeway_s);
        self.remembered.borrow_mut()[slot] = Some(Verified { digest, user, until });
        Ok(user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::{Value, json};

    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    // Made for this test alone.
    const ED_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n";
    const ED_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END PUBLIC KEY-----\n";

    fn settings(mode: IdentityMode, algorithm: JwtAlgorithm, key: &str) -> Settings {
        let mut settings = crate::config::load(&crate::config::Sources::default()).unwrap().identity;
        (settings.mode, settings.jwt_algorithm, settings.jwt_key) = (mode, algorithm, key.to_owned());
        settings
    }

    fn by_secret() -> Identity {
        Identity::new(&settings(IdentityMode::Jwt, JwtAlgorithm::HS256, SECRET)).unwrap()
    }

    fn now() -> u64 {
        shards::unix_micros() / 1_000_000
    }

    fn claims(changes: Value) -> Value {
        let mut claims = json!({ "sub": "3001", "aud": "seckill", "exp": now() + 600, "nbf": now() - 1 });
        for (key, value) in changes.as_object().unwrap() {
            claims[key] = value.clone();
        }
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        claims
    }

    fn signed(claims: &Value) -> String {
        let key = EncodingKey::from_secret(SECRET.as_bytes());
        encode(&Header::new(Algorithm::HS256), claims, &key.unwrap()).unwrap()
    }

    fn user(identity: &Identity, token: &str) -> Option<i64> {
        let header = format!("Bearer {token}");
        identity.user(HeaderValue::One(header.as_bytes()), HeaderValue::Missing).ok().map(UserId::get)
    }

    #[test]
    fn a_good_token_says_who_it_is_and_is_remembered() {
        let identity = by_secret();
        let token = signed(&claims(json!({})));
        for _ in 0..2 {
            assert_eq!(user(&identity, &token), Some(3001));
        }
        let lower = format!("bearer {token}");
        assert!(identity.user(HeaderValue::One(lower.as_bytes()), HeaderValue::Missing).is_ok());
    }

    #[test]
    fn a_token_with_a_wrong_claim_is_nobody() {
        let identity = by_secret();
        for changes in [
            json!({ "exp": now() - 31 }),
            json!({ "exp": null }),
            json!({ "nbf": now() + 60 }),
            json!({ "aud": "other" }),
            json!({ "aud": null }),
            json!({ "sub": null }),
            json!({ "sub": "0" }),
            json!({ "sub": "-1" }),
            json!({ "sub": "+1" }),
            json!({ "sub": "01" }),
            json!({ "sub": "1e3" }),
            json!({ "sub": "" }),
            json!({ "sub": 3001 }),
            json!({ "sub": "9223372036854775808" }),
        ] {
            assert_eq!(user(&identity, &signed(&claims(changes.clone()))), None, "{changes}");
        }
        assert_eq!(user(&identity, &signed(&claims(json!({ "exp": now() - 5 })))), Some(3001), "within the leeway");
    }

    #[test]
    fn a_remembered_token_is_not_accepted_past_its_end() {
        let mut settings = settings(IdentityMode::Jwt, JwtAlgorithm::HS256, SECRET);
        settings.jwt_leeway_s = 0;
        let identity = Identity::new(&settings).unwrap();
        let token = signed(&claims(json!({ "exp": now() + 1 })));
        assert_eq!(user(&identity, &token), Some(3001));
        std::thread::sleep(std::time::Duration::from_millis(2_100));
        assert_eq!(user(&identity, &token), None);
    }

    #[test]
    fn the_algorithm_is_the_one_of_the_settings() {
        let by_key = Identity::new(&settings(IdentityMode::Jwt, JwtAlgorithm::EdDSA, ED_PUBLIC)).unwrap();
        let ed = EncodingKey::from_ed_pem(ED_PRIVATE.as_bytes()).unwrap();
        let by_private = encode(&Header::new(Algorithm::EdDSA), &claims(json!({})), &ed).unwrap();
        assert_eq!(user(&by_key, &by_private), Some(3001));
        assert_eq!(user(&by_secret(), &by_private), None);
        // The public key taken as a secret: the classic confusion.
        let forged = EncodingKey::from_secret(ED_PUBLIC.as_bytes()).unwrap();
        let forged = encode(&Header::new(Algorithm::HS256), &claims(json!({})), &forged).unwrap();
        assert_eq!(user(&by_key, &forged), None);
        // alg: none.
        let good = signed(&claims(json!({})));
        let payload = good.split('.').nth(1).unwrap();
        assert_eq!(user(&by_secret(), &format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{payload}.")), None);
    }

    #[test]
    fn garbage_is_nobody() {
        let identity = by_secret();
        let long = "a".repeat(TOKEN_BYTES_MAX + 1);
        for token in ["", ".", "..", "a.b.c", "\u{0}", long.as_str()] {
            assert_eq!(user(&identity, token), None);
        }
        let token = signed(&claims(json!({})));
        let basic = format!("Basic {token}");
        assert!(identity.user(HeaderValue::One(basic.as_bytes()), HeaderValue::Missing).is_err());
        assert!(identity.user(HeaderValue::Repeated, HeaderValue::Missing).is_err());
        assert!(identity.user(HeaderValue::Missing, HeaderValue::One(b"7")).is_err(), "the header is not trusted here");
    }

    #[test]
    fn a_gateway_is_believed_only_where_that_is_configured() {
        let settings = settings(IdentityMode::GatewayHeader, JwtAlgorithm::HS256, "");
        let identity = Identity::new(&settings).unwrap();
        let said = |header| identity.user(HeaderValue::Missing, header).ok().map(UserId::get);
        assert_eq!(said(HeaderValue::One(b"42")), Some(42));
        for bad in [&b"0"[..], b"", b"-1", b"+1", b" 1", b"01", b"1.0", b"9223372036854775808", b"\xff"] {
            assert_eq!(said(HeaderValue::One(bad)), None);
        }
        assert_eq!(said(HeaderValue::Repeated), None);
        let token = signed(&claims(json!({})));
        assert_eq!(user(&identity, &token), None);
    }

    #[test]
    fn tokens_without_a_key_are_a_clear_mistake() {
        let error = Identity::new(&settings(IdentityMode::Jwt, JwtAlgorithm::HS256, "")).err().unwrap();
        assert!(error.to_string().contains("SECKILL_JWT_KEY"));
        assert!(Identity::new(&settings(IdentityMode::Jwt, JwtAlgorithm::EdDSA, "no pem")).is_err());
    }
}
