//! `seckill`: a flash-sale order engine. The binary is `src/main.rs`; everything it runs on is here so that tests
//! and benches reach the same code.

pub mod api;
pub mod assertions;
pub mod bench;
pub mod cli;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod domain;
pub mod embedded;
pub mod fulfil;
pub mod group_commit;
pub mod http;
pub mod identity;
pub mod migrate;
pub mod observe;
pub mod order_body;
pub mod plan;
pub mod ports;
pub mod query;
mod race;
pub mod reconcile;
pub mod recovery;
pub mod resilience;
pub mod sale;
pub mod serve;
pub mod services;
pub mod set_aside;
pub mod submit;
pub mod trace_context;
