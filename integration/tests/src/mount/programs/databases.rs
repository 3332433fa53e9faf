//! SQLite: byte-range locks between processes, rollback journals, and a shared memory file for its write-ahead log.

use std::path::Path;

use crate::mount::command::{Outcome, script, try_script};

/// Rows that each of two writers adds.
const ROWS: u64 = 150;

/// Every row in a transaction of its own: each takes and gives back all locks.
const WRITER: &str = r#"
for row in $(seq "$ROWS_EACH"); do
    echo "INSERT INTO rows VALUES ($WRITER_NUMBER, $row, randomblob(500));"
done > "$SCRATCH/sql-$WRITER_NUMBER"
exec sqlite3 -batch -bail -cmd '.timeout 60000' "$DATABASE" < "$SCRATCH/sql-$WRITER_NUMBER"
"#;

/// Two processes write to one database, through two directories that are the same file system.
///
/// # Panics
/// If the database or a row is damaged, or a writer is refused.
pub fn sqlite(one: &Path, two: &Path) {
    for journal in ["DELETE", "TRUNCATE", "PERSIST"] {
        write(one, two, journal).unwrap_or_else(|fault| panic!("journal {journal}: {fault}"));
    }
    // A write-ahead log needs memory that both processes share. Between two mounts there is none.
    if one == two {
        write(one, two, "WAL").unwrap_or_else(|fault| panic!("journal WAL: {fault}"));
    }
}

/// What went wrong, if anything did.
fn write(one: &Path, two: &Path, journal: &str) -> Result<(), String> {
    let name = format!("{}.sqlite", journal.to_lowercase());
    let (first, second) = (one.join(&name), two.join(&name));
    let schema = format!(
        "sqlite3 -batch -bail \"$DATABASE\" 'PRAGMA journal_mode={journal}; \
         CREATE TABLE rows (writer, number, bytes, PRIMARY KEY (writer, number)); CREATE INDEX more ON rows (bytes);'"
    );
    let mode = script(one, &[("DATABASE", &first)], &schema);
    if !mode.to_uppercase().contains(journal) {
        return Err(format!("the journal mode is {mode}"));
    }
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let rows = ROWS.to_string();
    let writer = |directory: &Path, database: &Path, number: &str| {
        let variables = [
            ("DATABASE", database),
            ("SCRATCH", scratch.path()),
            ("WRITER_NUMBER", Path::new(number)),
            ("ROWS_EACH", Path::new(&rows)),
        ];
        try_script(directory, &variables, WRITER)
    };
    let (left, right) = std::thread::scope(|scope| {
        let left = scope.spawn(|| writer(one, &first, "1"));
        let right = writer(two, &second, "2");
        (left.join().expect("a writer"), right)
    });
    for Outcome { code, output } in [left, right] {
        if code != Some(0) {
            return Err(format!("a writer ended with {code:?}: {output}"));
        }
    }
    let judge = "sqlite3 -batch -bail -cmd '.timeout 60000' \"$DATABASE\" \
                 'PRAGMA integrity_check; SELECT count(*), count(DISTINCT number), sum(length(bytes)) FROM rows;'";
    for (directory, database) in [(one, &first), (two, &second)] {
        let found = script(directory, &[("DATABASE", database)], judge);
        let wanted = format!("ok\n{}|{ROWS}|{}\n", 2 * ROWS, 2 * ROWS * 500);
        if found != wanted {
            return Err(format!("{}: should be {wanted:?}, is {found:?}", directory.display()));
        }
    }
    Ok(())
}
