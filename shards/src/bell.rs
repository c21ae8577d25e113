//! Waking a shard from another thread.
//!
//! A shard sleeps in its ring, so what wakes it must come through the ring: a byte on a socket pair that the shard
//! always reads from. The backend has a way of its own (a waker sent between threads), and it is not used on purpose:
//! with `IORING_SETUP_DEFER_TASKRUN` monoio 0.2.4 does not ask the kernel for completions on a turn in which such a
//! waker has arrived, so that a steady stream of them starves every socket of the shard. A completed read is what the
//! loop waits for anyway.

use std::cell::RefCell;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use bytes::BytesMut;

use crate::backend;
use crate::shard::ShardState;

/// What other threads hold of a shard's bell.
#[derive(Debug)]
pub(crate) struct Bell {
    line: UnixStream,
    /// Rung and not answered yet; saves the system call of the next who rings.
    rung: AtomicBool,
}

impl Bell {
    /// A bell and the end of its line that the shard listens on.
    pub(crate) fn new() -> io::Result<(Arc<Self>, UnixStream)> {
        let (line, far_end) = UnixStream::pair()?;
        line.set_nonblocking(true)?;
        Ok((Arc::new(Self { line, rung: AtomicBool::new(false) }), far_end))
    }

    /// Wakes the shard. Never waits: at most two bytes are ever on the line. When the shard is gone nobody hears it.
    pub(crate) fn ring(&self) {
        if self.rung.swap(true, Ordering::SeqCst) {
            return;
        }
        while let Err(e) = (&self.line).write(&[1]) {
            if e.kind() != io::ErrorKind::Interrupted {
                break;
            }
        }
    }

    fn answered(&self) {
        self.rung.store(false, Ordering::SeqCst);
    }
}

/// The tasks of one shard that wait for its bell. Everybody is woken by each ring and looks for himself.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    seats: RefCell<Vec<Seat>>,
}

#[derive(Debug, Default)]
enum Seat {
    #[default]
    Free,
    /// Taken by somebody who does not wait now.
    Idle,
    Waiting(Waker),
}

impl Listeners {
    pub(crate) fn sit_down(&self) -> usize {
        let mut seats = self.seats.borrow_mut();
        let at = seats.iter().position(|seat| matches!(seat, Seat::Free)).unwrap_or_else(|| {
            seats.push(Seat::Free);
            seats.len() - 1
        });
        seats[at] = Seat::Idle;
        at
    }

    pub(crate) fn wait(&self, at: usize, waker: &Waker) {
        let mut seats = self.seats.borrow_mut();
        match &seats[at] {
            Seat::Waiting(known) if known.will_wake(waker) => {}
            _ => seats[at] = Seat::Waiting(waker.clone()),
        }
    }

    pub(crate) fn leave(&self, at: usize) {
        // The old waker is dropped outside the borrow: it may be a task's last reference.
        let seat = std::mem::take(&mut self.seats.borrow_mut()[at]);
        drop(seat);
    }

    fn wake_all(&self) {
        let wakers: Vec<Waker> = {
            let mut seats = self.seats.borrow_mut();
            let waiting = seats.iter_mut().filter(|seat| matches!(seat, Seat::Waiting(_)));
            waiting
                .filter_map(|seat| match std::mem::replace(seat, Seat::Idle) {
                    Seat::Waiting(waker) => Some(waker),
                    Seat::Free | Seat::Idle => None,
                })
                .collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Answers the shard's bell until the shard stops (it rings its own bell then) or the line breaks.
pub(crate) async fn answer(far_end: UnixStream, state: Rc<ShardState>) {
    let Ok(mut line) = backend::Line::new(far_end) else { return };
    let mut buf = BytesMut::with_capacity(8);
    loop {
        let (result, back) = line.read(buf).await;
        buf = back;
        buf.clear();
        // Before the waiting look: whoever rings after this writes a byte of his own.
        state.bell.answered();
        state.listeners.wake_all();
        if state.tasks.has_stopped() || !matches!(result, Ok(1..)) {
            return;
        }
    }
}
