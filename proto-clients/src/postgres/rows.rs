//! Results.

use std::rc::Rc;

use bytes::{Buf, Bytes};

use super::Type;
use super::types::EPOCH_MICROS;

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The object id of its type.
    pub oid: u32,
    /// Binary format, as every result but that of the simple protocol.
    pub binary: bool,
}

/// Why a value cannot be read as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No such column.
    #[error("there is no column {0}")]
    NoColumn(usize),
    /// Another type.
    #[error("column {column} has the type with oid {oid}")]
    Type {
        /// Which.
        column: usize,
        /// What it has.
        oid: u32,
    },
    /// NULL where a value was asked for.
    #[error("column {0} is null")]
    Null(usize),
    /// Bytes that are no value of the type.
    #[error("column {0} holds bytes that are no value of its type")]
    Malformed(usize),
}

/// The result of one statement.
#[derive(Debug, Clone)]
pub struct Rows {
    pub(crate) columns: Rc<[Column]>,
    pub(crate) rows: Vec<Bytes>,
    pub(crate) tag: String,
}

impl Rows {
    /// Rows returned.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether none were returned.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The command tag: `INSERT 0 1`, `COMMIT`, ..
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Rows affected, or returned, as the tag says; 0 for commands that have no count.
    pub fn affected(&self) -> u64 {
        self.tag.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// The columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Row `index`.
    ///
    /// # Panics
    /// When there is none.
    pub fn row(&self, index: usize) -> Row<'_> {
        Row { columns: &self.columns, bytes: &self.rows[index] }
    }

    /// All rows.
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        (0..self.len()).map(|index| self.row(index))
    }
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    columns: &'a [Column],
    bytes: &'a [u8],
}

