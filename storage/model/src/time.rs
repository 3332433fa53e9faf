//! Times of the model. The caller passes `now`; the model has no clock, so every run repeats exactly.

use std::fmt;

/// A point in time as files keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since the epoch, negative before it.
    pub seconds: i64,
    /// Nanoseconds within the second, below 1 000 000 000.
    pub nanoseconds: u32,
}

impl Time {
    /// A time of the given parts.
    pub const fn new(seconds: i64, nanoseconds: u32) -> Self {
        Self { seconds, nanoseconds }
    }
}

/// A logical counter as a time: one step is one second.
impl From<u64> for Time {
    fn from(counter: u64) -> Self {
        Self { seconds: i64::try_from(counter).unwrap_or(i64::MAX), nanoseconds: 0 }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.seconds, self.nanoseconds)
    }
}
