//! Types of parameters and columns, by the object ids of `pg_type`.

/// A type that this client encodes or decodes, in binary format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the type of that name")]
pub enum Type {
    Bool,
    Bytea,
    Int8,
    Int2,
    Int4,
    Text,
    Json,
    Jsonb,
    Timestamptz,
    Uuid,
    Varchar,
    Int4Array,
    Int8Array,
    TextArray,
    ByteaArray,
    TimestamptzArray,
    UuidArray,
}

impl Type {
    /// The object id.
    pub const fn oid(self) -> u32 {
        match self {
            Self::Bool => 16,
            Self::Bytea => 17,
            Self::Int8 => 20,
            Self::Int2 => 21,
            Self::Int4 => 23,
            Self::Text => 25,
            Self::Json => 114,
            Self::Varchar => 1043,
            Self::Timestamptz => 1184,
            Self::Uuid => 2950,
            Self::Jsonb => 3802,
            Self::ByteaArray => 1001,
            Self::Int4Array => 1007,
            Self::TextArray => 1009,
            Self::Int8Array => 1016,
            Self::TimestamptzArray => 1185,
            Self::UuidArray => 2951,
        }
    }
}

/// Microseconds from the Unix epoch to 2000-01-01, where PostgreSQL counts from.
pub(crate) const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// A statement: prepared once a connection, on first use.
#[derive(Debug)]
pub struct Statement {
    /// One SQL statement with `$n` parameters.
    pub sql: &'static str,
    /// The parameters' types, in order.
    pub params: &'static [Type],
}
