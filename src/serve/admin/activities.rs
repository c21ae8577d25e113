//! Sales of an embedded process, on its admin listener.
//!
//! ```text
//! POST /activities                       {"activity_id":..,"sku_id":..,"start_ms":..,"end_ms":..,"expire_at_ms":..,"total":..}
//! GET  /activities/{activity_id}/{sku_id}
//! POST /activities/{activity_id}/{sku_id}/close
//! ```
//!
//! Answers are `{"changed":bool}` or the sale; errors have the form of the public API.

use shards::mailbox;

use crate::domain::Sku;
use crate::embedded::lane::{ChangeError, Message, ask};
use crate::embedded::operator::{Changed, Open};
use crate::http::{Answered, ErrorIds, Method, Request, Responder};
use crate::ports::PortError;

/// Answers a request whose path begins with [`PATH`](crate::embedded::operator::PATH); `rest` is what follows.
pub(super) async fn handle(
    request: &Request<'_>,
    rest: &str,
    owner: &mailbox::Sender<Message>,
    responder: Responder<'_>,
    ids: &ErrorIds,
) -> Answered {
    let responder = responder.no_store();
    let parts: Vec<&str> = rest.split('/').skip(1).collect();
    let sku = |activity: &str, sku: &str| Sku::new(activity.parse().ok()?, sku.parse().ok()?);
    match (request.method(), parts.as_slice()) {
        (Method::Post, []) => {
            let opening = serde_json::from_slice::<Open>(request.body()).ok().and_then(|open| open.opening());
            let Some(opening) = opening else { return responder.error(400, "INVALID_ARGUMENT", ids) };
            changed(ask(owner, |reply| Message::Open(opening, reply)).await, responder, ids)
        }
        (Method::Post, [activity, id, "close"]) => {
            let Some(sku) = sku(activity, id) else { return responder.not_found(ids) };
            changed(ask(owner, |reply| Message::Close(sku, reply)).await, responder, ids)
        }
        (Method::Get, [activity, id]) => {
            let Some(sku) = sku(activity, id) else { return responder.not_found(ids) };
            match ask(owner, |reply| Message::View(sku, reply)).await {
                Ok(Some(view)) => json(responder, 200, &view, ids),
                Ok(None) => responder.not_found(ids),
                Err(_) => responder.error(503, "DEPENDENCY_UNAVAILABLE", ids),
            }
        }
        _ => responder.not_found(ids),
    }
}

fn changed(answer: Result<Result<bool, ChangeError>, PortError>, responder: Responder<'_>, ids: &ErrorIds) -> Answered {
    match answer {
        Ok(Ok(changed)) => json(responder, 200, &Changed { changed }, ids),
        Ok(Err(ChangeError::Different(_))) => responder.error(409, "DIFFERENT_TERMS", ids),
        Ok(Err(ChangeError::Unknown(_))) => responder.not_found(ids),
        Ok(Err(ChangeError::Port(_))) | Err(_) => responder.error(503, "DEPENDENCY_UNAVAILABLE", ids),
    }
}

fn json(responder: Responder<'_>, status: u16, value: &impl serde::Serialize, ids: &ErrorIds) -> Answered {
    match serde_json::to_vec(value) {
        Ok(body) => responder.json(status, &body),
        Err(_) => responder.error(500, "INTERNAL", ids),
    }
}
