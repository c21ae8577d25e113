//! Where the process spends its CPU time: stacks sampled by a timer signal, shown as a flame graph or as a pprof profile.
//!
//! The `pprof` crate does the sampling: `ITIMER_PROF` interrupts whichever thread runs on a core, so a shard is sampled in proportion
//! to the CPU time it takes. A ring that waits is woken by the signal, finds nothing and waits again; calls of the C library are
//! restarted. Nothing is paid while no profile is taken. Kernel frames are not in it; `tuning/profile.md` shows those with perf.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pprof::protos::Message as _;
use pprof::{ProfilerGuard, ProfilerGuardBuilder};
use shards::mailbox;

/// Longest profile: whoever asks has a connection open all the while.
const SECONDS_MAX: u64 = 60;
/// Most samples a second and core: each costs some ten microseconds in the thread that it interrupts.
const HZ_MAX: u64 = 999;
/// From this version on, the unwinder finds a frame without a lock (`_dl_find_object`). Before, a sample taken while its thread
/// unwinds a panic could wait for itself.
const GLIBC_MIN: (u32, u32) = (2, 35);

/// What the answer looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// A flame graph.
    Svg,
    /// `profile.proto` of <https://github.com/google/pprof>, not compressed.
    Pprof,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    seconds: u64,
    hz: u64,
    format: Format,
}

/// Why there is no profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProfileError {
    #[error("a profile is being taken already: ask again when it is done")]
    Busy,
    #[error("the C library is older than {}.{}, where taking samples can hang the process: use perf, see tuning/profile.md", GLIBC_MIN.0, GLIBC_MIN.1)]
    OldUnwinder,
    #[error("no profile: {0}")]
    Failed(String),
}

impl Wish {
    /// Reads `?seconds=10&hz=99&format=svg|pprof`; each may be left out.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub(super) fn parse(query: Option<&str>) -> Result<Self, String> {
        let mut wish = Self { seconds: 10, hz: 99, format: Format::Svg };
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("seconds", text) => wish.seconds = number("seconds", text, SECONDS_MAX)?,
                ("hz", text) => wish.hz = number("hz", text, HZ_MAX)?,
                ("format", "svg") => wish.format = Format::Svg,
                ("format", "pprof") => wish.format = Format::Pprof,
                ("format", other) => return Err(format!("format={other} is neither svg nor pprof")),
                (other, _) => return Err(format!("{other:?} is not known; there are seconds, hz and format")),
            }
        }
        Ok(wish)
    }

    /// The media type of the answer.
    pub(super) const fn media_type(&self) -> &'static str {
        match self.format {
            Format::Svg => "image/svg+xml",
            Format::Pprof => "application/octet-stream",
        }
    }
}

fn number(name: &str, text: &str, max: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| format!("{name}={text} is not a number from 1 to {max}"))
}

/// Only one at a time: the timer and its signal belong to the process.
static TAKING: AtomicBool = AtomicBool::new(false);

/// Lets the next one in.
struct Taking;

impl Taking {
    fn begin() -> Option<Self> {
        let free = TAKING.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_ok();
        free.then_some(Self)
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        TAKING.store(false, Ordering::Release);
    }
}

/// Samples for as long as asked for. Reading the symbols of a large program takes a second or two and has a thread of its own.
pub(super) async fn take(wish: Wish) -> Result<Vec<u8>, ProfileError> {
    if !unwinder_is_safe() {
        return Err(ProfileError::OldUnwinder);
    }
    let taking = Taking::begin().ok_or(ProfileError::Busy)?;
    // No block list: it would leave out every sample in the C library, and with it all time in system calls.
    let hz = i32::try_from(wish.hz).unwrap_or(i32::MAX);
    let guard = ProfilerGuardBuilder::default().frequency(hz).build().map_err(failed)?;
    shards::sleep(Duration::from_secs(wish.seconds)).await;
    let (sender, mut receiver) = mailbox::bounded(1);
    let work = move || {
        let profile = report(guard, wish.format);
        drop(taking);
        // Whoever asked may have left.
        let _ = sender.try_send(profile);
    };
    let thread = std::thread::Builder::new().name("profile".to_owned()).spawn(work);
    thread.map_err(|error| ProfileError::Failed(error.to_string()))?;
    receiver.recv().await.unwrap_or_else(|| Err(ProfileError::Failed("its thread ended".to_owned())))
}

fn failed(error: pprof::Error) -> ProfileError {
    ProfileError::Failed(error.to_string())
}

fn report(guard: ProfilerGuard<'_>, format: Format) -> Result<Vec<u8>, ProfileError> {
    let report = guard.report().build().map_err(failed)?;
    drop(guard);
    let mut out = Vec::new();
    match format {
        Format::Svg => {
            if report.data.is_empty() {
                return Err(ProfileError::Failed("not one sample: the process did nothing in that time".to_owned()));
            }
            report.flamegraph(&mut out).map_err(failed)?;
        }
        Format::Pprof => {
            let profile = report.pprof().map_err(failed)?;
            profile.encode(&mut out).map_err(|error| ProfileError::Failed(error.to_string()))?;
        }
    }
    Ok(out)
}

/// Whether the C library is new enough, or another one.
#[allow(unsafe_code, reason = "the version of the C library is a C string")]
fn unwinder_is_safe() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it takes nothing and returns a string that ends with zero and lives as long as the process.
        let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
        at_least(version, GLIBC_MIN)
    }
    #[cfg(not(target_env = "gnu"))]
    false
}

fn at_least(version: &CStr, (major, minor): (u32, u32)) -> bool {
    let mut parts = version.to_str().unwrap_or_default().split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_read_or_explained() {
        let wish = |seconds, hz, format| Ok(Wish { seconds, hz, format });
        assert_eq!(Wish::parse(None), wish(10, 99, Format::Svg));
        assert_eq!(Wish::parse(Some("seconds=3&hz=499&format=pprof")), wish(3, 499, Format::Pprof));
        for (query, word) in [
            ("seconds=0", "1 to 60"),
            ("seconds=61", "1 to 60"),
            ("seconds=x", "1 to 60"),
            ("hz=1000", "1 to 999"),
            ("format=png", "neither"),
            ("second=3", "not known"),
        ] {
            let error = Wish::parse(Some(query)).unwrap_err();
            assert!(error.contains(word), "{query}: {error}");
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, new) in [(c"2.35", true), (c"2.9", false), (c"3.0", true), (c"", false)] {
            assert_eq!(at_least(version, GLIBC_MIN), new, "{version:?}");
        }
    }
}
