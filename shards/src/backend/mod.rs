//! What the face asks of a runtime. Each module here offers the same items; one is compiled in.

#[cfg(feature = "monoio")]
mod monoio;

#[cfg(feature = "monoio")]
pub(crate) use self::monoio::*;

#[cfg(not(feature = "monoio"))]
compile_error!("shards needs a backend: enable the feature `monoio`");
