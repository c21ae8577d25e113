//! Request and response codes (`RequestCode` and `ResponseCode` of the broker).

#![allow(missing_docs, reason = "each constant is the code of that name")]

pub const SEND_MESSAGE_V2: i32 = 310;
pub const SEND_BATCH_MESSAGE: i32 = 320;
pub const HEART_BEAT: i32 = 34;
pub const PULL_MESSAGE: i32 = 11;
pub const GET_ROUTE: i32 = 105;
pub const CREATE_TOPIC: i32 = 17;
pub const GET_CONSUME_STATS: i32 = 208;
pub const POP_MESSAGE: i32 = 200_050;
pub const CHANGE_INVISIBLE: i32 = 200_053;
pub const BATCH_ACK: i32 = 200_151;

pub const SUCCESS: i32 = 0;
pub const SYSTEM_ERROR: i32 = 1;
pub const SYSTEM_BUSY: i32 = 2;
pub const NOT_SUPPORTED: i32 = 3;
pub const FLUSH_DISK_TIMEOUT: i32 = 10;
pub const SLAVE_NOT_AVAILABLE: i32 = 11;
pub const FLUSH_SLAVE_TIMEOUT: i32 = 12;
pub const MESSAGE_ILLEGAL: i32 = 13;
pub const SERVICE_NOT_AVAILABLE: i32 = 14;
pub const NO_PERMISSION: i32 = 16;
pub const TOPIC_NOT_EXIST: i32 = 17;
pub const PULL_NOT_FOUND: i32 = 19;
pub const PULL_RETRY_IMMEDIATELY: i32 = 20;
pub const PULL_OFFSET_MOVED: i32 = 21;
pub const SUBSCRIPTION_GROUP_NOT_EXIST: i32 = 26;
pub const INVALID_PARAMETER: i32 = 29;
pub const NO_MESSAGE: i32 = 208;
pub const POLLING_FULL: i32 = 209;
pub const POLLING_TIMEOUT: i32 = 210;
pub const NOT_LEADER_FOR_QUEUE: i32 = 501;
pub const GO_AWAY: i32 = 1500;

/// Requests of the broker that want an answer; "not supported" spares an administrator the wait.
pub const ASKED_BY_BROKER: [i32; 5] = [220, 221, 307, 309, 326];
