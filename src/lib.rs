//! `seckill`: a flash-sale order engine. The binary is `src/main.rs`; everything it runs on is here so that tests
//! and benches reach the same code.

pub mod config;
pub mod domain;
pub mod fulfil;
pub mod group_commit;
pub mod http;
pub mod observe;
pub mod ports;
pub mod query;
mod race;
pub mod submit;
