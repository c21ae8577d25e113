//! Which request keys this shard accepted lately, and for what.
//!
//! The same key on another SKU lives in another Redis slot, where the script cannot see the first use. This table
//! refuses it where it can be known: on the shard that took the first one, for as long as the table remembers. Past
//! that, the unique request_id of `orders` turns the second message down and its unit goes back (spec section 12).

use crate::domain::{Sku, UserId, Uuid};

/// A direct-mapped table: fixed memory, no allocation after the start, newest key of a slot wins.
#[derive(Debug)]
pub(super) struct RecentKeys {
    slots: Vec<Option<(Uuid, UserId, Sku)>>,
}

impl RecentKeys {
    /// A table of `size` slots, rounded up to a power of two.
    pub(super) fn new(size: usize) -> Self {
        Self { slots: vec![None; size.max(1).next_power_of_two()] }
    }

    fn slot(&self, request_id: &Uuid) -> usize {
        // Clients choose keys, but a collision only makes the table forget: no attack lies in it. Both halves count,
        // because version 7 keys share their first bytes and version 4 keys differ everywhere.
        let (high, low) = request_id.0.split_at(8);
        let half = |bytes: &[u8]| bytes.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        let mixed = (half(high) ^ half(low)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & (self.slots.len() - 1)
    }

    /// Remembers an accepted key.
    pub(super) fn insert(&mut self, request_id: Uuid, user_id: UserId, sku: Sku) {
        let slot = self.slot(&request_id);
        self.slots[slot] = Some((request_id, user_id, sku));
    }

    /// Whether this very key was accepted for another SKU or from another user.
    pub(super) fn is_other_sku(&self, request_id: &Uuid, user_id: UserId, sku: Sku) -> bool {
        matches!(&self.slots[self.slot(request_id)],
            Some((known, known_user, known_sku))
                if known == request_id && (*known_sku != sku || *known_user != user_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_for_something_else_is_refused() {
        let (sku, other) = (Sku::new(1, 1).unwrap(), Sku::new(1, 2).unwrap());
        let (user, stranger) = (UserId::new(7).unwrap(), UserId::new(8).unwrap());
        let mut keys = RecentKeys::new(4);
        keys.insert(Uuid([1; 16]), user, sku);
        assert!(!keys.is_other_sku(&Uuid([1; 16]), user, sku));
        assert!(keys.is_other_sku(&Uuid([1; 16]), user, other));
        assert!(keys.is_other_sku(&Uuid([1; 16]), stranger, sku));
        assert!(!keys.is_other_sku(&Uuid([2; 16]), user, other));
    }

    #[test]
    fn it_forgets_rather_than_grows() {
        let sku = Sku::new(1, 1).unwrap();
        let user = UserId::new(7).unwrap();
        let mut keys = RecentKeys::new(2);
        for byte in 0..100 {
            keys.insert(Uuid([byte; 16]), user, sku);
        }
        assert_eq!(keys.slots.len(), 2);
    }
}
