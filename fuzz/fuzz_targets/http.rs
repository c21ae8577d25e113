#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| seckill::http::fuzzing::fuzz_http(data));
