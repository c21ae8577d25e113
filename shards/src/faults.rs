//! Faults for tests: what the network, the disk and the clock do when they do not do as they should.
//!
//! Only with the feature `faults`, which nothing but tests turns on; without it the calls below are empty and cost
//! nothing. Tools outside of the process cannot do this: what goes through a ring is invisible to them.

use std::io;

/// An operation of the face that can be made to fail, before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`crate::net::TcpStream::connect`]
    Connect,
    /// [`crate::net::TcpListener::accept`], once for each connection taken
    Accept,
    /// [`crate::net::ReadHalf::read`]
    Read,
    /// Each write of [`crate::net::WriteHalf::write_all`]
    Write,
    /// Opening or creating a file
    FileOpen,
    /// Each read of [`crate::fs::File::read_exact_at`]
    FileRead,
    /// Each write of [`crate::fs::File::append`] and [`crate::fs::File::write_all_at`]
    FileWrite,
    /// [`crate::fs::File::fdatasync`]
    FileSync,
    /// [`crate::fs::File::fallocate`]
    FileAllocate,
    /// [`crate::fs::File::truncate`]
    FileTruncate,
    /// [`crate::fs::sync_dir`], [`crate::fs::rename`] and [`crate::fs::remove`]
    Directory,
}

/// How much of a write or read is let through.
pub(crate) const ALL: usize = usize::MAX;

/// A named point of the program, where a test may have something happen: see `at_points`. Empty without the feature.
#[inline(always)]
pub fn point(name: &'static str) {
    #[cfg(feature = "faults")]
    injected::reached(name);
    #[cfg(not(feature = "faults"))]
    let _ = name;
}

#[cfg(feature = "faults")]
pub use injected::{Installed, Verdict, at_points, install, set_clock_skew};
#[cfg(feature = "faults")]
pub(crate) use injected::{before, clock_skew};

/// Nothing fails; the operation is counted.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) async fn before(_call: Call) -> io::Result<usize> {
    crate::stats::begun();
    Ok(ALL)
}

/// The clock is right.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn clock_skew() -> i64 {
    0
}

#[cfg(feature = "faults")]
mod injected {
    use std::cell::{Cell, RefCell};
    use std::sync::OnceLock;
    use std::time::Duration;

    use super::{ALL, Call, io};

    /// What becomes of a call.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Verdict {
        /// It is done.
        Proceed,
        /// It is not done and fails with this `errno`.
        Fail(i32),
        /// A read or write that moves at most so many bytes (at least one), as the kernel may at any time. Other
        /// calls are done.
        Short(usize),
        /// It is done this much later.
        Late(Duration),
    }

    type Plan = Box<dyn FnMut(Call) -> Verdict>;

    thread_local! {
        static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
        static SKEW: Cell<i64> = const { Cell::new(0) };
    }

    /// Faults are on until this is dropped.
    #[derive(Debug)]
    #[must_use = "the faults end when this is dropped"]
    pub struct Installed(());

    impl Drop for Installed {
        fn drop(&mut self) {
            PLAN.with(|plan| plan.borrow_mut().take());
        }
    }

    /// Has `plan` decide about every call that this thread's shard makes, in order. It must not make any itself.
    pub fn install(plan: impl FnMut(Call) -> Verdict + 'static) -> Installed {
        PLAN.with(|slot| *slot.borrow_mut() = Some(Box::new(plan)));
        Installed(())
    }

    static AT_POINTS: OnceLock<fn(&'static str)> = OnceLock::new();

    /// Has `act` called whenever any shard of this process reaches a [`point`](super::point); it may panic. The first one stays.
    pub fn at_points(act: fn(&'static str)) {
        AT_POINTS.get_or_init(|| act);
    }

    pub(super) fn reached(name: &'static str) {
        if let Some(act) = AT_POINTS.get() {
            act(name);
        }
    }

    /// Sets this thread's wall clock ([`crate::unix_micros`]) off by so many microseconds; zero makes it right.
    pub fn set_clock_skew(micros: i64) {
        SKEW.set(micros);
    }

    pub(crate) fn clock_skew() -> i64 {
        SKEW.get()
    }

    pub(crate) async fn before(call: Call) -> io::Result<usize> {
        crate::stats::begun();
        let verdict = PLAN.with(|plan| plan.borrow_mut().as_mut().map_or(Verdict::Proceed, |decide| decide(call)));
        match verdict {
            Verdict::Proceed => Ok(ALL),
            Verdict::Fail(errno) => Err(io::Error::from_raw_os_error(errno)),
            Verdict::Short(bytes) => Ok(bytes.max(1)),
            Verdict::Late(by) => {
                crate::sleep(by).await;
                Ok(ALL)
            }
        }
    }
}
