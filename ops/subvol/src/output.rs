//! Standard output: one buffered writer, and JSON documents.

use std::io::{self, BufWriter, StdoutLock, Write};

use serde_json::Value;

/// A buffered, locked standard output. Flush it: a write error must not get lost in a drop.
pub fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(64 * 1024, io::stdout().lock())
}

/// One line.
///
/// # Errors
/// Writing to standard output.
pub fn line(text: impl AsRef<str>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref().as_bytes())?;
    out.write_all(b"\n")
}

/// One JSON document on a line of its own.
///
/// # Errors
/// Writing to standard output.
pub fn json(value: &Value) -> io::Result<()> {
    line(value.to_string())
}

/// Rows in columns: the first left-aligned, numbers right-aligned.
pub fn table(header: &[&str], rows: &[Vec<String>], left: usize) -> String {
    let mut widths: Vec<usize> = header.iter().map(|title| title.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut shown = String::new();
    let header = header.iter().map(|title| (*title).to_owned()).collect::<Vec<_>>();
    for row in std::iter::once(&header).chain(rows) {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            if column > 0 {
                line.push_str("  ");
            }
            let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
            if column < left {
                line.push_str(cell);
                line.push_str(&padding);
            } else {
                line.push_str(&padding);
                line.push_str(cell);
            }
        }
        shown.push_str(line.trim_end());
        shown.push('\n');
    }
    shown.pop();
    shown
}
