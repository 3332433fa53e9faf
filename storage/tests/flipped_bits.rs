//! One flipped bit anywhere on the device: the store opens and reads the right data, or something says what is wrong.
//! Never wrong data, never a panic.

mod support;

use subvol_model::{Op, Time, Tree};
use subvol_storage::device::{Device, MemoryDevice};
use subvol_storage::limits::BLOCK;
use support::machine::{Machine, NO_CACHES, formatted};

/// A crashed store with committed and with logged content.
struct Sample {
    image: MemoryDevice,
    /// What its subvolumes hold.
    trees: Vec<Tree>,
    /// What they held at the last commit.
    committed: Vec<Tree>,
    /// Records that replay applies.
    records: u64,
}

fn sample() -> Sample {
    let mut machine = Machine::open(formatted(8 << 20, 256 << 10, 2), NO_CACHES).expect("a sound store");
    for volume in 0..2 {
        for op in [
            Op::mkdir("d"),
            Op::create("d/large"),
            Op::write("d/large", 0, 90_000, "A"),
            Op::create("small"),
            Op::write("small", 0, 700, "B"),
            Op::Symlink { path: "l".into(), target: "d/large".into() },
            Op::Link { existing: "small".into(), path: "d/again".into() },
        ] {
            machine.apply(volume, &op, Time::from(1)).expect("works");
        }
    }
    machine.commit();
    machine.apply(0, &Op::create("committed"), Time::from(2)).expect("works");
    machine.commit();
    let committed = (0..2).map(|volume| machine.tree(volume)).collect();
    for op in [
        Op::create("logged"),
        Op::write("logged", 0, 50_000, "C"),
        Op::fsync("logged"),
        Op::write("small", 100, 5000, "D"),
        Op::rename("small", "d/moved"),
        Op::fsync("d/moved"),
    ] {
        machine.apply(0, &op, Time::from(3)).expect("works");
    }
    let image = machine.crash();
    let trees: Vec<Tree> = (0..2).map(|volume| machine.tree(volume)).collect();
    let mut reference = Machine::open(image.fork(), NO_CACHES).expect("a sound store");
    assert_eq!(trees[0].diff(&reference.tree(0)), Vec::<String>::new());
    Sample { image, trees, committed, records: reference.report.applied }
}

/// Blocks that hold anything but zeros.
fn used_blocks(device: &MemoryDevice) -> Vec<u64> {
    let mut block = vec![0; BLOCK];
    (0..device.size() / BLOCK as u64)
        .filter(|index| {
            device.read(index * BLOCK as u64, &mut block).expect("in range");
            block.iter().any(|&byte| byte != 0)
        })
        .collect()
}

#[derive(Debug, Default)]
struct Outcomes {
    refused_to_open: u64,
    read_errors: u64,
    older_state: u64,
    right: u64,
}

fn flip(image: &MemoryDevice, byte: u64, bit: u8) -> MemoryDevice {
    let device = image.fork();
    let start = byte / BLOCK as u64 * BLOCK as u64;
    let mut block = vec![0; BLOCK];
    device.read(start, &mut block).expect("in range");
    block[(byte - start) as usize] ^= 1 << bit;
    device.write(start, &block).expect("in range");
    device
}

/// Opens and reads everything. A log batch that does not check out ends the log, as a torn one would: what was committed
/// must be there.
fn judge(device: MemoryDevice, sample: &Sample, outcomes: &mut Outcomes, what: &str) {
    let Sample { trees, committed, records, .. } = sample;
    let Ok(mut machine) = Machine::open(device, NO_CACHES) else {
        outcomes.refused_to_open += 1;
        return;
    };
    let shorter_log = machine.report.applied < *records;
    for volume in 0..2 {
        match machine.try_tree(volume) {
            Err(_) => outcomes.read_errors += 1,
            Ok(tree) if tree.diff(&trees[volume]).is_empty() => outcomes.right += 1,
            Ok(tree) => {
                assert!(shorter_log, "{what}: wrong data: {:#?}", trees[volume].diff(&tree));
                // The state after a prefix of the log: everything committed is there.
                for (path, node) in committed[volume].iter() {
                    let moved = path == "small" && tree.get("d/moved").is_some();
                    assert!(moved || tree.get(path).is_some(), "{what}: {path} is gone");
                    if path == "d/large" {
                        let found = tree.get(path).and_then(|node| node.content.clone());
                        assert_eq!(found, node.content, "{what}: {path}");
                    }
                }
                outcomes.older_state += 1;
            }
        }
    }
}

#[test]
fn a_flipped_bit_is_noticed_or_harmless() {
    let sample = sample();
    assert!(sample.records >= 6, "{}", sample.records);
    let mut outcomes = Outcomes::default();
    let blocks = used_blocks(&sample.image);
    // Headers byte by byte, the rest sampled: every field of every kind of block is hit.
    let mut flips = 0_u64;
    for &block in &blocks {
        let head = (0..160).map(|byte| (byte, (byte * 5 % 8) as u8));
        let rest = (160..BLOCK as u64).step_by(211).map(|byte| (byte, (byte * 3 % 8) as u8));
        for (byte, bit) in head.chain(rest) {
            let address = block * BLOCK as u64 + byte;
            let what = format!("bit {bit} of byte {byte} in block {block}");
            judge(flip(&sample.image, address, bit), &sample, &mut outcomes, &what);
            flips += 1;
        }
    }
    println!("{flips} flips in {} blocks: {outcomes:?}", blocks.len());
    assert!(outcomes.refused_to_open > 0 && outcomes.read_errors > 0, "{outcomes:?}");
    assert!(outcomes.older_state > 0 && outcomes.right > 0, "{outcomes:?}");
}
