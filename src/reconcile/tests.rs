//! What is judged wrong, and what is not.

use super::*;

const ID: Uuid = Uuid([7; 16]);
const JUDGE: Judge = Judge { now_ms: 100_000, patience_ms: 10_000, drained: true };

fn seen(status: &str) -> Inspected {
    let held = String::from_utf8(ID.text().to_vec()).unwrap();
    Inspected { status: status.to_owned(), held, result: "CREATED".to_owned(), pending: true, ..Inspected::default() }
}

#[test]
fn an_order_is_right_when_its_owner_holds_and_sees_it() {
    assert_eq!(Judge::order(ID, &seen("CREATED")), None);
    for status in ["RESERVED", "MQ_PENDING", "MQ_SENT", ""] {
        assert_eq!(Judge::order(ID, &seen(status)), Some(Kind::NotShown), "{status}");
    }
    assert_eq!(Judge::order(ID, &Inspected { result: String::new(), ..seen("CREATED") }), Some(Kind::NotShown));
    for status in ["REJECTED", "RELEASED"] {
        assert_eq!(Judge::order(ID, &seen(status)), Some(Kind::OrderContradicted));
    }
    assert_eq!(Judge::order(ID, &Inspected { held: String::new(), ..seen("CREATED") }), Some(Kind::BuyerMissing));
    assert_eq!(Judge::order(Uuid([8; 16]), &seen("CREATED")), Some(Kind::BuyerOfAnother));
}

#[test]
fn every_buyer_is_judged_by_state_and_decision() {
    let ordered = Some(Decided::Ordered);
    let due = Some(Decided::Released { applied: false });
    let done = Some(Decided::Released { applied: true });
    #[rustfmt::skip]
    let table = [
        // state        nothing decided                ordered  release due               release applied
        ("RESERVED",   [Some(Kind::Unsent),                  None, Some(Kind::ReleaseDue), Some(Kind::ReleaseForgotten)]),
        ("MQ_PENDING", [Some(Kind::Unsent),                  None, Some(Kind::ReleaseDue), Some(Kind::ReleaseForgotten)]),
        ("MQ_SENT",    [Some(Kind::MessageLost),             None, Some(Kind::ReleaseDue), Some(Kind::ReleaseForgotten)]),
        ("CREATED",    [Some(Kind::OrderMissing),            None, Some(Kind::ReleaseDue), Some(Kind::ReleaseForgotten)]),
        ("REJECTED",   [Some(Kind::ReleaseMissing),          None, Some(Kind::ReleaseDue), Some(Kind::ReleaseForgotten)]),
        ("RELEASED",   [Some(Kind::BuyerOfNothing),          None, Some(Kind::BuyerOfNothing), Some(Kind::BuyerOfNothing)]),
        ("",           [Some(Kind::BuyerWithoutReservation), None, Some(Kind::ReleaseDue), Some(Kind::BuyerWithoutReservation)]),
    ];
    for (state, expected) in table {
        let found = [None, ordered, due, done].map(|decided| JUDGE.buyer(&seen(state), decided));
        assert_eq!(found, expected, "{state}");
    }
}

#[test]
fn what_may_still_be_under_way_is_left_alone() {
    let young = |state| Inspected { created_at_ms: 95_000, ..seen(state) };
    assert_eq!(JUDGE.buyer(&young("RESERVED"), None), None);
    assert_eq!(JUDGE.buyer(&young("MQ_SENT"), None), None);
    let busy = Judge { drained: false, ..JUDGE };
    assert_eq!(busy.buyer(&seen("MQ_SENT"), None), None, "its message may be in the topic");
    assert_eq!(busy.buyer(&seen(""), None), None);
    let lost = Inspected { pending: false, ..young("RESERVED") };
    assert_eq!(JUDGE.buyer(&lost, None), Some(Kind::UnsentAndLost), "nobody would ever look at it");
}

#[test]
fn what_heals_or_is_repaired_is_not_open() {
    let mut findings = Findings::default();
    findings.add(Kind::Unsent, "a");
    findings.add(Kind::StockOff, "b");
    findings.add(Kind::OrderMissing, "c");
    assert_eq!(findings.open(), 2);
    findings.repaired(Kind::StockOff, 1);
    assert_eq!(findings.open(), 1);
    for number in 0..100 {
        findings.add(Kind::OrderMissing, number.to_string());
    }
    assert_eq!(
        (findings.0[&Kind::OrderMissing].count, findings.0[&Kind::OrderMissing].examples.len()),
        (101, EXAMPLES)
    );
}
