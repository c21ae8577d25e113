//! Whom the server recognises, and all the ways in which it must not.

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::HeaderValue::{Missing, One, Repeated};
use super::*;
use crate::config::{JwtAlgorithm, Sources, load};

const NOW: u64 = 1_782_388_800;
const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// The key pair of RFC 8410 section 10.
const ED_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n";
const ED_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";

fn settings(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = load(&Sources::default()).unwrap().identity;
    settings.jwt_key = SECRET.into();
    change(&mut settings);
    settings
}

fn hs256() -> Identity {
    Identity::new(&settings(|_| {})).unwrap()
}

fn eddsa() -> Identity {
    Identity::new(&settings(|settings| {
        settings.jwt_algorithm = JwtAlgorithm::EdDSA;
        settings.jwt_key = ED_PUBLIC.into();
    }))
    .unwrap()
}

fn gateway() -> Identity {
    Identity::new(&settings(|settings| settings.mode = IdentityMode::GatewayHeader)).unwrap()
}

fn claims() -> Value {
    json!({ "sub": "3001", "aud": "seckill", "exp": NOW + 600, "nbf": NOW - 600 })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(name).unwrap();
    claims
}

fn hmac_key(secret: &[u8]) -> EncodingKey {
    EncodingKey::from_secret(secret).unwrap()
}

fn sign(claims: &Value) -> String {
    encode(&Header::new(Algorithm::HS256), claims, &hmac_key(SECRET.as_bytes())).unwrap()
}

fn sign_ed(claims: &Value) -> String {
    encode(&Header::new(Algorithm::EdDSA), claims, &EncodingKey::from_ed_pem(ED_PRIVATE.as_bytes()).unwrap()).unwrap()
}

fn ask_at(identity: &Identity, token: &str, now: u64) -> Result<i64, Unauthenticated> {
    let value = format!("Bearer {token}");
    identity.user_at(One(value.as_bytes()), Missing, now).map(UserId::get)
}

fn ask(identity: &Identity, token: &str) -> Result<i64, Unauthenticated> {
    ask_at(identity, token, NOW)
}

#[test]
fn a_good_token_names_its_user() {
    assert_eq!(ask(&hs256(), &sign(&claims())), Ok(3001));
    assert_eq!(ask(&eddsa(), &sign_ed(&claims())), Ok(3001));
    for good in [
        with("aud", json!(["shop", "seckill"])),
        with("sub", json!(i64::MAX.to_string())),
        with("exp", json!(NOW as f64 + 0.5)),
        without("nbf"),
        with("scope", json!({ "deep": [1, 2, 3] })),
    ] {
        assert!(ask(&hs256(), &sign(&good)).is_ok(), "{good}");
    }
}

/// Made with another implementation (Python's `hmac` and `base64`).
#[test]
fn a_token_of_another_implementation_is_read() {
    let token = concat!(
        "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9.",
        "eyJpc3MiOiAiaHR0cHM6Ly9sb2dpbi5zaG9wLmV4YW1wbGUiLCAic3ViIjogIjQyIiwgImF1ZCI6IFsic2hvcCIsIC",
        "JzZWNraWxsIl0sICJpYXQiOiAxNzgyMzg4MDAwLCAiZXhwIjogMTc4MjM4OTAwMH0.",
        "Cc8hF1EhHoGLbXagM_VAwy_wdAFpdKv4AhPYNjz5R_Q",
    );
    assert_eq!(ask(&hs256(), token), Ok(42));
}

#[test]
fn the_scheme_is_bearer_in_any_letter_case() {
    let (identity, token) = (hs256(), sign(&claims()));
    let ask = |value: &str| identity.user_at(One(value.as_bytes()), Missing, NOW).map(UserId::get);
    for scheme in ["Bearer ", "bearer ", "BEARER   "] {
        assert_eq!(ask(&format!("{scheme}{token}")), Ok(3001), "{scheme}");
    }
    for value in [token.clone(), format!("Basic {token}"), format!("Bearer{token}"), "Bearer".into(), "Bearer ".into()]
    {
        assert_eq!(ask(&value), Err(Unauthenticated::Malformed), "{value}");
    }
    assert!(ask(&format!("Bearer {token},Bearer {token}")).is_err());
    assert!(ask(&format!("Bearer {token} x")).is_err());
}

