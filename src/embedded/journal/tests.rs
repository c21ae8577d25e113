//! The journal on good disks, torn ends, damage of every kind, and disks that fail.

use std::cell::Cell;
use std::rc::Rc;

use super::*;

/// A folder of its own, gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path =
            std::env::temp_dir().join(format!("seckill-journal-{}-{}", std::process::id(), shards::random_u64()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn copy(&self) -> Self {
        let copy = Self::new();
        for entry in std::fs::read_dir(&self.0).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, copy.0.join(path.file_name().unwrap())).unwrap();
        }
        copy
    }

    /// Every payload and the end.
    fn read(&self) -> Result<(Vec<Vec<u8>>, End), JournalError> {
        let mut payloads = Vec::new();
        let end = read(&self.0, |payload| {
            payloads.push(payload.to_vec());
            Ok(())
        })?;
        Ok((payloads, end))
    }

    fn segments(&self) -> Vec<PathBuf> {
        folder::list(&self.0).unwrap().segments.into_iter().map(|segment| segment.path).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const SEGMENT: u64 = 4096;

fn payload(number: usize) -> Vec<u8> {
    format!("payload {number} {}", "x".repeat(number % 97)).into_bytes()
}

/// Takes the journal up and commits `count` payloads, numbered on from what is there.
async fn write(folder: &Folder, count: usize) {
    let (there, end) = folder.read().unwrap();
    let mut journal = Journal::take_up(&folder.0, end, SEGMENT).await.unwrap();
    for number in there.len()..there.len() + count {
        journal.commit(&payload(number)).await.unwrap();
    }
}

fn expected(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(payload).collect()
}

#[test]
fn what_was_committed_is_read_back_over_many_segments_and_starts() {
    shards::run(async {
        let folder = Folder::new();
        for round in 1..=5 {
            write(&folder, 60).await;
            let (payloads, end) = folder.read().unwrap();
            assert_eq!(payloads, expected(60 * round));
            assert_eq!(end.last, 60 * round as u64);
        }
        assert!(folder.segments().len() > 5);
    });
}

/// A crash leaves any part of the last frame, which nobody was told of.
#[test]
fn a_torn_tail_is_cut() {
    shards::run(async {
        let folder = Folder::new();
        write(&folder, 10).await;
        let path = folder.segments().pop().unwrap();
        let whole = std::fs::read(&path).unwrap();
        let end = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        let mut torn = Vec::new();
        frame::encode(&mut torn, 11, &payload(10));
        for len in 0..torn.len() {
            let mut bytes = whole.clone();
            bytes[end..end + len].copy_from_slice(&torn[..len]);
            std::fs::write(&path, &bytes).unwrap();
            let (payloads, end) = folder.read().unwrap();
            assert_eq!(payloads, expected(10), "{len} bytes of the torn frame");
            let visible = torn[..len].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            assert_eq!(end.torn, visible as u64);
        }
        write(&folder, 5).await;
        assert_eq!(folder.read().unwrap().0, expected(15));
    });
}

/// Everything that was answered, or a refusal: never less.
fn check_nothing_is_lost(folder: &Folder, count: usize, what: &str) -> bool {
    match folder.read() {
        Ok((payloads, _)) => {
            assert_eq!(payloads, expected(count), "{what}");
            false
        }
        Err(JournalError::Damaged { .. }) => true,
        Err(error) => panic!("{what}: {error}"),
    }
}

#[test]
fn a_journal_cut_anywhere_in_its_last_4_kib_is_refused() {
    shards::run(async {
        let folder = Folder::new();
        write(&folder, 100).await;
        let path = folder.segments().pop().unwrap();
        let whole = std::fs::read(&path).unwrap();
        let used = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            let refused = check_nothing_is_lost(&folder, 100, &format!("cut at {len}"));
            assert_eq!(refused, len < used, "cut at {len} of {used}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(check_nothing_is_lost(&folder, 100, "the last segment is gone"));
    });
}

#[test]
fn a_bit_flipped_anywhere_is_refused_or_harmless() {
    shards::run(async {
        let folder = Folder::new();
        write(&folder, 40).await;
        write(&folder, 60).await;
        let mut refused = 0;
        for entry in std::fs::read_dir(&folder.0).unwrap() {
            let path = entry.unwrap().path();
            let whole = std::fs::read(&path).unwrap();
            for byte in 0..whole.len() {
                let mut flipped = whole.clone();
                flipped[byte] ^= 1 << (byte % 8);
                std::fs::write(&path, &flipped).unwrap();
                let what = format!("{} byte {byte}", path.display());
                refused += usize::from(check_nothing_is_lost(&folder, 100, &what));
            }
            std::fs::write(&path, &whole).unwrap();
        }
        assert!(refused > 1000, "{refused}");
    });
}

#[test]
fn a_missing_segment_in_the_middle_is_refused() {
    shards::run(async {
        let folder = Folder::new();
        write(&folder, 200).await;
        for path in folder.segments() {
            let bytes = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert!(check_nothing_is_lost(&folder, 200, &path.display().to_string()));
            std::fs::write(&path, bytes).unwrap();
        }
        assert_eq!(folder.read().unwrap().0, expected(200));
    });
}

#[test]
fn what_a_reader_cannot_take_is_damage() {
    shards::run(async {
        let folder = Folder::new();
        write(&folder, 3).await;
        let third = payload(2);
        let refused = read(&folder.0, |payload| if payload == third { Err("odd".to_owned()) } else { Ok(()) });
        assert!(refused.unwrap_err().to_string().contains("frame 3: odd"));
    });
}

/// Every call fails once, at every place, in each of the ways a disk fails. What was committed with Ok is there after a
/// restart; what was not may be there only as the last frame before a crash, and never after the journal went on.
#[test]
fn a_disk_that_fails_at_any_call_loses_nothing_that_was_committed() {
    use shards::faults::{Call, Verdict, install};
    const EIO: i32 = 5;
    const ENOSPC: i32 = 28;
    let is_file = |call: &Call| !matches!(call, Call::Connect | Call::Accept | Call::Read | Call::Write);
    for verdict in [Verdict::Fail(EIO), Verdict::Fail(ENOSPC), Verdict::Short(3)] {
        for failing in 1.. {
            let calls = Rc::new(Cell::new(0));
            shards::run(async {
                let folder = Folder::new();
                let mut committed = Vec::new();
                let end = folder.read().unwrap().1;
                let counter = Rc::clone(&calls);
                let on = install(move |call| {
                    if is_file(&call) {
                        counter.set(counter.get() + 1);
                    }
                    if is_file(&call) && counter.get() == failing { verdict } else { Verdict::Proceed }
                });
                let journal = Journal::take_up(&folder.0, end, SEGMENT).await;
                let mut failures = 0;
                if let Ok(mut journal) = journal {
                    for number in 0..60 {
                        match journal.commit(&payload(number)).await {
                            Ok(()) => committed.push(payload(number)),
                            Err(_) => failures += 1,
                        }
                    }
                } else {
                    failures += 1;
                }
                drop(on);
                assert!(failures <= 1, "{verdict:?} at call {failing}: {failures} failures");
                let (payloads, _) = folder.read().unwrap();
                assert_eq!(payloads, committed, "{verdict:?} at call {failing}");
            });
            if calls.get() < failing {
                assert!(failing > 100, "so few calls: {failing}");
                break;
            }
        }
    }
}

#[test]
fn a_full_disk_is_unavailable_and_recovers() {
    use shards::faults::{Call, Verdict, install};
    shards::run(async {
        let folder = Folder::new();
        let mut journal = Journal::take_up(&folder.0, End::default(), SEGMENT).await.unwrap();
        let full = Rc::new(Cell::new(true));
        let is_full = Rc::clone(&full);
        let _on =
            install(
                move |call| {
                    if call == Call::FileAllocate && is_full.get() { Verdict::Fail(28) } else { Verdict::Proceed }
                },
            );
        for _ in 0..3 {
            assert!(matches!(journal.commit(b"no room").await, Err(CommitError::Unavailable(_))));
        }
        assert_eq!(folder.segments().len(), 0);
        full.set(false);
        journal.commit(&payload(0)).await.unwrap();
        assert_eq!(folder.read().unwrap().0, expected(1));
    });
}

mod with_a_book {
    use super::*;
    use crate::domain::{OrderId, Sku, UserId, Uuid};
    use crate::embedded::book::Book;
    use crate::embedded::record::{Entry, Opening};
    use crate::ports::ReserveRequest;

    fn entries(count: u64) -> Vec<Entry> {
        let sku = Sku::new(1001, 2001).unwrap();
        let opening = Opening { sku, start_ms: 1, end_ms: 1_000, expire_at_ms: 2_000, total: 1_000 };
        let id = |kind: u8, n: u64| {
            let mut bytes = [kind; 16];
            bytes[8..].copy_from_slice(&n.to_be_bytes());
            Uuid(bytes)
        };
        let reserved = (1..=count).map(|n| {
            Entry::Reserved(ReserveRequest {
                sku,
                user_id: UserId::new(n as i64).unwrap(),
                request_id: id(1, n),
                reservation_id: id(2, n),
                message_id: id(3, n),
                order_id: OrderId::new(n as i64).unwrap(),
                created_at_micros: n,
            })
        });
        let released = Entry::Released { request_id: id(1, 5) };
        std::iter::once(Entry::Opened(opening)).chain(reserved).chain([released, Entry::Closed(sku)]).collect()
    }

    fn book(folder: &Folder) -> Result<Book, JournalError> {
        let mut book = Book::default();
        read(&folder.0, |payload| crate::embedded::enter_all(&mut book, payload))?;
        Ok(book)
    }

    #[test]
    fn a_snapshot_replaces_the_segments_before_it() {
        shards::run(async {
            let folder = Folder::new();
            let all = entries(300);
            let mut journal = Journal::take_up(&folder.0, End::default(), SEGMENT).await.unwrap();
            let mut whole = Book::default();
            for (at, entry) in all.iter().enumerate() {
                let mut payload = Vec::new();
                entry.encode(&mut payload);
                journal.commit(&payload).await.unwrap();
                whole.enter(entry).unwrap();
                if at % 70 == 69 {
                    let before = folder.segments().len();
                    let compaction = journal.compaction().unwrap();
                    // A crash right after the snapshot was put in place leaves the old files beside it.
                    let crashed = folder.copy();
                    let size = compact(&compaction, 1_500).unwrap();
                    journal.compacted();
                    assert!(size > 0 && folder.segments().len() < before);
                    assert_eq!(journal.sealed_count(), 0);
                    assert_eq!(book(&folder).unwrap(), whole, "after entry {at}");
                    let snapshot = folder::snapshot_path(&folder.0, compaction.through);
                    std::fs::copy(&snapshot, crashed.0.join(snapshot.file_name().unwrap())).unwrap();
                    assert_eq!(book(&crashed).unwrap(), whole, "after entry {at}");
                }
            }
            assert_eq!(book(&folder).unwrap(), whole);
            let snapshot = folder::list(&folder.0).unwrap().snapshots.pop().unwrap().1;
            let bytes = std::fs::read(&snapshot).unwrap();
            for byte in (0..bytes.len()).step_by(7) {
                let mut flipped = bytes.clone();
                flipped[byte] ^= 1 << (byte % 8);
                std::fs::write(&snapshot, &flipped).unwrap();
                assert!(book(&folder).is_err(), "byte {byte} of the snapshot");
            }
            for len in (0..bytes.len()).step_by(7) {
                std::fs::write(&snapshot, &bytes[..len]).unwrap();
                assert!(book(&folder).is_err(), "snapshot cut at {len}");
            }
            std::fs::remove_file(&snapshot).unwrap();
            assert!(book(&folder).is_err(), "the snapshot is gone");
        });
    }

    #[test]
    fn an_expired_sale_is_left_out_of_a_snapshot() {
        shards::run(async {
            let folder = Folder::new();
            let mut journal = Journal::take_up(&folder.0, End::default(), SEGMENT).await.unwrap();
            for entry in entries(60) {
                let mut payload = Vec::new();
                entry.encode(&mut payload);
                journal.commit(&payload).await.unwrap();
            }
            let through = journal.last();
            drop(journal);
            let end = folder.read().unwrap().1;
            let mut journal = Journal::take_up(&folder.0, end, SEGMENT).await.unwrap();
            assert_eq!(journal.compaction().unwrap().through, through);
            compact(&journal.compaction().unwrap(), 3_000).unwrap();
            journal.compacted();
            assert!(book(&folder).unwrap().is_empty());
        });
    }
}
