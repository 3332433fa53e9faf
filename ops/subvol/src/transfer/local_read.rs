//! Reading a piece of a local file.

use bytes::Bytes;

/// The bytes from `at` on, `length` at most; fewer where the file ends.
pub fn read_piece(file: &std::fs::File, at: u64, length: usize) -> std::io::Result<Bytes> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..)
        && !rest.is_empty()
    {
        match file.read_at(rest, at + filled as u64) {
            // Cut meanwhile: it is copied as it is now.
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes.into())
}
