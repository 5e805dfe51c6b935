//! How much of the heap is in use: what a session costs, by the allocator's own account.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

struct Counting;

/// Counting is off while speed is measured: one counter that all threads write would be measured with it.
static ON: AtomicBool = AtomicBool::new(false);
static IN_USE: AtomicI64 = AtomicI64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: i64) {
    if ON.load(Ordering::Relaxed) {
        IN_USE.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[expect(unsafe_code, reason = "an allocator can't be written without; it only passes on to the system's")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Counts until it is dropped.
pub struct Count {
    from: i64,
}

impl Count {
    /// Begins at 0. One at a time.
    pub fn start() -> Self {
        ON.store(true, Ordering::SeqCst);
        Self { from: IN_USE.load(Ordering::SeqCst) }
    }

    /// Bytes that were allocated since the start, less those that were freed.
    pub fn bytes(&self) -> i64 {
        IN_USE.load(Ordering::SeqCst) - self.from
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        ON.store(false, Ordering::SeqCst);
    }
}
