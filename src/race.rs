//! Waiting for the first of two things on one shard.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

/// Which of two futures was first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum First<A, B> {
    /// The first argument.
    Left(A),
    /// The second argument.
    Right(B),
}

/// Waits for the first to finish and drops the other; the left one wins a tie.
pub(crate) async fn race<A: Future, B: Future>(left: A, right: B) -> First<A::Output, B::Output> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    std::future::poll_fn(|context| {
        if let Poll::Ready(value) = left.as_mut().poll(context) {
            return Poll::Ready(First::Left(value));
        }
        right.as_mut().poll(context).map(First::Right)
    })
    .await
}
