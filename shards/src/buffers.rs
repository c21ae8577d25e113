//! Byte buffers used again instead of allocated again.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::BytesMut;

/// Keeps up to `max_kept` empty buffers of `buffer_size` bytes. Clones share the pool.
#[derive(Debug, Clone)]
pub struct BufferPool(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    buffer_size: usize,
    max_kept: usize,
    kept: RefCell<Vec<BytesMut>>,
}

impl BufferPool {
    /// An empty pool: buffers are allocated as they are first taken.
    pub fn new(buffer_size: usize, max_kept: usize) -> Self {
        Self(Rc::new(Inner { buffer_size, max_kept, kept: RefCell::new(Vec::new()) }))
    }

    /// An empty buffer with at least `buffer_size` bytes of spare capacity.
    pub fn take(&self) -> BytesMut {
        let kept = self.0.kept.borrow_mut().pop();
        kept.unwrap_or_else(|| BytesMut::with_capacity(self.0.buffer_size))
    }

    /// Takes a buffer back. One that shrank, grew beyond twice the size, or comes when the pool is full is freed,
    /// so the pool never holds more than `2 * buffer_size * max_kept` bytes.
    pub fn give(&self, mut buffer: BytesMut) {
        buffer.clear();
        let size = self.0.buffer_size;
        let mut kept = self.0.kept.borrow_mut();
        let fits = buffer.capacity() >= size && buffer.capacity() <= size.saturating_mul(2);
        if fits && kept.len() < self.0.max_kept {
            kept.push(buffer);
        }
    }

    /// How many buffers lie ready.
    pub fn kept(&self) -> usize {
        self.0.kept.borrow().len()
    }
}
