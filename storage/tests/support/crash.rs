//! Runs a program and crashes it: at every write and flush of the device, in the ways the fault model allows, and again
//! in the replay that follows. Every image must open, be sound, be a state that the promises allow, leave other
//! subvolumes alone, and be fit to go on with.

use super::check::check_all;
use super::machine::{Machine, NO_CACHES, SMALL_CACHES};
use std::collections::BTreeMap;
use subvol_model::{Compare, DurabilityOracle, Model, Op, Time, Tree};
use subvol_storage::device::{Event, MemoryDevice};
use subvol_storage::store::CacheSizes;

/// The subvolume that the program runs in, and the one that must not notice.
pub const PROGRAM: usize = 0;
pub const BYSTANDER: usize = 1;

/// How thoroughly to look.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Crash images at each device event of an operation (the extremes are the first two).
    pub seeds: &'static [u64],
    /// Only at flushes and durable writes: between them nothing becomes safe.
    pub boundaries_only: bool,
    /// One image in this many is also crashed at every event of its replay; 0 = none.
    pub replay_every: u64,
    /// Images at each event of a replay.
    pub replay_seeds: u64,
    /// One image in this many is used on after the crash; 0 = none.
    pub life_every: u64,
    /// Caches of the server after the crash.
    pub caches: CacheSizes,
}

/// Everything.
pub const THOROUGH: Depth = Depth {
    seeds: &[0, 1, 2, 3, 4, 5, 6],
    boundaries_only: false,
    replay_every: 5,
    replay_seeds: 4,
    life_every: 3,
    caches: NO_CACHES,
};
/// For programs in great numbers.
pub const QUICK: Depth = Depth {
    seeds: &[0, 2],
    boundaries_only: true,
    replay_every: 0,
    replay_seeds: 2,
    life_every: 32,
    caches: SMALL_CACHES,
};

/// What was looked at: a test that looked at nothing has not passed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub programs: u64,
    pub images: u64,
    pub replay_images: u64,
    pub fsyncs: u64,
    pub lives: u64,
    /// Images whose replay applied records.
    pub replays: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.programs += other.programs;
        self.images += other.images;
        self.replay_images += other.replay_images;
        self.fsyncs += other.fsyncs;
        self.lives += other.lives;
        self.replays += other.replays;
    }

    pub fn assert_not_vacuous(&self) {
        assert!(self.programs > 0 && self.images > 0, "no crash image was looked at: {self:?}");
        assert!(self.fsyncs > 0 && self.replays > 0, "no fsync was replayed: {self:?}");
    }
}

/// A program on its way.
pub struct Run {
    pub machine: Machine,
    pub oracle: DurabilityOracle,
    pub now: u64,
    pub depth: Depth,
    pub counts: Counts,
    bystander: Tree,
    /// Images are looked at only from here on.
    pub watching: bool,
}

impl Run {
    /// On a device whose first subvolume is empty. The second one is left as it is.
    pub fn new(device: MemoryDevice, depth: Depth) -> Self {
        Self::with_model(device, Model::default(), depth)
    }

    /// On a device whose first subvolume is in the state of the model, and committed.
    pub fn with_model(device: MemoryDevice, model: Model, depth: Depth) -> Self {
        let mut machine = Machine::open(device, depth.caches).expect("a sound store");
        machine.device.restart();
        let bystander = machine.tree(BYSTANDER);
        let oracle = DurabilityOracle::new(model);
        let counts = Counts { programs: 1, ..Counts::default() };
        Self { machine, oracle, now: 0, depth, counts, bystander, watching: true }
    }

    /// Gives the other subvolume a committed content of every kind, before anything is watched.
    pub fn furnish_bystander(&mut self) {
        for op in [
            Op::mkdir("d"),
            Op::create("d/f"),
            Op::write("d/f", 0, 70_000, "mine"),
            Op::create("g"),
            Op::write("g", 100, 50, "small"),
            Op::Link { existing: "d/f".into(), path: "h".into() },
            Op::Allocate { path: "g".into(), offset: 8192, length: 16384, keep_size: true },
        ] {
            self.machine.apply(BYSTANDER, &op, Time::from(1)).expect("works");
        }
        self.machine.commit();
        self.machine.device.restart();
        self.bystander = self.machine.tree(BYSTANDER);
    }

