//! Group commit: whatever queued up while the previous round trip was in flight goes out as the next batch.
//!
//! An idle system answers at once (a batch of one), a loaded one gets cheaper per item, and no timer holds work back.
//! Every hop of a sale uses this one loop: the reserve script, the send to the topic, the order transaction's side
//! writes, the ack, the projection of results.

use std::future::Future;
use std::rc::Rc;

use shards::sync::{Notify, Queue};

/// How a [`run`] loop batches.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Items in one batch, at least 1.
    pub batch_max: usize,
    /// Batches in flight at a time, at least 1. More than one trades batch size for overlap.
    pub in_flight_max: usize,
}

/// Counts the batches in flight; drops wake the loop.
struct InFlight {
    count: std::cell::Cell<usize>,
    freed: Notify,
}

/// One batch in flight. Given back when dropped, also when its task panics.
struct Slot(Rc<InFlight>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        self.0.freed.notify_one();
    }
}

/// Takes items from `queue` in batches and hands each batch to `commit` until the queue is closed and empty and the
/// last batch is done.
///
/// A batch that panics loses only itself: its items are dropped, which tells whoever waits for them, and
/// `on_panic` is called.
pub async fn run<T, F, Fut>(queue: Rc<Queue<T>>, limits: Limits, mut commit: F, on_panic: impl Fn() + 'static)
where
    T: 'static,
    F: FnMut(Vec<T>) -> Fut,
    Fut: Future<Output = ()> + 'static,
{
    let in_flight = Rc::new(InFlight { count: std::cell::Cell::new(0), freed: Notify::new() });
    let on_panic = Rc::new(on_panic);
    while let Some(first) = queue.pop().await {
        // Whoever is ready queues up first: an answer of the previous hop wakes all its callers at once, and without this
        // the first of them would travel alone.
        shards::yield_now().await;
        let mut batch = Vec::with_capacity(limits.batch_max.min(queue.len() + 1));
        batch.push(first);
        queue.drain_into(&mut batch, limits.batch_max.saturating_sub(1));
        in_flight.count.set(in_flight.count.get() + 1);
        let slot = Slot(in_flight.clone());
        let work = commit(batch);
        let on_panic = on_panic.clone();
        shards::spawn(async move {
            let _slot = slot;
            if shards::spawn(work).await.is_err() {
                on_panic();
            }
        });
        wait_below(&in_flight, limits.in_flight_max).await;
    }
    wait_below(&in_flight, 1).await;
}

async fn wait_below(in_flight: &InFlight, limit: usize) {
    while in_flight.count.get() >= limit {
        in_flight.freed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::time::Duration;

    fn collect(batch_max: usize, in_flight_max: usize, items: usize) -> (Vec<Vec<usize>>, usize) {
        shards::run(async move {
            let queue = Rc::new(Queue::new(items.max(1)));
            for item in 0..items {
                queue.try_push(item).expect("room");
            }
            queue.close();
            let batches = Rc::new(RefCell::new(Vec::new()));
            let (now, peak) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let (seen, counted, highest) = (batches.clone(), now.clone(), peak.clone());
            run(
                queue,
                Limits { batch_max, in_flight_max },
                move |batch| {
                    let (seen, now, peak) = (seen.clone(), counted.clone(), highest.clone());
                    async move {
                        now.set(now.get() + 1);
                        peak.set(peak.get().max(now.get()));
                        shards::sleep(Duration::from_millis(1)).await;
                        now.set(now.get() - 1);
                        seen.borrow_mut().push(batch);
                    }
                },
                || (),
            )
            .await;
            (batches.take(), peak.get())
        })
    }

    #[test]
    fn what_waits_goes_out_together_and_nothing_is_lost() {
        let (batches, peak) = collect(4, 1, 10);
        assert_eq!(batches, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
        assert_eq!(peak, 1);
    }

    #[test]
    fn no_more_batches_are_in_flight_than_allowed() {
        let (batches, peak) = collect(2, 3, 20);
        assert_eq!(peak, 3);
        let mut all: Vec<usize> = batches.concat();
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn a_batch_that_panics_loses_only_itself() {
        shards::run(async {
            let queue = Rc::new(Queue::new(8));
            for item in 0..4 {
                queue.try_push(item).expect("room");
            }
            queue.close();
            let (done, panics) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
            let (sink, counter) = (done.clone(), panics.clone());
            let commit = move |batch: Vec<i32>| {
                let sink = sink.clone();
                async move {
                    assert_ne!(batch, [1], "a bug in this batch");
                    sink.borrow_mut().extend(batch);
                }
            };
            run(queue, Limits { batch_max: 1, in_flight_max: 1 }, commit, move || counter.set(counter.get() + 1)).await;
            assert_eq!((done.take(), panics.get()), (vec![0, 2, 3], 1));
        });
    }
}
