//! Devices against each other, crash images against the fault model, and what must be refused.

use super::{
    Action, AlignedBuffer, Contents, Device, DeviceError, Event, FaultRule, FaultyDevice, FileDevice,
    FileOptions, IoEngine, MemoryDevice, Operation, Operations, ReadRequest, RecordingDevice, WriteRequest,
    detect,
};
use crate::limits::BLOCK;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SIZE: u64 = 8 << 20;
const BLOCK_U64: u64 = BLOCK as u64;

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|index| ((index / 512 + 1) * (seed + 3) + index) as u8 | 1).collect()
}

fn image(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("store.img")
}

fn variants() -> Vec<FileOptions> {
    [IoEngine::Auto, IoEngine::Threads]
        .into_iter()
        .flat_map(|engine| [true, false].map(|direct| FileOptions { engine, direct }))
        .collect()
}

/// The same batch, with aligned and odd memory, on every device; then the same bytes everywhere.
#[test]
fn all_devices_and_engines_keep_the_same_bytes() {
    let memory = MemoryDevice::new(SIZE);
    exercise(&memory);
    let mut expected = vec![0; SIZE as usize];
    memory.read(0, &mut expected).expect("memory");
    for options in variants() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let device = FileDevice::create(&image(&directory), SIZE, options).expect("create");
        exercise(&device);
        let mut bytes = vec![0; SIZE as usize];
        device.read(0, &mut bytes).expect("read");
        assert!(bytes == expected, "{}", device.describe());
        drop(device);
        let again = FileDevice::open(&image(&directory), options).expect("open");
        let mut buffer = AlignedBuffer::zeroed(SIZE as usize);
        again.read(0, &mut buffer).expect("read");
        assert!(*buffer == *expected, "{}", again.describe());
    }
}

fn exercise(device: &dyn Device) {
    assert_eq!(device.size(), SIZE);
    // More requests than the queue is deep, of all sizes, half of them from odd memory.
    let datas: Vec<Vec<u8>> = (0..200).map(|n| pattern(n, BLOCK * (1 + n as usize % 5) + 1)).collect();
    let aligned: Vec<AlignedBuffer> =
        datas.iter().map(|data| AlignedBuffer::copy_of(&data[..data.len() - 1])).collect();
    let writes: Vec<WriteRequest<'_>> = (0..200)
        .map(|n| WriteRequest {
            offset: n as u64 * 8 * BLOCK_U64,
            data: if n % 2 == 0 { &aligned[n] } else { &datas[n][1..] },
        })
        .collect();
    device.write_many(&writes).expect("write_many");
    device.write_many(&[]).expect("nothing");
    device.write(SIZE - BLOCK_U64, &pattern(1, BLOCK)).expect("write");
    device.write_durable(7 * BLOCK_U64, &pattern(2, BLOCK)).expect("write_durable");
    device.flush().expect("flush");
    let mut buffers: Vec<Vec<u8>> = writes.iter().map(|write| vec![0; write.data.len()]).collect();
    let mut reads: Vec<_> = writes
        .iter()
        .zip(&mut buffers)
        .map(|(write, buffer)| ReadRequest { offset: write.offset, buffer })
        .collect();
    device.read_many(&mut reads).expect("read_many");
    assert!(writes.iter().zip(&buffers).all(|(write, buffer)| write.data == buffer));
    device.discard(16 * BLOCK_U64, BLOCK_U64).expect("discard");
    device.write(16 * BLOCK_U64, &pattern(9, BLOCK)).expect("write");
}

#[test]
fn what_lies_past_the_end_is_refused_and_nothing_of_the_batch_is_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = FileDevice::create(&image(&directory), SIZE, FileOptions::default()).expect("create");
    let data = pattern(0, BLOCK);
    for device in [&file as &dyn Device, &MemoryDevice::new(SIZE)] {
        for offset in [SIZE, u64::MAX - (BLOCK_U64 - 1)] {
            assert!(matches!(device.write(offset, &data), Err(DeviceError::OutOfRange { .. })));
            assert!(matches!(device.read(offset, &mut [0; BLOCK]), Err(DeviceError::OutOfRange { .. })));
        }
    }
    let batch = [WriteRequest { offset: 0, data: &data }, WriteRequest { offset: SIZE, data: &data }];
    assert!(file.write_many(&batch).is_err());
    let mut block = [1; BLOCK];
    file.read(0, &mut block).expect("read");
    assert_eq!(block, [0; BLOCK]);
}

#[test]
fn a_file_cut_short_fails_the_read_in_both_engines() {
    for options in variants() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let device = FileDevice::create(&image(&directory), SIZE, options).expect("create");
        let file = std::fs::OpenOptions::new().write(true).open(image(&directory)).expect("open");
        file.set_len(SIZE / 2).expect("cut");
        let mut buffers = vec![vec![0; BLOCK]; 100];
        let mut reads: Vec<_> = buffers
            .iter_mut()
            .enumerate()
            .map(|(n, buffer)| ReadRequest { offset: n as u64 * 20 * BLOCK_U64, buffer })
            .collect();
        let error = device.read_many(&mut reads).expect_err("half of the file is gone");
        assert!(matches!(error, DeviceError::Io { operation: Operation::Read, .. }), "{error}");
        let mut block = vec![0; BLOCK];
        device.read(0, &mut block).expect("the engine works on");
    }
}

