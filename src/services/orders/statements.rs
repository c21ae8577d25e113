//! The statements of `sql/order/` with their parameter types.

use proto_clients::postgres::{Params, Statement, Type};

use crate::domain::UnitHolder;

macro_rules! statement {
    ($name:ident, $file:literal, [$($param:ident),*]) => {
        #[doc = concat!("`sql/order/", $file, "`")]
        pub(super) static $name: Statement =
            Statement { sql: include_str!(concat!("../../../sql/order/", $file)), params: &[$(Type::$param),*] };
    };
}

statement!(ORDER_BATCH, "order_batch.sql", [Text, Int8, Int8, UuidArray, UuidArray, UuidArray, Int8Array, Int8Array]);
statement!(PROBE, "probe.sql", []);
statement!(INSERT_INBOX, "insert_inbox.sql", [Text, Uuid, Uuid, Uuid, Int8]);
statement!(LOAD_INBOX, "load_inbox.sql", [Text, Uuid]);
statement!(FIND_RELEASE, "find_release.sql", [Uuid]);
statement!(DEDUCT_STOCK, "deduct_stock.sql", [Int8, Int8]);
statement!(REVERT_STOCK, "revert_stock.sql", [Int8, Int8]);
statement!(INSERT_ORDER, "insert_order.sql", [Int8, Uuid, Uuid, Int8, Int8, Int8]);
statement!(FIND_CONFLICT, "find_conflict.sql", [Int8, Uuid, Uuid, Int8, Int8, Int8]);
statement!(MARK_INBOX, "mark_inbox.sql", [Text, Text, Int8, Text, Uuid]);
statement!(INSERT_RELEASE, "insert_release_outbox.sql", [Uuid, Uuid, Uuid, Int8, Int8, Int8, Int8, Text]);
statement!(
    INSERT_ATTEMPTS,
    "insert_attempts.sql",
    [Text, Text, UuidArray, TextArray, Int4Array, TextArray, TextArray, Int8Array, TimestamptzArray]
);
statement!(
    QUARANTINE_MESSAGE,
    "quarantine_message.sql",
    [Text, Text, Text, Int4, Text, Text, Bytea, Uuid, Uuid, Uuid, Int8, Int8, Int8, Int8, Text, Text]
);

/// What `quarantine_message.sql` keeps of a message.
pub(super) struct Quarantine<'a> {
    pub(super) group: &'a str,
    pub(super) broker_message_id: &'a str,
    pub(super) topic: &'a str,
    pub(super) attempt: u32,
    pub(super) reason: &'a str,
    pub(super) detail: &'a str,
    pub(super) body: &'a [u8],
    pub(super) tag: Option<&'a str>,
    pub(super) key: Option<&'a str>,
    /// The unit to give back.
    pub(super) holder: Option<&'a UnitHolder>,
    pub(super) order_id: Option<i64>,
}

/// The parameters of [`QUARANTINE_MESSAGE`], in order.
pub(super) fn quarantine_params(params: &mut Params, row: &Quarantine<'_>) {
    params.text(row.group).text(row.broker_message_id).text(row.topic);
    params.i32(i32::try_from(row.attempt).unwrap_or(i32::MAX));
    params.text(row.reason).text(row.detail).bytea(row.body);
    match row.holder {
        Some(holder) => {
            params.uuid(holder.message_id.0).uuid(holder.reservation_id.0).uuid(holder.request_id.0);
            params.i64(holder.sku.activity.get()).i64(holder.sku.sku.get()).i64(holder.user_id.get());
        }
        None => {
            for _ in 0..6 {
                params.null();
            }
        }
    }
    match row.order_id {
        Some(order_id) => params.i64(order_id),
        None => params.null(),
    };
    for text in [row.tag, row.key] {
        match text {
            Some(text) => params.text(text),
            None => params.null(),
        };
    }
}
