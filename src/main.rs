//! The `seckill` binary.

use std::process::ExitCode;

/// Allocation-shy code still allocates at its edges; mimalloc keeps those edges short and per-thread.
#[global_allocator]
static ALLOCATOR: seckill::observe::allocator::Counted = seckill::observe::allocator::Counted::new();

fn main() -> ExitCode {
    seckill::cli::main()
}