#[test]
fn batches_of_several_threads_do_not_mix() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for engine in [IoEngine::Auto, IoEngine::Threads] {
        let path = directory.path().join(format!("{engine:?}"));
        let options = FileOptions { engine, direct: true };
        let device = FileDevice::create(&path, SIZE, options).expect("create");
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let device = &device;
                scope.spawn(move || {
                    let base = thread * 300 * BLOCK_U64;
                    for round in 0..5 {
                        let data: Vec<_> = (0..150)
                            .map(|n| AlignedBuffer::copy_of(&pattern(thread + n + round, BLOCK)))
                            .collect();
                        let writes: Vec<_> = data
                            .iter()
                            .enumerate()
                            .map(|(n, data)| WriteRequest { offset: base + n as u64 * BLOCK_U64, data })
                            .collect();
                        device.write_many(&writes).expect("write");
                        let mut bytes = vec![0; 150 * BLOCK];
                        device.read(base, &mut bytes).expect("read");
                        assert!(bytes.chunks(BLOCK).zip(&data).all(|(chunk, data)| chunk == &**data));
                    }
                });
            }
        });
    }
}

#[test]
fn a_second_open_is_refused_until_the_first_is_closed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let first = FileDevice::create(&image(&directory), SIZE, FileOptions::default()).expect("create");
    for options in variants() {
        let second = FileDevice::open(&image(&directory), options);
        assert!(matches!(second, Err(DeviceError::InUse { .. })));
    }
    drop(first);
    FileDevice::open(&image(&directory), FileOptions::default()).expect("free again");
}

#[test]
fn what_is_no_storage_or_exists_is_refused_with_its_name() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let open = |path: &Path| FileDevice::open(path, FileOptions::default()).err();
    assert!(matches!(open(directory.path()), Some(DeviceError::NotStorage { .. })));
    assert!(matches!(open(Path::new("/dev/null")), Some(DeviceError::NotStorage { .. })));
    let missing = open(&image(&directory)).expect("nothing is there");
    assert!(missing.to_string().contains("store.img"), "{missing}");
    drop(FileDevice::create(&image(&directory), SIZE, FileOptions::default()).expect("create"));
    let again = FileDevice::create(&image(&directory), SIZE, FileOptions::default());
    assert!(matches!(again, Err(DeviceError::Open { action: "create", .. })));
}

#[test]
fn detection_tells_missing_empty_and_occupied() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = image(&directory);
    assert_eq!(detect(&path).expect("detect"), Contents::Missing);
    let device = FileDevice::create(&path, SIZE, FileOptions::default()).expect("create");
    device.write(1 << 20, &pattern(1, BLOCK)).expect("past the part that is looked at");
    device.flush().expect("flush");
    assert_eq!(detect(&path).expect("detect"), Contents::Empty { size: SIZE });
    device.write(65536, &pattern(1, BLOCK)).expect("write");
    device.flush().expect("flush");
    assert_eq!(detect(&path).expect("detect"), Contents::Occupied { size: SIZE, first_used: 65536 });
}

#[test]
fn memory_costs_what_is_written_and_forks_are_apart() {
    let device = MemoryDevice::new(16 << 30);
    device.write(9 << 30, &pattern(1, BLOCK)).expect("memory");
    assert!(device.used_bytes() <= 65536);
    let fork = device.fork();
    device.write(9 << 30, &pattern(2, BLOCK)).expect("memory");
    let mut block = vec![0; BLOCK];
    fork.read(9 << 30, &mut block).expect("memory");
    assert_eq!(block, pattern(1, BLOCK));
}

/// Which of the writes an image shows at a block: 0 = none.
fn version(image: &MemoryDevice, block: u64) -> u8 {
    let mut bytes = [0; BLOCK];
    image.read(block * BLOCK_U64, &mut bytes).expect("memory");
    if bytes.iter().all(|byte| *byte == bytes[0]) { bytes[0] } else { u8::MAX }
}

