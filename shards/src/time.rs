//! Clocks, sleeping and deadlines. All time in the program comes from here, so tests can bend it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::backend;

/// Monotonic time.
pub fn now() -> Instant {
    Instant::now()
}

/// Wall-clock time in microseconds since 1970-01-01 UTC; zero if the clock is set before that.
pub fn unix_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX).saturating_add_signed(crate::faults::clock_skew())
}

/// The deadline passed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("deadline passed")]
pub struct Elapsed;

/// Completes after `d`, rounded up to the next millisecond.
pub async fn sleep(d: Duration) {
    backend::sleep_until(now() + d).await;
}

/// Completes at `t`, rounded up to the next millisecond; at once if `t` has passed.
pub async fn sleep_until(t: Instant) {
    backend::sleep_until(t).await;
}

/// `f`'s output if it completes by `deadline`; `f` is dropped otherwise.
pub async fn timeout_at<F: Future>(deadline: Instant, f: F) -> Result<F::Output, Elapsed> {
    Timeout { future: f, sleep: backend::sleep_until(deadline) }.await
}

/// [`timeout_at`] with the deadline `d` from now.
pub async fn timeout<F: Future>(d: Duration, f: F) -> Result<F::Output, Elapsed> {
    timeout_at(now() + d, f).await
}

pin_project_lite::pin_project! {
    struct Timeout<F> {
        #[pin]
        future: F,
        #[pin]
        sleep: backend::Sleep,
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        this.sleep.poll(cx).map(|()| Err(Elapsed))
    }
}
