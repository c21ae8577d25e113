//! The submit path over ports that tests script.
