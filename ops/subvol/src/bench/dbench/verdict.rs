//! Is an outcome what the load file says? Judged as dbench does.

use subvol_client::{ClientError, ErrorCode};

use super::load_file::{Expected, Handle, Line, Operation};

/// How an operation went wrong.
pub(super) enum Wrong {
    /// The server says so.
    Status(ClientError),
    /// The load file uses a handle that is not open.
    NoHandle(Handle),
    /// Fewer bytes than expected.
    Length(u64),
}

impl From<ClientError> for Wrong {
    fn from(error: ClientError) -> Self {
        Self::Status(error)
    }
}

/// What is wrong with an outcome, judged as dbench does.
pub(super) fn complaint(line: &Line, outcome: &Result<(), Wrong>, strict: bool) -> Option<String> {
    let by_status = match line.operation {
        Operation::CreateX { .. }
        | Operation::Rename { .. }
        | Operation::Unlink { .. }
        | Operation::Rmdir { .. } => true,
        Operation::PathInfo { .. } => strict,
        _ => false,
    };
    match outcome {
        Err(Wrong::NoHandle(handle)) => Some(format!("uses handle {handle}, which is not open")),
        Err(Wrong::Length(length)) => Some(format!("moved {length} bytes, not what the load file says")),
        Err(Wrong::Status(error)) if error.code().is_none() => Some(format!("failed: {error}")),
        Ok(()) if by_status && line.expected == Expected::Failure => {
            Some("succeeded, but the load file says it fails".into())
        }
        Ok(()) => None,
        Err(Wrong::Status(error)) => {
            let unexpected = match line.operation {
                _ if by_status => line.expected == Expected::Success,
                // dbench does not look; these are what it may well meet.
                Operation::PathInfo { .. } | Operation::Find { .. } | Operation::Deltree { .. } => {
                    !error.is_not_found() && error.code() != Some(ErrorCode::NotDirectory)
                }
                Operation::Mkdir { .. } => {
                    error.code() != Some(ErrorCode::Exists) && line.expected != Expected::Failure
                }
                _ => line.expected == Expected::Success,
            };
            unexpected.then(|| format!("failed: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(operation: Operation, expected: Expected, outcome: Result<(), Wrong>, strict: bool) -> bool {
        complaint(&Line { number: 1, operation, expected }, &outcome, strict).is_some()
    }

    #[test]
    fn statuses_are_judged_as_dbench_does() {
        use Expected::{Any, Failure, Success};
        let missing = || Err(Wrong::Status(ClientError::Server(ErrorCode::NotFound.into())));
        let create = || Operation::CreateX { path: 0, options: 0, disposition: 1, handle: 1 };
        assert!(!told(create(), Failure, missing(), false));
        assert!(told(create(), Success, missing(), false));
        assert!(told(create(), Failure, Ok(()), false));
        assert!(!told(create(), Any, Ok(()), false));
        assert!(!told(Operation::PathInfo { path: 0 }, Success, missing(), false));
        assert!(told(Operation::PathInfo { path: 0 }, Success, missing(), true));
        assert!(!told(Operation::Deltree { path: 0 }, Success, missing(), false));
        assert!(told(Operation::Flush { handle: 1 }, Success, missing(), false));
        assert!(told(Operation::Flush { handle: 1 }, Success, Err(Wrong::NoHandle(1)), false));
        assert!(told(Operation::FsInfo, Any, Err(Wrong::Status(ClientError::Closed)), false));
    }
}
