//! Thread-per-core runtime face over io_uring. Knows nothing of sales or protocols.
