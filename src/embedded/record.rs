//! What the journal says: entries, and how they are written (MessagePack, through `rmp-serde`).
//!
//! An entry is a kind byte and a MessagePack array; a frame of the journal holds one or more entries, one after the other.
//! A reader refuses kinds it does not know: an older build must not run on what it cannot understand.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteArray;

use crate::domain::{OrderId, Sku, UserId, Uuid};
use crate::ports::ReserveRequest;

/// The terms of a sale. Times are Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// What is on sale.
    pub sku: Sku,
    /// First instant of the sale.
    pub start_ms: u64,
    /// First instant after it.
    pub end_ms: u64,
    /// From then on nothing of it is answered any more.
    pub expire_at_ms: u64,
    /// Units on sale.
    pub total: i64,
}

/// One fact of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A sale was opened.
    Opened(Opening),
    /// A sale was closed by the operator.
    Closed(Sku),
    /// A unit was reserved; all that its order needs.
    Reserved(ReserveRequest),
    /// The unit of a request went back.
    Released {
        /// The request.
        request_id: Uuid,
    },
}

/// Bytes that are no entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A kind this build does not know.
    #[error("an entry of kind {0}, which this version does not know")]
    UnknownKind(u8),
    /// Not the array its kind stands for.
    #[error("an entry that cannot be read: {0}")]
    Malformed(String),
    /// A value that no entry has.
    #[error("an entry with an impossible {0}")]
    Impossible(&'static str),
}

const OPENED: u8 = 1;
const CLOSED: u8 = 2;
const RESERVED: u8 = 3;
const RELEASED: u8 = 4;

#[derive(Serialize, Deserialize)]
struct OpenedRow(i64, i64, u64, u64, u64, i64);
#[derive(Serialize, Deserialize)]
struct ClosedRow(i64, i64);
#[derive(Serialize, Deserialize)]
struct ReservedRow(i64, i64, i64, ByteArray<16>, ByteArray<16>, ByteArray<16>, i64, u64);
#[derive(Serialize, Deserialize)]
struct ReleasedRow(ByteArray<16>, u8);

impl Entry {
    /// Appends the entry to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Opened(Opening { sku, start_ms, end_ms, expire_at_ms, total }) => {
                let row = OpenedRow(sku.activity.get(), sku.sku.get(), *start_ms, *end_ms, *expire_at_ms, *total);
                write(out, OPENED, &row);
            }
            Self::Closed(sku) => write(out, CLOSED, &ClosedRow(sku.activity.get(), sku.sku.get())),
            Self::Reserved(request) => {
                let row = ReservedRow(
                    request.sku.activity.get(),
                    request.sku.sku.get(),
                    request.user_id.get(),
                    ByteArray::new(request.request_id.0),
                    ByteArray::new(request.reservation_id.0),
                    ByteArray::new(request.message_id.0),
                    request.order_id.get(),
                    request.created_at_micros,
                );
                write(out, RESERVED, &row);
            }
            // The second field says why, for a reader of later versions; 0 is "the order was turned down".
            Self::Released { request_id } => write(out, RELEASED, &ReleasedRow(ByteArray::new(request_id.0), 0)),
        }
    }

    /// Reads one entry from the front of `bytes`, and moves `bytes` behind it.
    ///
    /// # Errors
    /// [`RecordError`]; `bytes` is left as it was.
    pub fn decode(bytes: &mut &[u8]) -> Result<Self, RecordError> {
        let mut rest = *bytes;
        let Some((&kind, row)) = rest.split_first() else {
            return Err(RecordError::Malformed("no bytes".to_owned()));
        };
        rest = row;
        let sku = |activity, sku| Sku::new(activity, sku).ok_or(RecordError::Impossible("SKU"));
        let entry = match kind {
            OPENED => {
                let OpenedRow(activity, id, start_ms, end_ms, expire_at_ms, total) = read(&mut rest)?;
                Self::Opened(Opening { sku: sku(activity, id)?, start_ms, end_ms, expire_at_ms, total })
            }
            CLOSED => {
                let ClosedRow(activity, id) = read(&mut rest)?;
                Self::Closed(sku(activity, id)?)
            }
            RESERVED => {
                let ReservedRow(activity, id, user, request, reservation, message, order, created_at_micros) =
                    read(&mut rest)?;
                Self::Reserved(ReserveRequest {
                    sku: sku(activity, id)?,
                    user_id: UserId::new(user).ok_or(RecordError::Impossible("user"))?,
                    request_id: Uuid(request.into_array()),
                    reservation_id: Uuid(reservation.into_array()),
                    message_id: Uuid(message.into_array()),
                    order_id: OrderId::new(order).ok_or(RecordError::Impossible("order id"))?,
                    created_at_micros,
                })
            }
            RELEASED => {
                let ReleasedRow(request, _) = read(&mut rest)?;
                Self::Released { request_id: Uuid(request.into_array()) }
            }
            other => return Err(RecordError::UnknownKind(other)),
        };
        *bytes = rest;
        Ok(entry)
    }
}