impl<'a> Row<'a> {
    /// The bytes of a column, `None` for NULL.
    pub fn raw(&self, column: usize) -> Result<Option<&'a [u8]>, DecodeError> {
        let mut rest = self.bytes;
        if column >= self.columns.len() {
            return Err(DecodeError::NoColumn(column));
        }
        let malformed = DecodeError::Malformed(column);
        for index in 0..=column {
            if rest.len() < 4 {
                return Err(malformed);
            }
            let length = rest.get_i32();
            let value = match usize::try_from(length) {
                Ok(length) if length <= rest.len() => {
                    let (value, after) = rest.split_at(length);
                    rest = after;
                    Some(value)
                }
                Ok(_) => return Err(malformed),
                Err(_) => None,
            };
            if index == column {
                return Ok(value);
            }
        }
        Err(malformed)
    }

    fn typed(&self, column: usize, types: &[Type]) -> Result<Option<&'a [u8]>, DecodeError> {
        let value = self.raw(column)?;
        let described = &self.columns[column];
        if !described.binary || !types.iter().any(|known| known.oid() == described.oid) {
            return Err(DecodeError::Type { column, oid: described.oid });
        }
        Ok(value)
    }

    fn fixed<const N: usize>(&self, column: usize, kind: Type) -> Result<Option<[u8; N]>, DecodeError> {
        let value = self.typed(column, &[kind])?;
        value.map(|bytes| bytes.try_into().map_err(|_| DecodeError::Malformed(column))).transpose()
    }

    /// Whether a column is NULL.
    pub fn is_null(&self, column: usize) -> Result<bool, DecodeError> {
        Ok(self.raw(column)?.is_none())
    }

    /// bigint or NULL
    pub fn opt_i64(&self, column: usize) -> Result<Option<i64>, DecodeError> {
        Ok(self.fixed(column, Type::Int8)?.map(i64::from_be_bytes))
    }

    /// bigint
    pub fn i64(&self, column: usize) -> Result<i64, DecodeError> {
        self.opt_i64(column)?.ok_or(DecodeError::Null(column))
    }

    /// integer or NULL
    pub fn opt_i32(&self, column: usize) -> Result<Option<i32>, DecodeError> {
        Ok(self.fixed(column, Type::Int4)?.map(i32::from_be_bytes))
    }

    /// integer
    pub fn i32(&self, column: usize) -> Result<i32, DecodeError> {
        self.opt_i32(column)?.ok_or(DecodeError::Null(column))
    }

    /// boolean
    pub fn bool(&self, column: usize) -> Result<bool, DecodeError> {
        let value: Option<[u8; 1]> = self.fixed(column, Type::Bool)?;
        Ok(value.ok_or(DecodeError::Null(column))? != [0])
    }

    /// uuid or NULL
    pub fn opt_uuid(&self, column: usize) -> Result<Option<[u8; 16]>, DecodeError> {
        self.fixed(column, Type::Uuid)
    }

    /// uuid
    pub fn uuid(&self, column: usize) -> Result<[u8; 16], DecodeError> {
        self.opt_uuid(column)?.ok_or(DecodeError::Null(column))
    }

    /// timestamptz as Unix microseconds, or NULL; `infinity` is no time and malformed.
    pub fn opt_timestamptz_micros(&self, column: usize) -> Result<Option<i64>, DecodeError> {
        let micros = self.fixed(column, Type::Timestamptz)?.map(i64::from_be_bytes);
        micros.map(|micros| micros.checked_add(EPOCH_MICROS).ok_or(DecodeError::Malformed(column))).transpose()
    }

    /// timestamptz as Unix microseconds
    pub fn timestamptz_micros(&self, column: usize) -> Result<i64, DecodeError> {
        self.opt_timestamptz_micros(column)?.ok_or(DecodeError::Null(column))
    }

    /// bytea
    pub fn bytea(&self, column: usize) -> Result<&'a [u8], DecodeError> {
        self.typed(column, &[Type::Bytea])?.ok_or(DecodeError::Null(column))
    }

    /// text, varchar or json, in either format, or NULL
    pub fn opt_text(&self, column: usize) -> Result<Option<&'a str>, DecodeError> {
        let value = if self.columns.get(column).is_some_and(|described| !described.binary) {
            self.raw(column)?
        } else {
            self.typed(column, &[Type::Text, Type::Varchar, Type::Json])?
        };
        value.map(|bytes| std::str::from_utf8(bytes).map_err(|_| DecodeError::Malformed(column))).transpose()
    }

    /// text, varchar or json
    pub fn text(&self, column: usize) -> Result<&'a str, DecodeError> {
        self.opt_text(column)?.ok_or(DecodeError::Null(column))
    }

    /// The elements of a one-dimensional array.
    fn elements(&self, column: usize, kind: Type, element: Type) -> Result<Vec<Option<&'a [u8]>>, DecodeError> {
        let malformed = DecodeError::Malformed(column);
        let mut rest = self.typed(column, &[kind])?.ok_or(DecodeError::Null(column))?;
        if rest.len() < 12 {
            return Err(malformed);
        }
        let (dimensions, _flags, oid) = (rest.get_i32(), rest.get_i32(), rest.get_u32());
        if oid != element.oid() {
            return Err(malformed);
        }
        match dimensions {
            0 => return Ok(Vec::new()),
            1 if rest.len() >= 8 => {}
            _ => return Err(malformed),
        }
        let (count, _lower) = (rest.get_i32(), rest.get_i32());
        // Each element takes four bytes at least.
        let count = usize::try_from(count).ok().filter(|count| *count <= rest.len() / 4).ok_or(malformed)?;
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            if rest.len() < 4 {
                return Err(malformed);
            }
            elements.push(match usize::try_from(rest.get_i32()) {
                Ok(length) if length <= rest.len() => {
                    let (value, after) = rest.split_at(length);
                    rest = after;
                    Some(value)
                }
                Ok(_) => return Err(malformed),
                Err(_) => None,
            });
        }
        Ok(elements)
    }

    /// bigint[] without NULLs
    pub fn i64_array(&self, column: usize) -> Result<Vec<i64>, DecodeError> {
        let elements = self.elements(column, Type::Int8Array, Type::Int8)?;
        let number = |bytes: Option<&[u8]>| {
            let bytes = bytes.ok_or(DecodeError::Null(column))?;
            Ok(i64::from_be_bytes(bytes.try_into().map_err(|_| DecodeError::Malformed(column))?))
        };
        elements.into_iter().map(number).collect()
    }

    /// text[]
    pub fn text_array(&self, column: usize) -> Result<Vec<Option<&'a str>>, DecodeError> {
        let elements = self.elements(column, Type::TextArray, Type::Text)?;
        let text = |bytes: Option<&'a [u8]>| {
            bytes.map(std::str::from_utf8).transpose().map_err(|_| DecodeError::Malformed(column))
        };
        elements.into_iter().map(text).collect()
    }
}
