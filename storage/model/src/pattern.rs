//! Test data as a pure function of (seed, offset), so that any byte of any file can be judged without keeping it.
//!
//! Invariant: a pattern byte is never zero. A zero in a file therefore always means "not written".

/// The byte that a write with `seed` puts at file offset `offset`.
pub const fn byte(seed: u32, offset: u64) -> u8 {
    let word = mix(((seed as u64) << 32 | 0x5bd1) ^ (offset >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let value = (word >> ((offset & 7) * 8)) as u8;
    if value == 0 { 0xa5 } else { value }
}

/// Fills `buffer` with the bytes a write with `seed` puts at `offset`.
pub fn fill(seed: u32, offset: u64, buffer: &mut [u8]) {
    for (at, slot) in (offset..).zip(buffer) {
        *slot = byte(seed, at);
    }
}

/// `length` bytes of pattern, for an engine under test that wants a buffer.
pub fn bytes(seed: u32, offset: u64, length: usize) -> Vec<u8> {
    let mut buffer = vec![0; length];
    fill(seed, offset, &mut buffer);
    buffer
}

/// The seed of a pattern's name in scripts (`A`, `old`, `17`).
pub const fn seed(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let mut hash: u32 = 0x811c_9dc5;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}

const fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_pure_nonzero_and_distinct() {
        let whole = bytes(seed("A"), 0, 20_000);
        assert_eq!(whole[1000..1100], bytes(seed("A"), 1000, 100));
        assert!(whole.iter().all(|byte| *byte != 0));
        let other = bytes(seed("B"), 0, 20_000);
        let equal = whole.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(equal < 200, "{equal} of 20000 bytes equal");
        // A block moved elsewhere must not look right either.
        assert_ne!(whole[0..64], whole[4096..4160]);
    }
}
