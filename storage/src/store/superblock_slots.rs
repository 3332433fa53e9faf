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
pub fn read_superblock(device: &dyn Device) -> Result<Superblock, StoreError> {
    let mut best: Option<Superblock> = None;
    let mut worst = SuperblockError::NotAStore;
    for address in SUPERBLOCK_ADDRESSES {
        let mut block = AlignedBuffer::zeroed(BLOCK);
        device.read(address, &mut block)?;
        match Superblock::decode(address, &block) {
            Ok(found) if best.is_none_or(|best| found.is_newer_than(&best)) => best = Some(found),
            Ok(_) => {}
            Err(SuperblockError::NotAStore) => {}
            Err(error @ (SuperblockError::OtherVersion(_) | SuperblockError::UnknownFeatures(_))) => {
                return Err(error.into());
            }
            Err(error) => worst = error,
        }
    }
    best.ok_or_else(|| worst.into())
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
    fn a_torn_write_falls_back_to_the_one_before() {
        let device = MemoryDevice::new(1 << 22);
        assert!(matches!(read_superblock(&device), Err(StoreError::Superblock(SuperblockError::NotAStore))));
        // A commit, a restart (epoch), a commit: each goes to the other slot.
        for (generation, epoch) in [(1, 1), (1, 2), (2, 2), (3, 2), (3, 3)] {
            let new = superblock(generation, epoch);
            write_superblock(&device, &new).expect("works");
            assert_eq!(read_superblock(&device).expect("sound"), new);
        }
        let newest = slot_for(&superblock(3, 3));
        device.write(newest, &[0xaa; BLOCK]).expect("works");
        assert_eq!(read_superblock(&device).expect("sound"), superblock(3, 2));
    }
}
