//! One half of a connection whose operation may be in flight while its task does something else.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use shards::net::{ReadHalf, WriteHalf};

/// [`ReadHalf::read`] with the half going in and coming back.
pub(super) async fn read(mut half: ReadHalf, buffer: BytesMut) -> (ReadHalf, io::Result<usize>, BytesMut) {
    let (result, buffer) = half.read(buffer).await;
    (half, result, buffer)
}

/// [`WriteHalf::write_all`] with the half going in and coming back.
pub(super) async fn write(mut half: WriteHalf, buffer: BytesMut) -> (WriteHalf, io::Result<()>, BytesMut) {
    let (result, buffer) = half.write_all(buffer).await;
    (half, result, buffer)
}

/// Holds a half, or the future that has it. The future lives in a slot of the connection's task: nothing is
/// allocated, and nothing in flight is dropped when the task turns to other work.
pub(super) struct Pump<'a, T, F> {
    half: Option<T>,
    running: Pin<&'a mut Option<F>>,
    make: fn(T, BytesMut) -> F,
}

impl<'a, T, R, F: Future<Output = (T, io::Result<R>, BytesMut)>> Pump<'a, T, F> {
    /// A pump at rest, with a slot for its futures.
    pub(super) fn new(half: T, running: Pin<&'a mut Option<F>>, make: fn(T, BytesMut) -> F) -> Self {
        Self { half: Some(half), running, make }
    }

    /// Whether an operation is in flight.
    pub(super) fn is_running(&self) -> bool {
        self.half.is_none()
    }

    /// The half, when nothing is in flight.
    pub(super) fn half(&mut self) -> Option<&mut T> {
        self.half.as_mut()
    }

    /// Starts an operation; `buffer` comes back when one is in flight already.
    pub(super) fn start(&mut self, buffer: BytesMut) -> Option<BytesMut> {
        let Some(half) = self.half.take() else { return Some(buffer) };
        self.running.set(Some((self.make)(half, buffer)));
        None
    }

    /// The outcome of the operation in flight; pending for ever if there is none.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<(io::Result<R>, BytesMut)> {
        let Some(future) = self.running.as_mut().as_pin_mut() else { return Poll::Pending };
        let (half, result, buffer) = ready!(future.poll(context));
        self.running.set(None);
        self.half = Some(half);
        Poll::Ready((result, buffer))
    }
}