#[test]
fn crash_images_show_every_legal_state_and_no_other() {
    let device = RecordingDevice::new(MemoryDevice::new(SIZE));
    let put = |block: u64, version: u8| {
        device.write(block * BLOCK_U64, &[version; BLOCK]).expect("memory");
    };
    put(0, 1);
    device.flush().expect("memory");
    put(0, 2);
    put(1, 3);
    device.write_durable(2 * BLOCK_U64, &[4; BLOCK]).expect("memory");
    put(2, 5);
    let at = device.position();
    assert_eq!(at, 6);
    let mut seen = HashSet::new();
    for image in device.crash_images(at, 400) {
        seen.insert([version(&image, 0), version(&image, 1), version(&image, 2)]);
    }
    for state in &seen {
        // The flush holds version 1, the durable write version 4 (and nothing before it); u8::MAX is torn.
        assert!([1, 2, u8::MAX].contains(&state[0]), "{state:?}");
        assert!([0, 3, u8::MAX].contains(&state[1]), "{state:?}");
        assert!([4, 5, u8::MAX].contains(&state[2]), "{state:?}");
    }
    // A later write without an earlier one, a durable write without the plain writes before it, torn writes: all seen.
    for state in [[1, 0, 4], [2, 3, 5], [1, 3, 4], [2, 0, 4], [1, 0, 5], [2, 3, 4]] {
        assert!(seen.contains(&state), "{state:?} of {seen:?}");
    }
    assert!(seen.iter().any(|state| state.contains(&u8::MAX)));
    // In flight, a durable write promises nothing.
    let torn: HashSet<u8> = device.crash_images(4, 100).map(|image| version(&image, 2)).collect();
    assert!(torn.contains(&0) && torn.contains(&4) && torn.contains(&u8::MAX), "{torn:?}");
    // The same seed, the same image; and a kill keeps everything.
    let twice = [device.crash_image(at, 77), device.crash_image(at, 77)].map(|image| version(&image, 0));
    assert_eq!(twice[0], twice[1]);
    assert_eq!([0, 1, 2].map(|block| version(&device.image_at(at), block)), [2, 3, 5]);
    assert_eq!([0, 1, 2].map(|block| version(&device.image_at(1), block)), [1, 0, 0]);
    assert_eq!(device.events().iter().filter(|event| **event == Event::Flush).count(), 1);
    device.restart();
    assert_eq!(version(&device.crash_image(0, 0), 1), 3);
}

#[test]
fn multi_block_writes_tear_between_blocks() {
    let device = RecordingDevice::new(MemoryDevice::new(SIZE));
    device.write(0, &[7; 4 * BLOCK]).expect("memory");
    device.write(4 * BLOCK_U64, &[7; 4 * BLOCK]).expect("memory");
    let states: HashSet<[u8; 8]> = device
        .crash_images(2, 500)
        .map(|image| std::array::from_fn(|block| version(&image, block as u64)))
        .collect();
    assert!(states.contains(&[7; 8]) && states.contains(&[0; 8]));
    assert!(states.iter().any(|state| state[..4].contains(&0) && state[..4].contains(&7)));
    assert!(states.iter().all(|state| {
        // Only one of the writes is torn inside a block.
        !(state[..4].contains(&u8::MAX) && state[4..].contains(&u8::MAX))
    }));
}

#[test]
fn faults_strike_where_and_when_they_are_told() {
    let device = FaultyDevice::new(MemoryDevice::new(SIZE));
    let data = pattern(3, BLOCK);
    let third = device.add(FaultRule::new(Operations::WRITES, Action::Fail(libc::EIO)).skip(2).times(1));
    device.write(0, &data).expect("first");
    device.write_durable(BLOCK_U64, &data).expect("second");
    let error = device.write(0, &data).expect_err("third");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    device.write(0, &data).expect("fourth");
    assert_eq!(device.acted(third), 1);

    // Within a range, and inside a batch: what precedes is done.
    device.add(FaultRule::new(Operations::WRITES, Action::Fail(libc::ENOSPC)).within(8192..12288));
    let batch: Vec<_> = [4096, 8192, 12288].map(|offset| WriteRequest { offset, data: &data }).to_vec();
    assert!(device.write_many(&batch).is_err());
    let mut block = vec![0; BLOCK];
    device.read(4096, &mut block).expect("read");
    assert_eq!(block, data);
    device.read(12288, &mut block).expect("read");
    assert_eq!(block, vec![0; BLOCK]);
    device.clear();

    let flip = device.add(FaultRule::new(Operations::READS, Action::FlipBit { byte: 4100, bit: 3 }));
    device.read(4096, &mut block).expect("read");
    assert_eq!(block[4], data[4] ^ 8);
    device.remove(flip);
    device.read(4096, &mut block).expect("read");
    assert_eq!(block, data);

    let slow = Action::Delay(Duration::from_millis(30));
    device.add(FaultRule::new(Operations::READS, slow).within(0..4096).times(1));
    let begin = Instant::now();
    device.read(4096, &mut block).expect("read");
    device.read(0, &mut block).expect("read");
    assert!(begin.elapsed() >= Duration::from_millis(30));

    let calls = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&calls);
    device.add(FaultRule::new(
        Operations::FLUSHES,
        Action::Call(Arc::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })),
    ));
    device.flush().expect("flush");
    assert_eq!(calls.load(Ordering::SeqCst), 1);

    device.add(FaultRule::new(Operations::FLUSHES, Action::FailForGood(libc::EIO)).times(1));
    assert!(device.flush().is_err() && device.write(0, &data).is_err() && device.flush().is_err());
    device.read(0, &mut block).expect("reads work on");
    device.cut_power();
    assert!(device.read(0, &mut block).is_err() && device.read_many(&mut []).is_ok());
    device.restore();
    device.clear();
    device.add(FaultRule::new(Operations::WRITES, Action::FailAfterDoing(libc::EIO)).times(1));
    assert!(device.write(20480, &pattern(8, BLOCK)).is_err());
    device.read(20480, &mut block).expect("read");
    assert_eq!(block, pattern(8, BLOCK));
}
