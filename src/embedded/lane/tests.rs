//! The owner of the book: promises, disks that fail, deliveries, starts.

use std::path::PathBuf;

use super::*;
use crate::domain::{OrderId, OrderOutcome, RejectReason};
use crate::embedded::data::{self, journal_folder};
use crate::embedded::journal::End;
use crate::ports::FinalResult;
use shards::faults::{Call, Verdict, install};

const SEGMENT: u64 = 4096;

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("seckill-lane-{}-{}", std::process::id(), shards::random_u64()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The owner on what the folder holds, its store's thread, and the task that commits.
    async fn start(&self) -> Option<(Rc<Lane>, shards::JoinHandle<()>, data::Held)> {
        let (held, book, end, store) = data::open(&self.0, "group").unwrap().hold();
        let journal = Journal::take_up(&journal_folder(&self.0), end, SEGMENT).await.ok()?;
        // The thread ends with the last way to it.
        let (store, _thread) = store.start().unwrap();
        let lane = Lane::new(book, journal, SEGMENT, store, Rc::new(Metrics::default()));
        let committing = shards::spawn(lane.clone().run());
        Some((lane, committing, held))
    }

    fn book(&self) -> Book {
        data::open(&self.0, "group").unwrap().book
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn sku() -> Sku {
    Sku::new(1001, 2001).unwrap()
}

fn opening(total: i64) -> Opening {
    let now = shards::unix_micros() / 1_000;
    Opening { sku: sku(), start_ms: now - 1_000, end_ms: now + 600_000, expire_at_ms: now + 900_000, total }
}

fn request(user: i64) -> ReserveRequest {
    let id = |kind: u8| {
        let mut bytes = [kind; 16];
        bytes[8..].copy_from_slice(&user.to_be_bytes());
        Uuid(bytes)
    };
    ReserveRequest {
        sku: sku(),
        user_id: UserId::new(user).unwrap(),
        request_id: id(1),
        reservation_id: id(2),
        message_id: id(3),
        order_id: OrderId::new(user).unwrap(),
        created_at_micros: shards::unix_micros(),
    }
}

/// A small sale with a disk that fails once, at every call there is and in every way: no promise without durability, no unit
/// sold twice, and the sale goes on.
#[test]
fn a_disk_that_fails_at_any_call_of_a_sale_breaks_no_promise() {
    let on_disk = |call: &Call| !matches!(call, Call::Connect | Call::Accept | Call::Read | Call::Write);
    for verdict in [Verdict::Fail(5), Verdict::Fail(28), Verdict::Short(1)] {
        for failing in 1.. {
            let calls = Rc::new(Cell::new(0));
            shards::run(async {
                let folder = Folder::new();
                let counter = Rc::clone(&calls);
                let faults = install(move |call| {
                    counter.set(counter.get() + u32::from(on_disk(&call)));
                    if on_disk(&call) && counter.get() == failing { verdict } else { Verdict::Proceed }
                });
                let Some((lane, committing, held)) = folder.start().await else {
                    // Refused at the start: nothing was promised.
                    drop(faults);
                    return;
                };
                while lane.open(opening(30)).await.is_err() {}
                let mut promised = Vec::new();
                for user in (1..=40).step_by(4) {
                    let batch: Vec<_> = (user..user + 4).map(request).collect();
                    let answers = lane.reserve(batch.clone()).await;
                    for (request, answer) in batch.into_iter().zip(answers) {
                        if answer == Ok(ReserveOutcome::Created) {
                            promised.push(request);
                        }
                    }
                }
                lane.close();
                committing.await.unwrap();
                drop((lane, held, faults));
                let book = folder.book();
                assert!(promised.len() >= 26, "{verdict:?} at {failing}: {} promises", promised.len());
                for request in &promised {
                    let kept = book.number_of(&request.request_id).and_then(|number| book.reservation(number));
                    assert_eq!(kept.map(|kept| kept.request), Some(*request), "{verdict:?} at {failing}");
                }
                // The journal went on after the fault, so what was refused is not there either.
                assert_eq!(book.len(), promised.len(), "{verdict:?} at {failing}");
                assert_eq!(book.sale(sku()).unwrap().stock, 30 - i64::try_from(promised.len()).unwrap());
            });
            if calls.get() < failing {
                assert!(failing > 30, "so few calls: {failing}");
                break;
            }
        }
    }
}

/// Nobody is told before the disk has it: neither the winner nor whoever is refused because of him.
#[test]
fn answers_wait_for_the_disk() {
    shards::run(async {
        let folder = Folder::new();
        let (lane, _committing, _held) = folder.start().await.unwrap();
        lane.open(opening(1)).await.unwrap();
        let _slow =
            install(
                |call| {
                    if call == Call::FileSync { Verdict::Late(Duration::from_millis(50)) } else { Verdict::Proceed }
                },
            );
        let start = shards::now();
        let answers = lane.reserve(vec![request(1), request(2)]).await;
        assert_eq!(answers, [Ok(ReserveOutcome::Created), Ok(ReserveOutcome::SoldOut)]);
        assert!(start.elapsed() >= Duration::from_millis(50));
        let start = shards::now();
        assert_eq!(lane.reserve(vec![request(3)]).await, [Ok(ReserveOutcome::SoldOut)]);
        assert!(start.elapsed() < Duration::from_millis(50), "a refusal needs no disk");
    });
}

#[test]
fn what_has_no_order_is_delivered_again_after_a_restart_and_what_has_one_is_not() {
    shards::run(async {
        let folder = Folder::new();
        let (lane, committing, held) = folder.start().await.unwrap();
        assert!(lane.open(opening(9)).await.unwrap());
        let terms = lane.book.borrow().sale(sku()).unwrap().opening;
        assert!(!lane.open(terms).await.unwrap());
        assert!(matches!(lane.open(opening(8)).await, Err(ChangeError::Different(_))));
        lane.reserve((1..=3).map(request).collect()).await;
        let (hide, wait) = (Duration::from_millis(20), Duration::from_millis(1));
        let taken = lane.take_ready(2, hide, wait).await;
        assert_eq!(taken.iter().map(|(number, attempt, _)| (*number, *attempt)).collect::<Vec<_>>(), [(0, 1), (1, 1)]);
        lane.done(0);
        lane.extend(1, Duration::from_millis(60));
        shards::sleep(Duration::from_millis(30)).await;
        assert_eq!(lane.take_ready(9, hide, wait).await.len(), 1, "only the third was ready");
        shards::sleep(Duration::from_millis(70)).await;
        let mut again: Vec<_> =
            lane.take_ready(9, hide, wait).await.into_iter().map(|(n, attempt, _)| (n, attempt)).collect();
        again.sort_unstable();
        assert_eq!(again, [(1, 2), (2, 2)], "not acknowledged, so they came again");
        // One gets its order; the process ends before anybody is told.
        let first = request(1);
        let message = crate::embedded::store::StoredMessage {
            event: first.event(Default::default()),
            body: Vec::new(),
            broker_message_id: String::new(),
            attempt: 1,
        };
        assert_eq!(lane.store.settle(vec![message]).await, [Ok(OrderOutcome::Created)]);
        lane.close();
        committing.await.unwrap();
        drop((lane, held));
        let (lane, _committing, _held) = folder.start().await.unwrap();
        let standing = lane.standing(sku(), &first.request_id, first.user_id);
        let result = FinalResult::Created { order_id: first.order_id };
        assert_eq!(standing, Standing::Final { reservation_id: first.reservation_id, result });
        assert_eq!(lane.waiting(), 2);
    });
}

#[test]
fn the_order_store_is_made_again_from_the_journal() {
    shards::run(async {
        let folder = Folder::new();
        let (lane, committing, held) = folder.start().await.unwrap();
        lane.open(opening(9)).await.unwrap();
        lane.reserve((1..=5).map(request).collect()).await;
        lane.close();
        committing.await.unwrap();
        drop((lane, held));
        for name in ["orders.sqlite", "orders.sqlite-wal", "orders.sqlite-shm"] {
            let _ = std::fs::remove_file(folder.0.join(name));
        }
        let (lane, _committing, _held) = folder.start().await.unwrap();
        assert_eq!(lane.waiting(), 5);
    });
}

#[test]
fn a_unit_whose_order_was_turned_down_goes_back_once() {
    shards::run(async {
        let folder = Folder::new();
        let (lane, committing, held) = folder.start().await.unwrap();
        lane.open(opening(1)).await.unwrap();
        let first = request(1);
        lane.reserve(vec![first]).await;
        let row = ResultRow {
            sku: sku(),
            request_id: first.request_id,
            reservation_id: first.reservation_id,
            user_id: first.user_id,
            result: FinalResult::Rejected { reason: RejectReason::InternalError },
        };
        lane.settle(&row);
        lane.settle(&row);
        while lane.view(sku()).unwrap().stock == 0 {
            shards::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(lane.reserve(vec![request(2)]).await, [Ok(ReserveOutcome::Created)]);
        assert!(lane.close_sale(sku()).await.unwrap());
        assert!(!lane.close_sale(sku()).await.unwrap());
        assert_eq!(lane.reserve(vec![request(3)]).await, [Ok(ReserveOutcome::Closed)]);
        lane.close();
        committing.await.unwrap();
        drop((lane, held));
        let book = folder.book();
        assert_eq!(book.sale(sku()).unwrap().stock, 0);
        assert_eq!(book.len(), 2);
    });
}

#[test]
fn a_folder_belongs_to_one_process() {
    shards::run(async {
        let folder = Folder::new();
        let first = data::open(&folder.0, "group").unwrap();
        let second = data::open(&folder.0, "group").err().unwrap().to_string();
        assert!(second.contains("in use by process"), "{second}");
        drop(first);
        assert_eq!(data::open(&folder.0, "group").unwrap().end, End::default());
    });
}
