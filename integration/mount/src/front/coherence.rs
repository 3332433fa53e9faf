//! Recalls, and the loss and return of the connection.
//!
//! A loss ends all leases: names become stale at once, then attributes and pages of every inode go, those without a change under
//! way first (the others wait for its answer). When the connection is back, inodes and locks are claimed again before anything else is
//! asked; a lock that somebody else got meanwhile is lost, and the handles of its file hear of it once.

use std::rc::Rc;

use subvol_protocol::limits::MAX_INODE_LIST;
use subvol_protocol::request::FileRequest;
use subvol_protocol::response::{FileResponse, RecallTarget};

use super::Front;
use super::notifier::Drop;
use crate::backend::{Backend, Event};
use crate::counters::add;

/// Works off what the server says unasked.
pub(super) async fn follow_events<B: Backend>(front: Rc<Front<B>>) {
    loop {
        match front.backend.next_event().await {
            Event::Recall { recall, targets } => front.recalled(recall, &targets),
            Event::Lost => {
                add(&front.counters.connections_lost, 1);
                tracing::warn!("the connection to the server is lost; requests wait for it");
                front.drop_everything();
                front.break_off_interrupted();
            }
            Event::Regained { leases, restarted } => {
                tracing::info!(leases, restarted, "connected to the server again");
                front.drop_everything();
                if front.claim_again().await {
                    front.backend.resume();
                }
            }
            Event::Ended => return,
        }
    }
}

impl<B: Backend> Front<B> {
    fn recalled(self: &Rc<Self>, recall: u64, targets: &[RecallTarget]) {
        add(&self.counters.recalls, targets.len().max(1) as u64);
        if targets.is_empty() {
            self.drop_everything();
            self.notifier.drop_these(Vec::new(), Some(recall));
            return;
        }
        let mut now = Vec::with_capacity(targets.len());
        for target in targets {
            self.inodes.borrow_mut().recalled(target.inode);
            if self.recalls.borrow_mut().recalled(target) {
                now.push(target.clone());
            }
        }
        self.drop_targets(&now, Some(recall));
    }

    /// Has the kernel drop things; then `recall` is acknowledged.
    pub(super) fn drop_targets(&self, targets: &[RecallTarget], recall: Option<u64>) {
        let drops: Vec<Drop> = {
            let inodes = self.inodes.borrow();
            targets
                .iter()
                // What the kernel does not know it does not keep.
                .filter(|target| inodes.contains(target.inode))
                .map(|target| {
                    let nodeid = inodes.nodeid(target.inode);
                    match &target.name {
                        Some(name) => Drop::Name(nodeid, name.as_bytes().into()),
                        None => Drop::Inode(nodeid),
                    }
                })
                .collect()
        };
        if !drops.is_empty() {
            self.notifier.drop_these(drops, recall);
        } else if let Some(recall) = recall {
            self.acknowledge(recall);
        }
    }

    fn drop_everything(&self) {
        self.recalls.borrow_mut().all_recalled();
        let mut inodes = self.inodes.borrow_mut();
        inodes.all_recalled();
        let recalls = self.recalls.borrow();
        let (busy, idle): (Vec<u64>, Vec<u64>) =
            inodes.all().into_iter().partition(|&inode| recalls.is_changing(inode));
        let numbers = |list: Vec<u64>| list.into_iter().map(|inode| inodes.nodeid(inode)).collect();
        self.notifier.drop_these(vec![Drop::All(numbers(idle))], None);
        self.notifier.drop_these(vec![Drop::All(numbers(busy))], None);
    }

    /// Claims inodes and locks again. `false`: the connection was lost once more.
    async fn claim_again(self: &Rc<Self>) -> bool {
        let inodes = self.inodes.borrow().all();
        for part in inodes.chunks(MAX_INODE_LIST) {
            let request = FileRequest::ReclaimInodes { inodes: part.to_vec() };
            match self.backend.recover(request).await {
                Ok((FileResponse::Reclaimed { lost }, _)) => {
                    for inode in lost {
                        // Its name and its data went with the server's memory: whoever has it open hears of it.
                        let _ = self.with_node(inode, |node| node.failures = node.failures.wrapping_add(1));
                    }
                }
                Ok(_) => {}
                Err(_) if !self.backend.is_connected() => return false,
                Err(failure) => tracing::error!(?failure, "inodes could not be claimed again"),
            }
        }
        let locks = self.locks.borrow().all();
        for lock in locks {
            let request = FileRequest::Lock { lock, wait: None, reclaim: true };
            if self.backend.recover(request).await.is_err() {
                if !self.backend.is_connected() {
                    return false;
                }
                tracing::warn!(inode = lock.inode, "a lock went to somebody else while the server was away");
                self.locks.borrow_mut().lost(&lock);
                let _ = self.with_node(lock.inode, |node| node.failures = node.failures.wrapping_add(1));
            }
        }
        true
    }

    /// Claims inodes again that the kernel forgot and met again at the same moment.
    pub(super) fn claim_returned(&self) {
        let returned = self.inodes.borrow_mut().take_returned();
        if !returned.is_empty() {
            self.backend.tell(FileRequest::ReclaimInodes { inodes: returned });
        }
    }
}
