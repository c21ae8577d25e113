//! The fuzz targets, fed by proptest with bytes that look a little like the real thing.

use proptest::prelude::*;
use proto_clients::fuzzing::{fuzz_postgres, fuzz_resp, fuzz_rocketmq};

/// A PostgreSQL message: type, sound length, any body.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let kind = proptest::sample::select(b"RSKZTDCIENA123ntv".to_vec());
    (kind, proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..40)).prop_map(|(kind, body)| {
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&(body.len() as i32 + 4).to_be_bytes());
        bytes.extend_from_slice(&body);
        bytes
    })
}

/// A frame with a header of its own making.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let header = prop_oneof![
        Just(
            br#"{"code":0,"flag":1,"opaque":1,"extFields":{"popTime":"1","invisibleTime":"2","reviveQid":"0"}}"#
                .to_vec()
        ),
        proptest::collection::vec(any::<u8>(), 0..60),
    ];
    (0u8..3, header, proptest::collection::vec(any::<u8>(), 0..120)).prop_map(|(form, header, body)| {
        let mut bytes = (4 + header.len() as u32 + body.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(&(u32::from(form) << 24 | header.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&body);
        bytes
    })
}

fn with_cut(cut: u8, parts: Vec<Vec<u8>>) -> Vec<u8> {
    std::iter::once(cut).chain(parts.into_iter().flatten()).collect()
}

proptest! {
    #[test]
    fn resp(data in proptest::collection::vec(proptest::sample::select(b"*$+-:%~>|_#,(=!\r\n0123456789tfx ".to_vec()), 0..120)) {
        fuzz_resp(&data);
    }

    #[test]
    fn postgres(cut in any::<u8>(), messages in proptest::collection::vec(message(), 0..8)) {
        fuzz_postgres(&with_cut(cut, messages));
    }

    #[test]
    fn rocketmq(cut in any::<u8>(), frames in proptest::collection::vec(frame(), 0..4)) {
        fuzz_rocketmq(&with_cut(cut, frames));
    }
}