#[test]
fn the_algorithm_is_the_configured_one_and_no_other() {
    let body_and_signature = |token: &str| token.split_once('.').unwrap().1.to_string();
    let body = body_and_signature(&sign(&claims())).split_once('.').unwrap().0.to_string();
    // {"alg":"none","typ":"JWT"}
    const NONE: &str = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
    for unsigned in [format!("{NONE}.{body}."), format!("{NONE}.{}", body_and_signature(&sign(&claims())))] {
        assert!(ask(&hs256(), &unsigned).is_err(), "{unsigned}");
        assert!(ask(&eddsa(), &unsigned).is_err(), "{unsigned}");
    }
    // The public key is no secret: used as one, it must not sign anything.
    let raw = &jsonwebtoken::DecodingKey::from_ed_pem(ED_PUBLIC.as_bytes()).unwrap();
    for public in [ED_PUBLIC.as_bytes(), ED_PUBLIC.trim().as_bytes(), raw.try_get_as_bytes().unwrap()] {
        let forged = encode(&Header::default(), &claims(), &hmac_key(public)).unwrap();
        assert_eq!(ask(&eddsa(), &forged), Err(Unauthenticated::Algorithm));
    }
    assert_eq!(ask(&hs256(), &sign_ed(&claims())), Err(Unauthenticated::Algorithm));
    let secret = hmac_key(SECRET.as_bytes());
    for algorithm in [Algorithm::HS384, Algorithm::HS512] {
        let token = encode(&Header::new(algorithm), &claims(), &secret).unwrap();
        assert_eq!(ask(&hs256(), &token), Err(Unauthenticated::Algorithm), "{algorithm:?}");
    }
}

#[test]
fn another_key_is_refused() {
    let other = hmac_key(b"another secret of thirty-two bytes");
    let token = encode(&Header::default(), &claims(), &other).unwrap();
    assert_eq!(ask(&hs256(), &token), Err(Unauthenticated::Signature));
}

#[test]
fn critical_extensions_that_nobody_here_understands_are_refused() {
    let header = Header { crit: Some(vec!["b64".into()]), ..Header::default() };
    let token = encode(&header, &claims(), &hmac_key(SECRET.as_bytes())).unwrap();
    assert!(ask(&hs256(), &token).is_err());
}

#[test]
fn time_is_checked_to_the_second() {
    let (identity, token) = (hs256(), sign(&claims()));
    let leeway = 30;
    assert_eq!(ask_at(&identity, &token, NOW + 600 + leeway - 1), Ok(3001));
    assert_eq!(ask_at(&identity, &token, NOW + 600 + leeway), Err(Unauthenticated::Expired));
    assert_eq!(ask_at(&identity, &token, NOW - 600 - leeway), Ok(3001));
    assert_eq!(ask_at(&identity, &token, NOW - 600 - leeway - 1), Err(Unauthenticated::NotYetValid));
    for ended in [json!(0), json!(-1), json!(-1e300)] {
        assert!(ask(&hs256(), &sign(&with("exp", ended.clone()))).is_err(), "{ended}");
    }
    assert_eq!(ask(&hs256(), &sign(&with("exp", json!(1e18)))), Ok(3001));
    assert_eq!(ask(&hs256(), &sign(&with("nbf", json!(1e300)))), Err(Unauthenticated::NotYetValid));
    assert_eq!(ask(&hs256(), &sign(&with("exp", json!(1e300)))), Err(Unauthenticated::Claims), "no time at all");
}

#[test]
fn a_remembered_token_lives_no_longer_than_a_fresh_one() {
    let (identity, token) = (eddsa(), sign_ed(&claims()));
    assert_eq!(ask_at(&identity, &token, NOW), Ok(3001));
    let Source::Token { verified, .. } = &identity.source else { panic!("another mode") };
    assert!(verified.borrow().get(&TokenCache::digest(token.as_bytes())).is_some());
    assert_eq!(ask_at(&identity, &token, NOW + 629), Ok(3001));
    assert_eq!(ask_at(&identity, &token, NOW + 630), Err(Unauthenticated::Expired));
    assert_eq!(ask_at(&identity, &token, NOW - 700), Err(Unauthenticated::NotYetValid), "the clock stepped back");
    assert_eq!(ask_at(&identity, &token, NOW), Ok(3001));
}

