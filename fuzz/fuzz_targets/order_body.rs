#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| seckill::order_body::fuzz_order_body(data));
