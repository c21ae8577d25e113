//! The query path over a port that tests script.
