//! The query path over a port that tests script.

use std::cell::Cell;

use super::*;
use crate::domain::OrderId;

struct Board {
    standing: Cell<Result<Standing, PortError>>,
    stored: Cell<Result<Standing, PortError>>,
    looks: Cell<u32>,
    stored_looks: Cell<u32>,
    final_after: Cell<u32>,
}

const CREATED: FinalResult = FinalResult::Created { order_id: OrderId::new(42).unwrap() };
const FINAL: Standing = Standing::Final { reservation_id: Uuid([5; 16]), result: CREATED };

impl ResultLookup for Board {
    async fn standing(&self, _: Sku, _: Uuid, _: UserId, _: Instant) -> Result<Standing, PortError> {
        self.looks.set(self.looks.get() + 1);
        if self.final_after.get() > 0 && self.looks.get() > self.final_after.get() {
            return Ok(FINAL);
        }
        self.standing.get()
    }

    async fn stored(&self, _: Sku, _: Uuid, _: UserId, _: Instant) -> Result<Standing, PortError> {
        self.stored_looks.set(self.stored_looks.get() + 1);
        self.stored.get()
    }
}

fn board(standing: Result<Standing, PortError>, stored: Result<Standing, PortError>) -> Rc<Board> {
    let (standing, stored) = (Cell::new(standing), Cell::new(stored));
    Rc::new(Board {
        standing,
        stored,
        looks: Cell::default(),
        stored_looks: Cell::default(),
        final_after: Cell::default(),
    })
}

fn open(age_ms: u64) -> Standing {
    Standing::Open {
        reservation_id: Uuid([5; 16]),
        order_id: OrderId::new(42).unwrap(),
        state: ReservationState::MqSent,
        created_at_ms: shards::unix_micros() / 1_000 - age_ms,
    }
}

fn ask(board: &Rc<Board>, wait_ms: u64) -> QueryAnswer {
    let settings = crate::config::load(&crate::config::Sources::default()).unwrap().query;
    let command = QueryCommand {
        sku: Sku::new(1, 1).unwrap(),
        request_id: Uuid([9; 16]),
        user_id: UserId::new(1).unwrap(),
        wait: Duration::from_millis(wait_ms),
    };
    shards::run(async { QueryService::new(board.clone(), settings, Rc::default()).query(command, &Gate::new()).await })
}

#[test]
fn the_board_answers_first_and_the_store_only_for_what_is_missing_or_old() {
    let final_answer = QueryAnswer::Final { reservation_id: Uuid([5; 16]), result: CREATED };
    let processing = QueryAnswer::Processing { reservation_id: Some(Uuid([5; 16])) };
    let missing = Ok(Standing::Missing);
    for (standing, stored, answer, stored_looks) in [
        (Ok(FINAL), missing, final_answer, 0),
        (Ok(open(100)), Ok(FINAL), processing, 0),
        (Ok(open(60_000)), Ok(FINAL), final_answer, 1),
        (Ok(open(60_000)), missing, processing, 1),
        (Ok(open(60_000)), Err(PortError::Unavailable), processing, 1),
        (Ok(Standing::NotOwner), Ok(FINAL), QueryAnswer::NotFound, 0),
        (missing, Ok(FINAL), final_answer, 1),
        (missing, missing, QueryAnswer::NotFound, 1),
        (Err(PortError::Unavailable), Ok(FINAL), final_answer, 1),
        (Err(PortError::Unavailable), missing, QueryAnswer::Unavailable, 1),
        (missing, Err(PortError::Timeout), QueryAnswer::Timeout, 1),
    ] {
        let board = board(standing, stored);
        assert_eq!(ask(&board, 0), answer, "{standing:?} {stored:?}");
        assert_eq!(board.stored_looks.get(), stored_looks, "{standing:?} {stored:?}");
    }
}

#[test]
fn a_long_poll_ends_with_the_result_or_with_its_time() {
    let soon = board(Ok(open(0)), Ok(Standing::Missing));
    soon.final_after.set(3);
    assert_eq!(ask(&soon, 5_000), QueryAnswer::Final { reservation_id: Uuid([5; 16]), result: CREATED });
    assert_eq!(soon.looks.get(), 4);

    let never = board(Ok(open(0)), Ok(Standing::Missing));
    let started = shards::now();
    assert!(matches!(ask(&never, 150), QueryAnswer::Processing { .. }));
    assert!(shards::now() - started < Duration::from_secs(3));
}

#[test]
fn lookups_in_the_store_are_limited() {
    let board = board(Ok(Standing::Missing), Ok(Standing::Missing));
    let mut settings = crate::config::load(&crate::config::Sources::default()).unwrap().query;
    settings.fallback_per_s = 3;
    let command = QueryCommand {
        sku: Sku::new(1, 1).unwrap(),
        request_id: Uuid([9; 16]),
        user_id: UserId::new(1).unwrap(),
        wait: Duration::ZERO,
    };
    let metrics = Rc::new(Metrics::default());
    shards::run(async {
        let service = QueryService::new(board.clone(), settings, metrics.clone());
        let gate = Gate::new();
        for _ in 0..10 {
            service.query(command, &gate).await;
        }
    });
    assert!(board.stored_looks.get() <= 4, "{}", board.stored_looks.get());
    assert!(metrics.query_fallback_refused.get() >= 6);
}
