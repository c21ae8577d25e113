//! The Redis scripts (`lua/`), loaded once a process and shared by every call.

use proto_clients::redis::Script;

use crate::domain::Sku;

/// The scripts with their digests.
pub struct Scripts {
    pub(crate) reserve: Script,
    pub(crate) mark_sent: Script,
    pub(crate) mark_pending: Script,
    pub(crate) claim_pending: Script,
    pub(crate) release: Script,
    pub(crate) project_result: Script,
    pub(crate) read_result: Script,
    pub(crate) lease_order_ids: Script,
    pub(crate) warm: Script,
    pub(crate) status: Script,
    pub(crate) set_state: Script,
    pub(crate) rebuild_begin: Script,
    pub(crate) restore_orders: Script,
    pub(crate) recount: Script,
    pub(crate) inspect: Script,
    pub(crate) reindex: Script,
}

impl Scripts {
    /// Computes the digests.
    pub fn new() -> Self {
        Self {
            reserve: Script::new(include_str!("../../lua/reserve.lua")),
            mark_sent: Script::new(include_str!("../../lua/mark_sent.lua")),
            mark_pending: Script::new(include_str!("../../lua/mark_pending.lua")),
            claim_pending: Script::new(include_str!("../../lua/claim_pending.lua")),
            release: Script::new(include_str!("../../lua/release.lua")),
            project_result: Script::new(include_str!("../../lua/project_result.lua")),
            read_result: Script::new(include_str!("../../lua/read_result.lua")),
            lease_order_ids: Script::new(include_str!("../../lua/lease_order_ids.lua")),
            warm: Script::new(include_str!("../../lua/warm.lua")),
            status: Script::new(include_str!("../../lua/status.lua")),
            set_state: Script::new(include_str!("../../lua/set_state.lua")),
            rebuild_begin: Script::new(include_str!("../../lua/rebuild_begin.lua")),
            restore_orders: Script::new(include_str!("../../lua/restore_orders.lua")),
            recount: Script::new(include_str!("../../lua/recount.lua")),
            inspect: Script::new(include_str!("../../lua/inspect.lua")),
            reindex: Script::new(include_str!("../../lua/reindex.lua")),
        }
    }
}

impl Scripts {
    /// Those that a sale runs on.
    pub fn of_a_sale(&self) -> [&Script; 8] {
        [
            &self.reserve,
            &self.mark_sent,
            &self.mark_pending,
            &self.claim_pending,
            &self.release,
            &self.project_result,
            &self.read_result,
            &self.lease_order_ids,
        ]
    }
}

impl Default for Scripts {
    fn default() -> Self {
        Self::new()
    }
}

/// `sec:{A:S}`, the one key that a script is given; it makes the others from it (spec section 2).
pub(crate) fn key_prefix(sku: Sku) -> String {
    format!("sec:{{{sku}}}")
}
