//! The rules of the book, against the table that the Redis script is run against too.

use proptest::prelude::*;

use super::*;
use crate::domain::{OrderId, UserId};

const SKU: Option<Sku> = Sku::new(1001, 2001);
const NOW: u64 = 1_800_000_000_000;

fn sku() -> Sku {
    SKU.unwrap()
}

fn opening(total: i64) -> Opening {
    Opening { sku: sku(), start_ms: NOW - 1000, end_ms: NOW + 1000, expire_at_ms: NOW + 100_000, total }
}

fn request(user: i64, key: u8, serial: u64) -> ReserveRequest {
    let id = |kind: u8| {
        let mut bytes = [kind; 16];
        bytes[8..].copy_from_slice(&serial.to_be_bytes());
        Uuid(bytes)
    };
    ReserveRequest {
        sku: sku(),
        user_id: UserId::new(user).unwrap(),
        request_id: Uuid([key; 16]),
        reservation_id: id(0xa0),
        message_id: id(0xb0),
        order_id: OrderId::new(i64::try_from(serial).unwrap() + 1).unwrap(),
        created_at_micros: NOW * 1000,
    }
}

fn code(outcome: &ReserveOutcome) -> char {
    match outcome {
        ReserveOutcome::Created => '0',
        ReserveOutcome::SameRequest { .. } => '1',
        ReserveOutcome::SameUser { .. } => '2',
        ReserveOutcome::SoldOut => '3',
        ReserveOutcome::Unavailable => '4',
        ReserveOutcome::NotStarted => '5',
        ReserveOutcome::Ended => '6',
        ReserveOutcome::KeyReused => '7',
        ReserveOutcome::Closed => '8',
    }
}

/// Decides a call and enters what it made, as the book's owner does.
fn call(book: &mut Book, requests: &[ReserveRequest]) -> Vec<ReserveOutcome> {
    let outcomes = book.decide(requests, NOW);
    for (request, outcome) in requests.iter().zip(&outcomes) {
        if *outcome == ReserveOutcome::Created {
            book.enter(&Entry::Reserved(*request)).unwrap();
        }
    }
    outcomes
}

/// The table that lua/reserve.lua is run against too.
#[test]
fn the_table_of_the_reserve_script_holds_here_too() {
    let table = include_str!("../../../tests/cases/book/reserve.tsv");
    let rows = table.lines().filter(|line| !line.starts_with('#')).skip(1);
    let mut cases = 0;
    for row in rows {
        cases += 1;
        let [name, gate, units, calls, codes]: [&str; 5] = row.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let mut book = Book::default();
        let mut terms = opening(units.parse().unwrap());
        match gate {
            "early" => (terms.start_ms, terms.end_ms) = (NOW + 500, NOW + 1000),
            "over" => (terms.start_ms, terms.end_ms) = (NOW - 1000, NOW - 500),
            _ => {}
        }
        if gate != "absent" {
            book.enter(&Entry::Opened(terms)).unwrap();
        }
        if gate == "closed" {
            book.enter(&Entry::Closed(sku())).unwrap();
        }
        let mut serial = 0;
        for (text, codes) in calls.split('|').zip(codes.split('|')) {
            if text.trim() == "!close" {
                book.enter(&Entry::Closed(sku())).unwrap();
                continue;
            }
            let requests: Vec<_> = text
                .split_whitespace()
                .map(|one| {
                    let (user, key) = one.split_once(':').unwrap();
                    serial += 1;
                    request(user.parse().unwrap(), key.as_bytes()[0], serial)
                })
                .collect();
            let answered: String = call(&mut book, &requests).iter().map(code).collect();
            assert_eq!(answered, codes, "{name}: {text}");
        }
    }
    assert!(cases > 20);
}

#[test]
fn a_key_of_another_sku_is_refused() {
    let mut book = Book::default();
    let other = Sku::new(1001, 2002).unwrap();
    book.enter(&Entry::Opened(opening(5))).unwrap();
    book.enter(&Entry::Opened(Opening { sku: other, ..opening(5) })).unwrap();
    call(&mut book, &[request(1, b'a', 1)]);
    let elsewhere = ReserveRequest { sku: other, ..request(1, b'a', 2) };
    assert_eq!(call(&mut book, &[elsewhere]), [ReserveOutcome::KeyReused]);
    assert_eq!(book.standing(other, &elsewhere.request_id, elsewhere.user_id), Standing::NotOwner);
}

#[test]
fn a_released_unit_is_sold_again_and_its_buyer_may_come_back() {
    let mut book = Book::default();
    book.enter(&Entry::Opened(opening(1))).unwrap();
    let first = request(1, b'a', 1);
    call(&mut book, &[first]);
    book.settle(&first.request_id, OrderOutcome::Rejected(RejectReason::InternalError));
    book.enter(&Entry::Released { request_id: first.request_id }).unwrap();
    let result = FinalResult::Rejected { reason: RejectReason::InternalError };
    let standing = Standing::Final { reservation_id: first.reservation_id, result };
    assert_eq!(book.standing(sku(), &first.request_id, first.user_id), standing);
    assert_eq!(call(&mut book, &[request(1, b'b', 2)]), [ReserveOutcome::Created]);
    assert!(book.enter(&Entry::Released { request_id: first.request_id }).is_err());
}

#[test]
fn what_contradicts_the_book_is_refused() {
    let mut book = Book::default();
    assert!(book.enter(&Entry::Reserved(request(1, b'a', 1))).is_err());
    assert!(book.enter(&Entry::Closed(sku())).is_err());
    assert!(book.enter(&Entry::Released { request_id: Uuid([1; 16]) }).is_err());
    book.enter(&Entry::Opened(opening(1))).unwrap();
    assert!(book.enter(&Entry::Opened(opening(1))).is_err());
    book.enter(&Entry::Reserved(request(1, b'a', 1))).unwrap();
    assert!(book.enter(&Entry::Reserved(request(2, b'b', 2))).is_err());
}

proptest! {
    /// Cutting the same requests into calls in another way changes no answer.
    #[test]
    fn batches_change_no_answer(
        requests in proptest::collection::vec((1..6i64, b'a'..b'f'), 1..40),
        cut in 1..10usize,
        total in 0..6i64,
    ) {
        let requests: Vec<_> =
            requests.iter().enumerate().map(|(at, (user, key))| request(*user, *key, at as u64)).collect();
        let (mut one, mut many) = (Book::default(), Book::default());
        for book in [&mut one, &mut many] {
            book.enter(&Entry::Opened(opening(total))).unwrap();
        }
        let single: Vec<_> = requests.chunks(1).flat_map(|chunk| call(&mut one, chunk)).collect();
        let batched: Vec<_> = requests.chunks(cut).flat_map(|chunk| call(&mut many, chunk)).collect();
        prop_assert_eq!(single, batched);
        let sale = one.sale(sku()).unwrap();
        prop_assert!(sale.stock >= 0);
        prop_assert_eq!(sale.stock + i64::try_from(sale.buyers()).unwrap(), total);
        prop_assert_eq!(one, many);
    }
}
