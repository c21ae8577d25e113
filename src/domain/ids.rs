//! Typed ids of a sale and the order-id space.

use std::fmt;

macro_rules! positive_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(i64);

        impl $name {
            /// `None` unless `value > 0` (spec section 1).
            pub const fn new(value: i64) -> Option<Self> {
                if value > 0 { Some(Self(value)) } else { None }
            }

            /// The number, always > 0.
            pub const fn get(self) -> i64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

positive_id!(
    /// A sale.
    ActivityId
);
positive_id!(
    /// A thing on sale within an activity.
    SkuId
);
positive_id!(
    /// A buyer, as the authenticated context names it.
    UserId
);
positive_id!(
    /// An order. Allocated before the reservation is made; real only once the order row is committed.
    OrderId
);

/// The largest order id: every JSON reader that holds numbers as doubles keeps it whole (spec section 2).
pub const ORDER_ID_MAX: i64 = (1 << 53) - 1;

/// One SKU of one activity: the unit that owns stock, a hash tag in Redis and a row in PostgreSQL.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Sku {
    /// The sale.
    pub activity: ActivityId,
    /// The thing on sale.
    pub sku: SkuId,
}

impl Sku {
    /// Both ids, `None` unless both are > 0.
    pub const fn new(activity_id: i64, sku_id: i64) -> Option<Self> {
        match (ActivityId::new(activity_id), SkuId::new(sku_id)) {
            (Some(activity), Some(sku)) => Some(Self { activity, sku }),
            _ => None,
        }
    }
}

impl fmt::Display for Sku {
    /// `activity_id:sku_id`, the form used in Redis keys and message keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.activity, self.sku)
    }
}

/// Splits items into one group a SKU, each in its first item's place and in order within.
pub fn by_sku<T>(items: Vec<T>, sku_of: impl Fn(&T) -> Sku) -> Vec<(Sku, Vec<T>)> {
    let mut groups: Vec<(Sku, Vec<T>)> = Vec::new();
    for item in items {
        let sku = sku_of(&item);
        // A batch holds few SKUs, mostly one: a scan beats a map.
        match groups.iter_mut().find(|(known, _)| *known == sku) {
            Some((_, group)) => group.push(item),
            None => groups.push((sku, vec![item])),
        }
    }
    groups
}

/// A leased run of order ids: `block << 12 ..= block << 12 | 4095`, repeated for `count` consecutive blocks.
///
/// Blocks come from one shared counter that never falls below the milliseconds passed since 2026-01-01 and is
/// raised by at least one at each lease. So two leases never overlap: not across shards or processes (one counter),
/// not across restarts (what is left of a lease is thrown away), not when the clock steps back (the counter only
/// rises), and not when the counter itself is lost (time has passed it). 41 bits of milliseconds last 69 years.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderIdBlock {
    next: i64,
    end: i64,
}

impl OrderIdBlock {
    /// Ids in one block.
    pub const SIZE: i64 = 1 << 12;
    /// Unix milliseconds of 2026-01-01T00:00:00Z, where block numbers start.
    pub const EPOCH_UNIX_MS: u64 = 1_767_225_600_000;
    /// The largest block number, so that its last id is [`ORDER_ID_MAX`].
    pub const NUMBER_MAX: i64 = ORDER_ID_MAX >> 12;

    /// The ids of `count` blocks from number `first` on; `None` when they do not all lie in 1..=[`ORDER_ID_MAX`].
    pub fn new(first: i64, count: i64) -> Option<Self> {
        if first < 1 || count < 1 || first.checked_add(count - 1)? > Self::NUMBER_MAX {
            return None;
        }
        Some(Self { next: first << 12, end: (first + count) << 12 })
    }

    /// A lease with nothing left in it.
    pub const fn empty() -> Self {
        Self { next: 0, end: 0 }
    }

    /// How many ids are left.
    pub fn remaining(&self) -> i64 {
        self.end - self.next
    }

    /// Takes the next id; `None` when the lease is used up.
    pub fn take(&mut self) -> Option<OrderId> {
        if self.next >= self.end {
            return None;
        }
        let id = OrderId::new(self.next);
        self.next += 1;
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_keep_the_order_within_a_sku() {
        let (one, two) = (Sku::new(1, 1).unwrap(), Sku::new(1, 2).unwrap());
        let groups = by_sku(vec![(one, 'a'), (two, 'b'), (one, 'c')], |item| item.0);
        assert_eq!(groups, [(one, vec![(one, 'a'), (one, 'c')]), (two, vec![(two, 'b')])]);
    }

    #[test]
    fn ids_are_positive() {
        assert_eq!(ActivityId::new(0), None);
        assert_eq!(UserId::new(-1), None);
        assert_eq!(SkuId::new(i64::MAX).map(SkuId::get), Some(i64::MAX));
        assert_eq!(Sku::new(1001, 2001).map(|sku| sku.to_string()).as_deref(), Some("1001:2001"));
        assert_eq!(Sku::new(1001, 0), None);
    }

    #[test]
    fn leases_do_not_overlap_and_stay_below_the_largest_double_integer() {
        let mut first = OrderIdBlock::new(10, 2).unwrap();
        let second = OrderIdBlock::new(12, 1).unwrap();
        let mut last = 0;
        while let Some(id) = first.take() {
            assert!(id.get() > last);
            last = id.get();
        }
        assert_eq!(second.next, last + 1);
        assert_eq!(first.remaining(), 0);

        let mut top = OrderIdBlock::new(OrderIdBlock::NUMBER_MAX, 1).unwrap();
        let mut last = 0;
        while let Some(id) = top.take() {
            last = id.get();
        }
        assert_eq!(last, ORDER_ID_MAX);
        assert_eq!(OrderIdBlock::new(OrderIdBlock::NUMBER_MAX, 2), None);
        assert_eq!(OrderIdBlock::new(0, 1), None);
        assert_eq!(OrderIdBlock::new(i64::MAX, i64::MAX), None);
    }
}
