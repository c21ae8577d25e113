//! Answers as HTTP: status, headers and JSON body. No internal detail in any of them.

use bytes::BytesMut;

use crate::domain::Uuid;
use crate::http::{Answered, ErrorIds, Responder, put_decimal, put_hex, put_uuid};
use crate::ports::FinalResult;
use crate::query::QueryAnswer;
use crate::submit::{Refusal, SubmitAnswer};

/// Answers a submit.
pub(super) fn submit(responder: Responder<'_>, request_id: Uuid, answer: SubmitAnswer, ids: &ErrorIds) -> Answered {
    match answer {
        SubmitAnswer::Accepted { reservation_id, order_id, state } => responder.no_store().json_with(202, |body| {
            member_uuid(body, b"{\"request_id\":\"", request_id);
            member_uuid(body, b",\"reservation_id\":\"", reservation_id);
            body.extend_from_slice(b",\"order_id\":");
            put_decimal(body, order_id.get().unsigned_abs());
            member(body, b",\"state\":\"", state);
            body.extend_from_slice(b"}");
        }),
        SubmitAnswer::Refused(refusal) => refused(responder, refusal, ids),
    }
}

/// Answers with a refusal. DUPLICATE_ORDER also names the user's own reservation.
pub(super) fn refused(responder: Responder<'_>, refusal: Refusal, ids: &ErrorIds) -> Answered {
    let (status, code) = refusal.status_and_code();
    let responder = match refusal.retry_after_s() {
        Some(seconds) => responder.retry_after(seconds),
        None => responder,
    };
    match refusal {
        Refusal::UnsupportedMediaType => responder.unsupported_media_type(ids),
        Refusal::DuplicateOrder { reservation_id } => responder.json_with(status, |body| {
            member(body, b"{\"code\":\"", code);
            match ids.request_id {
                Some(request_id) => member_uuid(body, b",\"request_id\":\"", Uuid(request_id)),
                None => body.extend_from_slice(b",\"request_id\":null"),
            }
            body.extend_from_slice(b",\"trace_id\":\"");
            put_hex(body, &ids.trace_id);
            member_uuid(body, b"\",\"reservation_id\":\"", reservation_id);
            body.extend_from_slice(b"}");
        }),
        _ => responder.error(status, code, ids),
    }
}

/// Answers a lookup.
pub(super) fn query(responder: Responder<'_>, request_id: Uuid, answer: QueryAnswer, ids: &ErrorIds) -> Answered {
    match answer {
        QueryAnswer::Processing { reservation_id } => responder.no_store().json_with(200, |body| {
            member_uuid(body, b"{\"request_id\":\"", request_id);
            if let Some(reservation_id) = reservation_id {
                member_uuid(body, b",\"reservation_id\":\"", reservation_id);
            }
            member(body, b",\"state\":\"", "PROCESSING");
            body.extend_from_slice(b"}");
        }),
        QueryAnswer::Final { reservation_id, result } => responder.no_store().json_with(200, |body| {
            member_uuid(body, b"{\"request_id\":\"", request_id);
            member_uuid(body, b",\"reservation_id\":\"", reservation_id);
            outcome(body, result);
            body.extend_from_slice(b"}");
        }),
        QueryAnswer::NotFound => responder.not_found(ids),
        QueryAnswer::Unavailable => refused(responder, Refusal::DependencyUnavailable, ids),
        QueryAnswer::Timeout => refused(responder, Refusal::Timeout, ids),
    }
}

fn outcome(body: &mut BytesMut, result: FinalResult) {
    match result {
        FinalResult::Created { order_id } => {
            body.extend_from_slice(b",\"order_id\":");
            put_decimal(body, order_id.get().unsigned_abs());
            member(body, b",\"state\":\"", "CREATED");
        }
        FinalResult::Rejected { reason } => {
            member(body, b",\"state\":\"", "REJECTED");
            member(body, b",\"code\":\"", reason.code());
        }
        FinalResult::Released => member(body, b",\"state\":\"", "RELEASED"),
    }
}

/// `intro`, which ends in an opening quote, then `text`, which needs no escaping, and the closing quote.
fn member(body: &mut BytesMut, intro: &[u8], text: &str) {
    body.extend_from_slice(intro);
    body.extend_from_slice(text.as_bytes());
    body.extend_from_slice(b"\"");
}

fn member_uuid(body: &mut BytesMut, intro: &[u8], id: Uuid) {
    body.extend_from_slice(intro);
    put_uuid(body, &id.0);
    body.extend_from_slice(b"\"");
}
