//! Test data as a pure function of (seed, offset), so that any byte of any file can be judged without keeping it.
//!
//! Invariant: a pattern byte is never zero. A zero in a file therefore always means "not written".

/// The byte that a write with `seed` puts at file offset `offset`.
pub const fn byte(seed: u32, offset: u64) -> u8 {
    word(seed, offset >> 3)[(offset & 7) as usize]
}

/// The eight bytes at file offset `8 * index`.
const fn word(seed: u32, index: u64) -> [u8; 8] {
    let mut bytes =
        mix(((seed as u64) << 32 | 0x5bd1) ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
    let mut at = 0;
    while at < 8 {
        if bytes[at] == 0 {
            bytes[at] = 0xa5;
        }
        at += 1;
    }
    bytes
}

/// Fills `buffer` with the bytes a write with `seed` puts at `offset`.
pub fn fill(seed: u32, offset: u64, buffer: &mut [u8]) {
    // Word by word: tests fill gigabytes.
    let head = ((8 - offset % 8) % 8).min(buffer.len() as u64) as usize;
    let (head, rest) = buffer.split_at_mut(head);
    for (at, slot) in (offset..).zip(&mut *head) {
        *slot = byte(seed, at);
    }
    let first = (offset + head.len() as u64) / 8;
    for (index, slots) in (first..).zip(rest.chunks_mut(8)) {
        slots.copy_from_slice(&word(seed, index)[..slots.len()]);
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
        assert_eq!(whole[1003..1006], bytes(seed("A"), 1003, 3));
        assert_eq!(whole[1003..2001], bytes(seed("A"), 1003, 998));
        assert!((0..20_000).all(|at| whole[at] == byte(seed("A"), at as u64)));
        assert!(whole.iter().all(|byte| *byte != 0));
        let other = bytes(seed("B"), 0, 20_000);
        let equal = whole.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(equal < 200, "{equal} of 20000 bytes equal");
        // A block moved elsewhere must not look right either.
        assert_ne!(whole[0..64], whole[4096..4160]);
    }
}