#[test]
fn refused_tokens_are_not_remembered() {
    let identity = hs256();
    let Source::Token { verified, .. } = &identity.source else { panic!("another mode") };
    for claims in [with("exp", json!(NOW - 100)), with("nbf", json!(NOW + 100)), with("aud", json!("shop"))] {
        let token = sign(&claims);
        assert!(ask(&identity, &token).is_err());
        assert_eq!(verified.borrow().get(&TokenCache::digest(token.as_bytes())), None, "{claims}");
    }
}

#[test]
fn the_audience_must_name_us() {
    for audience in [json!("shop"), json!("Seckill"), json!(["shop"]), json!("seckill "), json!("")] {
        assert_eq!(ask(&hs256(), &sign(&with("aud", audience.clone()))), Err(Unauthenticated::Audience), "{audience}");
    }
    for audience in [json!(7), Value::Null, json!({}), json!([1])] {
        assert!(ask(&hs256(), &sign(&with("aud", audience.clone()))).is_err(), "{audience}");
    }
}

#[test]
fn claims_that_are_needed_and_their_types() {
    for name in ["sub", "aud", "exp"] {
        assert!(ask(&hs256(), &sign(&without(name))).is_err(), "{name}");
    }
    for claims in
        [with("exp", json!("1782388900")), with("exp", Value::Null), with("nbf", json!("x")), with("nbf", json!([]))]
    {
        assert!(ask(&hs256(), &sign(&claims)).is_err(), "{claims}");
    }
}

/// Texts that are not a user id, though some readers would take them for one.
const NO_USER_ID: [&str; 15] = [
    "0",
    "-1",
    "1e3",
    "+1",
    "",
    " 1",
    "1 ",
    "01",
    "1.0",
    "0x1",
    "1_0",
    "9223372036854775808",
    "99999999999999999999999",
    "\u{0661}",
    "admin",
];

#[test]
fn the_subject_is_a_decimal_user_id() {
    for subject in NO_USER_ID {
        assert_eq!(ask(&hs256(), &sign(&with("sub", json!(subject)))), Err(Unauthenticated::Claims), "{subject:?}");
    }
    for subject in [json!(3001), Value::Null, json!(["3001"])] {
        assert!(ask(&hs256(), &sign(&with("sub", subject.clone()))).is_err(), "{subject}");
    }
}

#[test]
fn missing_and_repeated_fields_name_nobody() {
    let token = format!("Bearer {}", sign(&claims()));
    for (identity, is_gateway) in [(hs256(), false), (gateway(), true)] {
        for (field, expected) in [(Missing, Unauthenticated::Missing), (Repeated, Unauthenticated::Repeated)] {
            let (authorization, header) = if is_gateway { (Missing, field) } else { (field, Missing) };
            assert_eq!(identity.user_at(authorization, header, NOW), Err(expected));
        }
    }
    // The other source is never a fallback, and never disturbs.
    assert_eq!(hs256().user_at(Missing, One(b"3001"), NOW), Err(Unauthenticated::Missing));
    assert_eq!(gateway().user_at(One(token.as_bytes()), Missing, NOW), Err(Unauthenticated::Missing));
    assert_eq!(hs256().user_at(One(token.as_bytes()), One(b"7"), NOW).unwrap().get(), 3001);
    assert_eq!(gateway().user_at(One(token.as_bytes()), One(b"7"), NOW).unwrap().get(), 7);
    assert_eq!(hs256().gateway_header(), None);
    assert_eq!(gateway().gateway_header(), Some("X-User-Id"));
}

#[test]
fn the_gateway_sends_a_decimal_user_id() {
    let ask = |text: &str| gateway().user_at(Missing, One(text.as_bytes()), NOW);
    assert_eq!(ask("9223372036854775807").unwrap().get(), i64::MAX);
    for text in NO_USER_ID.into_iter().chain(["7,8", "7, 7"]) {
        assert_eq!(ask(text), Err(Unauthenticated::Malformed), "{text:?}");
    }
}

