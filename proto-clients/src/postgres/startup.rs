//! The log-in, without I/O: messages in, answers out.

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};

use super::error::PgError;
use super::frontend;
use super::message::{Authentication, Backend, ProtocolError, TransactionStatus};

/// The mechanism that needs no TLS.
pub const SCRAM_SHA_256: &str = "SCRAM-SHA-256";
/// The one that is bound to a TLS channel.
pub const SCRAM_SHA_256_PLUS: &str = "SCRAM-SHA-256-PLUS";
/// Rounds of a password hash that we are willing to compute; the server default is 4,096.
const ITERATIONS_MAX: u32 = 1_000_000;

/// Which offered mechanism to take. PLUS binds the log-in to the TLS channel, so it needs one.
pub fn choose_mechanism(offered: &[String], tls: bool) -> Option<&'static str> {
    let has = |name: &str| offered.iter().any(|offer| offer == name);
    match tls {
        true if has(SCRAM_SHA_256_PLUS) => Some(SCRAM_SHA_256_PLUS),
        _ => has(SCRAM_SHA_256).then_some(SCRAM_SHA_256),
    }
}

/// Why the log-in failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// The server said no.
    #[error("the server refused the log-in: {0}")]
    Refused(Box<PgError>),
    /// The server wants a password and there is none.
    #[error("the server wants a password, and none is set")]
    NoPassword,
    /// The server wants something that this client does not do.
    #[error("the server wants an authentication method that is not supported ({0})")]
    Unsupported(String),
    /// The server could not prove that it knows the password, or broke the exchange: nothing more was sent to it.
    #[error("the server's part of the password exchange is wrong: {0}")]
    Scram(String),
    /// A message that may not come now.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// What to do after a message.
#[derive(Debug, PartialEq, Eq)]
pub enum StartupStep {
    /// Wait for the next one, after sending what was put into `out`.
    Continue,
    /// Logged in.
    Ready {
        /// The backend process and what a cancel request must show; `None` from servers that give none.
        key: Option<(i32, i32)>,
        /// Should be idle.
        status: TransactionStatus,
    },
}

/// A log-in under way.
pub struct Startup {
    user: String,
    password: Option<String>,
    scram: Option<ScramSha256>,
    verified: bool,
    authenticated: bool,
    key: Option<(i32, i32)>,
}

impl Startup {
    /// Begins: `out` gets the first message. `settings` are run-time parameters beside user and database.
    pub fn begin(
        user: &str,
        password: Option<&str>,
        database: &str,
        settings: &[(String, String)],
        out: &mut BytesMut,
    ) -> Self {
        let mut all = vec![("user".to_owned(), user.to_owned()), ("database".to_owned(), database.to_owned())];
        all.extend_from_slice(settings);
        frontend::startup(out, &all);
        let password = password.map(str::to_owned);
        Self { user: user.to_owned(), password, scram: None, verified: false, authenticated: false, key: None }
    }

    /// Takes the server's next message.
    ///
    /// # Errors
    /// [`StartupError`]; the connection must be closed then.
    pub fn on(&mut self, message: Backend, out: &mut BytesMut) -> Result<StartupStep, StartupError> {
        match message {
            Backend::Authentication(wanted) => self.authenticate(wanted, out)?,
            Backend::Error(error) => return Err(StartupError::Refused(Box::new(error))),
            Backend::KeyData { process, secret } => self.key = Some((process, secret)),
            Backend::ParameterStatus { .. } | Backend::Notice(_) | Backend::NegotiateVersion => {}
            Backend::Ready(status) if self.authenticated => return Ok(StartupStep::Ready { key: self.key, status }),
            _ => return Err(ProtocolError::Unexpected(b'?').into()),
        }
        Ok(StartupStep::Continue)
    }

    fn authenticate(&mut self, wanted: Authentication, out: &mut BytesMut) -> Result<(), StartupError> {
        let password = self.password.clone().ok_or(StartupError::NoPassword);
        let broken = |text: &str| StartupError::Scram(text.to_owned());
        match wanted {
            Authentication::Ok => {
                // A server that began SCRAM and skips its own proof does not know the password.
                if self.scram.is_some() && !self.verified {
                    return Err(broken("it did not prove that it knows the password"));
                }
                self.authenticated = true;
            }
            Authentication::Cleartext => frontend::password(out, &password?),
            Authentication::Md5(salt) => {
                frontend::password(out, &md5_hash(self.user.as_bytes(), password?.as_bytes(), salt));
            }
            Authentication::Sasl(offered) => {
                let mechanism = choose_mechanism(&offered, false)
                    .ok_or_else(|| StartupError::Unsupported(format!("SASL {}", offered.join(", "))))?;
                let scram = ScramSha256::new(password?.as_bytes(), ChannelBinding::unsupported());
                frontend::sasl_first(out, mechanism, scram.message());
                self.scram = Some(scram);
            }
            Authentication::SaslContinue(data) => {
                let scram = self.scram.as_mut().ok_or_else(|| broken("an answer without a question"))?;
                check_iterations(&data)?;
                scram.update(&data).map_err(|error| broken(&error.to_string()))?;
                frontend::sasl_next(out, scram.message());
            }
            Authentication::SaslFinal(data) => {
                let scram = self.scram.as_mut().ok_or_else(|| broken("an answer without a question"))?;
                scram.finish(&data).map_err(|error| broken(&error.to_string()))?;
                self.verified = true;
            }
            Authentication::Other(kind) => return Err(StartupError::Unsupported(format!("method {kind}"))),
        }
        Ok(())
    }
}

/// `r=nonce,s=salt,i=iterations`: a huge count would keep a core busy for hours.
fn check_iterations(data: &[u8]) -> Result<(), StartupError> {
    let text = String::from_utf8_lossy(data);
    let iterations = text.split(',').find_map(|part| part.strip_prefix("i="));
    match iterations.and_then(|count| count.parse::<u32>().ok()) {
        Some(1..=ITERATIONS_MAX) => Ok(()),
        _ => Err(StartupError::Scram("an iteration count that is none or far too large".to_owned())),
    }
}
