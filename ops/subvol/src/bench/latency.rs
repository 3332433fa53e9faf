//! Latencies as a histogram, and how they are shown.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Percentiles that are shown.
const SHOWN: [(&str, f64); 4] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99_9", 99.9)];
/// Longest latency that is told apart; longer ones count as this.
const LONGEST: u64 = 3_600_000_000_000;

/// Latencies of one kind of operation, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    total: u128,
    // Exact, unlike the histogram's.
    max: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = match Histogram::new_with_bounds(1, LONGEST, 3) {
            Ok(histogram) => histogram,
            // The bounds are constants that are right.
            Err(error) => unreachable!("constant bounds: {error:?}"),
        };
        Self { histogram, total: 0, max: 0 }
    }
}

impl Latencies {
    /// One operation.
    pub fn record(&mut self, took: Duration) {
        let nanoseconds = took.as_nanos().min(u128::from(LONGEST)) as u64;
        self.histogram.saturating_record(nanoseconds);
        self.total += u128::from(nanoseconds);
        self.max = self.max.max(nanoseconds);
    }

    /// Takes in another's.
    pub fn merge(&mut self, other: &Self) {
        // Same bounds, so it fits.
        if self.histogram.add(&other.histogram).is_err() {
            unreachable!("histograms of the same bounds");
        }
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// Operations.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Milliseconds on average; 0 without any.
    pub fn mean(&self) -> f64 {
        match self.count() {
            0 => 0.0,
            count => self.total as f64 / count as f64 / 1e6,
        }
    }

    /// The longest, in milliseconds.
    pub fn max(&self) -> f64 {
        self.max as f64 / 1e6
    }

    fn percentiles(&self) -> impl Iterator<Item = (&'static str, f64)> {
        SHOWN.into_iter().map(|(name, percent)| {
            // Values are rounded up to the histogram's steps; never above the longest there was.
            (name, self.histogram.value_at_percentile(percent).min(self.max) as f64 / 1e6)
        })
    }

    /// `p50 0.123  p99 ...  max 1.234 ms`.
    pub fn text(&self) -> String {
        let shown: Vec<String> = self
            .percentiles()
            .map(|(name, value)| format!("{} {value:.3}", name.replace('_', ".")))
            .chain([format!("max {:.3} ms", self.max())])
            .collect();
        shown.join("  ")
    }

    /// All of it, in milliseconds.
    pub fn json(&self) -> Value {
        let mut fields = json!({ "count": self.count(), "mean_ms": self.mean(), "max_ms": self.max() });
        if let Some(fields) = fields.as_object_mut() {
            fields.extend(self.percentiles().map(|(name, value)| (format!("{name}_ms"), value.into())));
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_never_exceed_the_longest() {
        let mut one = Latencies::default();
        assert_eq!((one.count(), one.mean(), one.max()), (0, 0.0, 0.0));
        (1..=1000).for_each(|micros| one.record(Duration::from_micros(micros)));
        let mut all = Latencies::default();
        all.record(Duration::from_secs(100_000));
        all.merge(&one);
        assert_eq!(all.count(), 1001);
        assert!(one.percentiles().all(|(_, value)| value <= one.max()));
        let (_, median) = one.percentiles().next().expect("p50");
        assert!((median - 0.5).abs() < 0.002, "{median}");
    }
}
