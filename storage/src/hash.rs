//! The hash of the block caches.
//!
//! Block addresses are multiples of 4 or 16 KiB. The fast hash of the in-memory maps leaves their regularity in the bits
//! that choose a shard of a cache: all nodes then fell into one shard of eight, and the cache held an eighth of its
//! capacity. So its result is mixed once more (the finaliser of splitmix64, Steele, Lea and Flood 2014).

use rustc_hash::FxHasher;
use std::hash::{BuildHasherDefault, Hasher};

/// See the module.
#[derive(Clone, Default)]
pub struct MixHasher(FxHasher);

/// Makes [`MixHasher`]s.
pub type MixState = BuildHasherDefault<MixHasher>;

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        let mut mixed = self.0.finish();
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    fn write_u8(&mut self, value: u8) {
        self.0.write_u8(value);
    }

    fn write_u64(&mut self, value: u64) {
        self.0.write_u64(value);
    }
}
