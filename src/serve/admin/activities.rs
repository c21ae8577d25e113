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
use crate::embedded::lane::{ChangeError, Message};
use crate::embedded::record::Opening;
use crate::http::{Answered, ErrorIds, Method, Request, Responder};

/// Where sales are.
pub(super) const PATH: &str = "/activities";

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Open {
    activity_id: i64,
    sku_id: i64,
    start_ms: u64,
    end_ms: u64,
    expire_at_ms: u64,
    total: i64,
}

impl Open {
    fn opening(&self) -> Option<Opening> {
        let Self { start_ms, end_ms, expire_at_ms, total, .. } = *self;
        let sku = Sku::new(self.activity_id, self.sku_id)?;
        let sound = start_ms < end_ms && end_ms <= expire_at_ms && (0..=1_000_000_000).contains(&total);
        sound.then_some(Opening { sku, start_ms, end_ms, expire_at_ms, total })
    }
}

/// Answers a request whose path begins with [`PATH`]; `rest` is what follows.
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
            let (reply, answer) = mailbox::bounded(1);
            changed(owner, Message::Open(opening, reply), answer, responder, ids).await
        }
        (Method::Post, [activity, id, "close"]) => {
            let Some(sku) = sku(activity, id) else { return responder.not_found(ids) };
            let (reply, answer) = mailbox::bounded(1);
            changed(owner, Message::Close(sku, reply), answer, responder, ids).await
        }
        (Method::Get, [activity, id]) => {
            let Some(sku) = sku(activity, id) else { return responder.not_found(ids) };
            let (reply, mut answer) = mailbox::bounded(1);
            if owner.try_send(Message::View(sku, reply)).is_err() {
                return responder.error(503, "DEPENDENCY_UNAVAILABLE", ids);
            }
            match answer.recv().await.flatten() {
                Some(view) => json(responder, 200, &view, ids),
                None => responder.not_found(ids),
            }
        }
        _ => responder.not_found(ids),
    }
}

async fn changed(
    owner: &mailbox::Sender<Message>,
    message: Message,
    mut answer: mailbox::Receiver<Result<bool, ChangeError>>,
    responder: Responder<'_>,
    ids: &ErrorIds,
) -> Answered {
    if owner.try_send(message).is_err() {
        return responder.error(503, "DEPENDENCY_UNAVAILABLE", ids);
    }
    match answer.recv().await {
        Some(Ok(changed)) => json(responder, 200, &serde_json::json!({ "changed": changed }), ids),
        Some(Err(ChangeError::Different(_))) => responder.error(409, "DIFFERENT_TERMS", ids),
        Some(Err(ChangeError::Unknown(_))) => responder.not_found(ids),
        Some(Err(ChangeError::Port(_))) | None => responder.error(503, "DEPENDENCY_UNAVAILABLE", ids),
    }
}

fn json(responder: Responder<'_>, status: u16, value: &impl serde::Serialize, ids: &ErrorIds) -> Answered {
    match serde_json::to_vec(value) {
        Ok(body) => responder.json(status, &body),
        Err(_) => responder.error(500, "INTERNAL", ids),
    }
}
