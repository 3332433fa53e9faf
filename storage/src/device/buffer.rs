//! Memory that direct I/O accepts: aligned to 4096 bytes, a multiple of 4096 long, never moved, never resized.
//!
//! All `unsafe` about owning memory is in this file. Invariant: `pointer` came from `alloc_zeroed` with `layout()` and
//! is owned by this value alone until `drop`; all of its bytes are always initialised.

use crate::limits::BLOCK;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Owned bytes at an address that is a multiple of 4096. Share it as `Arc<AlignedBuffer>`, or as `Bytes` through
/// `Bytes::from_owner`.
pub struct AlignedBuffer {
    pointer: NonNull<u8>,
    length: usize,
}

// SAFETY: the buffer owns its bytes like a `Box<[u8]>`; there is no thread-bound state.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access only gives `&[u8]`.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// A buffer of `length` zero bytes; `length` is a positive multiple of 4096.
    pub fn zeroed(length: usize) -> Self {
        let layout = Self::layout(length);
        // SAFETY: the layout has a size above 0, asserted in `layout`.
        let pointer = unsafe { alloc_zeroed(layout) };
        match NonNull::new(pointer) {
            Some(pointer) => Self { pointer, length },
            None => handle_alloc_error(layout),
        }
    }

    /// A copy of `data`, padded with zeros to a positive multiple of 4096.
    pub fn copy_of(data: &[u8]) -> Self {
        let mut buffer = Self::zeroed(data.len().next_multiple_of(BLOCK).max(BLOCK));
        buffer[..data.len()].copy_from_slice(data);
        buffer
    }

    fn layout(length: usize) -> Layout {
        assert!(length > 0 && length.is_multiple_of(BLOCK), "an aligned buffer of {length} bytes");
        Layout::from_size_align(length, BLOCK).expect("a length that fits the address space")
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout in `zeroed`, and freed only here.
        unsafe { dealloc(self.pointer.as_ptr(), Self::layout(self.length)) }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `length` initialised bytes, owned by `self`, and `&self` keeps them unchanged.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `length` initialised bytes, owned by `self`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for AlignedBuffer {
    fn clone(&self) -> Self {
        Self::copy_of(self)
    }
}

impl PartialEq for AlignedBuffer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for AlignedBuffer {}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "AlignedBuffer({} bytes)", self.length)
    }
}
