//! How a failed command ends: the message on standard error and the exit code.
//!
//! Invariant: a wrong command line ends with 2, whoever noticed it; everything else that failed ends with 1.

use std::fmt;
use std::process::ExitCode;

use subvol_client::ClientError;

/// An operation failed.
const FAILED: u8 = 1;
/// The command line is wrong; as clap itself exits.
const USAGE: u8 = 2;

/// The command line is wrong in a way that only shows when its parts are seen together.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; see --help", self.0)
    }
}

impl std::error::Error for Usage {}

/// So many parts failed and each was told already.
#[derive(Debug)]
pub struct Told(pub u64);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.0)
    }
}

impl std::error::Error for Told {}

/// A usage error.
pub fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let is_usage = error.chain().any(|cause| {
        cause.is::<Usage>()
            || matches!(cause.downcast_ref(), Some(ClientError::Address(_) | ClientError::Name { .. }))
    });
    if is_usage { USAGE } else { FAILED }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Prints why, and gives the exit code.
pub fn tell(error: &anyhow::Error) -> ExitCode {
    // Whoever read our output has seen enough (`subvol ls | head`): nothing to say. A lost server is a `ClientError`, not this.
    if !error.is::<Told>() && !is_broken_pipe(error) {
        eprintln!("subvol: {error:#}");
    }
    ExitCode::from(exit_code(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_usage_error_is_found_below_its_context() {
        let error = Err::<(), _>(usage("both -a and -b")).context("doing").expect_err("is one");
        assert_eq!(exit_code(&error), USAGE);
        assert_eq!(exit_code(&Told(3).into()), FAILED);
        let address = "nonsense".parse::<subvol_client::Address>().expect_err("no address");
        assert_eq!(exit_code(&ClientError::from(address).into()), USAGE);
        assert_eq!(exit_code(&ClientError::NoServer("x".into()).into()), FAILED);
    }
}
