//! Reading and writing the two superblock slots.
//!
//! Invariant: a write goes to the slot that does not hold the newest sound superblock; which one that is follows from
//! the number of writes so far: (generation + epoch) alternates because every write adds one to exactly one of them.

use super::StoreError;
use crate::device::{AlignedBuffer, Device};
use crate::format::superblock::{Superblock, SuperblockError};
use crate::limits::BLOCK;
use crate::space::SUPERBLOCK_ADDRESSES;

/// The newest sound superblock, or why there is none.
///
/// A crash cannot damage a slot: all fields lie in one sector of 512 bytes, so a torn write leaves the old superblock or
/// the new one. A slot that is not sound has rotted, and may have been the newer one: going back to the other would
/// silently lose what was acknowledged, and read blocks that were reused since. So that is refused unless
/// `accept_older` says that an administrator wants it.
pub fn read_superblock(device: &dyn Device, accept_older: bool) -> Result<Superblock, StoreError> {
    let mut best: Option<Superblock> = None;
    let mut damaged = None;
    for address in SUPERBLOCK_ADDRESSES {
        let mut block = AlignedBuffer::zeroed(BLOCK);
        device.read(address, &mut block)?;
        match Superblock::decode(address, &block) {
            Ok(found) if best.is_none_or(|best| found.is_newer_than(&best)) => best = Some(found),
            Ok(_) => {}
            Err(SuperblockError::NotAStore) if block.iter().all(|&byte| byte == 0) => {}
            Err(error @ (SuperblockError::OtherVersion(_) | SuperblockError::UnknownFeatures(_))) => {
                return Err(error.into());
            }
            Err(error) => damaged = Some((address, error)),
        }
    }
    match (best, damaged) {
        (Some(best), None) => Ok(best),
        (Some(best), Some(_)) if accept_older => Ok(best),
        (Some(best), Some((address, _))) => {
            Err(SuperblockError::SlotDamaged { address, other: best.generation }.into())
        }
        (None, Some((_, error))) => Err(error.into()),
        (None, None) => Err(SuperblockError::NotAStore.into()),
    }
}

/// Makes both slots empty: a device that held something else must not look like a damaged store.
pub fn clear_superblocks(device: &dyn Device) -> Result<(), StoreError> {
    let zeros = AlignedBuffer::zeroed(BLOCK);
    for address in SUPERBLOCK_ADDRESSES {
        device.write_durable(address, &zeros)?;
    }
    Ok(())
}

/// Writes a superblock durably. Everything it names was flushed before.
pub fn write_superblock(device: &dyn Device, superblock: &Superblock) -> Result<(), StoreError> {
    let address = slot_for(superblock);
    let mut block = AlignedBuffer::zeroed(BLOCK);
    superblock.encode(address, &mut block);
    device.write_durable(address, &block)?;
    Ok(())
}

fn slot_for(superblock: &Superblock) -> u64 {
    let writes = superblock.generation + superblock.server_epoch;
    SUPERBLOCK_ADDRESSES[(writes % 2) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemoryDevice;

    fn superblock(generation: u64, server_epoch: u64) -> Superblock {
        Superblock {
            device_id: [1; 16],
            generation,
            server_epoch,
            device_bytes: 1 << 22,
            ring_offset: 1 << 20,
            ring_bytes: 1 << 20,
            root_tree: None,
            references_tree: None,
            log_tail: Default::default(),
            next_subvolume_id: 256,
            next_tenant_id: 1,
            previous_epoch: 0,
            previous_epoch_generation: 0,
            recovered_epoch: 0,
            features: 0,
        }
    }

    #[test]
    fn a_torn_write_leaves_one_of_the_two_and_a_rotted_slot_is_refused() {
        let device = MemoryDevice::new(1 << 22);
        assert!(matches!(
            read_superblock(&device, false),
            Err(StoreError::Superblock(SuperblockError::NotAStore))
        ));
        // A commit, a restart (epoch), a commit: each goes to the other slot.
        for (generation, epoch) in [(1, 1), (1, 2), (2, 2), (3, 2), (3, 3)] {
            let new = superblock(generation, epoch);
            write_superblock(&device, &new).expect("works");
            assert_eq!(read_superblock(&device, false).expect("sound"), new);
        }
        let newest = slot_for(&superblock(3, 3));
        let mut rotted = AlignedBuffer::zeroed(BLOCK);
        device.read(newest, &mut rotted).expect("works");
        rotted[300] ^= 1;
        for contents in [&rotted[..], &[0xaa; BLOCK]] {
            device.write(newest, contents).expect("works");
            let refused = read_superblock(&device, false);
            let expected = SuperblockError::SlotDamaged { address: newest, other: 3 };
            assert!(
                matches!(refused, Err(StoreError::Superblock(error)) if error == expected),
                "{refused:?}"
            );
            assert_eq!(read_superblock(&device, true).expect("accepted"), superblock(3, 2));
        }
        // Every torn state of the next write, at 512 bytes, is the old superblock or the new one.
        let device = MemoryDevice::new(1 << 22);
        for (generation, epoch) in [(3, 2), (3, 3)] {
            write_superblock(&device, &superblock(generation, epoch)).expect("works");
        }
        let slot = slot_for(&superblock(4, 3));
        let mut old = AlignedBuffer::zeroed(BLOCK);
        device.read(slot, &mut old).expect("works");
        let mut new = AlignedBuffer::zeroed(BLOCK);
        superblock(4, 3).encode(slot, &mut new);
        for sectors in 0..=8 {
            let mut torn = AlignedBuffer::copy_of(&old);
            torn[..sectors * 512].copy_from_slice(&new[..sectors * 512]);
            device.write(slot, &torn).expect("works");
            let expected = if sectors == 0 { superblock(3, 3) } else { superblock(4, 3) };
            assert_eq!(read_superblock(&device, false).expect("sound"), expected, "{sectors} sectors");
        }
    }
}
