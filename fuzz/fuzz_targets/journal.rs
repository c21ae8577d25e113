#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| seckill::embedded::fuzz_journal(data));