fn write(out: &mut Vec<u8>, kind: u8, row: &impl Serialize) {
    out.push(kind);
    // Numbers and byte strings into memory: there is nothing that could fail.
    let _ = rmp_serde::encode::write(out, row);
}

fn read<T: for<'a> Deserialize<'a>>(rest: &mut &[u8]) -> Result<T, RecordError> {
    rmp_serde::decode::from_read(rest).map_err(|error| RecordError::Malformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = Entry> {
        let id = 1..=i64::MAX;
        let sku = (id.clone(), id.clone()).prop_map(|(a, s)| Sku::new(a, s).unwrap());
        let uuid = any::<[u8; 16]>().prop_map(Uuid);
        let opening = (sku.clone(), any::<u64>(), any::<u64>(), any::<u64>(), any::<i64>()).prop_map(
            |(sku, start_ms, end_ms, expire_at_ms, total)| Opening { sku, start_ms, end_ms, expire_at_ms, total },
        );
        let request = (sku.clone(), id.clone(), uuid.clone(), uuid.clone(), uuid.clone(), id, any::<u64>()).prop_map(
            |(sku, user, request_id, reservation_id, message_id, order, created_at_micros)| ReserveRequest {
                sku,
                user_id: UserId::new(user).unwrap(),
                request_id,
                reservation_id,
                message_id,
                order_id: OrderId::new(order).unwrap(),
                created_at_micros,
            },
        );
        prop_oneof![
            opening.prop_map(Entry::Opened),
            sku.prop_map(Entry::Closed),
            request.prop_map(Entry::Reserved),
            uuid.prop_map(|request_id| Entry::Released { request_id }),
        ]
    }

    proptest! {
        #[test]
        fn entries_round_trip(entries in proptest::collection::vec(entry(), 0..20)) {
            let mut bytes = Vec::new();
            entries.iter().for_each(|entry| entry.encode(&mut bytes));
            let mut rest = &bytes[..];
            let mut read = Vec::new();
            while !rest.is_empty() {
                read.push(Entry::decode(&mut rest).unwrap());
            }
            prop_assert_eq!(read, entries);
        }

        #[test]
        fn garbage_is_an_error_and_not_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            crate::embedded::fuzz_journal(&bytes);
        }
    }

    #[test]
    fn a_reservation_takes_about_a_hundred_bytes() {
        let request = ReserveRequest {
            sku: Sku::new(1001, 2001).unwrap(),
            user_id: UserId::new(3_000_000).unwrap(),
            request_id: Uuid([7; 16]),
            reservation_id: Uuid([8; 16]),
            message_id: Uuid([9; 16]),
            order_id: OrderId::new(120_000_000_000_000).unwrap(),
            created_at_micros: 1_800_000_000_000_000,
        };
        let mut bytes = Vec::new();
        Entry::Reserved(request).encode(&mut bytes);
        assert!(bytes.len() <= 96, "{}", bytes.len());
    }

    #[test]
    fn an_unknown_kind_is_named() {
        assert_eq!(Entry::decode(&mut &[9_u8, 0x90][..]), Err(RecordError::UnknownKind(9)));
    }
}
