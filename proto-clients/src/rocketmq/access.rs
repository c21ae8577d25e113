//! Request signatures (ACL): HMAC-SHA1 over the header's values in key order and the body.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

use super::frame::Request;

/// Credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey {
    /// The user.
    pub access_key: String,
    /// The secret.
    pub secret_key: String,
}

impl std::fmt::Debug for AccessKey {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessKey").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

impl AccessKey {
    /// Adds user and signature. Nothing may be added to the header afterwards.
    pub fn sign(&self, request: &mut Request) {
        request.ext.push(("AccessKey", self.access_key.clone()));
        let mut fields: Vec<(&str, &str)> = request.ext.iter().map(|(key, value)| (*key, value.as_str())).collect();
        fields.sort_unstable();
        let Ok(mut mac) = Hmac::<Sha1>::new_from_slice(self.secret_key.as_bytes()) else {
            // HMAC takes keys of any length; unsigned, the broker would refuse the request and say so.
            return;
        };
        fields.iter().for_each(|(_, value)| mac.update(value.as_bytes()));
        mac.update(&request.body);
        request.ext.push(("Signature", STANDARD.encode(mac.finalize().into_bytes())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_the_one_of_the_java_signer() {
        let key = AccessKey { access_key: "rocketmq".to_owned(), secret_key: "12345678".to_owned() };
        let ext = vec![("b", "topicA".to_owned()), ("a", "pg".to_owned()), ("g", "1700000000000".to_owned())];
        let mut request = Request { body: "hello".into(), ..Request::new(310, ext) };
        key.sign(&mut request);
        assert_eq!(request.ext.last().unwrap(), &("Signature", "d6GJsaIAxxCZ4iHliOhfJcpI9MQ=".to_owned()));
    }
}
