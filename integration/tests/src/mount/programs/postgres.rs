//! PostgreSQL on a mount whose server is killed in the middle of its work: what was committed is there, and all is consistent.

use std::path::Path;
use std::time::Duration;

use super::folder;
use crate::mount::MountUnderTest;
use crate::mount::command::{script, try_script};

const START: &str = r#"
bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)
chown postgres "$DATA" "$SCRATCH"
chmod 700 "$DATA"
as() { runuser -u postgres -- "$@"; }
cd /
as "$bin/initdb" -D "$DATA/base" --data-checksums -E UTF8 > "$SCRATCH/initdb.log"
cat >> "$DATA/base/postgresql.conf" <<END
listen_addresses = ''
unix_socket_directories = '$SCRATCH'
shared_buffers = 32MB
END
as "$bin/pg_ctl" -D "$DATA/base" -l "$SCRATCH/log" -w -t 60 start > /dev/null
as "$bin/createdb" -h "$SCRATCH" bench
as "$bin/pgbench" -h "$SCRATCH" -i -q -s 4 bench > /dev/null 2>&1
as "$bin/psql" -h "$SCRATCH" -q bench -c 'CREATE TABLE told (number int PRIMARY KEY)'
"#;

/// Ends by itself when the database is gone. Every number in `told` was committed before it was written down.
const LOAD: &str = r#"
bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)
as() { runuser -u postgres -- "$@"; }
cd /
as "$bin/pgbench" -h "$SCRATCH" -n -c 4 -T 40 bench > "$SCRATCH/pgbench.log" 2>&1 &
for number in $(seq 100000); do
    as "$bin/psql" -h "$SCRATCH" -q bench -c "INSERT INTO told VALUES ($number)" 2>> "$SCRATCH/told.log" || break
    echo "$number" >> "$SCRATCH/told"
    test ! -e "$SCRATCH/enough" || break
done
wait || true
"#;

const CRASH: &str = r#"
pid=$(head -1 "$DATA/base/postmaster.pid" 2> /dev/null || pgrep -o -u postgres -f "$DATA/base")
touch "$SCRATCH/enough"
kill -9 "$pid"
# The workers notice on their own; a new postmaster refuses to start beside them.
for _ in $(seq 300); do pgrep -u postgres -f '^postgres:' > /dev/null || break; sleep 0.1; done
"#;

const JUDGE: &str = r#"
bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)
as() { runuser -u postgres -- "$@"; }
cd /
# What the killed one would have removed.
rm -f "$DATA/base/postmaster.pid" "$SCRATCH"/.s.PGSQL.*
as "$bin/pg_ctl" -D "$DATA/base" -l "$SCRATCH/log" -w -t 120 start > /dev/null
last=$(tail -1 "$SCRATCH/told")
test "$last" -ge 3
test "$(as "$bin/psql" -h "$SCRATCH" -At bench -c "SELECT count(*) FROM told WHERE number <= $last")" = "$last"
# Each transaction of pgbench adds the same amount in four tables.
as "$bin/psql" -h "$SCRATCH" -At bench -c "SELECT
    (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history) AND
    (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history) AND
    (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)" | grep -qx t
as "$bin/psql" -h "$SCRATCH" -q bench -c 'CREATE EXTENSION IF NOT EXISTS amcheck'
as "$bin/pg_amcheck" -h "$SCRATCH" --heapallindexed bench
as "$bin/pg_ctl" -D "$DATA/base" -w -m fast stop > /dev/null
as "$bin/pg_checksums" -D "$DATA/base" --check
as "$bin/pg_ctl" -D "$DATA/base" -l "$SCRATCH/log" -w start > /dev/null
as "$bin/pg_ctl" -D "$DATA/base" -w -m immediate stop > /dev/null
"#;

pub(super) fn run(mount: &MountUnderTest) {
    let data = folder(mount, "postgres");
    let scratch = tempfile::Builder::new().prefix("postgres-").tempdir().expect("a folder");
    let variables: [(&str, &Path); 2] = [("DATA", &data), ("SCRATCH", scratch.path())];
    let log = || std::fs::read_to_string(scratch.path().join("log")).unwrap_or_default();
    script(Path::new("/"), &variables, START);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| try_script(Path::new("/"), &variables, LOAD));
        std::thread::sleep(Duration::from_secs(10));
        // Both crash: the server of the files first, so that calls of the database are under way.
        mount.crash_server();
        std::thread::sleep(Duration::from_secs(5));
        // A panic of the database on an error of its files is right: its processes may be gone already.
        let _ = try_script(Path::new("/"), &variables, CRASH);
        load.join().expect("the load");
    });
    let judged = try_script(Path::new("/"), &variables, JUDGE);
    assert_eq!(judged.code, Some(0), "{}\nthe database's log:\n{}", judged.output, log());
    eprintln!(
        "told: {}",
        std::fs::read_to_string(scratch.path().join("told")).map_or(0, |text| text.lines().count())
    );
    script(mount.directory(), &[], "rm -rf postgres");
}
