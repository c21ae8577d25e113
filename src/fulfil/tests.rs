//! Fulfilment over ports that tests script.