    /// Does one operation that succeeds.
    pub fn step(&mut self, op: &Op) {
        let done = self.try_step(op);
        assert!(done, "{op:?} was refused");
    }

    /// Does one operation, then looks at every way to crash within it and at the crash right after it. Did it succeed?
    pub fn try_step(&mut self, op: &Op) -> bool {
        self.now += 1;
        let now = Time::from(self.now);
        let from = self.machine.device.position();
        let before = self.machine.fsyncs;
        self.oracle.sent(op, now);
        let answer = self.machine.apply(PROGRAM, op, now);
        self.look(from);
        match answer {
            Ok(()) => {
                let agreed = self.oracle.acknowledge(op, now);
                agreed.unwrap_or_else(|error| panic!("{op:?} is refused by the model: {error}"));
            }
            Err(error) => {
                let expected = self.oracle.model().clone().apply(op, now);
                assert_eq!(Err(error), expected, "{op:?}");
                self.oracle.refused();
                return false;
            }
        }
        if self.machine.device.position() > from {
            self.look_now();
        }
        self.counts.fsyncs += self.machine.fsyncs - before;
        true
    }

    /// Looks at the crashes at every event from a position on.
    pub fn look(&mut self, from: usize) {
        if !self.watching {
            return;
        }
        let events = if self.depth.boundaries_only { self.machine.device.events() } else { Vec::new() };
        for at in from..self.machine.device.position() {
            let seeds = match events.get(at) {
                Some(Event::Write { .. } | Event::Discard { .. }) => continue,
                // Without it the device is as it was at the last flush: an image that was looked at then.
                Some(Event::DurableWrite { .. }) => &self.depth.seeds[1..],
                _ => self.depth.seeds,
            };
            for &seed in seeds {
                let image = self.machine.device.crash_image(at, seed);
                self.examine(image, &format!("crash at event {at}, image {seed}"));
            }
        }
    }

    /// Looks at the crash with nothing in flight, in the hardest way and as a mere kill.
    pub fn look_now(&mut self) {
        if !self.watching {
            return;
        }
        let at = self.machine.device.position();
        // Without later writes the two extremes differ only if something is not flushed.
        let extremes = if self.depth.boundaries_only { 1 } else { 2 };
        for seed in 0..extremes {
            let image = self.machine.device.crash_image(at, seed);
            self.examine(image, &format!("crash after event {at}, image {seed}"));
        }
    }

    /// Everything that must hold of one image.
    pub fn examine(&mut self, image: MemoryDevice, what: &str) {
        self.counts.images += 1;
        let number = self.counts.images;
        let mut machine = Machine::open(image, self.depth.caches)
            .unwrap_or_else(|error| panic!("{what}: the store does not open: {error}"));
        self.counts.replays += u64::from(machine.report.applied > 0);
        sound(&mut machine, what);
        let tree = machine.tree(PROGRAM);
        let verdict = self.oracle.check(&tree);
        let prefix = verdict.unwrap_or_else(|violation| panic!("{what}: {violation}"));
        let difference = self.bystander.diff(&machine.tree(BYSTANDER));
        assert!(difference.is_empty(), "{what}: the other subvolume changed: {difference:#?}");
        if every(self.depth.replay_every, number) {
            self.crash_the_replay(&machine, &tree, what);
        }
        if every(self.depth.life_every, number) {
            let model = self.oracle.recovered(&tree, prefix);
            let compare = tree.diff(&model.tree());
            assert!(compare.is_empty(), "{what}: the oracle's own recovery differs: {compare:?}");
            go_on(&mut machine, &model, what);
            self.counts.lives += 1;
        }
    }

    /// A crash anywhere in the replay, and a second replay, must give what an undisturbed one gives.
    fn crash_the_replay(&mut self, machine: &Machine, tree: &Tree, what: &str) {
        for at in 0..=machine.device.position() {
            for seed in 0..self.depth.replay_seeds {
                let what = format!("{what}, again at event {at} of the replay, image {seed}");
                let image = machine.device.crash_image(at, seed);
                let mut again = Machine::open(image, self.depth.caches)
                    .unwrap_or_else(|error| panic!("{what}: the store does not open: {error}"));
                sound(&mut again, &what);
                let difference = tree.diff(&again.tree(PROGRAM));
                assert!(difference.is_empty(), "{what}: {difference:#?}");
                self.counts.replay_images += 1;
            }
        }
    }
}