#[test]
fn long_tokens_are_refused_unread() {
    let padded = |bytes: usize| sign(&with("padding", json!("x".repeat(bytes))));
    let fits = (2_000..4_000).map(padded).take_while(|token| token.len() <= TOKEN_BYTES_MAX).last().unwrap();
    assert!(fits.len() > TOKEN_BYTES_MAX - 4);
    assert_eq!(ask(&hs256(), &fits), Ok(3001));
    assert_eq!(ask(&hs256(), &padded(4_000)), Err(Unauthenticated::TooLong));
    assert_eq!(ask(&hs256(), &"x".repeat(TOKEN_BYTES_MAX)), Err(Unauthenticated::Malformed));
    assert_eq!(ask(&hs256(), &"x".repeat(TOKEN_BYTES_MAX + 1)), Err(Unauthenticated::TooLong));
    assert_eq!(ask(&hs256(), &"x".repeat(1 << 20)), Err(Unauthenticated::TooLong));
}

#[test]
fn settings_that_tell_nobody_apart_are_refused() {
    let refusal = |change: fn(&mut Settings)| Identity::new(&settings(change)).unwrap_err();
    assert_eq!(refusal(|settings| settings.jwt_key.clear()), IdentityError::NoKey);
    assert_eq!(refusal(|settings| settings.jwt_audience.clear()), IdentityError::NoAudience);
    for (algorithm, key) in [
        (JwtAlgorithm::HS256, "short"),
        (JwtAlgorithm::HS256, ED_PUBLIC),
        (JwtAlgorithm::EdDSA, SECRET),
        (JwtAlgorithm::EdDSA, ED_PRIVATE),
        // 16 bytes where 32 are needed.
        (
            JwtAlgorithm::EdDSA,
            "-----BEGIN PUBLIC KEY-----\nMBowBQYDK2VwAxEAGb9ECWmEzf6FQbrBZ9w7lg==\n-----END PUBLIC KEY-----\n",
        ),
        // y = 2 has no x on the curve.
        (
            JwtAlgorithm::EdDSA,
            "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAAgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n-----END PUBLIC KEY-----\n",
        ),
    ] {
        let error = Identity::new(&settings(|settings| {
            settings.jwt_algorithm = algorithm;
            settings.jwt_key = key.into();
        }))
        .unwrap_err();
        assert!(matches!(error, IdentityError::BadKey { .. }), "{key}: {error}");
        assert!(!error.to_string().contains(key));
    }
}

#[test]
fn nothing_secret_is_printed() {
    assert!(!format!("{:?}", hs256()).contains(SECRET));
    let bytes: Vec<String> = SECRET.bytes().take(4).map(|byte| byte.to_string()).collect();
    assert!(!format!("{:?}", hs256()).contains(&bytes.join(", ")));
}

#[test]
fn garbage_names_nobody() {
    let identities = [hs256(), eddsa()];
    proptest!(|(value in proptest::collection::vec(any::<u8>(), 0..80), dots in "[A-Za-z0-9_.-]{0,80}")| {
        for identity in &identities {
            prop_assert!(identity.user_at(One(&value), Missing, NOW).is_err());
            prop_assert!(ask(identity, &dots).is_err());
        }
    });
}

#[test]
fn a_token_changed_in_any_place_names_nobody() {
    let pairs = [(hs256(), sign(&claims())), (eddsa(), sign_ed(&claims()))];
    proptest!(|(at: proptest::sample::Index, by in "[A-Za-z0-9_.-]", which in 0usize..2)| {
        let (identity, token) = &pairs[which];
        // The genuine one is remembered first: being close to it must not help.
        prop_assert_eq!(ask(identity, token), Ok(3001));
        let at = at.index(token.len());
        let changed = format!("{}{by}{}", &token[..at], &token[at + 1..]);
        prop_assume!(&changed != token);
        prop_assert!(ask(identity, &changed).is_err(), "{}", changed);
    });
}

proptest! {
    #[test]
    fn every_user_id_is_read_back(id in 1i64..) {
        prop_assert_eq!(parse_user_id(id.to_string().as_bytes()), UserId::new(id));
    }
}
