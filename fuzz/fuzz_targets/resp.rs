#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| proto_clients::fuzzing::fuzz_resp(data));