fn every(count: u64, number: u64) -> bool {
    count > 0 && number.is_multiple_of(count)
}

/// Checks a store that was just opened.
pub fn sound(machine: &mut Machine, what: &str) {
    let lines = check_all(machine);
    assert!(lines.is_empty(), "{what}: {lines:#?}");
}

/// Life goes on (I7): new names, data and links work, orphans go, everything can be removed and every block comes back.
pub fn go_on(machine: &mut Machine, model: &Model, what: &str) {
    let mut model = model.clone();
    machine.reclaim(PROGRAM);
    let mut now = 1_000_000;
    let mut both = |machine: &mut Machine, model: &mut Model, op: &Op| {
        now += 1;
        let expected = model.apply(op, Time::from(now));
        let answer = machine.apply(PROGRAM, op, Time::from(now));
        assert_eq!(answer, expected, "{what}: {op:?}");
    };
    for op in [
        Op::mkdir("new-d"),
        Op::create("new-d/f"),
        Op::write("new-d/f", 0, 40_000, "new"),
        Op::Link { existing: "new-d/f".into(), path: "new-l".into() },
        Op::rename("new-l", "new-d/m"),
        Op::fsync("new-d/f"),
    ] {
        both(machine, &mut model, &op);
    }
    // Reclaiming may have freed blocks past the end of a file, which the image still showed.
    let difference =
        model.tree().diff_with(&machine.tree(PROGRAM), Compare { blocks: false, ..Compare::ALL });
    assert!(difference.is_empty(), "{what}, going on: {difference:#?}");
    // The longest paths first: children before their directories.
    let tree = model.tree();
    let mut paths: Vec<(&str, bool)> =
        tree.iter().map(|(path, node)| (path, node.kind == subvol_model::Kind::Directory)).collect();
    paths.sort_by_key(|(path, _)| std::cmp::Reverse((path.matches('/').count(), path.len())));
    for (path, directory) in paths.into_iter().filter(|(path, _)| !path.is_empty()) {
        let path = path.to_owned();
        both(machine, &mut model, &if directory { Op::Rmdir { path } } else { Op::Unlink { path } });
    }
    machine.reclaim(PROGRAM);
    machine.commit();
    machine.commit();
    sound(machine, what);
    assert_eq!(
        machine.volumes[PROGRAM].engine.account().usage(),
        Default::default(),
        "{what}: all is removed"
    );
    assert_eq!(machine.tree(PROGRAM).len(), 1, "{what}: the root is empty");
}

/// Splits work between the machine's processors and adds up what they looked at. `work` gets its number.
pub fn in_parallel(work: impl Fn(usize, usize) -> Counts + Sync) -> Counts {
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let mut total = Counts::default();
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|number| {
                let work = &work;
                scope.spawn(move || work(number, workers))
            })
            .collect();
        for handle in handles {
            match handle.join() {
                Ok(counts) => total.add(&counts),
                Err(reason) => std::panic::resume_unwind(reason),
            }
        }
    });
    total
}

/// Devices after a setup, so that programs with the same setup share its work.
#[derive(Default)]
pub struct Setups {
    known: BTreeMap<String, (MemoryDevice, Model)>,
}

impl Setups {
    /// The device after `setup` on `start`, and the model.
    pub fn get(&mut self, start: &MemoryDevice, setup: &[Op]) -> (MemoryDevice, Model) {
        let key = format!("{setup:?}");
        let (device, model) = self.known.entry(key).or_insert_with(|| {
            let mut machine = Machine::open(start.fork(), SMALL_CACHES).expect("a sound store");
            let mut model = Model::default();
            for op in setup {
                model.apply(op, Time::default()).expect("a setup succeeds");
                machine.apply(PROGRAM, op, Time::default()).expect("a setup succeeds");
            }
            machine.commit();
            (machine.crash(), model)
        });
        (device.fork(), model.clone())
    }
}
