//! The allocator of the binary: mimalloc, with what each thread asks of it counted.
//!
//! A shard that allocates more than it used to is a regression that no latency shows at first. The counters are two plain cells of
//! the thread; nothing is shared, so a shard pays two additions an allocation.

#![allow(unsafe_code, reason = "an allocator cannot be written without it; it only hands on what it is given")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

use mimalloc::MiMalloc;

/// mimalloc, counted by thread.
#[derive(Debug, Default)]
pub struct Counted(());

impl Counted {
    /// For `#[global_allocator]`.
    pub const fn new() -> Self {
        Self(())
    }
}

/// What one thread has asked for since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Allocations, reallocations included.
    pub count: u64,
    /// Their bytes; of a reallocation the new size.
    pub bytes: u64,
}

thread_local! {
    // Constant and without a destructor, so that reading it never allocates and works to the end of the thread.
    static ALLOCATED: Cell<Allocated> = const { Cell::new(Allocated { count: 0, bytes: 0 }) };
}

/// What this thread has asked for; zero where [`Counted`] is not the allocator.
pub fn of_this_thread() -> Allocated {
    ALLOCATED.get()
}

fn note(bytes: usize) {
    let Allocated { count, bytes: before } = ALLOCATED.get();
    ALLOCATED.set(Allocated { count: count.wrapping_add(1), bytes: before.wrapping_add(bytes as u64) });
}

// SAFETY: every call is handed on to mimalloc with the arguments it came with, and mimalloc keeps the contract.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size);
        // SAFETY: the caller keeps the contract of `realloc`; `ptr` came from mimalloc.
        unsafe { MiMalloc.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`; `ptr` came from mimalloc.
        unsafe { MiMalloc.dealloc(ptr, layout) }
    }
}

/// What the allocator has of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Heap {
    /// Bytes that are readable and writable now.
    pub committed_bytes: usize,
    /// The most that ever were.
    pub committed_peak_bytes: usize,
    /// Resident memory of the process at its highest.
    pub resident_peak_bytes: usize,
    /// Page faults that needed the disk.
    pub page_faults: usize,
}

/// Asks mimalloc.
pub fn heap() -> Heap {
    let [mut elapsed, mut user, mut system, mut resident] = [0_usize; 4];
    let [mut resident_peak, mut commit, mut commit_peak, mut faults] = [0_usize; 4];
    // SAFETY: eight valid places for a usize, which is all that the function asks for; it keeps none of them.
    unsafe {
        libmimalloc_sys::mi_process_info(
            &raw mut elapsed,
            &raw mut user,
            &raw mut system,
            &raw mut resident,
            &raw mut resident_peak,
            &raw mut commit,
            &raw mut commit_peak,
            &raw mut faults,
        );
    }
    Heap {
        committed_bytes: commit,
        committed_peak_bytes: commit_peak,
        resident_peak_bytes: resident_peak,
        page_faults: faults,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_asks_for_is_counted_and_usable() {
        let (counted, layout) = (Counted::new(), Layout::from_size_align(100, 64).unwrap());
        let before = of_this_thread();
        // SAFETY: the layout is not empty; each pointer is used within its size and given back once with its layout.
        unsafe {
            let first = counted.alloc(layout);
            assert!(!first.is_null() && first.addr() % 64 == 0);
            first.write_bytes(7, 100);
            let moved = counted.realloc(first, layout, 5_000);
            assert_eq!((moved.read(), moved.add(99).read()), (7, 7));
            counted.dealloc(moved, Layout::from_size_align(5_000, 64).unwrap());
            let zeroed = counted.alloc_zeroed(layout);
            assert_eq!(zeroed.add(99).read(), 0);
            counted.dealloc(zeroed, layout);
        }
        let after = of_this_thread();
        assert_eq!((after.count - before.count, after.bytes - before.bytes), (3, 5_200));
        assert_eq!(std::thread::spawn(of_this_thread).join().unwrap(), Allocated::default());
    }

    #[test]
    fn the_heap_has_a_size() {
        let heap = heap();
        assert!(heap.resident_peak_bytes > 1 << 20 && heap.committed_peak_bytes >= heap.committed_bytes, "{heap:?}");
    }
}
