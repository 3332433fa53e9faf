//! Sequences of operation ids, and the promise about them: no unanswered operation is further behind the newest than the server
//! remembers. A server that has forgotten an operation could not tell a retry from a new one.

use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct OperationWindow {
    /// The oldest sequence that is unanswered, or the next one.
    first: u64,
    /// Whether `first + index` is answered.
    answered: VecDeque<bool>,
    limit: usize,
}

impl OperationWindow {
    pub const fn new(limit: u32) -> Self {
        Self { first: 1, answered: VecDeque::new(), limit: limit as usize }
    }

    pub const fn set_limit(&mut self, limit: u32) {
        self.limit = limit as usize;
    }

    /// The next sequence; `None` while the oldest unanswered one is too far behind.
    pub fn next(&mut self) -> Option<u64> {
        if self.answered.len() >= self.limit {
            return None;
        }
        let sequence = self.first + self.answered.len() as u64;
        self.answered.push_back(false);
        Some(sequence)
    }

    /// The operation is answered, or given up. Returns whether that made room.
    pub fn done(&mut self, sequence: u64) -> bool {
        let Some(answered) = sequence
            .checked_sub(self.first)
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| self.answered.get_mut(index))
        else {
            return false;
        };
        *answered = true;
        let full = self.answered.len() >= self.limit;
        while self.answered.front() == Some(&true) {
            self.answered.pop_front();
            self.first += 1;
        }
        full && self.answered.len() < self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_old_operation_holds_the_window() {
        let mut window = OperationWindow::new(3);
        assert_eq!([window.next(), window.next(), window.next()], [Some(1), Some(2), Some(3)]);
        assert!(!window.done(2));
        assert!(!window.done(3));
        assert_eq!(window.next(), None);
        assert!(window.done(1));
        assert_eq!(window.next(), Some(4));
        assert!(!window.done(1), "an answer twice changes nothing");
    }
}
