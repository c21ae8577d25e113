//! Verification of bearer tokens: JWT (RFC 7519) signed with the one configured algorithm.

use std::borrow::Cow;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;

use super::{IdentityError, Unauthenticated, parse_user_id};
use crate::config::{Identity as Settings, JwtAlgorithm};
use crate::domain::UserId;

/// The shortest HS256 secret: as long as the hash (RFC 7518 section 3.2).
const SECRET_BYTES_MIN: usize = 32;
/// An Ed25519 public key (RFC 8032 section 5.1.5).
const ED25519_BYTES: usize = 32;

/// What a genuine token says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    /// `sub`.
    pub(super) user: UserId,
    /// `exp`, Unix seconds, rounded down.
    pub(super) expires: i64,
    /// `nbf`, Unix seconds, rounded up; the smallest number if there is none.
    pub(super) not_before: i64,
}

impl Verdict {
    /// Whether the token can be used at `now`, Unix seconds. RFC 7519 sections 4.1.4 and 4.1.5: not on or after `exp`,
    /// not before `nbf`, give or take the leeway.
    pub(super) fn check_time(&self, now: u64, leeway_s: u64) -> Result<(), Unauthenticated> {
        let (now, leeway) = (i64::try_from(now).unwrap_or(i64::MAX), i64::try_from(leeway_s).unwrap_or(i64::MAX));
        if now >= self.expires.saturating_add(leeway) {
            Err(Unauthenticated::Expired)
        } else if now < self.not_before.saturating_sub(leeway) {
            Err(Unauthenticated::NotYetValid)
        } else {
            Ok(())
        }
    }
}

/// The claims that are read. `aud` is checked by the library, times here: the library asks its own clock.
#[derive(Deserialize)]
struct Claims<'a> {
    sub: Cow<'a, str>,
    // NumericDate may have a fraction (RFC 7519 section 2).
    exp: f64,
    nbf: Option<f64>,
}

/// The configured key, algorithm and audience.
#[derive(Debug)]
pub(super) struct Verifier {
    key: DecodingKey,
    validation: Validation,
    leeway_s: u64,
}

impl Verifier {
    pub(super) fn new(settings: &Settings) -> Result<Self, IdentityError> {
        if settings.jwt_key.is_empty() {
            return Err(IdentityError::NoKey);
        }
        if settings.jwt_audience.is_empty() {
            return Err(IdentityError::NoAudience);
        }
        let (algorithm, key) = match settings.jwt_algorithm {
            JwtAlgorithm::HS256 => (Algorithm::HS256, secret(&settings.jwt_key)?),
            JwtAlgorithm::EdDSA => (Algorithm::EdDSA, public_key(&settings.jwt_key)?),
        };
        let mut validation = Validation::new(algorithm);
        validation.set_audience(&[&settings.jwt_audience]);
        validation.set_required_spec_claims(&["exp", "aud", "sub"]);
        validation.validate_exp = false;
        validation.validate_nbf = false;
        Ok(Self { key, validation, leeway_s: settings.jwt_leeway_s })
    }

    pub(super) const fn leeway_s(&self) -> u64 {
        self.leeway_s
    }

    /// Checks everything but the time.
    pub(super) fn verify(&self, token: &[u8]) -> Result<Verdict, Unauthenticated> {
        let claims = decode::<Claims<'static>>(token, &self.key, &self.validation)
            .map_err(|error| match error.kind() {
                ErrorKind::InvalidAlgorithm | ErrorKind::UnsupportedAlgorithm => Unauthenticated::Algorithm,
                ErrorKind::InvalidSignature => Unauthenticated::Signature,
                ErrorKind::InvalidAudience => Unauthenticated::Audience,
                ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidClaimFormat(_) => Unauthenticated::Claims,
                _ => Unauthenticated::Malformed,
            })?
            .claims;
        // `as` saturates, which is what a date beyond all time should do.
        Ok(Verdict {
            user: parse_user_id(claims.sub.as_bytes()).ok_or(Unauthenticated::Claims)?,
            expires: claims.exp.floor() as i64,
            not_before: claims.nbf.map_or(i64::MIN, |nbf| nbf.ceil() as i64),
        })
    }
}

fn secret(text: &str) -> Result<DecodingKey, IdentityError> {
    let bad = IdentityError::BadKey { algorithm: "HS256", expected: "a secret of at least 32 bytes" };
    if text.len() < SECRET_BYTES_MIN || text.contains("-----BEGIN") {
        return Err(bad);
    }
    DecodingKey::from_secret(text.as_bytes()).map_err(|_| bad)
}

fn public_key(pem: &str) -> Result<DecodingKey, IdentityError> {
    let bad = || IdentityError::BadKey { algorithm: "EdDSA", expected: "an Ed25519 public key in PEM" };
    let key = DecodingKey::from_ed_pem(pem.as_bytes()).map_err(|_| bad())?;
    // The library takes the first 32 bytes of whatever the PEM holds, without looking how many there are.
    if key.try_get_as_bytes().map_err(|_| bad())?.len() != ED25519_BYTES {
        return Err(bad());
    }
    // A point that is not on the curve is found out by the first use: here, not with the first buyer.
    jsonwebtoken::crypto::verify("", b"", &key, Algorithm::EdDSA).map_err(|_| bad())?;
    Ok(key)
}
