//! Tokens that were verified lately, so that a client that retries does not cost a signature each time.

use sha2::{Digest as _, Sha256};

use super::token::Verdict;

/// SHA-256 of a whole token. Tokens themselves are not kept: what is here cannot be used to log in.
pub(super) type TokenDigest = [u8; 32];

/// A direct-mapped table: fixed memory, no allocation after the start, the newest token of a slot wins. Only genuine
/// tokens get in, so nobody can wash it out with garbage, and a collision only costs a verification.
#[derive(Debug)]
pub(super) struct TokenCache {
    slots: Box<[Option<(TokenDigest, Verdict)>]>,
}

impl TokenCache {
    /// A table of `size` slots, rounded up to a power of two.
    pub(super) fn new(size: usize) -> Self {
        Self { slots: vec![None; size.max(1).next_power_of_two()].into() }
    }

    /// The name a token has here.
    pub(super) fn digest(token: &[u8]) -> TokenDigest {
        Sha256::digest(token).into()
    }

    fn slot(&self, digest: &TokenDigest) -> usize {
        // Every bit of a digest is as good as any other.
        let [a, b, c, d, ..] = *digest;
        u32::from_le_bytes([a, b, c, d]) as usize & (self.slots.len() - 1)
    }

    /// What a token said when it was verified. Whether it can still be used is for the caller to ask.
    pub(super) fn get(&self, digest: &TokenDigest) -> Option<Verdict> {
        match &self.slots[self.slot(digest)] {
            Some((known, verdict)) if known == digest => Some(*verdict),
            _ => None,
        }
    }

    /// Remembers a verified token.
    pub(super) fn insert(&mut self, digest: TokenDigest, verdict: Verdict) {
        let slot = self.slot(&digest);
        self.slots[slot] = Some((digest, verdict));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::UserId;

    fn verdict(user: i64) -> Verdict {
        Verdict { user: UserId::new(user).unwrap(), expires: user, not_before: i64::MIN }
    }

    #[test]
    fn a_token_is_found_by_all_of_its_bytes() {
        let mut cache = TokenCache::new(1);
        let (one, other) = (TokenCache::digest(b"one"), TokenCache::digest(b"other"));
        assert_eq!(cache.get(&one), None);
        cache.insert(one, verdict(1));
        assert_eq!((cache.get(&one), cache.get(&other)), (Some(verdict(1)), None));
        cache.insert(other, verdict(2));
        assert_eq!((cache.get(&one), cache.get(&other)), (None, Some(verdict(2))), "the newest of a slot wins");
    }

    #[test]
    fn it_uses_its_slots_and_never_grows() {
        let mut cache = TokenCache::new(1_000);
        for user in 1..=20_000 {
            cache.insert(TokenCache::digest(&user.to_string().into_bytes()), verdict(user));
        }
        assert_eq!(cache.slots.len(), 1_024);
        assert!(cache.slots.iter().all(Option::is_some), "20 tokens a slot leave none empty");
    }
}
