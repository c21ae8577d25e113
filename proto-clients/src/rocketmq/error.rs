//! Why a call failed, and what that says about its effect.

use super::code;
use super::frame::FrameError;

/// Why there is no answer, or not the wanted one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MqError {
    /// No broker that could take it. Not sent.
    #[error("topic {0} has no broker that can be used now")]
    NoRoute(String),
    /// No connection. Not sent.
    #[error("cannot connect: {0}")]
    Dial(String),
    /// The deadline passed first. Not sent.
    #[error("the deadline passed before it was sent")]
    NotSent,
    /// Too many requests without an answer on the connection. Not sent.
    #[error("too many requests are in flight")]
    Overloaded,
    /// What was to be sent cannot be: empty body, separators in a property, over a limit. Not sent.
    #[error("cannot be sent: {0}")]
    Invalid(&'static str),
    /// The client is closed. Not sent.
    #[error("the client is closed")]
    Closed,
    /// No answer before the deadline. May have been done.
    #[error("no answer before the deadline")]
    Timeout,
    /// The connection broke. May have been done.
    #[error("the connection was lost")]
    ConnectionLost,
    /// Bytes that are no frame, or an answer that makes no sense. May have been done.
    #[error("protocol error: {0}")]
    Protocol(#[from] FrameError),
    /// An answer that lacks what it must have. May have been done.
    #[error("the answer makes no sense: {0}")]
    Answer(&'static str),
    /// The server answered with a code other than success.
    #[error("code {code}{}", .remark.as_ref().map(|text| format!(": {}", first_line(text))).unwrap_or_default())]
    Code {
        /// The code.
        code: i32,
        /// What the server says, Java stack and all.
        remark: Option<String>,
    },
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Remarks of code 1 that come before anything was stored.
const NOT_STORED_REMARKS: [&str; 5] = [
    "create mapped file failed",
    "in-sync replicas not enough",
    "broker unable to service",
    "message body size exceeded",
    "timer message",
];

impl MqError {
    /// Whether the request may have had its effect although no answer says so.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Timeout | Self::ConnectionLost | Self::Protocol(_) | Self::Answer(_) => true,
            Self::Code { code: code::SYSTEM_ERROR, remark } => {
                let remark = remark.as_deref().unwrap_or_default();
                !NOT_STORED_REMARKS.iter().any(|known| remark.contains(known))
            }
            _ => false,
        }
    }

    /// Whether the same request may succeed later, or at another broker, without anybody mending anything.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Invalid(_) | Self::Closed => false,
            Self::Code { code, .. } => !matches!(
                *code,
                code::NOT_SUPPORTED
                    | code::MESSAGE_ILLEGAL
                    | code::INVALID_PARAMETER
                    | code::NO_PERMISSION
                    | code::TOPIC_NOT_EXIST
                    | code::SUBSCRIPTION_GROUP_NOT_EXIST
            ),
            _ => true,
        }
    }

    /// Whether the route should be asked for again.
    pub fn route_is_stale(&self) -> bool {
        match self {
            Self::Dial(_) | Self::ConnectionLost => true,
            Self::Code { code, .. } => matches!(
                *code,
                code::TOPIC_NOT_EXIST
                    | code::NO_PERMISSION
                    | code::SERVICE_NOT_AVAILABLE
                    | code::NOT_LEADER_FOR_QUEUE
                    | 204
                    | 205
            ),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_one_is_unknown_unless_its_remark_says_otherwise() {
        let error = |remark: Option<&str>| MqError::Code { code: 1, remark: remark.map(str::to_owned) };
        assert!(error(None).outcome_unknown());
        assert!(error(Some("UNKNOWN_ERROR")).outcome_unknown());
        assert!(!error(Some("create mapped file failed, remoting server is busy")).outcome_unknown());
        assert!(!MqError::Code { code: 2, remark: None }.outcome_unknown());
        assert!(!MqError::Dial(String::new()).outcome_unknown());
        assert!(MqError::Timeout.outcome_unknown());
        assert!(!MqError::Code { code: 17, remark: None }.retryable());
        assert!(MqError::Code { code: 2, remark: None }.retryable());
    }
}
