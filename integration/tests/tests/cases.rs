//! The table of known crash cases against the real server: killed right after the last call of each script returned.
//!
//! One server runs all of them: a volume for each case, all scripts first, then the kill. Cases with several crashes go on in the next
//! round. Judged by the case's own words and by the oracle; afterwards life must go on: every root is emptied, and usage returns to zero.

use subvol_client::Client;
use subvol_model::cases::{self, Case};
use subvol_model::script::Step;
use subvol_model::{DurabilityOracle, Model, Op, Time};
use subvol_tests::image::{Walk, image_of, recount};
use subvol_tests::server::open_or_create;
use subvol_tests::{Performer, Server, Setup, eventually, soon};

struct Run {
    label: String,
    volume: String,
    case: Case,
    /// Scripts between the crashes.
    parts: Vec<Vec<Op>>,
    oracle: DurabilityOracle,
}

impl Run {
    fn new(index: usize, case: Case) -> Self {
        let mut parts = vec![Vec::new()];
        for step in case.steps() {
            match step {
                Step::Do(op) => parts.last_mut().expect("never empty").push(op),
                Step::Crash => parts.push(Vec::new()),
            }
        }
        assert!(parts.pop().is_some_and(|rest| rest.is_empty()), "a case ends in a crash");
        let label = format!("case {} ({}, {})", case.number, case.name, case.source);
        let oracle = DurabilityOracle::new(Model::default());
        Self { label, volume: format!("case-{index}"), case, parts, oracle }
    }

    /// Runs a part; the performer is kept until the kill, and with it the open files.
    async fn play(&mut self, part: usize, client: &Client) -> Performer {
        let mut performer = Performer::new(open_or_create(client, &self.volume).await);
        for op in &self.parts[part] {
            let done = soon(&self.label, performer.apply(op)).await;
            done.unwrap_or_else(|error| panic!("{}: {op:?}: {error}", self.label));
            let agreed = self.oracle.acknowledge(op, Time::default());
            agreed.unwrap_or_else(|error| panic!("{}: {op:?}: the model refuses: {error}", self.label));
        }
        performer
    }

    async fn judge(&mut self, part: usize, client: &Client, walk: Walk, faults: &mut Vec<String>) {
        let volume = soon(&self.label, client.open_subvolume(&self.volume)).await.expect("the case's volume");
        let image = soon(&self.label, image_of(&volume, walk)).await.expect("a readable volume");
        match self.oracle.check(&image) {
            Ok(prefix) => self.oracle = DurabilityOracle::new(self.oracle.recovered(&image, prefix)),
            Err(violation) => faults.push(format!("{}, part {part}: {violation}", self.label)),
        }
        if part + 1 == self.parts.len() {
            if let Err(lines) = self.case.verify(&image) {
                faults.push(format!("{}: {}", self.label, lines.join("; ")));
            }
            self.finish(&volume, faults, recount(&image)).await;
        }
        volume.close().await;
    }

    /// Life goes on: the numbers are right, new things can be made, everything can be removed.
    async fn finish(&self, volume: &subvol_client::Volume, faults: &mut Vec<String>, counted: (u64, u64)) {
        let opens_files =
            self.parts.iter().flatten().any(|op| matches!(op, Op::Open { .. } | Op::OpenUnnamed { .. }));
        let usage = async || {
            let statistics = soon(&self.label, volume.statfs()).await.expect("statistics");
            (statistics.used_bytes, statistics.used_inodes)
        };
        if !opens_files && usage().await != counted {
            faults.push(format!("{}: usage {:?}, recount {counted:?}", self.label, usage().await));
        }
        let mut performer = Performer::new(volume.clone());
        for step in self.case.cleanup_steps() {
            let Step::Do(op) = step else { panic!("{}: no crash in a cleanup", self.label) };
            if let Err(error) = soon(&self.label, performer.apply(&op)).await {
                faults.push(format!("{}: cleanup: {op:?}: {error}", self.label));
            }
        }
        if !self.case.cleanup.is_empty() {
            let left = soon(&self.label, volume.list("")).await.expect("a list");
            if !left.is_empty() {
                faults.push(format!("{}: left after the cleanup: {left:?}", self.label));
            }
        }
        let made = async {
            volume.mkdir("new-directory").await?;
            volume.write("new-directory/file", "life goes on").await?;
            volume.link("new-directory/file", "new-directory/second").await?;
            volume.fsync("new-directory/file").await
        };
        if let Err(error) = soon(&self.label, made).await {
            faults.push(format!("{}: life does not go on: {error}", self.label));
        }
        if let Err(error) = soon(&self.label, volume.remove_all("")).await {
            faults.push(format!("{}: the root cannot be emptied: {error}", self.label));
        }
        let left = soon(&self.label, volume.list("")).await.expect("a list");
        if !left.is_empty() {
            faults.push(format!("{}: left in the emptied root: {left:?}", self.label));
        }
        // Files that were open at the crash wait for their clients before they are freed.
        if !opens_files {
            eventually(&format!("{}: usage returns to zero", self.label), async || usage().await == (0, 0))
                .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_known_crash_case_holds_after_kill_9() {
    let walk = Walk::from_now();
    let mut runs: Vec<Run> =
        cases::all().into_iter().enumerate().map(|(index, case)| Run::new(index, case)).collect();
    assert!(runs.len() > 100, "{} cases", runs.len());
    let rounds = runs.iter().map(|run| run.parts.len()).max().unwrap_or(0);
    let mut server = Server::start(Setup::default());
    let mut faults = Vec::new();
    for part in 0..rounds {
        let client = server.mortal_client().await;
        let mut open = Vec::new();
        for run in runs.iter_mut().filter(|run| run.parts.len() > part) {
            open.push(run.play(part, &client).await);
        }
        tokio::task::block_in_place(|| {
            server.kill();
            server.restart();
        });
        drop(open);
        let fresh = server.client().await;
        for run in runs.iter_mut().filter(|run| run.parts.len() > part) {
            run.judge(part, &fresh, walk, &mut faults).await;
        }
    }
    assert!(faults.is_empty(), "{} faults in {} cases:\n{}", faults.len(), runs.len(), faults.join("\n"));
    assert!(server.terminate().success());
}
